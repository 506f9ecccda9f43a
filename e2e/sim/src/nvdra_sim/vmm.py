# SPDX-License-Identifier: Apache-2.0
"""`nvdra-sim-vmm`: a stand-in for the process of a virtual machine (`e2e/sim/vmm/vmm.c`)."""

from __future__ import annotations

import os
import sys

from nvdra_sim.native import programs


def main() -> None:
    """Becomes the program, which is compiled at first use."""
    os.execv(programs.vmm(), ["nvdra-sim-vmm", *sys.argv[1:]])


if __name__ == "__main__":
    main()
