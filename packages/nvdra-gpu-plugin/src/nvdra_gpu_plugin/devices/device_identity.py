# SPDX-License-Identifier: Apache-2.0
"""Which device of the node a claim's record means.

A GPU is known by its UUID, a MIG device by its UUID and its profile. A MIG device that is made for
a claim is no device of the node: its GPU is.
"""

from typing import Any

from nvdra_api.ids import GpuUUID, MigUUID

from nvdra_gpu_plugin.devices.claim_records import GpuDeviceRecord
from nvdra_gpu_plugin.devices.inventory import Device, Gpu, Inventory, MigDevice, MigPartition
from nvdra_gpu_plugin.devices.steps import MadeInstance, MakeMigDevice
from nvdra_gpu_plugin.devices.vfio_devices import VfioDevice


def fields(device: Device) -> dict[str, Any]:
    """The fields of a record that say which device it is, apart from its name."""
    found: dict[str, Any] = {"kind": device.kind, "pci": device.pci, "uuid": device.uuid}
    if isinstance(device, MigDevice):
        found |= {"parent_uuid": device.parent_uuid, "profile": device.profile_name}
    return found


def partition_fields(partition: MigDevice | MigPartition) -> dict[str, Any]:
    """The same for a MIG device that is made for a claim; its UUID comes with it."""
    return {
        "kind": partition.kind,
        "pci": partition.pci,
        "uuid": MigUUID(""),
        "parent_uuid": partition.parent_uuid,
        "profile": partition.profile.name,
        "memory_slices": (partition.placement.start, partition.placement.size),
    }


def make_mig_device(
    device: MigDevice | MigPartition, made: MadeInstance | None = None
) -> MakeMigDevice:
    """The step that makes a MIG device, or has made it."""
    return MakeMigDevice(
        gpu=device.parent_uuid,
        device=device.name,
        profile_index=device.profile.index,
        profile_id=device.profile.id,
        compute_slices=device.profile.slices,
        start=device.placement.start,
        size=device.placement.size,
        is_graphics=device.has_graphics,
        made=made,
    )


def find_gpu(device: GpuDeviceRecord, inventory: Inventory) -> Gpu | None:
    """The GPU of the node that a device is, or is a part of; None if it is not there."""
    found = inventory.by_uuid.get(device.gpu_uuid)
    return found if isinstance(found, Gpu) else None


def vfio_fields(device: VfioDevice) -> dict[str, Any]:
    """The same for a vfio device; its GPU as far as NVML has described it."""
    return {
        "kind": device.kind,
        "pci": device.pci,
        "uuid": device.uuid,
        "parent_uuid": device.parent_uuid or GpuUUID(""),
    }


def find_vfio(device: GpuDeviceRecord, inventory: Inventory) -> VfioDevice | None:
    """The vfio device that a record means; None if it is not there, or of another kind."""
    return next((vfio for vfio in inventory.vfio if vfio.uuid == device.uuid), None)


def find(device: GpuDeviceRecord, inventory: Inventory) -> Device | None:
    """The device of the node that a record means; None if it is not there, or is made for it.

    A record without a UUID was recovered while the device was missing: its name is all there is.
    """
    if device.is_made:
        return None
    if not device.uuid:
        return inventory.by_name.get(device.device)
    found = inventory.by_uuid.get(device.uuid)
    if isinstance(found, MigDevice) and device.profile not in ("", found.profile_name):
        return None  # another one has its place, and with it its UUID
    return found
