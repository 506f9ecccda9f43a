# SPDX-License-Identifier: Apache-2.0
"""Checks whether the record of a claim that was prepared earlier still describes this node.

A GPU is known by its UUID. Its device name, its minor number and its PCI address may be another
GPU's after a reboot. A MIG device is known by its UUID and its profile; it does not survive a
reboot, but an administrator may make it again. One that was made for the claim is made again by
the engine, on the same GPU.
"""

from collections.abc import Iterator
from typing import Any

from nvdra_api.errors import PermanentError, Reason
from nvdra_api.ids import PciAddress

from nvdra_gpu_plugin.devices import device_identity
from nvdra_gpu_plugin.devices.claim_records import GpuClaimRecord, GpuDeviceRecord
from nvdra_gpu_plugin.devices.inventory import Device, Inventory
from nvdra_gpu_plugin.devices.spec_generation import SpecGeneration


def planned_again(
    record: GpuClaimRecord, inventory: Inventory, generation: SpecGeneration | None
) -> GpuClaimRecord:
    """The record with today's hardware. What the claim was answered with stays the same.

    Args:
        record: A GPU that is missing gets no PCI address until it is back. One that was missing
            when the record was recovered from the kubelet's checkpoint has no UUID, and is found by
            its name.
        inventory: The node's GPUs.
        generation: The spec that describes the claim's devices from now on; None if it is the same.
    """
    update: dict[str, Any] = {
        "devices": tuple(_planned_again(device, inventory) for device in record.devices)
    }
    if generation is not None and not all(device.is_vfio for device in record.devices):
        update["generation"] = generation.name
    return record.model_copy(update=update)


def check_same_gpus(
    record: GpuClaimRecord, inventory: Inventory, generation: SpecGeneration
) -> None:
    """Check that each GPU of the claim is on the node.

    Raises:
        PermanentError: `DeviceUnhealthy`; `UnknownDevice`: the claim's spec, which is of another
            generation, describes the GPU as a device that it is not any more.
    """
    for device, found in _devices(record, inventory):
        if device.is_vfio:
            continue  # its change looks at the PCI bus
        if device.is_made:
            _check_has_gpu(device, inventory)
            continue
        if found is None and device.kind == "mig":
            raise _missing_mig_device(device, inventory)
        if found is None:
            other = inventory.by_name.get(device.device)
            now = f", and {device.device} is another GPU now ({other.uuid})" if other else ""
            raise PermanentError(
                Reason.DEVICE_UNHEALTHY,
                f"{device.device} was {device.uuid or 'not known'} when the claim was prepared, "
                f"and that GPU is not on the node{now}",
                "look for Xid messages in the node's kernel log and check that the GPU is plugged "
                "in; if it does not come back, delete the pod, so that it is scheduled anew",
                device=device.device,
            )
        if record.generation != generation.name and found.name != device.device:
            raise PermanentError(
                Reason.UNKNOWN_DEVICE,
                f"{device.device} ({device.uuid}) has become {found.name} since the claim was "
                f"prepared with driver {record.generation}",
                "delete the pod, so that its claims are prepared anew",
                device=device.device,
            )


def missing_devices(record: GpuClaimRecord, inventory: Inventory) -> list[GpuDeviceRecord]:
    """The claim's devices that are not on the node, or have not been described yet."""
    return [
        device
        for device, found in _devices(record, inventory)
        if not device.is_vfio
        and (device_identity.find_gpu(device, inventory) if device.is_made else found) is None
    ]


def with_present_names(record: GpuClaimRecord, inventory: Inventory) -> list[GpuDeviceRecord]:
    """The claim's devices under the names that they have now."""
    return [
        device if found is None else device.model_copy(update={"device": found.name})
        for device, found in _devices(record, inventory)
    ]


def _missing_mig_device(device: GpuDeviceRecord, inventory: Inventory) -> PermanentError:
    other = inventory.by_uuid.get(device.uuid) or inventory.by_name.get(device.device)
    now = f"; {other.uuid} is {other.name} now" if other else ""
    return PermanentError(
        Reason.DEVICE_UNHEALTHY,
        f"{device.device} was MIG device {device.uuid or 'not known'} when the claim was prepared, "
        f"and it does not exist any more{now}",
        "MIG devices go when an administrator destroys them, and with each reboot and reset of the "
        "GPU; make the same one again (nvidia-smi mig -cgi), or delete the pod, so that it is "
        "scheduled anew",
        device=device.device,
    )


def _check_has_gpu(device: GpuDeviceRecord, inventory: Inventory) -> None:
    """Check that the GPU of a MIG device that was made for the claim is on the node."""
    if device_identity.find_gpu(device, inventory) is None:
        raise PermanentError(
            Reason.DEVICE_UNHEALTHY,
            f"{device.device} was made on {device.parent_uuid}, and that GPU is not on the node",
            "look for Xid messages in the node's kernel log and check that the GPU is plugged in; "
            "if it does not come back, delete the pod, so that it is scheduled anew",
            device=device.device,
        )


def _planned_again(device: GpuDeviceRecord, inventory: Inventory) -> GpuDeviceRecord:
    if device.is_made:
        gpu = device_identity.find_gpu(device, inventory)
        return device.model_copy(update={"pci": PciAddress("") if gpu is None else gpu.pci})
    if device.is_vfio:  # the name of its PCI address, which its change may find again
        vfio = device_identity.find_vfio(device, inventory)
        return (
            device if vfio is None else device.model_copy(update=device_identity.vfio_fields(vfio))
        )
    found = device_identity.find(device, inventory)
    if found is None:
        return device.model_copy(update={"pci": PciAddress("")})
    return device.model_copy(update=device_identity.fields(found))


def _devices(
    record: GpuClaimRecord, inventory: Inventory
) -> Iterator[tuple[GpuDeviceRecord, Device | None]]:
    for device in record.devices:
        yield device, device_identity.find(device, inventory)
