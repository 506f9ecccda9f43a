"""What the tools print: to its reader, or one line on stderr that says why not."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def delivered(program: str) -> Iterator[None]:
    """What the block prints arrives, or the process ends with exit code 1; also behind --help.

    A reader that has seen enough (`| head -3`) is no error to show.
    """
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        _discard()
        raise SystemExit(1) from None
    except OSError as error:
        _discard()
        print(f"{program}: cannot write the answer: {error.strerror}", file=sys.stderr)
        raise SystemExit(1) from error


def _discard() -> None:
    """What is left in the buffer goes nowhere, or the interpreter's end tries it again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
