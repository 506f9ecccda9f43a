# SPDX-License-Identifier: Apache-2.0
"""Processes that have devices of a simulated node open, as programs on it would.

This machine has no driver for the nodes, so they are opened with `O_PATH`, which shows their
numbers to those who look at descriptors.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final
from uuid import uuid4

from nvdra_api.ids import PodUID

_OPEN: Final = (
    "import os, sys; os.open(sys.argv[1], os.O_PATH); print('open', flush=True); sys.stdin.read()"
)
_MAP: Final = """
import mmap, os, sys
file = os.open(sys.argv[1], os.O_RDWR)
mapping = mmap.mmap(file, 4096)
os.close(file)
print("mapped", flush=True)
sys.stdin.read()
"""
_IN_CONTAINER: Final = """
import os, stat, subprocess, sys
node, place, cgroup = sys.argv[1:]
with open(f"{cgroup}/cgroup.procs", "w") as file:
    file.write(str(os.getpid()))
subprocess.run(["mount", "-t", "tmpfs", "none", place], check=True)
os.mknod(f"{place}/gpu", stat.S_IFCHR | 0o666, os.stat(node).st_rdev)
os.open(f"{place}/gpu", os.O_PATH)
print("open", flush=True)
sys.stdin.read()
"""
"""In a mount namespace, and so a /dev, of its own."""

_CGROUPS: Final = (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified"))
"""Where version 2 is mounted: alone, or beside version 1."""


@contextmanager
def holding(command: Sequence[str]) -> Iterator[int]:
    """Run a program for the block, from its first line of output on. Yields its process id.

    It must end when its standard input does.
    """
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe) as process:
        assert process.stdout is not None
        assert process.stdout.readline(), "the program has ended"
        yield process.pid
        process.communicate()


@contextmanager
def leaked(command: Sequence[str]) -> Iterator[int]:
    """Run a program that goes on in a process of its own, which is killed after the block.

    Yields its process id. It may be killed before.
    """
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    words = b"".join(word.encode() + b"\0" for word in command)
    (pid,) = [
        int(path.parent.name)
        for path in Path("/proc").glob("[0-9]*/cmdline")
        if _content(path) == words
    ]
    try:
        yield pid
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # the process has ended
        return b""


@contextmanager
def opened(node: Path) -> Iterator[int]:
    """Have a device node open in another process for the block. Yields its process id."""
    with holding((sys.executable, "-c", _OPEN, str(node))) as pid:
        yield pid


@contextmanager
def mapped(file: Path) -> Iterator[int]:
    """Have a file mapped in another process that has closed its descriptor.

    It is a plain file, as nothing can be mapped of a node without a driver.
    """
    file.parent.mkdir(parents=True)
    file.write_bytes(bytes(4096))
    with holding((sys.executable, "-c", _MAP, str(file))) as pid:
        yield pid


@contextmanager
def opened_in_pod(node: Path, directory: Path, pod: PodUID) -> Iterator[int]:
    """Have a device open in a container of a pod: with a /dev and a cgroup of its own.

    Args:
        node: The device node on the node.
        directory: An empty directory, on which the container mounts its /dev.
        pod: The pod.
    """
    root = next(path for path in _CGROUPS if (path / "cgroup.procs").is_file())
    # Named after the test's pod only, so that tests at once do not share one.
    groups = [root / f"kubepods-{uuid4().hex[:8]}"]
    groups += [groups[0] / f"pod{pod}", groups[0] / f"pod{pod}" / ("ab" * 32)]
    for group in groups:
        group.mkdir()
    try:
        words = ("unshare", "--mount", sys.executable, "-c", _IN_CONTAINER)
        with holding((*words, str(node), str(directory), str(groups[-1]))) as pid:
            yield pid
    finally:
        for group in reversed(groups):
            group.rmdir()
