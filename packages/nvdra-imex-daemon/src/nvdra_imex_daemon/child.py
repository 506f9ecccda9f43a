"""One process that we start, signal and wait for: nvidia-imex, or a question to nvidia-imex-ctl.

Watched by its pidfd: no thread, and never another process that has got its number. Its two outputs
are one pipe. Source: spec/compute-domain.md §8.7.
"""

import asyncio
import errno
import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from nvdra_api.types.errors import DriverError, PermanentError, Reason, RetryableError

_ABSENT: Final = (errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.EPERM, errno.ENOEXEC)


class Child:
    """A process that runs, or has run; made by `start`."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        output: asyncio.StreamReader,
        transport: asyncio.BaseTransport,
    ) -> None:
        self._process = process
        self._transport = transport
        self._exited = asyncio.Event()
        self._pidfd = os.pidfd_open(process.pid)
        asyncio.get_running_loop().add_reader(self._pidfd, self._reap)
        self.pid = process.pid
        self.output = output
        """Both its outputs, until it and all that it started have closed them."""

    @classmethod
    async def start(cls, argv: Sequence[str]) -> "Child":
        """Start a program, found by PATH; returns once it runs.

        Raises:
            PermanentError: `ImexBinaryMissing`: there is no such program, or none that runs here.
            RetryableError: `DaemonNotReady`: the system has no room for a process now.
        """
        try:
            # Blocks for the milliseconds of a vfork.
            process = subprocess.Popen(  # noqa: ASYNC220
                argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
        except OSError as error:
            raise _refusal(argv[0], error) from error
        assert process.stdout is not None
        reader = asyncio.StreamReader()
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), process.stdout
        )
        return cls(process, reader, transport)

    async def ended(self) -> int:
        """Wait until it is gone; its return code, negative for a signal."""
        await self._exited.wait()
        code: int = self._process.returncode
        return code

    def send(self, number: signal.Signals) -> None:
        """Send a signal; one that is gone gets none."""
        self._process.send_signal(number)

    def hears(self, number: signal.Signals) -> bool:
        """Whether a signal reaches a handler: one that has only just begun would die of it."""
        try:
            status = Path(f"/proc/{self.pid}/status").read_text()
        except OSError:
            return False
        return any(
            line.startswith(("SigCgt:", "SigIgn:", "SigBlk:"))
            and int(line.split()[1], 16) >> (number - 1) & 1
            for line in status.splitlines()
        )

    async def close(self) -> None:
        """Kill it if it still runs, and let go of its output."""
        if not self._exited.is_set():
            self.send(signal.SIGKILL)
            await self._exited.wait()
        self._transport.close()

    def _reap(self) -> None:
        self._process.wait()  # it is gone: this does not block
        asyncio.get_running_loop().remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._exited.set()


def _refusal(program: str, error: OSError) -> DriverError:
    if error.errno in _ABSENT:
        return PermanentError(
            Reason.IMEX_BINARY_MISSING,
            f"{program} cannot be run in this container: {error.strerror}",
            "the program comes from the node's driver: install nvidia-imex of the driver's version "
            "there, then delete this pod, so that the container is made with it",
            program=program,
        )
    return RetryableError(
        Reason.DAEMON_NOT_READY,
        f"{program} was not started: {error.strerror}",
        "see the node's memory and its limit of processes",
        program=program,
    )
