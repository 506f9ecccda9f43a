"""Checks whether the record of a claim that was prepared earlier still describes this node.

A GPU is known by its UUID. Its device name, its minor number and its PCI address may be another
GPU's after a reboot.
"""

from collections.abc import Iterator
from typing import Any

from nvdra_api.errors import PermanentError, Reason
from nvdra_api.ids import PciAddress

from nvdra_gpu_plugin.devices.claim_records import GpuClaimRecord, GpuDeviceRecord
from nvdra_gpu_plugin.devices.inventory import Gpu, Inventory
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
    if generation is not None:
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
    for device, gpu in _gpus(record, inventory):
        if gpu is None:
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
        if record.generation != generation.name and gpu.name != device.device:
            raise PermanentError(
                Reason.UNKNOWN_DEVICE,
                f"{device.device} ({device.uuid}) has become {gpu.name} since the claim was "
                f"prepared with driver {record.generation}",
                "delete the pod, so that its claims are prepared anew",
                device=device.device,
            )


def missing_devices(record: GpuClaimRecord, inventory: Inventory) -> list[GpuDeviceRecord]:
    """The claim's devices whose GPUs are not on the node, or have not been described yet."""
    return [device for device, gpu in _gpus(record, inventory) if gpu is None]


def with_present_names(record: GpuClaimRecord, inventory: Inventory) -> list[GpuDeviceRecord]:
    """The claim's devices under the names that their GPUs have now."""
    return [
        device if gpu is None else device.model_copy(update={"device": gpu.name})
        for device, gpu in _gpus(record, inventory)
    ]


def _planned_again(device: GpuDeviceRecord, inventory: Inventory) -> GpuDeviceRecord:
    gpu = _gpu(device, inventory)
    if gpu is None:
        return device.model_copy(update={"pci": PciAddress("")})
    return device.model_copy(update={"pci": gpu.pci, "uuid": gpu.uuid})


def _gpus(
    record: GpuClaimRecord, inventory: Inventory
) -> Iterator[tuple[GpuDeviceRecord, Gpu | None]]:
    for device in record.devices:
        yield device, _gpu(device, inventory)


def _gpu(device: GpuDeviceRecord, inventory: Inventory) -> Gpu | None:
    if device.uuid:
        return inventory.by_uuid.get(device.uuid)
    return inventory.by_name.get(device.device)
