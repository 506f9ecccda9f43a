# SPDX-License-Identifier: Apache-2.0
"""What a claim has done to GPUs that are on vfio, when its record is gone. Pure.

The kubelet's checkpoint names the vfio device, and the PCI bus says the rest: a claim, also one of
the reference driver, sets `driver_override`, which a GPU that was bound at boot has not (its driver
was given the ids). Such a GPU stays on vfio; another one belongs to the NVIDIA driver.
"""

from collections.abc import Iterable

from nvdra_api.ids import GpuUUID

from nvdra_gpu_plugin.devices import device_identity
from nvdra_gpu_plugin.devices.claim_records import GpuClaimRecord, GpuDeviceRecord
from nvdra_gpu_plugin.devices.inventory import Inventory
from nvdra_gpu_plugin.devices.steps import BindVfio, BoundFunction
from nvdra_gpu_plugin.passthrough.bindings import NVIDIA_DRIVER
from nvdra_gpu_plugin.passthrough.boards import Board
from nvdra_gpu_plugin.passthrough.pci_functions import PciFunction


def with_bindings(
    record: GpuClaimRecord, inventory: Inventory, boards: Iterable[Board], boot_id: str
) -> GpuClaimRecord:
    """The record with the changes of its vfio devices, so that they can be undone.

    Which nodes its containers were to get is not known: a new spec has those of the IOMMU groups.

    Args:
        record: A claim of the kubelet's checkpoint.
        inventory: The node's devices.
        boards: The node's GPUs on the PCI bus.
        boot_id: ID of the current boot.
    """
    on_bus = {board.gpu.pci: board for board in boards}
    devices: list[GpuDeviceRecord] = []
    steps: list[BindVfio] = []
    for device in record.devices:
        vfio = inventory.vfio_by_name.get(device.device)
        if vfio is None:
            devices.append(device)
            continue
        devices.append(device.model_copy(update=device_identity.vfio_fields(vfio)))
        board = on_bus.get(vfio.pci)
        functions = () if board is None else tuple(map(_bound, board.functions))
        steps.append(
            BindVfio(
                device=vfio.name,
                pci=vfio.pci,
                gpu=vfio.parent_uuid or GpuUUID(""),
                module=vfio.module,
                functions=tuple(function for function in functions if function is not None),
            )
        )
    if not steps:
        return record
    update = {"devices": tuple(devices), "steps": (*steps, *record.steps)}
    boot = record.steps_boot if record.steps else boot_id
    return record.model_copy(update={**update, "steps_boot": boot})


def _bound(function: PciFunction) -> BoundFunction | None:
    """What a claim has bound; None for a function that is not on vfio."""
    if function.driver is None or not function.is_on_vfio:
        return None
    former: str | None = function.driver
    if function.override is not None:
        former = NVIDIA_DRIVER if function.is_gpu else None
    return BoundFunction(pci=function.pci, vfio_driver=function.driver, former_driver=former)
