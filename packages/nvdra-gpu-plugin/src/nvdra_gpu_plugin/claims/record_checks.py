"""Checks whether the record of a claim that was prepared earlier still describes this node."""

from nvdra_api.errors import PermanentError, Reason

from nvdra_gpu_plugin.devices.claim_records import GpuClaimRecord
from nvdra_gpu_plugin.devices.inventory import Inventory


def with_gpu_ids(record: GpuClaimRecord, inventory: Inventory) -> GpuClaimRecord:
    """The record with UUID and PCI address of GPUs that were missing when it was recovered."""
    gpus = inventory.by_name
    devices = tuple(
        device.model_copy(update={"pci": gpus[device.device].pci, "uuid": gpus[device.device].uuid})
        if not device.uuid and device.device in gpus
        else device
        for device in record.devices
    )
    return record.model_copy(update={"devices": devices})


def check_same_gpus(record: GpuClaimRecord, inventory: Inventory) -> None:
    """Check that each device is still the GPU that it was.

    Raises:
        PermanentError: `UnknownDevice`.
    """
    for device in record.devices:
        gpu = inventory.by_name.get(device.device)
        if gpu is None or gpu.uuid != device.uuid:
            now = "not on the node" if gpu is None else f"another GPU now ({gpu.uuid})"
            raise PermanentError(
                Reason.UNKNOWN_DEVICE,
                f"{device.device} was {device.uuid or 'not known'} when the claim was prepared and "
                f"is {now}",
                "delete the pod, so that it is scheduled with a device that exists",
                device=device.device,
            )
