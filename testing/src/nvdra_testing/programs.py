# SPDX-License-Identifier: Apache-2.0
"""Where tests find the components' programs: beside this Python, or where they are told to look.

`NVDRA_PROGRAMS=DIRECTORY` runs the tests with the programs of another environment, such as one
with older siblings of a component. Tests talk to programs by sockets and files only, so the two
environments need nothing in common.
"""

import os
import sys
from pathlib import Path

VARIABLE = "NVDRA_PROGRAMS"


def are_elsewhere() -> bool:
    """Whether the programs are those of another environment."""
    return VARIABLE in os.environ


def directory() -> Path:
    """The directory of the programs, such as `.venv/bin`."""
    return Path(os.environ.get(VARIABLE) or Path(sys.executable).parent)


def path(name: str) -> Path:
    """The path of a program, such as that of `nvdra-gpu-plugin`."""
    return directory() / name
