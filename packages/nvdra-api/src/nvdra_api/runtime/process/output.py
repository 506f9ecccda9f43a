"""What a command prints: to its reader, or one line on stderr that says why not."""

import os
import sys


def say(text: str) -> None:
    """Print the text, and see that it arrives.

    Raises:
        SystemExit: 1: nobody reads it, or it cannot be written; stderr says the latter.
    """
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        _discard()
        raise SystemExit(1) from None
    except OSError as error:
        _discard()
        sys.stderr.write(f"Error: cannot write the answer: {error.strerror}\n")
        raise SystemExit(1) from error


def _discard() -> None:
    """What is left in the buffer goes nowhere, or the interpreter's end tries it again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
