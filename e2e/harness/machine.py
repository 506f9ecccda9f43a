"""What an administrator does to a node's driver: install another, remove it, install it again."""

from nvdra_sim import config, install
from plugin import Node


def installed(node: Node, *, profile: str = "dgx-h100", version: str = "580.95.05") -> None:
    """Install a driver of this version for the boards of a profile; the former one goes."""
    sections = {"node": {"visibility": "all"}, "driver": {"version": version}}
    install.install(
        config.from_profile(profile, node.name, sections),
        driver_root=node.roots.driver,
        proc_root=node.roots.proc,
        sys_root=node.roots.sys,
        dev_root=node.roots.dev,
    )


def removed(node: Node) -> None:
    """Remove driver, device nodes and all."""
    boot_id = node.roots.proc / "sys/kernel/random/boot_id"
    known = boot_id.read_text()
    install.uninstall(driver_root=node.roots.driver)
    boot_id.parent.mkdir(parents=True, exist_ok=True)
    boot_id.write_text(known)  # the kernel's own: it stays when a driver goes
    boot_id.chmod(0o444)
