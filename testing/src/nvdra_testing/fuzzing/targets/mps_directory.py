# SPDX-License-Identifier: Apache-2.0
"""The directory of an MPS daemon, of which clients can write two directories.

A case is a list of what is made there, one after the other: by clients directories in one another,
files, links, FIFOs and sockets with names of any bytes, beside them files that a disk has damaged.
What is in the way is left as it is.
"""

import os
import shutil
import socket
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Final

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn
from nvdra_api.ids import ClaimUID
from nvdra_gpu_plugin.devices import mps_layout
from nvdra_gpu_plugin.mps import daemon_command, daemon_files
from nvdra_gpu_plugin.mps.daemon_command import DaemonError

from nvdra_testing.fuzzing import documents, function_target

_CLAIM: Final = ClaimUID("11111111-2222-4333-8444-555555555555")
_OF_CLIENTS: Final = (mps_layout.PIPE.encode(), mps_layout.SHM.encode())
_OURS: Final = tuple(
    name.encode()
    for name in (
        mps_layout.STOP,
        mps_layout.RUN,
        mps_layout.READY,
        mps_layout.STEP,
        mps_layout.LOCK,
    )
)
_KINDS: Final = ("directory", "file", "link", "fifo", "socket", "many")
_LINKED: Final = (b"..", b"../run", b"/", b"/dev/zero", b"/etc/passwd", b"control")
_STEP: Final = {
    "step": "share-by-mps",
    "gpu": "GPU-1",
    "device": "gpu-0",
    "devices": ["gpu-0"],
    "default_limit": "1Gi",
    "run": "r",
}


@st.composite
def _entries(draw: DrawFn) -> bytes:
    """Lines: the kind, the path, and a content, where it leads, or how many; in hexadecimal."""
    lines = []
    for _ in range(draw(documents.sizes(6))):
        if draw(st.booleans()):
            kind, path = "file", draw(st.sampled_from(_OURS))
        else:
            kind, path = draw(st.sampled_from(_KINDS)), draw(st.sampled_from(_OF_CLIENTS))
            path += b"/" + draw(documents.names()).replace(b"/", b"_")[:255]
        if kind == "directory":
            more = b"/d" * draw(documents.sizes(4000))
        elif kind == "file":
            more = draw(documents.mutations([_STEP, {"run": "r"}]))
        elif kind == "many":
            more = str(draw(documents.sizes(3000))).encode()
        else:
            more = draw(st.sampled_from(_LINKED))
        lines.append(b" ".join((kind.encode(), path.hex().encode(), more.hex().encode())))
    return b"\n".join(lines)


def _make(root: Path, case: bytes) -> None:
    for line in case.splitlines():
        kind, name, more = (*line.split(b" "), b"")[:3]
        path = os.path.join(os.fsencode(root), bytes.fromhex(name.decode()))  # noqa: PTH118 - bytes
        content = bytes.fromhex(more.decode())
        with suppress(OSError):
            os.makedirs(os.path.dirname(path), exist_ok=True)  # noqa: PTH103, PTH120 - bytes
            _make_entry(kind.decode(), path, content)


def _make_entry(kind: str, path: bytes, content: bytes) -> None:
    if kind == "directory":
        os.mkdir(path)  # noqa: PTH102 - bytes
        descriptor = os.open(path, os.O_DIRECTORY)
        for _ in range(content.count(b"/")):  # a path has at most 4,096 bytes at a time
            os.mkdir("d", dir_fd=descriptor)
            inner = os.open("d", os.O_DIRECTORY, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = inner
        os.close(descriptor)
    elif kind == "file":
        with open(path, "xb") as file:  # noqa: PTH123 - bytes
            file.write(content)
    elif kind == "link":
        os.symlink(content, path)  # noqa: PTH211 - bytes
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path)
    else:
        os.mkdir(path)  # noqa: PTH102 - bytes
        for number in range(int(content)):
            os.close(os.open(os.path.join(path, b"%d" % number), os.O_CREAT | os.O_WRONLY))  # noqa: PTH118 - bytes


def mps_directory(case: bytes) -> None:
    """What the plugin does with a directory that clients have filled."""
    plugin_dir = Path("plugin").absolute()
    root = plugin_dir / mps_layout.FOLDER / f"{_CLAIM}-abc12"
    if plugin_dir.exists():  # of a case in which the process was ended
        subprocess.run(["rm", "-rf", str(plugin_dir)], check=True)
    try:
        root.mkdir(parents=True)
        _make(root, case)
        for found in daemon_files.of_claim(plugin_dir, _CLAIM):
            with suppress(OSError):
                found.is_ready("r")
            with suppress(OSError):
                daemon_files.steps_of(plugin_dir, _CLAIM)
            with suppress(OSError):
                found.forbid()
            with suppress(OSError, DaemonError):
                daemon_command.remove_leftovers(root / mps_layout.PIPE)
            with suppress(OSError):
                while not found.remove():
                    pass
    finally:
        if plugin_dir.exists():
            subprocess.run(["rm", "-rf", str(plugin_dir)], check=True)
        assert shutil.disk_usage("/dev/shm").free, "the machine's memory is full"


TARGETS: Final = (
    function_target.target(
        mps_directory, _entries(), [b"directory " + b"pipe".hex().encode() + b" "]
    ),
)
