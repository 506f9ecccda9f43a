# SPDX-License-Identifier: Apache-2.0
"""Values of GPUs and MIG devices as discovery returns them, for unit tests."""

from dataclasses import replace
from typing import Any

from nvdra_api.ids import GpuUUID, MigUUID, PciAddress
from nvdra_gpu_plugin.devices.inventory import Gpu, MigDevice, MigPartition
from nvdra_gpu_plugin.devices.mig_profiles import MigProfile, Placement
from nvdra_gpu_plugin.devices.vfio_devices import VfioDevice

PROFILES = {
    19: MigProfile("1g.10gb", 19, 0, 1, 16, 1, 1, 0, 1, 0, 9984 << 20),
    14: MigProfile("2g.20gb", 14, 1, 2, 32, 2, 2, 0, 2, 0, 20096 << 20),
    9: MigProfile("3g.40gb", 9, 2, 3, 60, 3, 3, 0, 3, 0, 40448 << 20),
    0: MigProfile("7g.80gb", 0, 4, 7, 132, 8, 7, 0, 7, 1, 81152 << 20),
}
"""Some profiles of an H100 by id. Source: docs/reference/nvml-simulator.md §13.3."""

_SIZES = {19: 1, 14: 2, 9: 4, 0: 8}


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


def vfio_h100(minor: int, **overrides: Any) -> VfioDevice:
    """The H100 of this minor number as a vfio device, as sysfs describes it."""
    described: dict[str, Any] = {
        "index": minor,
        "pci": PciAddress(f"0000:{minor:02x}:00.0"),
        "vendor_id": 0x10DE,
        "device_id": 0x2330,
        "product_name": "GH100 [H100 SXM5 80GB]",
        "memory_bytes": 256 << 30,
        "iommu_group": 40 + minor,
        "is_isolated": True,
        "has_iommufd": False,
        "module": "vfio_pci",
        "numa_node": 0,
        "pcie_root": "pci0000:15",
    }
    return VfioDevice(**{**described, **overrides})


def in_mig_mode(minor: int, *cuts: tuple[int, int], **overrides: Any) -> Gpu:
    """An H100 in MIG mode with one MIG device for each profile id and first memory slice."""
    gpu = h100(minor, is_mig_enabled=True, **overrides)
    found = tuple(mig_device(gpu, *cut) for cut in cuts)
    return replace(gpu, mig_devices=tuple(sorted(found, key=lambda mig: mig.name)))


def divisible(minor: int, *places: tuple[int, int], **overrides: Any) -> Gpu:
    """An H100 on which these MIG devices can be made: profile id and first memory slice of each."""
    gpu = h100(minor, **overrides)
    made = (
        MigPartition(
            parent_uuid=gpu.uuid,
            parent_number=minor,
            pci=gpu.pci,
            profile=PROFILES[profile_id],
            placement=Placement(start, _SIZES[profile_id]),
        )
        for profile_id, start in places
    )
    return replace(gpu, partitions=tuple(sorted(made, key=lambda partition: partition.name)))


def mig_device(parent: Gpu, profile_id: int, start: int, **overrides: Any) -> MigDevice:
    """A MIG device that covers its GPU instance, unless the overrides say otherwise."""
    profile = PROFILES[profile_id]
    size = _SIZES[profile_id]
    gpu_instance = {1: 7, 2: 3, 4: 1, 8: 0}[size] + start // size
    described: dict[str, Any] = {
        "uuid": MigUUID(f"MIG-{parent.minor}-{gpu_instance}-0"),
        "parent_uuid": parent.uuid,
        "parent_number": parent.minor,
        "pci": parent.pci,
        "profile": profile,
        "placement": Placement(start, size),
        "gpu_instance": gpu_instance,
        "compute_instance": 0,
        "compute_start": 0,
        "compute_slices": profile.slices,
        "multiprocessors": profile.multiprocessors,
    }
    return MigDevice(**{**described, **overrides})
