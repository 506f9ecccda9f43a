# SPDX-License-Identifier: Apache-2.0
"""The soft limit of open files is raised for us and not for the programs that we start."""

import subprocess
import sys

import pytest

_PROGRAM = """
import resource, subprocess, sys
from nvdra_runtime.process import open_files
resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))
open_files.CEILING = {ceiling}
print(open_files.raise_soft_limit(), open_files.soft_limit())
child = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
open_files.restore_soft_limit(child.pid)
print(resource.prlimit(child.pid, resource.RLIMIT_NOFILE)[0])
child.communicate()
"""


@pytest.mark.parametrize(
    ("soft", "hard", "ceiling", "raised"),
    [(256, 512, 65_536, 512), (256, 1000, 500, 500), (600, 1000, 500, 600)],
)
def test_the_soft_limit_is_raised_and_a_child_gets_what_there_was(
    soft: int, hard: int, ceiling: int, raised: int
) -> None:
    program = _PROGRAM.format(soft=soft, hard=hard, ceiling=ceiling)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.split() == [str(raised), str(raised), str(soft)], done.stderr
