"""Which device of the node a claim's record means.

A GPU is known by its UUID, a MIG device by its UUID and its profile.
"""

from typing import Any

from nvdra_gpu_plugin.devices.claim_records import GpuDeviceRecord
from nvdra_gpu_plugin.devices.inventory import Device, Inventory, MigDevice


def fields(device: Device) -> dict[str, Any]:
    """The fields of a record that say which device it is, apart from its name."""
    found: dict[str, Any] = {"kind": device.kind, "pci": device.pci, "uuid": device.uuid}
    if isinstance(device, MigDevice):
        found |= {"parent_uuid": device.parent_uuid, "profile": device.profile_name}
    return found


def find(device: GpuDeviceRecord, inventory: Inventory) -> Device | None:
    """The device of the node that a record means; None if it is not there.

    A record without a UUID was recovered while the device was missing: its name is all there is.
    """
    if not device.uuid:
        return inventory.by_name.get(device.device)
    found = inventory.by_uuid.get(device.uuid)
    if isinstance(found, MigDevice) and device.profile not in ("", found.profile_name):
        return None  # another one has its place, and with it its UUID
    return found
