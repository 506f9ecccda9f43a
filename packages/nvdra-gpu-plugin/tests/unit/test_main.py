# SPDX-License-Identifier: Apache-2.0
"""What the command prints on its standard output arrives, or its exit code says that it did not."""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["--version"],
        ["status", "--help"],
        ["release", "--help"],
        ["resume", "--version"],
    ],
)
def test_an_answer_that_cannot_be_written_is_one_line(arguments: list[str]) -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "nvdra_gpu_plugin", *arguments],
            stdout=full,
            stderr=subprocess.PIPE,
            check=False,
        )
    assert done.returncode == 1
    assert done.stderr == b"Error: cannot write the output: No space left on device\n"
