"""Installs and removes the NVIDIA driver of a simulated node, as an administrator would."""

from nvdra_sim import installation
from nvdra_sim.configuration import node_config

from nvdra_testing.node.plugin import Node


def install_driver(node: Node, *, profile: str = "dgx-h100", version: str = "580.95.05") -> None:
    """Install a driver version for the GPUs of a profile, replacing the installed driver."""
    sections = {"node": {"visibility": "all"}, "driver": {"version": version}}
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
