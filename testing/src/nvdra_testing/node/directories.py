# SPDX-License-Identifier: Apache-2.0
"""Directories as a container can leave them."""

import os
from pathlib import Path


def nest(directory: Path, depth: int) -> None:
    """Make directories in each other, with a file in the last one, deeper than a path can name."""
    descriptor = os.open(directory, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("x", dir_fd=descriptor)
        inner = os.open("x", os.O_RDONLY, dir_fd=descriptor)
        os.close(descriptor)
        descriptor = inner
    os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=descriptor))
    os.close(descriptor)
