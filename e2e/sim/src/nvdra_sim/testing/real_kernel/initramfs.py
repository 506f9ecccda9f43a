# SPDX-License-Identifier: Apache-2.0
"""The file system that the guest starts with: busybox, the modules of the root, and its settings.

Format: Documentation/driver-api/early-userspace/buffer-format.rst of Linux.
"""

from __future__ import annotations

import lzma
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from nvdra_sim.testing.real_kernel import kernel_modules
from nvdra_sim.testing.real_kernel.debian import Tree

ROOT_MODULES = ("virtio_pci", "9pnet_virtio", "9p", "overlay")
"""What the root needs. All other modules are loaded by modprobe when the root is there."""
INIT = Path(__file__).with_name("init.sh")


def write(
    target: Path, tree: Tree, settings: Mapping[str, str], files: Mapping[str, bytes]
) -> None:
    """Write the archive.

    Args:
        target: The file.
        tree: The kernel and busybox.
        settings: Variables of the shell that runs `init.sh`, without MODULES.
        files: Name → programs and data in `/run/nvdra` of the guest. Modules among them, `*.ko`,
            are loaded.
    """
    folder = target.with_suffix(".d")
    for name in ("bin", "modules", "files"):
        (folder / name).mkdir(parents=True)
    shutil.copy(tree.busybox, folder / "bin/busybox")
    shutil.copy(INIT, folder / "init")
    (folder / "init").chmod(0o755)
    names = [_copy_module(path, folder / "modules") for path in _root_modules(tree)]
    lines = {"MODULES": " ".join(names), **settings}
    text = "".join(f"{name}={shlex.quote(value)}\n" for name, value in lines.items())
    (folder / "settings").write_text(text)
    for name, content in files.items():
        (folder / "files" / name).write_bytes(content)
        (folder / "files" / name).chmod(0o755)
    _pack(folder, target, tree.busybox)
    shutil.rmtree(folder)


def _root_modules(tree: Tree) -> list[Path]:
    folder = tree.modules / tree.release
    order = kernel_modules.load_order(
        ROOT_MODULES,
        (folder / "modules.dep").read_text(),
        (folder / "modules.builtin").read_text(),
    )
    return [folder / path for path in order]


def _copy_module(source: Path, folder: Path) -> str:
    """Copy a module as what `insmod` loads, and return its name."""
    data = source.read_bytes()
    name = source.name
    if source.suffix == ".xz":
        data, name = lzma.decompress(data), source.stem
    (folder / name).write_bytes(data)
    return name


def _pack(folder: Path, target: Path, busybox: Path) -> None:
    names = "\n".join(str(path.relative_to(folder)) for path in sorted(folder.rglob("*")))
    with target.open("wb") as file:
        subprocess.run(
            [busybox, "cpio", "-o", "-H", "newc"],
            cwd=folder,
            input=names.encode(),
            stdout=file,
            stderr=subprocess.DEVNULL,
            check=True,
        )
