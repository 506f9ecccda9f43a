# SPDX-License-Identifier: Apache-2.0
"""Answers the requests of one mount: reads from plain files, writes to controls by procedures.

One thread does everything. A write that has to wait is a procedure that is asked again from time to
time, and an answer that is not sent yet; its writer sleeps meanwhile as one of the kernel's does:
interruptible at first, and not any more once it has been killed.
"""

from __future__ import annotations

import ctypes
import errno
import os
import select
import signal
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from nvdra_sim.pci.machine import StateMachine
from nvdra_sim.pci.writes import Procedure, Wait
from nvdra_sim.sysfs_server import controls, protocol
from nvdra_sim.sysfs_server.nodes import NodeTable
from nvdra_sim.sysfs_server.protocol import NO_ANSWER, Opcode, Request

IDLE_INTERVAL_S = 0.1
WAIT_INTERVAL_S = 0.05
CONTROL_SIZE = 4096  # a page, as files of sysfs are
KEPT_S = 3600
END_ERROR = errno.EIO
"""What a write gets that still waits when the server ends."""

_libc = ctypes.CDLL(None)


@dataclass
class _Pending:
    """A write without an answer yet."""

    unique: int
    size: int
    thread: int
    procedure: Procedure
    is_uninterruptible: bool = False


class SysfsServer:
    """One mount.

    Attributes:
        connection: The descriptor of the FUSE device.
    """

    def __init__(self, connection: int, plain: Path, machine: StateMachine) -> None:
        self.connection = connection
        self._plain = plain
        self._machine = machine
        self._nodes = NodeTable()
        self._pending: list[_Pending] = []
        self._answers: Mapping[int, Callable[[Request], bytes]] = {
            Opcode.INIT: lambda request: protocol.init_answer(request.body),
            Opcode.LOOKUP: self._look_up,
            Opcode.GETATTR: self._get_attributes,
            Opcode.SETATTR: self._get_attributes,  # sysfs keeps none of them
            Opcode.READLINK: lambda request: os.fsencode(self._file(request.node).readlink()),
            Opcode.OPEN: self._open,
            Opcode.OPENDIR: self._open,
            Opcode.READ: self._read,
            Opcode.READDIR: self._list,
            Opcode.RELEASE: lambda _: b"",
            Opcode.RELEASEDIR: lambda _: b"",
            Opcode.STATFS: lambda _: protocol.statfs_answer(),
        }

    def run(self, stop: int) -> None:
        """Answers until the file system is unmounted, or `stop` can be read.

        Args:
            stop: A descriptor.
        """
        poll = select.poll()
        poll.register(self.connection, select.POLLIN)
        poll.register(stop, select.POLLIN)
        while True:
            seconds = WAIT_INTERVAL_S if self._pending else IDLE_INTERVAL_S
            ready = dict(poll.poll(seconds * 1000))
            if stop in ready:
                return
            self._machine.refresh()
            if self.connection in ready and not self._serve():
                return
            self._advance()

    def answer_all(self) -> None:
        """Answers all writes that wait, with an error, so that no process stays in the kernel."""
        for each in self._pending:
            each.procedure.close()
            self._send(protocol.failure(each.unique, END_ERROR))
        self._pending = []

    def _serve(self) -> bool:
        """Answers the requests that are there; false: the file system is unmounted."""
        while True:
            try:
                message = os.read(self.connection, protocol.READ_BUFFER)
            except BlockingIOError:
                return True
            except OSError as error:
                if error.errno == errno.ENODEV:
                    return False
                if error.errno in (errno.ENOENT, errno.EINTR):  # taken back by the kernel
                    continue
                raise
            self._handle(protocol.parse(message))

    def _handle(self, request: Request) -> None:
        if request.opcode in NO_ANSWER:
            # INTERRUPT: a writer that was sent a signal goes on waiting, as in the kernel.
            if request.opcode in (Opcode.FORGET, Opcode.BATCH_FORGET):
                for node, lookups in protocol.forgotten(request):
                    self._nodes.forget(node, lookups)
            return
        if request.opcode == Opcode.WRITE:
            self._write(request)
            return
        run = self._answers.get(request.opcode)
        if run is None:
            self._send(protocol.failure(request.unique, errno.ENOSYS))
            return
        try:
            answer = protocol.answer(request.unique, run(request))
        except OSError as error:
            answer = protocol.failure(request.unique, error.errno or errno.EIO)
        self._send(answer)

    def _send(self, answer: bytes) -> None:
        """The kernel refuses an answer to a request that nobody waits for any more."""
        try:
            os.write(self.connection, answer)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENODEV):
                raise

    # Reading

    def _path(self, node: int) -> str:
        found = self._nodes.path(node)
        if found is None:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return found

    def _file(self, node: int) -> Path:
        return Path(f"{self._plain}{self._path(node)}")

    def _look_up(self, request: Request) -> bytes:
        path = f"{self._path(request.node)}/{protocol.name_of(request.body)}"
        found = self._stat(path)
        fresh = stat.S_ISREG(found.st_mode) and controls.is_control(path)
        node = self._nodes.look_up(path, None if fresh else found.st_ino)
        kept_s = KEPT_S if controls.is_permanent(path) else 0
        return protocol.entry_answer(node, found, _size(found), kept_s)

    def _get_attributes(self, request: Request) -> bytes:
        found = self._stat(self._path(request.node))
        return protocol.attributes_answer(request.node, found, _size(found))

    def _stat(self, path: str) -> os.stat_result:
        """Of the plain file; the hidden controls look as `unbind` of a driver does."""
        if controls.is_hidden(path):
            return Path(f"{self._plain}/bus/pci/drivers_probe").lstat()
        if path == f"/{controls.HIDDEN}":
            return self._plain.lstat()
        return Path(f"{self._plain}{path}").lstat()

    def _open(self, request: Request) -> bytes:
        self._stat(self._path(request.node))
        return protocol.open_answer()

    def _read(self, request: Request) -> bytes:
        offset, size = protocol.read_range(request.body)
        if (health_file := controls.health_file(self._path(request.node))) is not None:
            return self._machine.read_health_file(*health_file, offset, size)
        with self._file(request.node).open("rb") as file:
            return os.pread(file.fileno(), size, offset)

    def _list(self, request: Request) -> bytes:
        """The entries of a directory from an offset on, as many as fit."""
        offset, size = protocol.read_range(request.body)
        found = [(".", stat.S_IFDIR), ("..", stat.S_IFDIR)]
        with os.scandir(self._file(request.node)) as entries:
            found += sorted(
                (each.name, each.stat(follow_symlinks=False).st_mode) for each in entries
            )
        answer = b""
        for place, (name, mode) in enumerate(found[offset:], offset + 1):
            entry = protocol.directory_entry(place, place, name, mode)
            if len(answer) + len(entry) > size:
                break
            answer += entry
        return answer

    # Writing

    def _write(self, request: Request) -> None:
        content = protocol.written(request.body)
        path = self._nodes.path(request.node)
        if path is not None and controls.is_reset_method(path):
            error = controls.set_reset_method(Path(f"{self._plain}{path}"), content)
            self._finish(_Pending(request.unique, len(content), request.thread, _nothing()), error)
            return
        if path is None or not controls.is_control(path):
            self._send(protocol.failure(request.unique, errno.EIO))  # as sysfs without a store
            return
        self._machine.look_again()
        started = controls.start(self._machine, path, content)
        self._pending.append(_Pending(request.unique, len(content), request.thread, started))
        self._advance_one(self._pending[-1])

    def _advance(self) -> None:
        self._machine.look_again()
        for each in tuple(self._pending):
            self._advance_one(each)

    def _advance_one(self, pending: _Pending) -> None:
        try:
            wait = next(pending.procedure)
        except StopIteration as end:
            self._pending.remove(pending)
            self._finish(pending, int(end.value))
            return
        if wait is Wait.UNINTERRUPTIBLE and not pending.is_uninterruptible:
            pending.is_uninterruptible = True
            _make_uninterruptible(pending.thread)

    def _finish(self, pending: _Pending, error: int) -> None:
        if error:
            self._send(protocol.failure(pending.unique, error))
        else:
            body = protocol.write_answer(pending.size)
            self._send(protocol.answer(pending.unique, body))


def _make_uninterruptible(thread: int) -> None:
    """Puts a writer into state D, in which the kernel has those who wait for the lock of a device.

    A writer of FUSE whose wait a signal has ended goes on to wait without taking signals. SIGCONT
    takes the SIGSTOP back before the thread could act on it, which it does not before its write
    returns (Linux, fs/fuse/dev.c, `request_wait_answer`; kernel/signal.c, `prepare_signal`).
    """
    try:
        lines = Path(f"/proc/{thread}/status").read_text(encoding="ascii").splitlines()
    except OSError:  # 0, of a process that is not visible from here: it stays in state S
        return
    process = next(int(line.split()[1]) for line in lines if line.startswith("Tgid:"))
    for number in (signal.SIGSTOP, signal.SIGCONT):
        _libc.tgkill(process, thread, number)


def _nothing() -> Procedure:
    yield from ()
    return 0


def _size(found: os.stat_result) -> int:
    return CONTROL_SIZE if stat.S_ISREG(found.st_mode) and found.st_size == 0 else found.st_size
