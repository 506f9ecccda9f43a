"""Describes the node's GPUs for `/debug/status`.

It reads memory only, so that it answers even if a GPU hangs.
"""

from nvdra_runtime.claims.prepared_claims import PreparedClaims
from nvdra_runtime.kubeletplugin.status_report import Document

from nvdra_gpu_plugin.devices.claim_records import GpuClaimRecord
from nvdra_gpu_plugin.devices.inventory import Gpu
from nvdra_gpu_plugin.hardware.node_gpus import NodeGpus


def devices(gpus: NodeGpus, prepared_claims: PreparedClaims[GpuClaimRecord]) -> list[Document]:
    """All GPUs in the order of their PCI addresses, then those that could not be described."""
    state = gpus.state
    known = () if state.snapshot is None else state.snapshot.inventory.gpus
    problems = {fault.device: fault.text for fault in state.faults}
    found = [_device(gpu, prepared_claims, problems.pop(gpu.name, "")) for gpu in known]
    left_out = [
        {"name": name, "state": "left out", "problem": problem, "claims": []}
        for name, problem in problems.items()
    ]
    return found + left_out


def _device(gpu: Gpu, prepared_claims: PreparedClaims[GpuClaimRecord], problem: str) -> Document:
    holders = [
        str(record.ref)
        for record in prepared_claims.values()
        if any(device.uuid == gpu.uuid for device in record.devices)
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
