# SPDX-License-Identifier: Apache-2.0
"""Runs other programs to their end."""

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from nvdra_lab.errors import LabError


def run(
    argv: Sequence[str | Path],
    *,
    stdin: bytes | IO[bytes] | None = None,
    env: Mapping[str, str] | None = None,
) -> str:
    """Run a program, and return its standard output.

    Raises:
        LabError: It failed; the message has the end of its output.
    """
    given = stdin if isinstance(stdin, bytes) else None
    source = None if isinstance(stdin, bytes) else stdin or subprocess.DEVNULL
    result: subprocess.CompletedProcess[bytes] = subprocess.run(
        argv, input=given, stdin=source, capture_output=True, env=env, check=False
    )
    if result.returncode:
        said = (result.stderr or result.stdout).decode(errors="replace").strip()
        tail = "\n".join(said.splitlines()[-15:])
        command = " ".join(str(part) for part in argv)
        raise LabError(f"{command} ended with {result.returncode}:\n{tail}")
    return result.stdout.decode(errors="replace")
