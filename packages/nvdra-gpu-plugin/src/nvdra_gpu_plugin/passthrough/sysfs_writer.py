# SPDX-License-Identifier: Apache-2.0
"""Writes to files of sysfs in a child process, so that a write that blocks holds nothing of ours.

A write to `unbind` of a device that a process has open sleeps in the kernel until it is closed; a
write to `bind` meanwhile cannot even be killed. In the plugin's own thread, that thread would be
lost. The child is Python without site packages: images of the plugin have no shell. It is started
once for each writer, as that takes longer than its writes.

A child whose plugin was killed writes nothing any more: what it was told may have been undone by
the next plugin, which knows nothing of it.

Nothing helps a child that blocks but the end of whoever has the device open. It is left alone, and
ends by itself when its write returns. A container whose processes all end waits for it.
"""

import errno
import os
import select
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Final, Self

BLOCKED: Final = -1
"""The result of a write that has not returned."""
CLEAR: Final = "\n"
"""What empties `driver_override`. An empty write changes nothing."""

_END_TIMEOUT_S: Final = 2.0

_PROGRAM: Final = """
import os, sys
parent = int(sys.argv[1])
for line in sys.stdin.buffer:
    path, _, text = line[:-1].partition(b"\\t")
    number = 0
    try:
        file = os.open(path, os.O_WRONLY)
        if os.getppid() != parent:
            break
        try:
            os.write(file, text or b"\\n")
        finally:
            os.close(file)
    except OSError as error:
        number = error.errno
    os.write(1, b"%d\\n" % number)
os._exit(0)
"""


class SysfsWriter:
    """Writes to files, one after the other: `with SysfsWriter() as writer: writer.write(…)`.

    Leaving ends the child, unless its write has not returned.
    """

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _PROGRAM, str(os.getpid())],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={},
        )
        self._is_writing = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()  # the child ends after its write
        if not self._is_writing:
            try:
                self._process.wait(_END_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self.has_ended()

    @property
    def pid(self) -> int:
        """The child's process id."""
        return self._process.pid

    def write(self, path: Path, text: str, timeout_s: float) -> int:
        """Write `text` to a file with one system call.

        Args:
            path: A file that exists.
            text: One word, or `CLEAR`.
            timeout_s: How long to wait for its return. After that, this writer is of no more use.

        Returns:
            0; the number of the error of opening or writing; `BLOCKED`.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._is_writing = True
        try:
            self._process.stdin.write(b"%s\t%s\n" % (os.fsencode(path), text.strip().encode()))
        except BrokenPipeError:  # it was killed
            self._is_writing = False
            return errno.EPIPE
        poll = select.poll()
        poll.register(self._process.stdout, select.POLLIN)
        if not poll.poll(max(timeout_s, 0.0) * 1000):
            return BLOCKED
        self._is_writing = False
        answer = self._process.stdout.readline().strip()
        return int(answer) if answer else errno.EPIPE

    def has_ended(self) -> bool:
        """Whether the child has ended, so that its write has returned."""
        if self._process.poll() is None:
            return False
        if self._process.stdout is not None:
            self._process.stdout.close()
        return True
