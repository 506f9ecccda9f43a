"""How the demo looks: chapters, steps, quoted output, the message of a failure."""

import contextlib
import sys
import textwrap
from collections.abc import Iterator, Mapping

from nvdra_lab.progress import Progress
from rich.console import Console, RenderableType
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table

WIDTH_WITHOUT_TERMINAL = 120
PROSE = 100
INDENT = 3


def listing(*columns: str) -> Table:
    """An empty table that looks as kubectl's do."""
    return Table(*columns, box=None, header_style="dim", pad_edge=False)


class Screen:
    """Standard output, as a person reads it; without a terminal the same text, uncoloured."""

    def __init__(self) -> None:
        width = None if sys.stdout.isatty() else WIDTH_WITHOUT_TERMINAL
        self._console = Console(width=width, highlight=False)
        self._progress = Progress(sys.stdout)
        self._chapters = 0
        self._step = ""

    @property
    def width(self) -> int:
        """Characters in a line."""
        return self._console.width

    def chapter(self, title: str, about: str = "") -> None:
        """Begin a part of the story."""
        self._chapters += 1
        self._step = title
        self._console.print(f"\n[bold cyan]{self._chapters}[/]  [bold]{escape(title)}[/]")
        for line in textwrap.wrap(about, min(self.width, PROSE) - INDENT):
            self._console.print(f"{' ' * INDENT}[dim]{escape(line)}[/]")

    @contextlib.contextmanager
    def step(self, title: str) -> Iterator[None]:
        """Something that takes a while; its end is a line."""
        self._step = title
        with self._progress.step(title):
            yield

    def say(self, text: str) -> None:
        """Text with rich's markup."""
        self._console.print(text)

    def show(self, what: RenderableType, indent: int = INDENT) -> None:
        """A table, or text."""
        self._console.print(Padding(what, (0, 0, 0, indent), expand=False))

    def command(self, line: str, indent: int = INDENT) -> None:
        """A command that the reader could give."""
        self._console.print(f"{' ' * indent}[green]$ {escape(line)}[/]", soft_wrap=True)

    def quote(self, text: str, indent: int = INDENT) -> None:
        """What a program printed, as it is: never wrapped."""
        for line in text.rstrip().splitlines():
            self._console.print(" " * indent + escape(line), soft_wrap=True)

    def failure(self, why: str) -> None:
        """Which step failed, and why."""
        self._console.print(f"\n[bold red]✗ {escape(self._step)}[/]")
        self.quote(why)

    def pairs(self, rows: Mapping[str, str]) -> None:
        """Commands, and what each is for."""
        table = Table.grid(padding=(0, 3))
        table.add_column(style="green", no_wrap=True)
        table.add_column(style="dim")
        for command, about in rows.items():
            table.add_row(escape(command), escape(about))
        self.show(table)
