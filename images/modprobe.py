# SPDX-License-Identifier: Apache-2.0
"""Adds Debian's modprobe to an image, which loads the node's own modules of vfio.

Modules are compressed, depend on others and are configured, which is what kmod knows and the system
call does not. Python's official image has no kmod: there, and only there, apt-get downloads it. The
base image that a lab makes has it.
"""

import subprocess
from pathlib import Path

import system_files

MODPROBE = Path("/usr/sbin/modprobe")
PACKAGE = "kmod"


def copy(tree: Path) -> None:
    """Copy it to a tree that is empty, with what it needs and the first layer does not have."""
    if not MODPROBE.exists():
        subprocess.run(["apt-get", "--quiet", "update"], check=True)
        install = ("install", "--yes", "--no-install-recommends", PACKAGE)
        subprocess.run(["apt-get", "--quiet", *install], check=True)
    system_files.add_program(MODPROBE, tree, system_files.SYSTEM)
