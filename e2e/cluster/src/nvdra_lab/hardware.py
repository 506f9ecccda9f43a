"""The simulated hardware of a node, at the roots every lab has. Effects: files and device nodes.

`python -m nvdra_lab.hardware PROFILE NODE` runs inside the node's own mount namespace.
"""

import sys
from pathlib import Path

from nvdra_sim import config, driverroot, incidents, install, programs, state, trees
from nvdra_sim.description import NodeDescription
from nvdra_sim.library import BuildError

from nvdra_lab.errors import LabError
from nvdra_lab.model import DEV_ROOT, DRIVER_ROOT, PROC_ROOT, SYS_ROOT


def describe(profile: str, node: str) -> NodeDescription:
    """The hardware of one node.

    Raises:
        LabError: There is no such profile; the simulator's words.
    """
    try:
        return config.from_profile(profile, node)
    except config.ConfigError as error:
        raise LabError(f"--profile {profile}: {error}") from error


def compile_programs() -> None:
    """Build the simulator's native parts once, before nodes need them.

    Raises:
        LabError: The C compiler is missing or failed.
    """
    try:
        programs.build()
    except BuildError as error:
        raise LabError(str(error)) from error


def login_environment(description: NodeDescription) -> dict[str, str]:
    """What somebody who enters the node needs to run its driver's programs."""
    return install.environment(Path(DRIVER_ROOT), description)


def main() -> None:
    """Install the hardware here, as it is after a boot of this node: with a boot id of its own."""
    description = describe(*sys.argv[1:])
    install.install(
        description,
        driver_root=Path(DRIVER_ROOT),
        proc_root=Path(PROC_ROOT),
        sys_root=Path(SYS_ROOT),
        dev_root=Path(DEV_ROOT),
    )
    boot_id = incidents.reboot(state.load(Path(DRIVER_ROOT) / driverroot.state_path(description)))
    trees.write({"sys/kernel/random/boot_id": trees.text(boot_id, 0o444)}, Path(PROC_ROOT))


if __name__ == "__main__":
    main()
