# SPDX-License-Identifier: Apache-2.0
"""The examples of the README print what the README shows."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).parents[2] / "README.md"
EXAMPLES = re.findall(r"```python\n(.*?)```\n\n```\n(.*?)```", README.read_text(), re.DOTALL)
SLICES = Path(__file__).parent / "golden" / "resourceslices.json"


def test_there_are_three_examples() -> None:
    assert len(EXAMPLES) == 3


@pytest.mark.parametrize(("code", "output"), EXAMPLES)
def test_an_example_prints_what_the_readme_shows(code: str, output: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", code],
        input=SLICES.read_text(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.stderr) == (output, "")
