# SPDX-License-Identifier: Apache-2.0
"""The simulated hardware of a node that is a container, made on the host.

`python -m nvdra_lab.machines.kind_hardware FOLDER COMMAND…` runs in a mount namespace of its own.
There, the folder is at /run/nvidia and its device nodes are /dev, as the node has them. So the
simulator's programs find the paths of the node, and nothing of them is left on the host.
"""

import os
import stat
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from nvdra_lab.kubernetes.kind_config import HARDWARE
from nvdra_lab.machines import filesystems

MODULE = "nvdra_lab.machines.kind_hardware"


def argv(python: str, folder: Path, command: Sequence[str]) -> list[str]:
    """The arguments that run a command with the hardware of a folder."""
    return ["unshare", "--mount", python, "-m", MODULE, str(folder), *command]


def install_argv(python: str, folder: Path, profile: str, node: str) -> list[str]:
    """The arguments that install a node's hardware into a folder, as after a boot."""
    return argv(python, folder, [python, "-m", "nvdra_lab.machines.hardware", profile, node])


def run(arguments: Sequence[str], variables: Mapping[str, str]) -> int:
    """Run such arguments with this terminal, and return the exit status."""
    return subprocess.run(arguments, env=variables, check=False).returncode


def main() -> None:
    """Enter the folder and run the command in place of this process."""
    folder, *command = sys.argv[1:]
    devices = Path(folder) / "dev"
    devices.mkdir(parents=True, exist_ok=True)
    for name, (major, minor) in filesystems.DEVICES.items():
        if not (devices / name).exists():
            os.mknod(devices / name, stat.S_IFCHR | 0o666, os.makedev(major, minor))
            (devices / name).chmod(0o666)  # whatever the umask
    filesystems.separate_mounts()
    filesystems.temporary("/run")
    Path(HARDWARE).mkdir()
    filesystems.bind_mount(folder, HARDWARE)
    filesystems.bind_mount(str(devices), "/dev")
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
