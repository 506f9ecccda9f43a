# SPDX-License-Identifier: Apache-2.0
"""The simulated hardware of a node, at the same paths in every lab.

`python -m nvdra_lab.machines.hardware PROFILE NODE [--passthrough]` runs inside the node's mount
namespace. A node file in the node's /etc takes precedence over the profile.
"""

import sys
from pathlib import Path

from nvdra_sim import incidents, installation
from nvdra_sim.configuration import node_config
from nvdra_sim.description import NodeDescription
from nvdra_sim.filesystem import driver_root, trees
from nvdra_sim.native import programs
from nvdra_sim.native.nvml_library import BuildError
from nvdra_sim.state_file import state

from nvdra_lab.errors import LabError
from nvdra_lab.machines import passthrough
from nvdra_lab.model import DEV_ROOT, DRIVER_ROOT, PROC_ROOT, SYS_ROOT

NODE_FILE = "/etc/nvdra-sim/node.yaml"
"""What a reboot has made of hardware and driver; absent while they are as the profile says."""


def describe(profile: str, node: str) -> NodeDescription:
    """The hardware of one node.

    Raises:
        LabError: There is no such profile; the message is the simulator's.
    """
    try:
        return node_config.from_profile(profile, node)
    except node_config.ConfigError as error:
        raise LabError(f"--profile {profile}: {error}") from error


def describe_file(file: Path, node: str) -> NodeDescription:
    """The hardware of one node by a node file of the simulator.

    Raises:
        LabError: The file cannot be read, is wrong, or describes another node.
    """
    try:
        found = node_config.load(file)
    except (node_config.ConfigError, OSError) as error:
        raise LabError(f"{file}: {error}") from error
    if found.name != node:
        raise LabError(f"{file} describes {found.name}, not {node}: UUIDs come from that name")
    return found


def current(profile: str, node: str) -> NodeDescription:
    """The hardware of the node that this process is in. Raises LabError like `describe`."""
    file = Path(NODE_FILE)
    return describe_file(file, node) if file.exists() else describe(profile, node)


def state_file(description: NodeDescription) -> Path:
    """The state file of the simulator in a node."""
    return Path(DRIVER_ROOT) / driver_root.state_path(description)


def compile_programs(*, has_passthrough: bool = False) -> None:
    """Build the simulator's native parts before nodes need them.

    Args:
        has_passthrough: Whether nodes also have the programs of `passthrough_programs`.

    Raises:
        LabError: The C compiler is missing or failed.
    """
    try:
        programs.build()
        if has_passthrough:
            passthrough_programs()
    except BuildError as error:
        raise LabError(str(error)) from error


def passthrough_programs() -> trees.Tree:
    """The programs of a node with passthrough. Raises BuildError like `programs.build`."""
    found = {name: programs.kmod(name) for name in ("modprobe", "rmmod")}
    found["nvdra-sim-vmm"] = programs.vmm()
    return {name: trees.Copy(path, 0o755) for name, path in found.items()}


def login_environment(description: NodeDescription) -> dict[str, str]:
    """The environment for running the driver's programs on the node."""
    return installation.environment(Path(DRIVER_ROOT), description)


def main() -> None:
    """Install the hardware as after a boot of this node, with a new boot id."""
    profile, node, *flags = sys.argv[1:]
    has_passthrough = passthrough.FLAG in flags
    description = current(profile, node)
    installation.install(
        description,
        driver_root=Path(DRIVER_ROOT),
        proc_root=Path(PROC_ROOT),
        sys_root=Path(passthrough.PLAIN_SYS_ROOT if has_passthrough else SYS_ROOT),
        dev_root=Path(DEV_ROOT),
        modules_root=Path(passthrough.MODULES_ROOT) if has_passthrough else None,
    )
    if has_passthrough:
        trees.write(passthrough_programs(), Path(passthrough.PROGRAMS))
    boot_id = incidents.reboot(state.load(state_file(description)))
    trees.write({"sys/kernel/random/boot_id": trees.text(boot_id, 0o444)}, Path(PROC_ROOT))


if __name__ == "__main__":
    main()
