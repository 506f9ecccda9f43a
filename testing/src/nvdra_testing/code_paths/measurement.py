# SPDX-License-Identifier: Apache-2.0
"""What a recording says: how many files and lines an operation goes through, and how deep."""

import json
import os
import shlex
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from nvdra_testing.polling import wait_until

RECORDER: Final = Path(__file__).parent / "recorder.py"

DOOR: Final = (
    "nvdra_runtime/kubeletplugin/prompt_server.py",
    "nvdra_runtime/kubeletplugin/grpc_service.py",
    "nvdra_runtime/kubeletplugin/messages.py",
)
"""The gRPC door: what every call of the kubelet goes through, whatever it asks for."""
NVML_WORKER: Final = ("nvdra_runtime/process/worker.py", "nvdra_runtime/node/nvml.py")
"""The thread that calls NVML, and the calls."""


@dataclass(frozen=True)
class CodePath:
    """The way of one operation through our code.

    Attributes:
        lines: File → how many lines its executed functions have, with their signatures and
            docstrings. A function inside of another one counts once.
        chain: The longest chain of functions that ends in a call of NVML, as `file:function`.
    """

    lines: Mapping[str, int]
    chain: Sequence[str] = field(default=())

    @property
    def inner_files(self) -> tuple[str, ...]:
        """The files without the gRPC door and NVML's worker."""
        return tuple(each for each in self.lines if each not in {*DOOR, *NVML_WORKER})

    @property
    def line_count(self) -> int:
        """The lines of all files."""
        return sum(self.lines.values())

    def text(self, name: str) -> str:
        """A table."""
        rows = [
            f"{name}: {len(self.lines)} files, {len(self.inner_files)} without gRPC and NVML's "
            f"worker, {self.line_count} lines, {len(self.chain)} functions deep",
            *(f"{count:6} {file}" for file, count in self.lines.items()),
            *(f"{'':6} {depth:2} {name}" for depth, name in enumerate(self.chain, 1)),
        ]
        return "\n".join(rows)


@dataclass(frozen=True)
class Recording:
    """A program that is run under the recorder.

    Attributes:
        program: The path of a script that runs it, to be used in place of the program.
        output: What the recorder writes.
    """

    program: str
    output: Path

    async def begin(self, pid: int) -> None:
        """Begin to record."""
        os.kill(pid, signal.SIGPROF)

    async def end(self, pid: int) -> CodePath:
        """End the recording, and read it."""
        os.kill(pid, signal.SIGPROF)
        await wait_until(self.output.exists)
        return read(json.loads(self.output.read_text()))


def recording(directory: Path, entry: str, program: str) -> Recording:
    """Write the script that runs a program under the recorder.

    Args:
        directory: Where the script and the output are written.
        entry: How the name of the file ends in which an operation begins.
        program: Such as `nvdra-gpu-plugin`.
    """
    output, script = directory / f"{program}.json", directory / f"{program}.sh"
    argv = [sys.executable, str(RECORDER), str(output), entry, program]
    script.write_text(f'#!/bin/sh\nexec {shlex.join(argv)} "$@"\n')
    script.chmod(0o755)
    return Recording(str(script), output)


def read(found: Mapping[str, Any]) -> CodePath:
    """The way that a recorder's output describes."""
    numbers: dict[str, set[int]] = {}
    for each in found["functions"]:
        numbers.setdefault(each["file"], set()).update(range(each["first"], each["last"] + 1))
    chain = tuple(f"{each['file']}:{each['name']}" for each in found["to_nvml"])
    return CodePath({file: len(lines) for file, lines in sorted(numbers.items())}, chain)
