# SPDX-License-Identifier: Apache-2.0
"""Starts our programs as forks of processes that have imported them already.

A start of a component or of `lab` takes about a second of processor, nine tenths of it imports, and
the tests start hundreds. A fork is a process like any other: it has its own id, name, environment,
directory and output, and runs the program's entry point with its arguments. A soak starts every
program from its file, as containers do; so does whoever sets variables that are read by imports.

    process = preloaded.start(["nvdra-gpu-plugin", "--node-name=a"], environ, log, log)
"""

import atexit
import ctypes
import functools
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import IO, Final

from nvdra_testing import programs
from nvdra_testing.certificates import NO_SYSTEM_CERTIFICATES

MODULES: Final = {
    "nvdra-gpu-plugin": ("nvdra_gpu_plugin.app", "nvdra_gpu_plugin.release_command"),
    "nvdra-cd-plugin": ("nvdra_cd_plugin.app",),
    "nvdra-cd-controller": (),
    "lab": (),
}
"""What a program imports later than its entry point, by program."""
READ_BY_IMPORTS: Final = ("PYTHON", "LD_", "GRPC_", "OTEL_")
"""How variables begin that the interpreter or a library reads before the program does."""
HARMLESS: Final = frozenset({"PYTHONUNBUFFERED"})
LARGEST_REQUEST: Final = 1 << 18
PR_SET_NAME: Final = 15

is_used = False
"""Whether programs are forked; `nvdra_testing.soaks` sets it for a run that is not a soak."""


def start(
    argv: Sequence[str], environ: Mapping[str, str], output: IO[bytes], errors: IO[bytes]
) -> "subprocess.Popen[bytes]":
    """Start a program of ours, or one of the machine.

    Args:
        argv: Its name and arguments.
        environ: All its variables; PATH begins with where ours are.
        output: The file of its output.
        errors: The file of its errors; it may be the same.
    """
    path = os.pathsep.join([str(programs.directory()), environ.get("PATH", os.defpath)])
    environ = {**environ, "PATH": path}
    early = {name: text for name, text in environ.items() if name.startswith(READ_BY_IMPORTS)}
    is_usual = all(os.environ.get(name) == early[name] for name in early.keys() - HARMLESS)
    is_ours = is_used and not programs.are_elsewhere()
    if not (is_ours and argv[0] in MODULES and is_usual):
        return subprocess.Popen(argv, stdout=output, stderr=errors, env=environ)
    return _server(argv[0], tuple(early.items())).fork(argv, environ, output, errors)


class ForkedProgram(subprocess.Popen[bytes]):
    """A program that a server has forked, with the methods of a child process.

    Args:
        pid: Its process id.
        ended: Delivers its exit code when it has ended.
    """

    def __init__(self, argv: Sequence[str], pid: int, ended: socket.socket) -> None:
        self.args = argv
        self.pid = pid
        self.returncode: int | None = None
        self.stdin = self.stdout = self.stderr = None
        self._ended = ended

    def __del__(self) -> None:
        """The server waits for the process, so nobody needs to be told that it still runs."""
        self._ended.close()

    def poll(self) -> int | None:
        """The exit code if it has ended."""
        return self._wait_at_most(0)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end, and return its exit code.

        Raises:
            subprocess.TimeoutExpired: It has not ended in time.
        """
        code = self._wait_at_most(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return code

    def _wait_at_most(self, seconds: float | None) -> int | None:
        ended = select.poll()
        ended.register(self._ended, select.POLLIN)
        if self.returncode is None and ended.poll(None if seconds is None else seconds * 1000):
            # Several threads may wait, so the code stays where it is.
            self.returncode = int(self._ended.recv(16, socket.MSG_PEEK))
        return self.returncode


class _Server:
    """A process that has imported a program, and forks when it is asked to.

    Args:
        program: Its name.
        early: The variables that are read by imports.
    """

    def __init__(self, program: str, early: Iterable[tuple[str, str]]) -> None:
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        argv = [sys.executable, "-m", __name__, program, str(theirs.fileno())]
        self._process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            env={"PATH": os.defpath, **NO_SYSTEM_CERTIFICATES, **dict(early)},
        )
        theirs.close()
        atexit.register(self._end)

    def fork(
        self,
        argv: Sequence[str],
        environ: Mapping[str, str],
        output: IO[bytes],
        errors: IO[bytes],
    ) -> ForkedProgram:
        """Let it start the program."""
        request = json.dumps([list(argv), dict(environ), str(Path.cwd())]).encode()
        ended, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            files = [output.fileno(), errors.fileno(), theirs.fileno()]
            socket.send_fds(self._requests, [request], files)
        pid = ended.recv(16)
        if not pid:
            raise RuntimeError(f"{argv[0]} could not be imported; its errors are above")
        return ForkedProgram(argv, int(pid), ended)

    def _end(self) -> None:
        self._requests.close()
        self._process.wait()


@functools.cache
def _server(program: str, early: tuple[tuple[str, str], ...]) -> _Server:
    return _Server(program, early)


def _serve(program: str, requests: socket.socket) -> Callable[[], None] | None:
    """Fork for each request; returns the entry point in a fork, and None when nobody asks now."""
    (found,) = metadata.entry_points(group="console_scripts", name=program)
    entry: Callable[[], None] = found.load()
    for module in MODULES[program]:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()  # a collection would copy the pages that forks share
    while True:
        request, descriptors, _, _ = socket.recv_fds(requests, LARGEST_REQUEST, 3)
        if not request:
            return None
        output, errors, reports = descriptors
        if os.fork() == 0:
            requests.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            pid = os.fork()
            if pid == 0:
                os.close(reports)
                argv, environ, directory = json.loads(request)
                _become(argv, environ, directory, output, errors)
                return entry
            os.close(output)
            os.close(errors)
            _report(pid, reports)
        for descriptor in descriptors:
            os.close(descriptor)


def _become(
    argv: list[str], environ: dict[str, str], directory: str, output: int, errors: int
) -> None:
    """Give this process what a program gets from whoever starts it."""
    os.dup2(output, 1)
    os.dup2(errors, 2)
    os.close(output)
    os.close(errors)
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(environ)
    sys.argv = argv
    ctypes.CDLL(None).prctl(PR_SET_NAME, argv[0].encode(), 0, 0, 0)


def _report(pid: int, reports: int) -> None:
    """Tell whoever asked for it a program's process id and, when it has ended, its exit code."""
    os.write(reports, str(pid).encode())
    _, status = os.waitpid(pid, 0)
    os.write(reports, str(os.waitstatus_to_exitcode(status)).encode())
    os._exit(0)


def main() -> None:
    """Serve until the socket is closed."""
    program, descriptor = sys.argv[1:]
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the processes that wait
    entry = _serve(program, socket.socket(fileno=int(descriptor)))
    if entry is not None:
        sys.exit(entry())


if __name__ == "__main__":
    main()
