# SPDX-License-Identifier: Apache-2.0
"""Installs and removes the NVIDIA driver of a simulated node, as an administrator would.

And what else happens to a node: its services start and stop, it is rebooted.
"""

import os
import shutil
import socket
import stat
from collections.abc import Mapping
from contextlib import closing
from typing import Any
from uuid import uuid4

from nvdra_sim import installation
from nvdra_sim.configuration import node_config

from nvdra_testing.node.plugin import Node


def install_driver(
    node: Node,
    *,
    profile: str = "dgx-h100",
    version: str = "580.95.05",
    uvm_loaded: bool = True,
    settings: Mapping[str, Any] | None = None,
    overrides: Mapping[str, Any] | None = None,
    mig: Mapping[str, Any] | None = None,
) -> None:
    """Install a driver version for the GPUs of a profile, replacing the installed driver.

    `settings`, `overrides` and `mig` are the sections `node`, `overrides` and `mig` of a node file.
    Without `uvm_loaded` there is no nvidia-uvm yet.
    """
    sections = {
        "node": {"visibility": "all", **(settings or {})},
        "driver": {"version": version, "uvm_loaded": uvm_loaded},
        "overrides": dict(overrides or {}),
        "mig": dict(mig or {}),
    }
    installation.install(
        node_config.from_profile(profile, node.name, sections),
        driver_root=node.roots.driver,
        proc_root=node.roots.proc,
        sys_root=node.roots.sys,
        dev_root=node.roots.dev,
    )


def remove_driver(node: Node) -> None:
    """Remove the driver with its device nodes."""
    boot_id = node.roots.proc / "sys/kernel/random/boot_id"
    known = boot_id.read_text()
    installation.uninstall(driver_root=node.roots.driver)
    boot_id.parent.mkdir(parents=True, exist_ok=True)
    boot_id.write_text(known)  # it belongs to the kernel and stays
    boot_id.chmod(0o444)


def reboot(
    node: Node,
    *,
    profile: str = "dgx-h100",
    version: str = "580.95.05",
    uvm_major: int = 507,
    uvm_loaded: bool = True,
    overrides: Mapping[str, Any] | None = None,
    mig: Mapping[str, Any] | None = None,
    is_cdi_kept: bool = False,
) -> None:
    """Reboot a node whose processes have ended: another boot id, /run is empty.

    Args:
        node: The node.
        profile: The profile of its GPUs.
        version: The driver that is loaded in this boot.
        uvm_major: The major number that nvidia-uvm gets, which is dynamic.
        uvm_loaded: Whether it is loaded already.
        overrides: What has become of the GPUs, as in a node file: `{"gpus": [{"index": 0,
            "minor": 1}]}`.
        mig: How MIG behaves, as in a node file.
        is_cdi_kept: Whether the CDI directory is on a disk, not on a tmpfs.
    """
    booted = {"boot_id": str(uuid4()), "majors": {"nvidia-uvm": uvm_major}}
    install_driver(
        node,
        profile=profile,
        version=version,
        uvm_loaded=uvm_loaded,
        settings=booted,
        overrides=overrides,
        mig=mig,
    )
    if not is_cdi_kept:
        shutil.rmtree(node.cdi, ignore_errors=True)


def load_uvm(node: Node, major: int = 507) -> None:
    """Load nvidia-uvm and make its device nodes, as `nvidia-modprobe -c0 -u` does."""
    listing = node.roots.proc / "devices"
    characters, heading, blocks = listing.read_text().partition("\nBlock devices:")
    loaded = listing.with_name("devices.loaded")
    loaded.write_text(f"{characters}{major:3d} nvidia-uvm\n{heading}{blocks}")
    loaded.replace(listing)
    for minor, name in enumerate(("nvidia-uvm", "nvidia-uvm-tools")):
        os.mknod(node.roots.dev / name, stat.S_IFCHR | 0o666, os.makedev(major, minor))


def start_service(node: Node, name: str) -> None:
    """Start a service of the driver, such as nvidia-persistenced: its socket appears."""
    place = node.roots.driver / "run" / name / "socket"
    place.parent.mkdir(parents=True, exist_ok=True)
    with closing(socket.socket(socket.AF_UNIX)) as listening:
        listening.bind(str(place))


def stop_service(node: Node, name: str) -> None:
    """Stop a service of the driver: systemd removes its directory below /run."""
    shutil.rmtree(node.roots.driver / "run" / name)
