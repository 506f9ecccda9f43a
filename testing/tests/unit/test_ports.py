# SPDX-License-Identifier: Apache-2.0
"""Addresses of tests that run at the same time."""

import subprocess
import sys

from nvdra_testing import ports

PRINT = "from nvdra_testing import ports; print(ports.network_number(), flush=True); input()"


def test_no_other_process_has_the_network_of_this_one() -> None:
    others = [
        subprocess.Popen(
            [sys.executable, "-c", PRINT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    numbers = [other.stdout.readline().strip() for other in others if other.stdout is not None]
    own = ports.network_number()
    assert own == ports.network_number()
    assert len({str(own), *numbers}) == 3
    for other in others:
        other.communicate("\n")
