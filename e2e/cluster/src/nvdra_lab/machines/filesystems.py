# SPDX-License-Identifier: Apache-2.0
"""The mounts in a machine's mount namespace, and in that of a kind node's hardware."""

import os
import stat
import subprocess
from pathlib import Path

from nvdra_lab.machines import machine_spec

# Name: major, minor. The device nodes of every Linux machine.
DEVICES = {
    "null": (1, 3),
    "zero": (1, 5),
    "full": (1, 7),
    "random": (1, 8),
    "urandom": (1, 9),
    "kmsg": (1, 11),
    "tty": (5, 0),
}
LINKS = {
    "fd": "/proc/self/fd",
    "stdin": "/proc/self/fd/0",
    "stdout": "/proc/self/fd/1",
    "stderr": "/proc/self/fd/2",
    "ptmx": "pts/ptmx",
}


def separate_mounts() -> None:
    """Separate this mount namespace from the host's, and let mounts propagate inside it."""
    _mount("--make-rprivate", "/")
    _mount("--make-rshared", "/")


def bind(step: machine_spec.Bind) -> None:
    """Bind `source` to `target` as a mount point of its own."""
    bind_mount(step.source, step.target)


def bind_mount(source: str, target: str) -> None:
    """Bind `source` to `target`."""
    _mount("--bind", source, target)


def temporary(target: str) -> None:
    """Mount an empty file system in memory on `target`."""
    _mount("-t", "tmpfs", "-o", "mode=755", "tmpfs", target)


def overlay(step: machine_spec.Overlay) -> None:
    """Let the machine change `target` without changing the host's files."""
    options = f"lowerdir={step.target},upperdir={step.upper},workdir={step.work}"
    _mount("-t", "overlay", "-o", options, "overlay", step.target)


def devices(step: machine_spec.Devices) -> None:
    """A /dev for the machine: the usual nodes, pts and shm, and nothing of the host's."""
    target = Path(step.target)
    temporary(step.target)
    for name, (major, minor) in DEVICES.items():
        node = target / name
        os.mknod(node, stat.S_IFCHR | 0o666, os.makedev(major, minor))
        node.chmod(0o666)  # whatever the umask
    for name, aim in LINKS.items():
        (target / name).symlink_to(aim)
    for name in ("pts", "shm"):
        (target / name).mkdir()
    _mount("-t", "devpts", "-o", "newinstance,ptmxmode=0666,mode=620", "devpts", f"{target}/pts")
    _mount("-t", "tmpfs", "-o", "mode=1777", "tmpfs", f"{target}/shm")


def _mount(*arguments: str) -> None:
    result = subprocess.run(["mount", *arguments], capture_output=True, text=True, check=False)
    if result.returncode:
        raise OSError(f"mount {' '.join(arguments)}: {result.stderr.strip()}")
