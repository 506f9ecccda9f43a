# SPDX-License-Identifier: Apache-2.0
"""Creates the file trees of a lab's small images from files of this machine."""

import platform
import shutil
import subprocess
from pathlib import Path

from nvdra_lab.errors import LabError

# The C library's parts that a program can load, and the tool that indexes libraries.
LIBRARIES = (
    "libc.so.6",
    "libm.so.6",
    "libdl.so.2",
    "libpthread.so.0",
    "librt.so.1",
    "libgcc_s.so.1",
)
LOADERS = {"x86_64": "/lib64/ld-linux-x86-64.so.2", "aarch64": "/lib/ld-linux-aarch64.so.1"}
FOLDERS = ("tmp", "proc", "sys", "dev", "etc", "run", "root", "var/log")


def pause(target: Path) -> None:
    """One program: a static busybox that sleeps."""
    _busybox(target, ["sleep"])


def workload(target: Path) -> None:
    """Busybox with all its tools, and this machine's C library in its usual place."""
    applets = subprocess.run(["busybox", "--list"], capture_output=True, text=True, check=True)
    _busybox(target, [name for name in applets.stdout.split() if name != "busybox"])
    machine = platform.machine()
    libraries = Path("usr/lib") / f"{machine}-linux-gnu"
    (target / libraries).mkdir(parents=True)
    (target / "lib").symlink_to("usr/lib")
    (target / "lib64").mkdir()
    for name in LIBRARIES:
        _copy(Path("/") / libraries / name, target / libraries / name)
    loader = Path(LOADERS[machine])
    _copy(loader, target / loader.relative_to("/"))
    (target / "sbin").mkdir()
    _copy(Path("/sbin/ldconfig"), target / "sbin/ldconfig")
    (target / "etc/ld.so.conf").write_text(f"include /etc/ld.so.conf.d/*.conf\n/{libraries}\n")
    (target / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
    (target / "etc/group").write_text("root:x:0:\n")
    (target / "tmp").chmod(0o1777)


def _busybox(target: Path, applets: list[str]) -> None:
    for folder in FOLDERS:
        (target / folder).mkdir(parents=True)
    (target / "bin").mkdir()
    found = shutil.which("busybox")
    if found is None:
        raise LabError("busybox is missing: apt-get install busybox-static")
    _copy(Path(found), target / "bin/busybox")
    for name in applets:
        (target / "bin" / name).symlink_to("busybox")


def _copy(source: Path, target: Path) -> None:
    try:
        shutil.copy(source.resolve(strict=True), target)
    except FileNotFoundError as error:
        raise LabError(
            f"{source} is missing on this machine, and is needed for an image"
        ) from error
