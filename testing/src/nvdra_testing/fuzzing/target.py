# SPDX-License-Identifier: Apache-2.0
"""What a fuzz target is: a program, and a way to hand bytes to it."""

import subprocess
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from hypothesis.strategies import SearchStrategy


class Program(Protocol):
    """The running program of a target."""

    @property
    def process(self) -> "subprocess.Popen[bytes]":
        """The process that is measured, and that must live."""

    @property
    def log(self) -> Path:
        """Its output."""

    def exchange(self, case: bytes) -> str:
        """Hand in a case, and wait for the answer.

        Returns:
            What is wrong with the answer; empty if nothing is.

        Raises:
            OSError, EOFError: The program has closed the connection, or does not answer at all.
        """

    def ask_as_another(self) -> str:
        """Ask what another tenant asks, while the case is handled; as `exchange`."""


@dataclass(frozen=True)
class Target:
    """One target.

    Attributes:
        name: For the table, and for `--target`.
        cases: What is handed in.
        samples: Valid cases, which must be answered well before any other is tried.
        open: Starts the program. It is killed when the block is left.
        weight: Its share of the time.
    """

    name: str
    cases: SearchStrategy[bytes]
    samples: Sequence[bytes]
    open: Callable[[], AbstractContextManager[Program]]
    weight: float = 1.0
