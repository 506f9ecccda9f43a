# SPDX-License-Identifier: Apache-2.0
"""Asks nvidia-persistenced, which keeps GPUs open, for the mode of one of them.

The daemon is asked by its own socket, in the driver root. NVML would ask it, too, but looks for the
socket at `/var/run` of this container, where it is not; then it sets the mode of the kernel module,
and the daemon keeps the GPU open (docs/decisions/gpu-plugin.md). The calls are ONC RPC (RFC 5531)
without credentials, and block.

Source: NVIDIA/nvidia-persistenced, nvpd_rpc.h: program 35006, version 1.
"""

import os
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from nvdra_api.ids import PciAddress
from nvdra_runtime.node import host as hosts
from nvdra_runtime.node.host import Host

TIMEOUT_S: Final = 10.0
"""How long an answer may take: the daemon has the GPU started when it opens it, 1 to 3 s."""

_DIRECTORIES: Final = ("run/nvidia-persistenced", "var/run/nvidia-persistenced")
_NAME: Final = "socket"
_CALL, _RPC_VERSION, _PROGRAM, _VERSION = 0, 2, 35006, 1
_SET_MODE, _GET_MODE = 1, 2
_SUCCESS, _NOT_FOUND = 0, 2
_LAST_FRAGMENT: Final = 1 << 31
_MOST_BYTES: Final = 1024
"""Of an answer, which has 32."""


class PersistencedError(Exception):
    """The daemon does not do what it is asked for, or does not answer."""


def is_keeping(host: Host, pci: PciAddress) -> bool | None:
    """Whether the daemon keeps a GPU open; None if no daemon answers for it.

    Raises:
        PersistencedError: The daemon is there and fails.
    """
    found = _ask(host, _GET_MODE, pci)
    return None if found is None else bool(found[0])


def keep(host: Host, pci: PciAddress, *, is_on: bool) -> bool:
    """Have the daemon open a GPU, or close it.

    Returns:
        False if there is no daemon that knows the GPU.

    Raises:
        PersistencedError: It cannot open a GPU again that was unbound meanwhile
            (kubernetes-sigs/dra-driver-nvidia-gpu#1037), or fails otherwise.
    """
    return _ask(host, _SET_MODE, pci, int(is_on)) is not None


def _ask(host: Host, procedure: int, pci: PciAddress, *arguments: int) -> tuple[int, ...] | None:
    """The result of a call after its status; None: there is no daemon, or it has no such GPU."""
    domain, bus, rest = pci.split(":")
    slot, _, function = rest.partition(".")
    address = (int(word, 16) for word in (domain, bus, slot, function))
    no_credentials = (0, 0, 0, 0)
    words = (1, _CALL, _RPC_VERSION, _PROGRAM, _VERSION, procedure, *no_credentials, *address)
    try:
        with _connected(host) as daemon:
            if daemon is None:
                return None
            _send(daemon, (*words, *arguments))
            answer = _receive(daemon)
    except (OSError, EOFError) as error:
        raise PersistencedError(f"nvidia-persistenced does not answer: {error}") from error
    # The call's number, a reply, accepted, no verifier, and that the call was carried out.
    if answer[:6] != (1, 1, 0, 0, 0, 0) or len(answer) < 7:
        raise PersistencedError(f"nvidia-persistenced has refused the call: {answer}")
    status, *result = answer[6:]
    if status == _NOT_FOUND:
        return None
    if status != _SUCCESS or len(result) < (procedure == _GET_MODE):
        raise PersistencedError(f"nvidia-persistenced has failed for {pci}: NvPdStatus {status}")
    return tuple(result)


@contextmanager
def _connected(host: Host) -> Iterator[socket.socket | None]:
    """A connection to the daemon; None if nobody listens."""
    directory = _directory(host)
    if directory is None:
        yield None
        return
    with socket.socket(socket.AF_UNIX) as daemon:
        daemon.settimeout(TIMEOUT_S)
        number = os.open(directory, os.O_PATH | os.O_CLOEXEC)
        try:  # a driver root may make the path longer than the address of a socket can be
            daemon.connect(f"/proc/self/fd/{number}/{_NAME}")
        except (FileNotFoundError, ConnectionRefusedError):
            yield None
            return
        finally:
            os.close(number)
        yield daemon


def _directory(host: Host) -> Path | None:
    for name in _DIRECTORIES:
        found = hosts.resolve_in_root(host.driver_root, Path(name))
        if found is not None and (found / _NAME).is_socket():
            return found
    return None


def _send(daemon: socket.socket, words: tuple[int, ...]) -> None:
    message = struct.pack(f">{len(words)}I", *words)
    daemon.sendall(struct.pack(">I", _LAST_FRAGMENT | len(message)) + message)


def _receive(daemon: socket.socket) -> tuple[int, ...]:
    (mark,) = struct.unpack(">I", _read(daemon, 4))
    size = mark & ~_LAST_FRAGMENT
    if not mark & _LAST_FRAGMENT or size > _MOST_BYTES or size % 4:
        raise EOFError("its answer is none")
    return struct.unpack(f">{size // 4}I", _read(daemon, size))


def _read(daemon: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        part = daemon.recv(size - len(found))
        if not part:
            raise EOFError("it has closed the connection")
        found += part
    return found
