# SPDX-License-Identifier: Apache-2.0
"""Processes that have devices of a simulated node open, as programs on it would.

This machine has no driver for the nodes, so they are opened with `O_PATH`, which shows their
numbers to those who look at descriptors.
"""

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

_OPEN: Final = (
    "import os, sys; os.open(sys.argv[1], os.O_PATH); print('open', flush=True); sys.stdin.read()"
)


@contextmanager
def holding(command: Sequence[str]) -> Iterator[int]:
    """Run a program for the block, from its first line of output on. Yields its process id.

    It must end when its standard input does.
    """
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe) as process:
        assert process.stdout is not None
        assert process.stdout.readline(), "the program has ended"
        yield process.pid
        process.communicate()


@contextmanager
def opened(node: Path) -> Iterator[int]:
    """Have a device node open in another process for the block. Yields its process id."""
    with holding((sys.executable, "-c", _OPEN, str(node))) as pid:
        yield pid
