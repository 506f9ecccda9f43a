# SPDX-License-Identifier: Apache-2.0
"""One child process: nvidia-imex, or a query with nvidia-imex-ctl.

Its end is reported by its pidfd, which needs no thread and never refers to another process that has
got the same PID. Standard output and standard error are one pipe.
Source: docs/reference/imex.md, "Process supervision".
"""

import asyncio
import errno
import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from nvdra_api.errors import DriverError, PermanentError, Reason, RetryableError
from nvdra_runtime.process import open_files

_NOT_EXECUTABLE: Final = (errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.EPERM, errno.ENOEXEC)


class ChildProcess:
    """A process that is running or has ended; created by `start`."""

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
        """Standard output and error, until the process and all its children have closed them."""

    @classmethod
    async def start(cls, argv: Sequence[str]) -> "ChildProcess":
        """Start a program, which is looked up in PATH.

        Raises:
            PermanentError: `ImexBinaryMissing`: The program does not exist or cannot be executed.
            RetryableError: `DaemonNotReady`: The system cannot start another process now.
        """
        try:
            # This blocks for a few milliseconds, for the vfork.
            process = subprocess.Popen(  # noqa: ASYNC220
                argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
        except OSError as error:
            raise _start_failure(argv[0], error) from error
        open_files.restore_soft_limit(process.pid)
        assert process.stdout is not None
        reader = asyncio.StreamReader()
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), process.stdout
        )
        return cls(process, reader, transport)

    async def wait_ended(self) -> int:
        """Wait until the process has ended. Returns its return code, negative for a signal."""
        await self._exited.wait()
        code: int = self._process.returncode
        return code

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal, unless the process has ended."""
        self._process.send_signal(number)

    def handles(self, number: signal.Signals) -> bool:
        """Whether a signal is handled. A process that has just started may not handle it yet."""
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
        """Kill the process if it is still running, and close its output."""
        if not self._exited.is_set():
            self.send_signal(signal.SIGKILL)
            await self._exited.wait()
        self._transport.close()

    def _reap(self) -> None:
        self._process.wait()  # it has ended, so this does not block
        asyncio.get_running_loop().remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._exited.set()


def _start_failure(program: str, error: OSError) -> DriverError:
    if error.errno in _NOT_EXECUTABLE:
        return PermanentError(
            Reason.IMEX_BINARY_MISSING,
            f"{program} cannot be run in this container: {error.strerror}",
            "the program is part of the node's driver: install nvidia-imex of the driver's version "
            "on the node, then delete this pod so that its container is created with it",
            program=program,
        )
    return RetryableError(
        Reason.DAEMON_NOT_READY,
        f"{program} could not be started: {error.strerror}",
        "check the node's free memory and its limit of processes",
        program=program,
    )
