# SPDX-License-Identifier: Apache-2.0
"""Reports progress to a terminal or to a log, on standard error."""

import contextlib
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from typing import TextIO

REMIND_S = 5.0
REFRESH_S = 0.2


class Step:
    """One step in progress; `detail` may be set at any time and is shown while it lasts."""

    def __init__(self, title: str, expected: str) -> None:
        self.title = title
        self.expected = expected
        self.detail = ""
        self.began = time.monotonic()

    @property
    def elapsed_s(self) -> float:
        """Seconds since it began."""
        return time.monotonic() - self.began

    def line(self) -> str:
        """The step as one line."""
        facts = [f"{self.elapsed_s:.0f} s", self.expected, self.detail]
        return f"… {self.title} ({', '.join(fact for fact in facts if fact)})"


class Progress:
    """Reports steps: a live line on a terminal, a line every few seconds anywhere else."""

    def __init__(self, stream: TextIO = sys.stderr) -> None:
        self._stream = stream
        self._is_live = stream.isatty()

    @contextlib.contextmanager
    def step(self, title: str, expected: str = "") -> Iterator[Step]:
        """Report one step from its begin to its end.

        Args:
            title: What is done, without a verb in front: "kubernetes 1.36.3".
            expected: How long it is known to take, "about 5 min"; such a step is announced.
        """
        step = Step(title, expected)
        ended = threading.Event()
        if expected and not self._is_live:
            self._print(f"▸ {title} ({expected})")
        ticker = threading.Thread(target=self._tick, args=(step, ended), daemon=True)
        ticker.start()
        try:
            yield step
        except BaseException:
            ended.set()
            ticker.join()
            self._print(f"✗ {title} ({step.elapsed_s:.1f} s)")
            raise
        ended.set()
        ticker.join()
        self._print(f"✓ {title} ({step.elapsed_s:.1f} s)")

    def print_line(self, text: str) -> None:
        """Print one line."""
        self._print(text)

    def _tick(self, step: Step, ended: threading.Event) -> None:
        while not ended.wait(REFRESH_S if self._is_live else REMIND_S):
            if self._is_live:
                # A wrapped line could not be cleared.
                width = shutil.get_terminal_size().columns - 1
                self._stream.write(f"\r\x1b[2K{step.line()[:width]}")
                self._stream.flush()
            else:
                self._print(step.line())

    def _print(self, line: str) -> None:
        clear = "\r\x1b[2K" if self._is_live else ""
        self._stream.write(f"{clear}{line}\n")
        self._stream.flush()
