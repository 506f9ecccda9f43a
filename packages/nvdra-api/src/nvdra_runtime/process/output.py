# SPDX-License-Identifier: Apache-2.0
"""The output of a command."""

import os
import sys

from nvdra_api import terminal_text


def print_or_exit(text: str) -> None:
    """Print the text and flush it.

    Raises:
        SystemExit: 1: The reader has closed the pipe, or the text cannot be written. In the latter
            case stderr has the error.
    """
    try:
        sys.stdout.write(terminal_text.lines(text))
        sys.stdout.flush()
    except BrokenPipeError:
        _discard_buffer()
        raise SystemExit(1) from None
    except OSError as error:
        _discard_buffer()
        print_error(f"Error: cannot write the output: {error.strerror}")
        raise SystemExit(1) from error


def print_error(text: str) -> None:
    """Print lines to standard error."""
    sys.stderr.write(f"{terminal_text.lines(text)}\n")


def _discard_buffer() -> None:
    """Discard the buffer; otherwise the interpreter would try to write it at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
