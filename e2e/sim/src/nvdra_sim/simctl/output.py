# SPDX-License-Identifier: Apache-2.0
"""Handling of standard output that cannot be written."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def checked_stdout(program: str) -> Iterator[None]:
    """Flushes the output of the block, and exits with code 1 if it cannot be written.

    No message is printed if the reader has closed the pipe, as in `| head -3`.
    """
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        _discard_buffer()
        raise SystemExit(1) from None
    except OSError as error:
        _discard_buffer()
        print(f"{program}: cannot write the output: {error.strerror}", file=sys.stderr)
        raise SystemExit(1) from error


def _discard_buffer() -> None:
    """Discards the buffered output. Otherwise the interpreter would flush it again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
