# SPDX-License-Identifier: Apache-2.0
"""Makes the stand-in for NVIDIA's kernel module, `nvidia/nvidia.c`, for the guest's kernel."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import tempfile
from pathlib import Path

from nvdra_sim.testing.real_kernel.debian import Tree
from nvdra_sim.testing.real_kernel.errors import RealKernelError

SOURCES = Path(__file__).with_name("nvidia")
NAME = "nvidia.ko"


def build(tree: Tree) -> Path:
    """The module, made if its source is new. It is kept beside the kernel.

    Raises:
        RealKernelError: make or gcc is missing, or the source does not compile.
    """
    text = "".join(path.read_text() for path in sorted(SOURCES.iterdir()))
    target = tree.root / f"{hashlib.sha256(text.encode()).hexdigest()[:12]}-{NAME}"
    if not target.exists():
        with tempfile.TemporaryDirectory(prefix=".building-", dir=tree.root) as folder:
            _make(tree, Path(shutil.copytree(SOURCES, Path(folder) / "nvidia")), target)
    return target


def _make(tree: Tree, folder: Path, target: Path) -> None:
    # Without the types for BPF, which a program makes that is not among the packages.
    command: list[str | Path] = [
        "make",
        "-C",
        tree.headers,
        f"M={folder}",
        "CONFIG_DEBUG_INFO_BTF_MODULES=",
        "modules",
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise RealKernelError("make is missing: apt-get install make gcc") from error
    if done.returncode:
        tail = "\n".join(done.stderr.strip().splitlines()[-15:])
        raise RealKernelError(f"{SOURCES} does not compile:\n{tail}")
    (folder / NAME).rename(target)
