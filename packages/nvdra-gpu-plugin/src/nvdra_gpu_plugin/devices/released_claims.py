# SPDX-License-Identifier: Apache-2.0
"""What is left of the GPUs beside claims that have ended and cannot be undone yet.

Such a claim holds what it had until it is undone: a claim that is allocated the same waits for
that, although other GPUs may be free.
"""

from collections.abc import Iterable
from dataclasses import replace
from itertools import chain

from nvdra_api.ids import GpuUUID

from nvdra_gpu_plugin.devices.claim_records import GpuClaimRecord
from nvdra_gpu_plugin.devices.inventory import Inventory, MadePlaces


def without_held(inventory: Inventory, released: Iterable[GpuClaimRecord]) -> Inventory:
    """The inventory without what claims hold that have ended.

    A GPU that was held whole, in shares or as a vfio device is missing in both forms, and so is a
    MIG device that exists. A place where a MIG device was made is in `Gpu.left_places`. Nothing is
    held by admin access, nor where a GPU only stays in MIG mode.

    Args:
        inventory: The GPUs that work.
        released: The records of the claims. Each has all devices that its claim had: if one of
            several GPUs cannot be undone, they are all held.
    """
    records = tuple(released)
    if not records:
        return inventory
    devices = [
        device
        for device in chain.from_iterable(record.devices for record in records)
        if not (device.is_made or device.is_admin)
    ]
    # A record that was recovered while its GPU was missing knows the device's name only.
    held = {device.uuid or device.device for device in devices}
    whole = {device.pci for device in devices if device.kind != "mig" and device.pci}
    names = {
        name for name, device in inventory.by_name.items() if {device.uuid, device.name} & held
    }
    names |= {gpu.name for gpu in inventory.gpus if gpu.pci in whole}
    names |= {device.name for device in inventory.vfio if device.pci in whole}
    left = inventory.without_devices(names)
    return Inventory(
        tuple(
            replace(gpu, left_places=places) if (places := _left_places(gpu.uuid, records)) else gpu
            for gpu in left.gpus
        ),
        left.vfio,
    )


def _left_places(gpu: GpuUUID, records: Iterable[GpuClaimRecord]) -> MadePlaces:
    return frozenset(
        (step.profile_id, step.start)
        for record in records
        for step in record.made
        if step.gpu == gpu
    )
