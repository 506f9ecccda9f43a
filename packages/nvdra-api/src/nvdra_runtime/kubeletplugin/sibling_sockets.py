# SPDX-License-Identifier: Apache-2.0
"""The sockets of the other instances of a driver on the node.

Kubelet 1.33 calls the instance that was registered last, even if it is dead. An instance that was
killed leaves its sockets, and if its pod is gone, nothing else removes them.
Source: docs/reference/kubelet-plugin.md, "Rolling updates", "Socket files".
"""

import asyncio
import errno
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from nvdra_runtime.kubeletplugin import registration, sockets
from nvdra_runtime.kubeletplugin.registration import SocketPaths
from nvdra_runtime.kubeletplugin.sockets import SocketID
from nvdra_runtime.telemetry import logs

LOG = logs.logger(__name__)

_INTERVAL_S: Final = 3.0
"""Between two checks. A socket must be dead in two of them in a row, so that one whose owner starts
again just now is left alone."""


class SiblingSockets:
    """The sockets of a driver's instances other than this one."""

    def __init__(self, driver: str, plugin_dir: Path, registry_dir: Path) -> None:
        self.own: frozenset[Path] = frozenset()
        self._driver = driver
        self._plugin_dir = plugin_dir
        self._registry_dir = registry_dir
        self._suspects: dict[Path, SocketID] = {}

    def set_own(self, paths: SocketPaths) -> None:
        """Set the sockets of this instance, which are not looked at."""
        self.own = frozenset((Path(paths.dra), Path(paths.registration)))

    async def run(self) -> None:
        """Remove dead sockets periodically, until cancelled."""
        while True:
            await self.remove_dead()
            await asyncio.sleep(_INTERVAL_S)

    async def remove_dead(self) -> None:
        """Remove the sockets that were not served in the last call and in this one."""
        dead: dict[Path, SocketID] = {}
        for path in self._paths():
            identity = await _identity_if_dead(path)
            if identity is not None:
                dead[path] = identity
        for path in repeatedly_dead(self._suspects, dead):
            try:
                if sockets.is_ours(path, dead.pop(path)):
                    path.unlink()
                    LOG.warning("Removed the socket of an instance that has died", path=str(path))
            except OSError as error:
                LOG.warning("The socket of an instance that has died stays", error=str(error))
        self._suspects = dead

    async def newest_served(self) -> Path | None:
        """The newest DRA socket of another instance, if it is served on."""
        newest = self.newest()
        if newest is None:
            return None
        try:
            await sockets.check_available(newest)
        except OSError as error:
            return newest if error.errno == errno.EADDRINUSE else None
        return None

    def newest(self) -> Path | None:
        """The newest DRA socket of another instance, served on or not."""
        found: list[tuple[int, Path]] = []
        for path in self._dra_sockets():
            try:
                found.append((path.lstat().st_ctime_ns, path))
            except OSError:
                continue  # it has just been removed
        return max(found)[1] if found else None

    def _paths(self) -> Iterator[Path]:
        """Registration sockets come first, so that the kubelet stops calling a dead instance."""
        for path in _listed(self._registry_dir):
            if registration.is_registration_socket(self._driver, path.name):
                yield from self._foreign(path)
        yield from self._dra_sockets()

    def _dra_sockets(self) -> Iterator[Path]:
        for path in _listed(self._plugin_dir):
            if registration.is_dra_socket(path.name):
                yield from self._foreign(path)

    def _foreign(self, path: Path) -> Iterator[Path]:
        if path not in self.own:
            yield path


def repeatedly_dead(before: dict[Path, SocketID], now: dict[Path, SocketID]) -> list[Path]:
    """The sockets that were dead before and still are, in the order of `now`."""
    return [path for path, identity in now.items() if before.get(path) == identity]


async def _identity_if_dead(path: Path) -> SocketID | None:
    """The identity of a socket that is not served; None for any other file."""
    try:
        status = path.lstat()
        await sockets.check_available(path)
    except OSError:
        return None
    return SocketID(status.st_dev, status.st_ino)


def _listed(directory: Path) -> Iterable[Path]:
    try:
        return sorted(directory.iterdir())
    except OSError:
        return ()  # the socket server reports what is wrong with it
