# SPDX-License-Identifier: Apache-2.0
"""What a node has besides, if the drivers of its GPUs can be changed, as for virtual machines.

Its sysfs is served by a process of the node, from plain files that others do not use. The kernel's
modules are those of the simulator, and so are `modprobe` and `rmmod`: the host's would load modules
into the host's kernel. The program that stands for a virtual machine is beside them.
"""

from nvdra_lab.layout import MachineDir
from nvdra_lab.machines.machine_spec import Overlay, Run, Start, Step, WaitMount
from nvdra_lab.model import SYS_ROOT

FLAG = "--passthrough"
PLAIN_SYS_ROOT = "/run/nvidia/sys-files"
MODULES_ROOT = "/run/nvidia/modules"
PROGRAMS = "/run/nvidia/bin"
UNIT = "sysfs"
START_TIMEOUT_S = 60.0

_MODULES = "/lib/modules"
_FUSE = ("c", "10", "229")
"""The type and number of /dev/fuse (Linux, Documentation/admin-guide/devices.txt)."""


def mounts(folder: MachineDir) -> tuple[Step, ...]:
    """The node has a /lib/modules of its own, also where the host has none."""
    return (Overlay("/lib", str(folder.lib), str(folder.lib_work)),)


def steps(python: str, profile: str, node: str) -> tuple[Step, ...]:
    """The hardware of the node, with the server of its sysfs."""
    which = (profile, node)
    return (
        Run("hardware", (python, "-m", "nvdra_lab.machines.hardware", *which, FLAG)),
        Run(
            "modules",
            ("sh", "-c", 'mkdir -p "$1" && mount --bind "$0" "$1"', MODULES_ROOT, _MODULES),
        ),
        Run("fuse", ("mknod", "-m", "666", "/dev/fuse", *_FUSE)),
        Start(UNIT, (python, "-m", "nvdra_lab.machines.served_sysfs", *which)),
        WaitMount(UNIT, SYS_ROOT, START_TIMEOUT_S),
    )
