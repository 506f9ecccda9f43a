# SPDX-License-Identifier: Apache-2.0
"""How the demo looks: chapters, steps, quoted output, the message of a failure."""

import contextlib
import sys
import textwrap
import time
from collections.abc import Iterator, Sequence

from nvdra_lab.progress import Progress
from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.text import Text

WIDTH = 100
"""Of prose, and of everything where there is no terminal."""

INDENT = 3


class Screen:
    """Standard output, as a person reads it; without a terminal the same text, uncoloured."""

    def __init__(self) -> None:
        width = None if sys.stdout.isatty() else WIDTH
        self._console = Console(width=width, highlight=False)
        self._chapters = 0
        self._began = time.monotonic()
        self._step = "the demo"
        self.progress = Progress(sys.stdout)

    @property
    def elapsed_s(self) -> float:
        """Seconds since the demo began."""
        return time.monotonic() - self._began

    def chapter(self, title: str, about: str = "") -> None:
        """Begin a part of the story."""
        self._chapters += 1
        self._step = title
        when = (f"  at {_clock(self.elapsed_s)}", "dim")
        self._put(
            Text.assemble("\n", (f"{self._chapters}", "bold cyan"), "  ", (title, "bold"), when)
        )
        self.prose(about, style="dim")

    @contextlib.contextmanager
    def step(self, title: str) -> Iterator[None]:
        """Something that takes a while; its end is a line."""
        self._step = title
        with self.progress.step(title):
            yield

    def done(self, text: str) -> None:
        """Something that needed no time."""
        self._line(f"✓ {text}", indent=0)

    def heading(self, text: str) -> None:
        """The title of one thing in a chapter."""
        self.blank()
        self._line(text, "bold")

    def blank(self) -> None:
        """An empty line."""
        self._put(Text())

    def prose(self, text: str, *, indent: int = INDENT, style: str = "") -> None:
        """Sentences, wrapped."""
        width = min(self._console.width, WIDTH) - indent
        for paragraph in text.splitlines():
            for line in textwrap.wrap(paragraph, width, break_long_words=False) or [""]:
                self._line(line, style, indent)

    def show(self, table: RenderableType) -> None:
        """A table."""
        self._console.print(Padding(table, (0, 0, 0, INDENT), expand=False))

    def commands(self, lines: Sequence[str]) -> None:
        """Commands that give what was done or is shown, each whole on its line."""
        for line in lines:
            self._line(f"$ {line}", "green")

    def pastable(self, lines: Sequence[str]) -> None:
        """Commands without a prompt before them."""
        for line in lines:
            self._line(line, "green", indent=6)

    @property
    def width(self) -> int:
        """Characters in a line."""
        return self._console.width

    def quote(self, text: str, indent: int = INDENT) -> None:
        """What a program printed, as it is: never wrapped."""
        for line in text.rstrip().splitlines():
            self._line(line, indent=indent)

    def failure(self, why: str) -> None:
        """Which step failed, and why."""
        self.blank()
        self._line(f"✗ failed: {self._step}", "bold red", indent=0)
        self.quote(why)

    def note(self, text: str) -> None:
        """Something the reader should know before going on."""
        self._line(text, "yellow")

    def _line(self, text: str, style: str = "", indent: int = INDENT) -> None:
        self._put(Text(f"{' ' * indent}{text}", style))

    def _put(self, text: Text) -> None:
        self._console.print(text, soft_wrap=True)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes}:{rest:02}"
