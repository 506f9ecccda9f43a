# SPDX-License-Identifier: Apache-2.0
"""Records the files that the NVIDIA driver has on this machine, to compare the simulator's.

It needs nothing but Python, and changes nothing:

    python node_files.py > my-node.json

UUIDs, serial numbers, addresses and host names are not recorded, only their form (`x` for each
letter and digit), and nothing of the processes.
"""

import json
import os
import re
import stat
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

SECRETS = re.compile(
    r"(?P<kept>(?:GPU UUID|Serial Number|GPU PDI|Board ID|Bus Location|Bus Id|Host ID|GUID"
    r"|Cluster ?UUID)\s*:\s*)(?P<secret>.+)"
    r"|(?P<uuid>(?:GPU|MIG)-[0-9a-f-]{36})"
    r"|(?P<address>\b(?:[0-9a-fA-F]{4}){1,2}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-9a-f]\b)"
    r"|(?P<builder>\(\S*@\S*\))"
)
"""What tells one machine from another, in the output of nvidia-smi and in procfs. The builder built
the kernel module, often on the machine itself."""

PROCESSES = re.compile(
    r"(?ms)^\| Processes:.*|^\s+(?:Process ID|Type|Name|Used GPU Memory)\s+: [^\n]*\n"
)
"""What nvidia-smi says of the processes that use GPUs."""

LIBRARIES = (
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib64",
    "/usr/local/nvidia/lib64",
    "/usr/local/nvidia/lib",
)
DRIVER_LIBRARY = re.compile(
    r"lib(nvidia|cuda\.|cudadebugger|nvcuvid|nvoptix|EGL_nvidia|GLX_nvidia|GLES.*nvidia)"
)
COMMANDS = (
    ("nvidia-smi", "-L"),
    ("nvidia-smi", "-q"),
    ("nvidia-smi",),
    ("nvidia-smi", "mig", "-lgip"),
    ("nvidia-smi", "mig", "-lgipp"),
    ("nvidia-smi", "mig", "-lcip"),
    ("nvidia-smi", "mig", "-lgi"),
    ("nvidia-smi", "compute-policy", "-l"),
    ("nvidia-smi", "topo", "-m"),
    (
        "nvidia-smi",
        "--query-gpu=index,name,mig.mode.current,compute_mode,persistence_mode,ecc.mode.current",
        "--format=csv",
    ),
)


def record() -> dict[str, Any]:
    """Files of procfs, sysfs, /dev and the driver root, and what nvidia-smi prints."""
    return {
        "proc": contents(Path("/proc/driver")),
        "proc_devices": [line.split()[1] for line in lines("/proc/devices") if "nvidia" in line],
        "dev": {str(path): node(path) for path in sorted(devices())},
        "modules": [line.split()[0] for line in lines("/proc/modules") if "nvidia" in line],
        "sys": [gpu for path in Path("/sys/bus/pci/devices").glob("*") if (gpu := pci(path))],
        "libraries": libraries(),
        "programs": programs(),
        "commands": {" ".join(command): output(command) for command in COMMANDS},
    }


def contents(root: Path) -> dict[str, str]:
    """The files below a directory, without what tells one board from another."""
    found = {}
    for path in sorted(root.rglob("*")) if root.is_dir() else ():
        name = re.sub(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]", "<address>", str(path))
        if path.is_file():
            try:
                found[name] = hidden(path.read_text(errors="replace")[:4000])
            except OSError as error:
                found[name] = f"{type(error).__name__}: {error.strerror}"
    return found


def devices() -> list[Path]:
    """The driver's device nodes."""
    found = [*Path("/dev").glob("nvidia*"), *Path("/dev/nvidia-caps").glob("*")]
    return [*found, *Path("/dev/dri").glob("*"), *Path("/dev/vfio").glob("*")]


def node(path: Path) -> str:
    """`c 195:255 0666` of a device node."""
    status = path.stat()
    kind = "c" if stat.S_ISCHR(status.st_mode) else "d" if path.is_dir() else "f"
    number = f"{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}"
    return f"{kind} {number} {stat.S_IMODE(status.st_mode):04o}"


def pci(path: Path) -> dict[str, str] | None:
    """What sysfs says of a device of NVIDIA; None for others."""
    read = {
        name: "".join(lines(str(path / name)))
        for name in ("vendor", "device", "class", "numa_node", "subsystem_device", "reset_method")
    }
    if read["vendor"] != "0x10de":
        return None
    link = re.sub(r"[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]", "xx:xx.x", str(path.readlink()))
    driver = path / "driver"
    return {**read, "link": link, "driver": driver.resolve().name if driver.exists() else ""}


def libraries() -> dict[str, str]:
    """The driver's libraries, and where their links lead."""
    found = {}
    for directory in map(Path, LIBRARIES):
        if directory.is_dir():
            for path in sorted(directory.glob("lib*")):
                if DRIVER_LIBRARY.match(path.name):
                    found[str(path)] = str(path.readlink()) if path.is_symlink() else "file"
    return found


def programs() -> list[str]:
    """The driver's programs."""
    places = ("/usr/bin", "/usr/local/nvidia/bin", "/usr/sbin")
    return sorted(str(path) for place in places for path in Path(place).glob("nvidia*"))


def output(command: Sequence[str], environ: Mapping[str, str] | None = None) -> str:
    """What a program prints, and its exit code."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=120, check=False, env=environ
        )
    except (OSError, subprocess.SubprocessError) as error:
        return f"{type(error).__name__}: {error}"
    return hidden(f"{done.stdout}{done.stderr}exit {done.returncode}")


def hidden(text: str) -> str:
    """A text without what tells one machine from another, and without its processes."""

    def hide(match: re.Match[str]) -> str:
        kept = match["kept"] or ""
        return kept + re.sub(r"[0-9A-Za-z]", "x", match[0].removeprefix(kept))

    return SECRETS.sub(hide, PROCESSES.sub("", text))


def lines(path: str) -> list[str]:
    """The lines of a file; none if there is none."""
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []


if __name__ == "__main__":
    json.dump(record(), sys.stdout, indent=1, sort_keys=True)
    print()
