# SPDX-License-Identifier: Apache-2.0
"""The server of a node's sysfs.

`python -m nvdra_lab.machines.served_sysfs PROFILE NODE` runs inside the node's namespaces. Its
mount stays when it ends, so that pods which have it as a volume see the server that the machine
starts next. When the node ends, the kernel ends the server, answers who waits for it, and unmounts.
"""

import sys

from nvdra_sim.sysfs_server import main as sysfs_server

from nvdra_lab.machines import hardware
from nvdra_lab.model import SYS_ROOT


def main() -> None:
    """Serve until a signal."""
    profile, node = sys.argv[1:]
    state_file = hardware.state_file(hardware.current(profile, node))
    sys.exit(sysfs_server.main([SYS_ROOT, "--keep-mount", f"--state={state_file}"]))


if __name__ == "__main__":
    main()
