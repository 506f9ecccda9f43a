# SPDX-License-Identifier: Apache-2.0
"""Checks that this machine has what a lab needs from Debian."""

import shutil
from pathlib import Path

from nvdra_lab.environment import Environment
from nvdra_lab.errors import LabError
from nvdra_lab.kubernetes.runtimes import CNI_PROGRAMS, RUNC, RUNTIMES
from nvdra_lab.versions import DEFAULT_RUNTIME

# Program or file → the Debian package it comes with.
PACKAGES = {
    RUNC: "runc",
    f"{CNI_PROGRAMS}/ptp": "containernetworking-plugins",
    "iptables": "iptables",
    "ip": "iproute2",
    "nsenter": "util-linux",
    "mount": "mount",
    "busybox": "busybox-static",
    "buildah": "buildah",
    "debootstrap": "debootstrap",
}
FUSE = Path("/dev/fuse")
HIDDEN = ("/run", "/var/lib", "/var/log", "/dev")


def check(environment: Environment, runtime: str = DEFAULT_RUNTIME) -> None:
    """Check that a local lab can run here.

    Args:
        environment: The environment of this process.
        runtime: The name of the nodes' container runtime.

    Raises:
        LabError: Not root, a package is missing, or our files are where nodes have theirs.
    """
    if not environment.is_root:
        raise LabError(
            "a local lab creates namespaces, mounts and devices: run it as root (sudo lab …)"
        )
    for path in (environment.source, Path(environment.python), environment.cache.root):
        hiding = next((folder for folder in HIDDEN if path.is_relative_to(folder)), None)
        if hiding:
            raise LabError(
                f"{path} lies below {hiding}, which every node replaces with its own: move it"
            )
    missing = missing_packages(environment, runtime)
    if missing:
        raise LabError(f"packages are missing: apt-get install {' '.join(missing)}")


def check_fuse(device: Path = FUSE) -> None:
    """Check that nodes can serve a sysfs of their own.

    Raises:
        LabError: The kernel has no FUSE, or its module is not loaded.
    """
    if not device.is_char_device():
        raise LabError(f"--passthrough needs {device}, which is missing: modprobe fuse")


def missing_packages(environment: Environment, runtime: str = DEFAULT_RUNTIME) -> list[str]:
    """The Debian packages to install, in a stable order."""
    path = f"{environment.path}:/usr/local/sbin:/usr/sbin:/sbin"
    packages = {**PACKAGES, **RUNTIMES[runtime].packages}
    return [name for program, name in packages.items() if shutil.which(program, path=path) is None]
