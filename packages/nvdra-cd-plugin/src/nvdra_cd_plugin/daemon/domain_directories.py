# SPDX-License-Identifier: Apache-2.0
"""The directories of domains on this node, which a domain's daemon sees as /imexd.

A domain's UID is the only name that comes from outside. It is opened relative to the descriptor of
the parent directory, without following links, so a link that a container puts there leads nowhere.
The functions block: call them on the thread for files.

Source: docs/reference/compute-domain.md, "Files, sockets and devices"; docs/reference/imex.md, "The
run command"; docs/reference/compute-domain.md, "Security" (KW-51).
"""

import os
import shutil
import stat
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from nvdra_api.errors import Reason, RetryableError
from nvdra_api.ids import CliqueID, DomainUID, PodUID, is_uid
from nvdra_runtime.computedomain import node_clique, ready_lock

TEMPLATE_NAME: Final = "imexd.cfg.tmpl"
"""The file from which the daemon makes the configuration of its IMEX. It is a Go template, which
the daemons of the reference driver understand, too."""

_TEMPLATE: Final = """\
# Configuration of nvidia-imex in the daemons of ComputeDomains; the daemon fills in two values.
LOG_LEVEL=4
LOG_FILE_NAME=
LOG_APPEND_TO_LOG=0
LOG_FILE_MAX_SIZE=1024
LOG_MAX_ROTATE_COUNT=10
LOG_USE_SYSLOG=0
STATS_FILE_NAME=/var/log/nvidia-imex-stats.log
DAEMONIZE=0

# Peers, by the list that the daemon keeps.
IMEX_NODE_CONFIG_FILE={{ .IMEXDaemonNodesConfigPath }}
BIND_INTERFACE_IP=
SERVER_PORT=50000
NETWORK_INTERFACE=
IMEX_WAIT_FOR_QUORUM=RECOVERY
IMEX_NODE_DISCONNECTED_GRACE_TIME=-1

# Where nvidia-imex-ctl asks.
IMEX_CMD_ENABLED=1
IMEX_CMD_BIND_INTERFACE_IP={{ .IMEXCmdBindInterfaceIP }}
IMEX_CMD_PORT=50005
IMEX_CMD_UNIX_DOMAIN_PATH=

# Encryption between peers is off.
IMEX_ENABLE_AUTH_ENCRYPTION=0
IMEX_AUTH_ENCRYPTION_MODE=SSL_TLS
IMEX_AUTH_SOURCE=
IMEX_SERVER_KEY=
IMEX_SERVER_CERT=
IMEX_SERVER_CERT_AUTH=
IMEX_CLIENT_KEY=
IMEX_CLIENT_CERT=
IMEX_CLIENT_CERT_AUTH=
IMEX_SECURITY_TARGET_OVERRIDE=
IMEX_GSS_SERVICE_NAME=host
IMEX_GSS_TIMEOUT_SEC=30
IMEX_GSS_RETRY_INTERVAL_SEC=5
IMEX_GSS_SEC_CONTEXT_LIFETIME_SEC=-1
IMEX_GSS_SHUTDOWN_ON_FAILURE=0
"""
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class DomainDirectories:
    """The directory `domains/` in the plugin's directory."""

    def __init__(self, plugin_dir: Path) -> None:
        self._root = plugin_dir / "domains"

    def path(self, uid: DomainUID) -> Path:
        """The domain's directory; the path on the host is the same."""
        return self._root / uid

    def create(self, uid: DomainUID) -> None:
        """Create the domain's directory and the template in it, unless they are there already.

        Raises:
            RetryableError: `StateUnavailable`: the file system refused.
        """
        assert is_uid(uid), uid  # `plan.make` refuses anything else
        try:
            self._root.mkdir(mode=0o755, parents=True, exist_ok=True)
            with self._open_root() as root:
                with suppress(FileExistsError):
                    os.mkdir(uid, 0o755, dir_fd=root)
                directory = os.open(uid, _DIRECTORY, dir_fd=root)
                try:
                    _write(directory, TEMPLATE_NAME, _TEMPLATE.encode())
                finally:
                    os.close(directory)
        except OSError as error:
            raise RetryableError(
                Reason.STATE_UNAVAILABLE,
                f"{self.path(uid)}, the directory of ComputeDomain {uid}: {error.strerror}",
                "check the disk of the plugin's directory",
                domain=uid,
            ) from error

    def write_node_clique(self, uid: DomainUID, clique: CliqueID) -> None:
        """Tell the domain's daemon in which clique the GPUs of the node are now.

        Raises:
            OSError: The file system refused.
        """
        assert is_uid(uid), uid
        with self._open_root() as root:
            directory = os.open(uid, _DIRECTORY, dir_fd=root)
            try:
                _write(directory, node_clique.FILE, node_clique.content(clique))
            finally:
                os.close(directory)

    def is_ready_lock_held(self, uid: DomainUID, pods: Collection[PodUID]) -> bool | None:
        """Whether the domain's daemon lives and its IMEX is READY, by the lock that it holds.

        Args:
            uid: The domain.
            pods: The pods that the daemon's claim is reserved for.

        Returns:
            None if the daemon does not know the lock, as the reference driver's.

        Raises:
            OSError: The file system refused.
        """
        assert is_uid(uid), uid
        if not self._root.is_dir():
            return None
        with self._open_root() as root:
            try:
                directory = os.open(uid, _DIRECTORY, dir_fd=root)
            except FileNotFoundError:
                return None
            try:
                return ready_lock.is_held(directory, pods)
            finally:
                os.close(directory)

    def remove_stale(self, used: Collection[DomainUID]) -> list[str]:
        """Remove the directories of domains that are not `used`; return their names.

        Raises:
            OSError: the file system refused.
        """
        if not self._root.is_dir():
            return []
        with self._open_root() as root:
            stale = [name for name in os.listdir(root) if name not in used]  # noqa: PTH208 - by descriptor
            for name in stale:
                _remove(root, name)
        return stale

    @contextmanager
    def _open_root(self) -> Iterator[int]:
        descriptor = os.open(self._root, _DIRECTORY)
        try:
            yield descriptor
        finally:
            os.close(descriptor)


def _write(directory: int, name: str, data: bytes) -> None:
    """Write a file atomically unless it has this content; a link in its place is replaced."""
    with suppress(OSError):
        if _read(directory, name) == data:
            return
    temporary = f".{name}.{os.urandom(4).hex()}"
    descriptor = os.open(temporary, _NEW, 0o644, dir_fd=directory)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            os.fchmod(file.fileno(), 0o644)
        os.rename(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(temporary, dir_fd=directory)
        raise


def _read(directory: int, name: str) -> bytes:
    # O_NONBLOCK: opening a FIFO in the file's place must not block.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with os.fdopen(os.open(name, flags, dir_fd=directory), "rb") as file:
        return file.read(len(_TEMPLATE) + 1)


def _remove(root: int, name: str) -> None:
    if stat.S_ISDIR(os.stat(name, dir_fd=root, follow_symlinks=False).st_mode):
        shutil.rmtree(name, dir_fd=root)
    else:
        os.unlink(name, dir_fd=root)
