# SPDX-License-Identifier: Apache-2.0
"""Describes the node's GPUs for `/debug/status`.

It reads memory only, so that it answers even if a GPU hangs.
"""

from collections.abc import Sequence

from nvdra_api.errors import Reason
from nvdra_api.ids import GpuUUID
from nvdra_api.resource.slices import DeviceTaint
from nvdra_runtime.claims.prepared_claims import PreparedClaims
from nvdra_runtime.kubeletplugin.status_report import Document

from nvdra_gpu_plugin.devices.claim_records import GpuClaimRecord
from nvdra_gpu_plugin.devices.inventory import Device, Fault, Gpu, Inventory, MigDevice
from nvdra_gpu_plugin.hardware.node_gpus import NodeGpus
from nvdra_gpu_plugin.passthrough.vfio_discovery import Passthrough
from nvdra_gpu_plugin.publishing import device_taints
from nvdra_gpu_plugin.publishing.device_taints import DeviceTaints
from nvdra_gpu_plugin.publishing.vfio_offers import VfioOffer
from nvdra_gpu_plugin.publishing.vfio_report import VfioReport


def devices(
    gpus: NodeGpus,
    prepared_claims: PreparedClaims[GpuClaimRecord],
    taints: DeviceTaints | None = None,
    vfio: VfioReport | None = None,
) -> list[Document]:
    """All devices in the order of PCI addresses, then GPUs that could not be described.

    With passthrough, GPUs that are on vfio for claims and all vfio devices follow.

    Args:
        gpus: The node's GPUs.
        prepared_claims: Says which of them are held.
        taints: Says which of them are not well; None without health checks.
        vfio: What becomes of GPUs as vfio devices; None without passthrough.
    """
    state = gpus.state
    inventory = Inventory() if state.snapshot is None else state.snapshot.inventory
    faults = {fault.device: fault for fault in state.faults}
    tainted = {} if taints is None else taints.wanted
    avoided = taints.avoided if taints is not None and taints.is_served else set[GpuUUID]()
    found = [
        _device(
            device,
            gpu,
            prepared_claims,
            faults.get(gpu.name) or faults.get(device.name),
            tainted.get(gpu.uuid, ()),
            () if taints is None else taints.texts(gpu.uuid),
            is_avoided=gpu.uuid in avoided,
        )
        for gpu in inventory.gpus
        for device in (gpu.devices or (gpu,))
    ]
    known = inventory.by_name
    left_out = [
        {"name": name, "state": "left out", "problem": fault.text, "claims": []}
        for name, fault in faults.items()
        if name not in known
    ]
    machines = [] if vfio is None else _of_passthrough(state.passthrough, prepared_claims, vfio)
    return found + left_out + machines


def _of_passthrough(
    passthrough: Passthrough,
    prepared_claims: PreparedClaims[GpuClaimRecord],
    report: VfioReport,
) -> list[Document]:
    """Describe the GPUs that are on vfio for claims, and the vfio devices of all GPUs."""
    lent = [
        {
            "name": gpu.name,
            "uuid": gpu.uuid,
            "pci": gpu.pci,
            "product": gpu.product_name,
            "driver_version": gpu.driver_version,
            "state": "on vfio",
            "claims": [],
        }
        for gpu in passthrough.lent
    ]
    return lent + [_vfio_device(offer, prepared_claims, report) for offer in report.offers]


def _vfio_device(
    offer: VfioOffer, prepared_claims: PreparedClaims[GpuClaimRecord], report: VfioReport
) -> Document:
    device, reason = offer.device, offer.reason
    holders = [
        str(record.ref)
        for record in prepared_claims.values()
        if any(each.uuid == device.uuid for each in record.devices)
    ]
    taints = [device_taints.describe(taint) for taint in report.wanted.get(device.uuid, ())]
    state = "held" if holders else "free" if reason is None else "not offered"
    problems = [f"tainted {taint}" for taint in taints]
    if reason is not None:
        problems.append("; ".join(filter(None, (reason.cause, reason.remedy))))
    return {
        "name": device.name,
        "uuid": device.uuid,
        "pci": device.pci,
        "product": device.parent_product_name or device.product_name,
        "kernel_driver": offer.driver,
        "iommu_group": device.iommu_group,
        "iommu_group_mates": list(offer.mates),
        "note": _place(offer),
        "state": f"{state}, tainted" if taints else state,
        "claims": holders,
        **({"taints": taints} if taints else {}),
        **({"obstacle": reason.obstacle} if reason is not None else {}),
        **({"problem": "; ".join(problems)} if problems else {}),
    }


def _place(offer: VfioOffer) -> str:
    """Where a GPU is: its driver, and what it shares its IOMMU group with."""
    group = offer.device.iommu_group
    place = "no IOMMU group" if group is None else f"IOMMU group {group}"
    mates = f" with {', '.join(offer.mates)}" if offer.mates else ""
    return f"driver {offer.driver}, {place}{mates}"


def _device(
    device: Device,
    gpu: Gpu,
    prepared_claims: PreparedClaims[GpuClaimRecord],
    fault: Fault | None,
    taints: Sequence[DeviceTaint],
    taint_texts: Sequence[str],
    *,
    is_avoided: bool,
) -> Document:
    """Describe a device.

    Args:
        device: The device.
        gpu: Its GPU.
        prepared_claims: Says who holds it.
        fault: Why it cannot be used.
        taints: The taints that the GPU should have.
        taint_texts: The same for people, with what NVML asks for.
        is_avoided: Whether a taint that the API server keeps sends pods elsewhere. A GPU that does
            not work stays in the ResourceSlice then.
    """
    holders = [
        str(record.ref)
        for record in prepared_claims.values()
        if any(
            device.uuid == (each.parent_uuid if each.is_made else each.uuid)
            for each in record.devices
        )
    ]
    state = "held" if holders else "free"
    if isinstance(device, Gpu) and device.bare_instances:
        state = "MIG mode with GPU instances without MIG devices, not offered as a whole"
    elif isinstance(device, Gpu) and device.is_mig_enabled:
        state = "MIG mode without MIG devices, not offered"
    problem = ""
    if fault is not None:
        problem = fault.text
        is_published = is_avoided and fault.reason is Reason.DEVICE_UNHEALTHY
        state = state if is_published else "left out"
    if is_avoided and state in ("free", "held"):
        state = "tainted" if state == "free" else "held, tainted"
    named = [device_taints.describe(taint) for taint in taints]
    if named:
        problem = "; ".join(filter(None, [f"tainted {', '.join(taint_texts)}", problem]))
    return {
        "name": device.name,
        "uuid": device.uuid,
        "pci": device.pci,
        "product": gpu.product_name,
        "driver_version": gpu.driver_version,
        "state": state,
        "claims": holders,
        **({"profile": device.profile_name} if isinstance(device, MigDevice) else {}),
        **({"taints": named} if named else {}),
        **({"problem": problem} if problem else {}),
    }
