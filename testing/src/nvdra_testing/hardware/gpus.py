"""GPU values as discovery returns them, for unit tests."""

from typing import Any

from nvdra_api.ids import GpuUUID, PciAddress
from nvdra_gpu_plugin.devices.inventory import Gpu


def h100(minor: int, **overrides: Any) -> Gpu:
    """An H100; a test gives only the fields that matter to it."""
    described: dict[str, Any] = {
        "uuid": GpuUUID(f"GPU-{minor}"),
        "minor": minor,
        "pci": PciAddress(f"0000:{minor:02x}:00.0"),
        "product_name": "NVIDIA H100 80GB HBM3",
        "brand": "Nvidia",
        "architecture": "Hopper",
        "compute_capability": "9.0",
        "driver_version": "580.95.05",
        "cuda_driver_version": "13.0",
        "memory_bytes": 85520809984,
        "addressing_mode": "HMM",
        "numa_node": 0,
        "pcie_root": "pci0000:15",
        "is_mig_enabled": False,
    }
    return Gpu(**{**described, **overrides})
