# SPDX-License-Identifier: Apache-2.0
"""The output of an MPS control daemon and its servers, for the log of their container.

In the foreground NVIDIA's daemon writes no log file.
"""

import os
import sys
import threading
import time
from contextlib import suppress
from typing import IO, Final

from nvdra_gpu_plugin.mps.user_waits import UserWaits

_LAST_LINES_TIMEOUT_S: Final = 1.0
"""For the last lines of a daemon that has ended. Its servers may still hold its output open."""
_LINE_BYTES: Final = 4096
"""What the kernel writes to a pipe as a whole."""


class DaemonOutput:
    """Passes the output on to stderr, on a thread of its own, and keeps the last line.

    Attributes:
        users: What the lines say of users that wait.
    """

    def __init__(self, stream: IO[bytes] | None) -> None:
        self.users = UserWaits()
        self._last = b""
        self._thread = threading.Thread(target=self._pass_on, args=(stream,), daemon=True)
        self._thread.start()

    def last_line(self) -> str:
        """The last line of a daemon that has ended."""
        self._thread.join(_LAST_LINES_TIMEOUT_S)
        return self._last.decode(errors="replace").strip() or "it has said nothing"

    def _pass_on(self, stream: IO[bytes] | None) -> None:
        while stream and (line := stream.readline(_LINE_BYTES)):
            self._last = line if line.strip() else self._last
            self.users.observe(line, time.monotonic())
            with suppress(OSError):  # the daemon goes on although nothing reads the log
                os.write(sys.stderr.fileno(), line)
