# SPDX-License-Identifier: Apache-2.0
"""A plain tree of files with PCI functions, as sysfs shows them."""

from pathlib import Path

from nvdra_runtime.node.host import Host

GPU = "0000:3b:00.0"
AUDIO = "0000:3b:00.1"
USB = "0000:3b:00.2"
PORT = "0000:3a:01.0"


class SysfsTree:
    """Directories of a node, below one root."""

    def __init__(self, root: Path) -> None:
        self.host = Host(root / "proc", root / "sys", root / "dev")
        for path in ("bus/pci/devices", "kernel/iommu_groups", "class/vfio"):
            (self.host.sys / path).mkdir(parents=True)
        self.add_driver("nvidia", "pcieport", "vfio-pci")
        (self.host.proc / "driver/nvidia/gpus").mkdir(parents=True)
        (self.host.dev / "vfio").mkdir(parents=True)

    def add_driver(self, *names: str) -> None:
        for name in names:
            (self.host.sys / "bus/pci/drivers" / name).mkdir(parents=True)

    def add(
        self,
        pci: str,
        vendor: int,
        class_code: int,
        driver: str | None = None,
        group: int | None = None,
        **files: str,
    ) -> Path:
        """Add a function below the root port, and return its directory."""
        directory = self.host.sys / "devices/pci0000:3a" / PORT / pci
        directory.mkdir(parents=True)
        facts = {"vendor": f"0x{vendor:04x}", "device": "0x2330", "class": f"0x{class_code:06x}"}
        for name, text in ({"driver_override": "(null)"} | facts | files).items():
            (directory / name).write_text(f"{text}\n")
        link = self.host.sys / "bus/pci/devices" / pci
        link.symlink_to(f"../../../devices/pci0000:3a/{PORT}/{pci}")
        if driver is not None:
            (directory / "driver").symlink_to(f"../../../../bus/pci/drivers/{driver}")
        if group is not None:
            members = self.host.sys / f"kernel/iommu_groups/{group}/devices"
            members.mkdir(parents=True, exist_ok=True)
            (members / pci).symlink_to(f"../../../../devices/pci0000:3a/{PORT}/{pci}")
            (directory / "iommu_group").symlink_to(f"../../../../kernel/iommu_groups/{group}")
        return directory
