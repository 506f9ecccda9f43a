"""The output of a command."""

import os
import sys


def print_or_exit(text: str) -> None:
    """Print the text and flush it.

    Raises:
        SystemExit: 1: The reader has closed the pipe, or the text cannot be written. In the latter
            case stderr has the error.
    """
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        _discard_buffer()
        raise SystemExit(1) from None
    except OSError as error:
        _discard_buffer()
        sys.stderr.write(f"Error: cannot write the output: {error.strerror}\n")
        raise SystemExit(1) from error


def _discard_buffer() -> None:
    """Discard the buffer; otherwise the interpreter would try to write it at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
