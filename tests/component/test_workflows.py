# SPDX-License-Identifier: Apache-2.0
"""actionlint, and with it shellcheck where it is installed, find nothing in the workflows."""

import os
import subprocess
from pathlib import Path

from nvdra_lab import environment
from nvdra_lab.artifacts import binaries

ROOT = Path(__file__).parents[2]
ACTIONLINT = "github.com/rhysd/actionlint/cmd/actionlint@v1.7.12"


def test_the_workflows_are_well_formed() -> None:
    go = binaries.find_go(environment.read())
    done = subprocess.run(
        [go, "run", ACTIONLINT, "-no-color"],
        cwd=ROOT,
        env={**os.environ, "GOFLAGS": "-mod=mod", "CGO_ENABLED": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
