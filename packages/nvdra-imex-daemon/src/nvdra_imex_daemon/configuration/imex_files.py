# SPDX-License-Identifier: Apache-2.0
"""Writes the files that IMEX reads: its configuration, its list of peers, the hosts file.

All methods block and run on the thread "files". A file is written only if its content changes.
Source: docs/reference/imex.md, "The run command", "DNS names", "IP addresses";
docs/reference/compute-domain.md, "Races and correctness" (KW-41).
"""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import takewhile
from pathlib import Path

from nvdra_api.errors import Reason, RetryableError
from nvdra_runtime.node.files import remove_temporary_files, write_atomic
from nvdra_runtime.telemetry import logs

from nvdra_imex_daemon.configuration import hosts_file, imex_config
from nvdra_imex_daemon.configuration.dns_names import DnsNames
from nvdra_imex_daemon.configuration.peers import Peer

LOG = logs.logger(__name__)


class ImexFiles:
    """The files of one daemon."""

    def __init__(
        self,
        *,
        template: Path,
        config: Path,
        nodes: Path,
        hosts: Path,
        pod_ip: str,
        names: DnsNames,
        name_count: int,
    ) -> None:
        """Create the object; no file is read or written yet.

        Args:
            template: The template of the configuration, which the plugin has written.
            config: IMEX's configuration, made from the template.
            nodes: IMEX's list of peers.
            hosts: The container's hosts file. It is a mount and can only be written in place.
            pod_ip: The address at which IMEX listens for nvidia-imex-ctl.
            names: The names of the domain's daemons.
            name_count: Number of possible peers; 0 if peers are known by address.
        """
        self._template = template
        self._config = config
        self._nodes = nodes
        self._hosts = hosts
        self._names = names
        self._name_count = name_count
        self._values = {
            imex_config.COMMAND_IP_FIELD: pod_ip,
            imex_config.NODES_FILE_FIELD: str(nodes),
        }

    def remove_temporary_files(self, others: Iterable[Path]) -> None:
        """Remove what a killed daemon of this node has left of files that it was writing.

        A predecessor that still runs fails to write the file that it is just writing, and tries it
        again.

        Args:
            others: Further files that a daemon writes, in the same directory as ours.
        """
        names = {path.name for path in (self._config, self._nodes, *others)}
        try:
            remove_temporary_files(self._config.parent, names)
        except OSError as error:
            LOG.warning("Cannot remove temporary files of a former daemon", error=str(error))

    def write_start_files(self) -> None:
        """Write what a new IMEX reads: its configuration and the names of all possible peers.

        Raises:
            RetryableError: `DaemonNotReady`: A file cannot be read or written.
            PermanentError: `InvalidConfig`: The template contains something that is not supported.
        """
        with _os_error_as_retryable(
            self._template, "the plugin of this node writes it before this pod starts"
        ):
            template = self._template.read_text()
        _write_if_changed(self._config, imex_config.render_config(template, self._values))
        if self._name_count:
            _write_if_changed(self._nodes, imex_config.render_names(self._names, self._name_count))

    def write_addresses(self, ips: Iterable[str]) -> bool:
        """Write the peers' addresses in this order. Returns whether the file has changed.

        Raises:
            RetryableError: `DaemonNotReady`: The file cannot be written.
        """
        return _write_if_changed(self._nodes, imex_config.render_addresses(ips))

    def write_hosts(self, clique_peers: Iterable[Peer]) -> bool:
        """Write the peers' names to the hosts file. Returns whether the file has changed.

        Only the bytes that differ are written, which are those of the block at the file's end.

        Raises:
            RetryableError: `DaemonNotReady`: The file cannot be written. Its old content is
                restored if possible.
        """
        with _os_error_as_retryable(self._hosts), self._hosts.open("r+b", buffering=0) as file:
            before = file.readall()
            text = before.decode(errors="surrogateescape")
            named = hosts_file.with_peers(text, clique_peers, self._names, self._name_count)
            after = named.encode(errors="surrogateescape")
            if after == before:
                return False
            try:
                _overwrite(file.fileno(), before, after)
            except OSError:
                with suppress(OSError):
                    _overwrite(file.fileno(), b"", before)
                raise
        return True


def _write_if_changed(path: Path, text: str) -> bool:
    data = text.encode()
    with _os_error_as_retryable(path):
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
def _os_error_as_retryable(
    path: Path, remedy: str = "check the node's disk and the pod's mounts"
) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RetryableError(
            Reason.DAEMON_NOT_READY, f"{path}: {error.strerror}", remedy, path=str(path)
        ) from error
