# SPDX-License-Identifier: Apache-2.0
"""What a prepared claim's device takes of a GPU, so that two claims do not get the same.

A whole GPU takes all of it. A MIG device takes itself, and a part of its GPU that others may take
parts of, too, but not the whole. One that is made for the claim takes memory slices: two that
overlap cannot both exist.

A share of a device excludes everything that the device itself would exclude, except for other
shares of the same device. Its share ID is given out once.
"""

from typing import NamedTuple

from nvdra_gpu_plugin.devices import device_names
from nvdra_gpu_plugin.devices.claim_records import GpuDeviceRecord


class DeviceUse(NamedTuple):
    """What a device takes, by names of devices: UUIDs, PCI addresses of GPUs, or device names.

    Each device has several names, because a PCI address may change at a reboot, and in the record
    of a claim that was recovered while its device was missing, only the device name is known.

    Attributes:
        whole: Devices, and memory slices of GPUs, that it takes for itself.
        parts: GPUs of which it takes a part.
        shares: Devices that it has a share of.
    """

    whole: frozenset[str] = frozenset()
    parts: frozenset[str] = frozenset()
    shares: frozenset[str] = frozenset()


NOTHING = DeviceUse()
"""What admin access takes: it excludes no claim and no claim excludes it."""


def use(device: GpuDeviceRecord) -> DeviceUse:
    """What a device of a prepared claim takes."""
    return NOTHING if device.is_admin else _shared(device, _exclusive(device))


def _exclusive(device: GpuDeviceRecord) -> DeviceUse:
    """What it takes unless it is shared."""
    parent = device_names.parent_name(device.device)
    if device.memory_slices is not None:
        gpu = frozenset(filter(None, (device.pci, device.parent_uuid)))
        return DeviceUse(_slices(gpu, *device.memory_slices), gpu)
    if device.uuid:
        gpu = frozenset(filter(None, (device.pci, device.parent_uuid)))
        if device.kind == "mig":
            return DeviceUse(frozenset((device.uuid,)), gpu)
        return DeviceUse(frozenset((device.uuid, *gpu)))
    is_part = parent != device.device
    return DeviceUse(frozenset((device.device,)), frozenset((parent,) if is_part else ()))


def wanted(device: GpuDeviceRecord) -> DeviceUse:
    """What a device takes, with its device name: records may know another claim's device by it."""
    if device.is_admin:
        return NOTHING
    found = _exclusive(device)
    parent = device_names.parent_name(device.device)
    parts = found.parts | {parent} if parent != device.device else found.parts
    return _shared(device, DeviceUse(found.whole | {device.device}, parts))


def _shared(device: GpuDeviceRecord, found: DeviceUse) -> DeviceUse:
    """What it takes if others may share it: the device with them, its share for itself."""
    if not device.is_shared:
        return found
    own = frozenset(f"{name} share {device.share_id}" for name in found.whole)
    return DeviceUse(own, found.parts, shares=found.whole)


def _slices(names: frozenset[str], start: int, size: int) -> frozenset[str]:
    """Names of memory slices of a GPU with these names."""
    return frozenset(
        f"{name} slice {number}" for name in names for number in range(start, start + size)
    )
