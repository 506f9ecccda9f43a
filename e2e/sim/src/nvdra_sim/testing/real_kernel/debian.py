# SPDX-License-Identifier: Apache-2.0
"""Debian's kernel and QEMU in a directory of the cache. Nothing is installed.

apt verifies and downloads the packages, dpkg-deb unpacks them. The state of the machine's package
manager is read only: the dependencies are those of a machine without any package, so that the
programs run with the libraries beside them, whatever is installed.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from shutil import rmtree

from nvdra_sim.native import nvml_library
from nvdra_sim.testing.real_kernel.errors import RealKernelError

KERNEL = "linux-image-6.12-amd64"
"""The package that depends on the newest build of that kernel. Debian 12 has it in its security
archive, beside its own kernel 6.1."""
PROGRAMS = ("busybox-static", "kmod", "qemu-system-x86")
EXPECTED = "about 1 min"
LAYOUT = "2"
"""Changes when what is kept changes, so that an older directory is not used."""

_LIBRARIES = "x86_64-linux-gnu"
_NO_PACKAGES = ("-o", "Dir::State::status=/dev/null", "-o", "Debug::NoLocking=1")


class Tree:
    """The unpacked packages.

    Attributes:
        root: The directory in which they are unpacked.
        release: The kernel's release, as of `uname -r`.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        (modules,) = (root / "lib/modules").iterdir()
        self.release = modules.name

    @property
    def modules(self) -> Path:
        """As `/lib/modules`."""
        return self.root / "lib/modules"

    @property
    def kernel(self) -> Path:
        """The image of the kernel."""
        return self.root / f"boot/vmlinuz-{self.release}"

    @property
    def busybox(self) -> Path:
        """A program that needs no library."""
        return self.root / "bin/busybox"

    @property
    def headers(self) -> Path:
        """The directory in which modules for the kernel are made."""
        return self.root / f"usr/src/linux-headers-{self.release}"

    @property
    def qemu_modules(self) -> Path:
        """The parts of QEMU that it loads when they are needed."""
        return self.root / "usr/lib" / _LIBRARIES / "qemu"

    def command(self, program: str, name: str) -> list[str]:
        """The command that runs a program with the libraries beside it.

        Args:
            program: Its path below the root.
            name: The name that it sees itself called by; kmod has several.
        """
        folders = [self.root / "lib" / _LIBRARIES, self.root / "usr/lib" / _LIBRARIES]
        return [
            *(str(folders[0] / "ld-linux-x86-64.so.2"), "--argv0", name),
            *("--library-path", ":".join(str(folder) for folder in folders)),
            str(self.root / program),
        ]


def ensure(is_new_wanted: bool) -> Tree:
    """The unpacked packages, fetched if they are missing.

    Args:
        is_new_wanted: Whether to fetch them although they are there, because Debian may have a
            newer kernel.

    Raises:
        RealKernelError: This machine has no apt, knows no such packages, or cannot fetch them.
    """
    home = nvml_library.cache_home().parent / "real-kernel"
    home.mkdir(parents=True, exist_ok=True)
    target = home / _key()
    if is_new_wanted or not target.exists():
        print(f"▸ Debian packages of {KERNEL} and QEMU ({EXPECTED})", flush=True)
        with tempfile.TemporaryDirectory(prefix=".unpacking-", dir=home) as scratch:
            _fetch(Path(scratch))
            rmtree(target, ignore_errors=True)
            (Path(scratch) / "root").rename(target)
    return Tree(target)


def archives(listing: str) -> list[str]:
    """The packages, as `name=version`, of what `apt-get --print-uris` says.

    A line is `'<uri>' <name>_<version>_<architecture>.deb <size> <hash>`, with `%3a` for a colon.
    Source: man 8 apt-get, `--print-uris`.
    """
    found = re.findall(r"^'\S+' (\S+?)_(\S+)_\w+\.deb ", listing, re.MULTILINE)
    return [f"{name}={version.replace('%3a', ':')}" for name, version in found]


def kernel_image(record: str) -> str | None:
    """The package with the kernel that a package record, of `apt-cache show`, depends on."""
    found = re.search(r"^Depends:.*?\b(linux-image-[\w.+-]+)", record, re.MULTILINE)
    return found[1] if found else None


def build_packages(image: str) -> list[str]:
    """The packages to make modules with, for a kernel `linux-image-<version>-<flavour>`."""
    release = image.removeprefix("linux-image-")
    version = release.rpartition("-")[0]
    headers = [f"linux-headers-{part}" for part in (release, f"{version}-common")]
    return [*headers, f"linux-kbuild-{version}"]


def _fetch(scratch: Path) -> None:
    record = _run(["apt-cache", "show", "--no-all-versions", KERNEL])
    image = kernel_image(record)
    if image is None:
        raise RealKernelError(f"{KERNEL} depends on no kernel:\n{record}")
    wanted = ["apt-get", "install", "--print-uris", "-qq", "--no-install-recommends"]
    listing = _run([*wanted, *_NO_PACKAGES, *PROGRAMS])
    folder = scratch / "archives"
    folder.mkdir()
    # As the user who calls: the user _apt cannot write to that directory.
    download = ["apt-get", "download", "-qq", "-o", "APT::Sandbox::User=root"]
    _run([*download, image, *build_packages(image), *archives(listing)], folder)
    root = scratch / "root"
    root.mkdir()
    for archive in sorted(folder.glob("*.deb")):
        _run(["dpkg-deb", "--extract", str(archive), str(root)])
    tree = Tree(root)
    # Debian's own has the absolute path.
    common = f"../linux-headers-{tree.release.rpartition('-')[0]}-common"
    (tree.headers / "Makefile").write_text(f"include {common}/Makefile\n")
    _run([*tree.command("bin/kmod", "depmod"), "-b", str(root), tree.release])


def _key() -> str:
    return hashlib.sha256(" ".join((LAYOUT, KERNEL, *PROGRAMS)).encode()).hexdigest()[:12]


def _run(command: Sequence[str], folder: Path | None = None) -> str:
    """The output of a command.

    Raises:
        RealKernelError: It is missing or failed.
    """
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise RealKernelError(f"{command[0]} is missing: this needs Debian 12 with apt") from error
    if done.returncode:
        raise RealKernelError(
            f"{' '.join(command)} ended with {done.returncode}:\n{_tail(done.stderr)}\n"
            "If apt knows no such package or version: apt-get update. Debian 12 needs the archive "
            "bookworm-security in /etc/apt/sources.list.d"
        )
    return done.stdout


def _tail(text: str) -> str:
    lines: Iterable[str] = text.strip().splitlines()[-10:]
    return "\n".join(lines)
