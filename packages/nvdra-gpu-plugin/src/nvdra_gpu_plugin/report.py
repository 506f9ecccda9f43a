"""The GPUs as they are right now, for `/debug/status`; the plugins' common `report` adds the rest.

Read from memory alone: it answers although a board does not.
"""

from nvdra_api.runtime.plugin.held import HeldClaims
from nvdra_api.runtime.plugin.report import Document

from nvdra_gpu_plugin.hardware import Hardware
from nvdra_gpu_plugin.inventory import Gpu
from nvdra_gpu_plugin.records import GpuHolding


def devices(gpus: Hardware, held: HeldClaims[GpuHolding]) -> list[Document]:
    """Every board, in the order of the PCI addresses, and what is wrong with those left out."""
    view = gpus.view
    known = () if view.snapshot is None else view.snapshot.inventory.gpus
    problems = {fault.board: fault.text for fault in view.faults}
    found = [_device(gpu, held, problems.pop(gpu.name, "")) for gpu in known]
    left_out = [
        {"name": board, "state": "left out", "problem": problem, "claims": []}
        for board, problem in problems.items()
    ]
    return found + left_out


def _device(gpu: Gpu, held: HeldClaims[GpuHolding], problem: str) -> Document:
    holders = [
        str(holding.ref)
        for holding in held.values()
        if any(device.uuid == gpu.uuid for device in holding.devices)
    ]
    state = "MIG mode, not offered" if gpu.is_mig_enabled else "held" if holders else "free"
    if problem:
        state = "left out"
    return {
        "name": gpu.name,
        "uuid": gpu.uuid,
        "pci": gpu.pci,
        "product": gpu.product_name,
        "driver_version": gpu.driver_version,
        "state": state,
        "claims": holders,
        **({"problem": problem} if problem else {}),
    }
