"""Describes the node's GPUs for `/debug/status`.

It reads memory only, so that it answers even if a GPU hangs.
"""

from collections.abc import Sequence

from nvdra_api.resource.slices import DeviceTaint
from nvdra_runtime.claims.prepared_claims import PreparedClaims
from nvdra_runtime.kubeletplugin.status_report import Document

from nvdra_gpu_plugin.devices.claim_records import GpuClaimRecord
from nvdra_gpu_plugin.devices.inventory import Gpu
from nvdra_gpu_plugin.hardware.node_gpus import NodeGpus
from nvdra_gpu_plugin.publishing import device_taints
from nvdra_gpu_plugin.publishing.device_taints import DeviceTaints


def devices(
    gpus: NodeGpus,
    prepared_claims: PreparedClaims[GpuClaimRecord],
    taints: DeviceTaints | None = None,
) -> list[Document]:
    """All GPUs in the order of their PCI addresses, then those that could not be described.

    Args:
        gpus: The node's GPUs.
        prepared_claims: Says which of them are held.
        taints: Says which of them are not well; None if nobody looks at their health.
    """
    state = gpus.state
    known = () if state.snapshot is None else state.snapshot.inventory.gpus
    problems = {fault.device: fault.text for fault in state.faults}
    tainted = {} if taints is None else taints.wanted
    found = [
        _device(gpu, prepared_claims, problems.pop(gpu.name, ""), tainted.get(gpu.uuid, ()))
        for gpu in known
    ]
    left_out = [
        {"name": name, "state": "left out", "problem": problem, "claims": []}
        for name, problem in problems.items()
    ]
    return found + left_out


def _device(
    gpu: Gpu,
    prepared_claims: PreparedClaims[GpuClaimRecord],
    problem: str,
    taints: Sequence[DeviceTaint],
) -> Document:
    holders = [
        str(record.ref)
        for record in prepared_claims.values()
        if any(device.uuid == gpu.uuid for device in record.devices)
    ]
    state = "MIG mode, not offered" if gpu.is_mig_enabled else "held" if holders else "free"
    if problem:
        state = "left out"
    named = [device_taints.describe(taint) for taint in taints]
    if named:
        problem = "; ".join(filter(None, [f"tainted {', '.join(named)}", problem]))
    return {
        "name": gpu.name,
        "uuid": gpu.uuid,
        "pci": gpu.pci,
        "product": gpu.product_name,
        "driver_version": gpu.driver_version,
        "state": state,
        "claims": holders,
        **({"taints": named} if named else {}),
        **({"problem": problem} if problem else {}),
    }
