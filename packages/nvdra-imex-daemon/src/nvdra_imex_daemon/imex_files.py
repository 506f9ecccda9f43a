"""The files that IMEX reads: its configuration, its list of peers, their names in the hosts file.

All of it blocks and runs on the thread "files". Nothing is written that is there already.
Source: spec/compute-domain.md §§8.3, 8.5, 8.6; §14.2 (KW-41).
"""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import takewhile
from pathlib import Path

from nvdra_api.runtime.node.files import write_atomic
from nvdra_api.types.errors import Reason, RetryableError

from nvdra_imex_daemon import hosts, render
from nvdra_imex_daemon.peers import Peer


class ImexFiles:
    """The files of one daemon."""

    def __init__(
        self,
        *,
        template: Path,
        config: Path,
        nodes: Path,
        hosts_file: Path,
        pod_ip: str,
        names: int,
    ) -> None:
        """Nothing is read or written yet.

        Args:
            template: What the plugin left for us.
            config: IMEX's configuration, made from it.
            nodes: IMEX's list of peers.
            hosts_file: The container's hosts file: a mount, so it can only be written in place.
            pod_ip: Where IMEX listens for its tool.
            names: How many names peers can have; 0 where they are known by address.
        """
        self._template = template
        self._config = config
        self._nodes = nodes
        self._hosts = hosts_file
        self._names = names
        self._values = {render.COMMAND_IP: pod_ip, render.NODES_FILE: str(nodes)}

    def prepare(self) -> None:
        """Make what a new IMEX reads: its configuration, and all the names there can be.

        Raises:
            RetryableError: `DaemonNotReady`: a file cannot be read or written.
            PermanentError: `InvalidConfig`: the template asks for what we do not know.
        """
        with _told(self._template, "the plugin of this node writes it before this pod starts"):
            template = self._template.read_text()
        _replace(self._config, render.config(template, self._values))
        if self._names:
            _replace(self._nodes, render.names(self._names))

    def list_addresses(self, ips: Iterable[str]) -> bool:
        """Let IMEX have peers by address, in this order; whether the file changed.

        Raises:
            RetryableError: `DaemonNotReady`.
        """
        return _replace(self._nodes, render.addresses(ips))

    def name_peers(self, found: Iterable[Peer]) -> bool:
        """Give the peers their names; whether the hosts file changed.

        Only the bytes that differ are written, which with the block at the file's end are its own.

        Raises:
            RetryableError: `DaemonNotReady`; the file is as it was, as far as that can be had.
        """
        with _told(self._hosts), self._hosts.open("r+b", buffering=0) as file:
            before = file.readall()
            text = before.decode(errors="surrogateescape")
            after = hosts.with_peers(text, found).encode(errors="surrogateescape")
            if after == before:
                return False
            try:
                _overwrite(file.fileno(), before, after)
            except OSError:
                with suppress(OSError):
                    _overwrite(file.fileno(), b"", before)
                raise
        return True


def _replace(path: Path, text: str) -> bool:
    data = text.encode()
    with _told(path):
        if path.exists() and path.read_bytes() == data:
            return False
        write_atomic(path, data)
    return True


def _overwrite(descriptor: int, before: bytes, after: bytes) -> None:
    same = takewhile(lambda pair: pair[0] == pair[1], zip(before, after, strict=False))
    start = sum(1 for _ in same)
    while start < len(after):
        start += os.pwrite(descriptor, after[start:], start)
    os.ftruncate(descriptor, len(after))


@contextmanager
def _told(path: Path, remedy: str = "see the node's disk and the pod's mounts") -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RetryableError(
            Reason.DAEMON_NOT_READY, f"{path}: {error.strerror}", remedy, path=str(path)
        ) from error
