# SPDX-License-Identifier: Apache-2.0
"""Reads the file that is named on the command line."""

import sys
from pathlib import Path
from typing import Final

from nvdra_migrate.values_text import MAX_BYTES, ValuesFileError

STANDARD_INPUT: Final = "-"


def read(file: str) -> str:
    """Read a file.

    Args:
        file: Its path, or `-` for the standard input.

    Raises:
        OSError: It cannot be read.
        ValuesFileError: It is too long or not UTF-8.
    """
    if file == STANDARD_INPUT:
        content = sys.stdin.buffer.read(MAX_BYTES + 1)
    else:
        with Path(file).open("rb") as stream:
            content = stream.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise ValuesFileError(f"the file has more than {MAX_BYTES} bytes")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValuesFileError(str(error)) from error
