# SPDX-License-Identifier: Apache-2.0
"""Assembles the Python packages of others that every image has.

    python3 /images/libraries.py

It runs in the second stage of the Dockerfiles. It makes the virtual environment with what
/requirements/shared.txt lists, and leaves the same files in /image/libraries.
"""

import shutil
from pathlib import Path

import environment
import system_files
import trees

LIBRARIES = Path("/image/libraries")
REQUIREMENTS = Path("/requirements")


def main() -> None:
    """Assemble them."""
    environment.make()
    environment.install(REQUIREMENTS / "shared.txt")
    environment.remove_unused()
    environment.remove_programs()
    shutil.copytree(environment.VENV, LIBRARIES / environment.VENV.relative_to("/"), symlinks=True)
    system_files.check_libraries(LIBRARIES, system_files.SYSTEM)
    trees.finish(LIBRARIES)
    # What writes the bills of materials, for the next stage.
    environment.install(REQUIREMENTS / "tools.txt", environment.TOOLS / "bin" / "python3")


if __name__ == "__main__":
    main()
