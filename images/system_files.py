# SPDX-License-Identifier: Apache-2.0
"""The files of an image that are of the base image: Python, shared libraries, two programs.

    python3 /images/system_files.py

It runs in the first stage of the Dockerfiles, and leaves the files in /image/system. Which
libraries are needed is asked of the dynamic loader. Each file's Debian package is noted in
/var/lib/dpkg/status.d, where scanners for vulnerabilities look in images without dpkg, and the
package's licence is copied, with the whole texts that it refers to.
"""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path

import trees

SYSTEM = Path("/image/system")
PROGRAMS = ("/usr/bin/cat", "/usr/sbin/chroot")
"""`cat` reads files by `kubectl exec`, and is the probe of MPS daemons that an earlier release has
created; `chroot` starts the driver's programs where a driver root is a whole system."""
LIBRARIES = ("libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1",
             "libresolv.so.2", "libutil.so.1", "libgcc_s.so.1", "libstdc++.so.6")  # fmt: skip
"""What programs and libraries of the NVIDIA driver need, which are mounted from the node."""
UNUSED_MODULES = re.compile(
    r"(^|/)(__pycache__|test|tests|idlelib|tkinter|turtledemo|lib2to3|ensurepip|pydoc_data|"
    r"distutils|site-packages|dist-packages|config-3[^/]*)(/|$)"
    r"|/(_crypt|_curses|_curses_panel|_dbm|_gdbm|_tkinter|nis|ossaudiodev|readline)\.[^/]*$"
)
"""Of Python's library: its tests, its editor, pip, and modules for terminals, databases and NIS,
which need libraries that nothing else needs."""
ETC = ("debian_version", "host.conf", "ld.so.conf", "ld.so.conf.d", "nsswitch.conf", "os-release",
       "protocols", "services", "ssl/certs/ca-certificates.crt")  # fmt: skip
COMMON_LICENCES = Path("/usr/share/common-licenses")
COMMON_LICENCE = re.compile(rf"{COMMON_LICENCES}/([\w.-]*\w)")
FOLDERS = ("dev", "proc", "sys", "run", "etc", "tmp", "var/lib", "var/log", "usr/bin", "usr/lib")
ACCOUNTS = {
    "passwd": "root:x:0:0:root:/root:/sbin/nologin\n"
    "nonroot:x:65532:65532:nonroot:/nonexistent:/sbin/nologin\n",
    "group": "root:x:0:\nnonroot:x:65532:\n",
}
NSSWITCH = "passwd: files\ngroup: files\nhosts: files dns\n"


def copy(system: Path) -> None:
    """Fill a tree with Python and everything that it needs to run."""
    _make_frame(system)
    python = Path(sys.base_exec_prefix) / "bin" / "python3"
    _copy_file(python, system)
    for key in ("stdlib", "platstdlib"):
        _copy_modules(Path(sysconfig.get_path(key)), system)
    for program in PROGRAMS:
        _copy_file(Path(program), system)
    found = _known_libraries()
    for name in LIBRARIES:
        _copy_file(found[name], system)
    for file in _binaries(system):
        for library in _needed(Path("/") / file.relative_to(system)):
            _copy_file(library, system)
    subprocess.run(["ldconfig", "-r", system], check=True)
    _note_packages(system)


def add_program(program: Path, tree: Path, system: Path) -> None:
    """Add a program to an empty tree, with what it needs and the image does not have yet.

    Args:
        program: The program, which may be a link.
        tree: The tree, which gets the status and licence of its Debian packages as well.
        system: The tree that `copy` has filled.
    """
    _copy_file(program, tree)
    for file in _binaries(tree):
        for library in _needed(Path("/") / file.relative_to(tree)):
            _copy_file(library, tree)
    _remove_common_files(tree, system)  # whose packages are noted there
    _note_packages(tree)
    _remove_common_files(tree, system)  # such as licences


def check_libraries(tree: Path, *others: Path) -> None:
    """Check that each library that a tree needs is in it or in another tree of the image.

    Raises:
        SystemExit: One is missing; the message names it and who needs it.
    """
    for file in _binaries(tree):
        for library in _needed(file):
            inside = [each / _place(library).relative_to("/") for each in (tree, *others)]
            if not library.is_relative_to(tree) and not any(map(Path.exists, inside)):
                raise SystemExit(
                    f"error: {file} needs {library}, which the image does not have: add "
                    f"{library.name} to LIBRARIES in {__file__}"
                )


def _remove_common_files(tree: Path, system: Path) -> None:
    for path in tuple(tree.rglob("*")):
        is_file = path.is_symlink() or path.is_file()
        if is_file and os.path.lexists(system / path.relative_to(tree)):
            path.unlink()


def _make_frame(system: Path) -> None:
    for folder in FOLDERS:
        (system / folder).mkdir(parents=True, exist_ok=True)
    (system / "tmp").chmod(0o1777)
    (system / "var/run").symlink_to("/run")
    # The directories of the root that are links into /usr, as in the base image.
    for path in map(Path, ("/bin", "/sbin", "/lib", "/lib64")):
        if path.is_symlink():
            (system / path.name).symlink_to(path.readlink())
            (system / path.readlink()).mkdir(parents=True, exist_ok=True)
    for name in ETC:
        source, target = Path("/etc") / name, system / "etc" / name
        if source.is_dir():
            shutil.copytree(source, target)
        elif source.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)
    (system / "etc/nsswitch.conf").write_text(NSSWITCH)
    for name, content in ACCOUNTS.items():
        (system / "etc" / name).write_text(content)


def _copy_modules(library: Path, system: Path) -> None:
    for path in sorted(library.rglob("*")):
        inside = str(path.relative_to(library))
        if not UNUSED_MODULES.search(inside) and (path.is_file() or path.is_symlink()):
            _copy_file(path, system)


def _copy_file(path: Path, system: Path) -> None:
    """Copy a file, and the links that lead to it, to the same place below `system`."""
    place = _place(path)
    target = system / place.relative_to("/")
    if target.is_symlink() or target.exists():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    if place.is_symlink():
        target.symlink_to(place.readlink())
        _copy_file(place.parent / place.readlink(), system)
    else:
        shutil.copy2(place, target)


def _place(path: Path) -> Path:
    """The path without the links of the root into /usr, which not every tree has."""
    return path.parent.resolve() / path.name


def _binaries(tree: Path) -> list[Path]:
    """The programs and libraries of a tree."""
    return [path for path in sorted(tree.rglob("*")) if not path.is_symlink() and _is_elf(path)]


def _is_elf(path: Path) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(4) == b"\x7fELF"


def _needed(binary: Path) -> Iterable[Path]:
    """The libraries that the loader finds for a program or library.

    Raises:
        SystemExit: It finds one nowhere.
    """
    done = subprocess.run(["ldd", binary], capture_output=True, text=True, check=False)
    for line in done.stdout.splitlines():
        if missing := re.match(r"\s*(\S+) => not found", line):
            raise SystemExit(f"error: {binary} needs {missing[1]}, which the base image lacks")
        if found := re.match(r"\s*(?:\S+ => )?(/\S+) \(0x", line):
            yield Path(found[1])


def _known_libraries() -> dict[str, Path]:
    """Where the loader finds libraries, by their names."""
    done = subprocess.run(["ldconfig", "-p"], capture_output=True, text=True, check=True)
    found = re.findall(r"^\s+(\S+) \(libc6,[^)]*\) => (\S+)$", done.stdout, re.MULTILINE)
    return {name: Path(path) for name, path in reversed(found)}


def _note_packages(system: Path) -> None:
    """Write the status of each Debian package that a file is of, and copy its licence."""
    owners = _owners()
    found = set()
    for path in system.rglob("*"):
        place = f"/{path.relative_to(system)}"
        if path.is_file() or path.is_symlink():
            found |= owners.get(place, set()) | owners.get(place.removeprefix("/usr"), set())
    folder = system / "var/lib/dpkg/status.d"
    folder.mkdir(parents=True)
    for package in sorted(found):
        status = subprocess.run(
            ["dpkg-query", "--status", package], capture_output=True, text=True, check=True
        ).stdout
        name = package.partition(":")[0]
        (folder / name).write_text(status)
        _copy_licence(name, system)


def _copy_licence(package: str, system: Path) -> None:
    """Copy the licence of a Debian package to where one looks for it, and what it refers to."""
    folder = Path("/usr/share/doc") / package
    licence = folder / "copyright"
    if not licence.exists():
        return
    if folder.is_symlink():  # several packages of one source share a folder
        link = system / folder.relative_to("/")
        link.parent.mkdir(parents=True, exist_ok=True)
        if not link.is_symlink():
            link.symlink_to(folder.readlink())
        _copy_licence(folder.readlink().name, system)
    else:
        _copy_file(licence, system)
    for name in COMMON_LICENCE.findall(licence.read_text(errors="replace")):
        if (COMMON_LICENCES / name).exists():
            _copy_file(COMMON_LICENCES / name, system)


def _owners() -> dict[str, set[str]]:
    """The Debian packages of each file."""
    found: dict[str, set[str]] = {}
    for listing in Path("/var/lib/dpkg/info").glob("*.list"):
        for line in listing.read_text().splitlines():
            if not os.path.isdir(line):  # noqa: PTH112 - of some hundred thousand lines
                found.setdefault(line, set()).add(listing.stem)
    return found


if __name__ == "__main__":
    copy(SYSTEM)
    trees.finish(SYSTEM)
