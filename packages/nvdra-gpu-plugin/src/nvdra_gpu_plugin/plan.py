"""Configured results, inventory and what is held → a plan: which devices a claim gets, and how.

Pure: it looks at values and refuses with a reason. `prepare` carries the plan out.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from nvdra_api.protocol.configs import Configured
from nvdra_api.types.claims import ClaimRef, Consumer, DeviceResult, ResourceClaim
from nvdra_api.types.configs import GpuConfig
from nvdra_api.types.errors import PermanentError, Reason
from nvdra_api.types.holdings import DeviceInUseError
from nvdra_api.types.ids import DeviceName, NodeName, PciAddress, PodUID, PoolName

from nvdra_gpu_plugin.conflicts import Holdings
from nvdra_gpu_plugin.inventory import Gpu, Inventory
from nvdra_gpu_plugin.records import GpuHolding, HeldGpu


@dataclass(frozen=True, slots=True)
class Generation:
    """The CDI spec of this node as it is now: how each device is named in it.

    Attributes:
        name: Hash of the common and the device edits together.
        cdi_ids: What the kubelet is told for each device, by device name.
    """

    name: str
    cdi_ids: Mapping[DeviceName, str]


@dataclass(frozen=True, slots=True)
class Plan:
    """What a claim will hold once it is prepared.

    Attributes:
        holding: The record to commit; its devices are in the order of the allocation results.
        gpus: The boards it takes, by PCI address: what must be locked.
    """

    holding: GpuHolding
    gpus: Mapping[PciAddress, Gpu]


def make(
    claim: ResourceClaim,
    configured: Sequence[Configured],
    inventory: Inventory,
    generation: Generation,
    node: NodeName,
) -> Plan:
    """Turn the scheduler's decision into devices of this node.

    Args:
        claim: As the API server returned it.
        configured: Our results, each with the config that applies to it, in allocation order.
        inventory: What is on the node now.
        generation: The CDI names of what is on the node now.
        node: This node; results of another pool are not ours to prepare.

    Raises:
        PermanentError: `UnknownDevice`, `InvalidConfig`.
    """
    chosen = [_board(claim, entry.result, inventory, node) for entry in configured]
    for entry, gpu in zip(configured, chosen, strict=True):
        _check_config(claim, entry, gpu)
    devices = tuple(
        HeldGpu(
            request=entry.result.base_request,
            pool=PoolName(entry.result.pool),
            device=gpu.name,
            pci=gpu.pci,
            uuid=gpu.uuid,
            is_admin=bool(entry.result.admin_access),
            share_id=entry.result.share_id,
            cdi_id=generation.cdi_ids[gpu.name],
        )
        for entry, gpu in zip(configured, chosen, strict=True)
    )
    pods = _consumers(claim)
    holding = GpuHolding(
        namespace=claim.ref.namespace,
        name=claim.ref.name,
        uid=claim.ref.uid,
        generation=generation.name,
        pods=tuple(PodUID(pod.uid) for pod in pods),
        pod_names=tuple(pod.name for pod in pods),
        devices=devices,
    )
    return Plan(holding=holding, gpus={gpu.pci: gpu for gpu in chosen})


def check_free(plan: Plan, holdings: Holdings) -> None:
    """Refuse what another claim holds. Called with the boards' locks held: only then is it true.

    Raises:
        DeviceInUseError: Naming the holder.
        PermanentError: `DriverMismatch`: one pod would get devices of two driver generations.
    """
    wanted = plan.holding
    for device in wanted.devices:
        holder = holdings.holder(device, wanted.uid)
        if holder is not None:
            boards = tuple(each.pci for each in wanted.devices)
            raise DeviceInUseError(wanted.ref, device.device, holder, boards)
    older = _other_generation(wanted, holdings)
    if older is not None:
        raise PermanentError(
            Reason.DRIVER_MISMATCH,
            f"claim {wanted.ref} would be given devices of driver generation {wanted.generation}, "
            f"but claim {older.namespace}/{older.name} of the same pod was prepared with "
            f"{older.generation}, before the driver changed",
            "delete the pod, so that all its claims are prepared with one driver",
            claim=str(wanted.ref),
            holder=str(older.ref),
        )


def check_known(plan: Plan, unreadable: Iterable[ClaimRef], doubt: str = "") -> None:
    """Refuse to give a GPU away while nobody can tell that it is free.

    Args:
        plan: What is wanted; monitoring access excludes nobody and is given.
        unreadable: Claims that hold GPUs, and their records do not tell which.
        doubt: Why claims may hold GPUs of which no record tells.

    Raises:
        PermanentError: `StateCorrupt`.
    """
    wanted = plan.holding
    others = [ref for ref in unreadable if ref.uid != wanted.uid]
    if not (others or doubt) or all(device.is_admin for device in wanted.devices):
        return
    free = f"whether {', '.join(device.device for device in wanted.devices)} is free"
    if others:
        raise PermanentError(
            Reason.STATE_CORRUPT,
            f"claim {others[0]} holds GPUs of this node and its record cannot be read, so {free} "
            "cannot be told",
            "delete the pods of that claim; once it is unprepared, the record is gone",
            claim=str(wanted.ref),
            holder=str(others[0]),
        )
    raise PermanentError(
        Reason.STATE_CORRUPT,
        f"{free} cannot be told: {doubt}",
        "make the kubelet's file readable for the plugin, or drain the node and reboot it",
        claim=str(wanted.ref),
    )


def _board(claim: ResourceClaim, result: DeviceResult, inventory: Inventory, node: NodeName) -> Gpu:
    gpu = inventory.by_name.get(DeviceName(result.device))
    if result.pool != node:
        problem = f"pool {result.pool} is not this node's pool {node}"
    elif gpu is None:
        problem = f"{result.device} is not on node {node}, which has {_listed(inventory)}"
    elif gpu.is_mig_enabled:
        problem = f"{result.device} is in MIG mode and cannot be handed out whole"
    else:
        return gpu
    raise PermanentError(
        Reason.UNKNOWN_DEVICE,
        f"claim {claim.ref}, request {result.request}: {problem}",
        "delete the pod so that it is scheduled anew; kubectl get resourceslices shows what the "
        "node offers",
        claim=str(claim.ref),
        device=result.device,
    )


def _check_config(claim: ResourceClaim, entry: Configured, gpu: Gpu) -> None:
    if isinstance(entry.config, GpuConfig) and entry.config.sharing is not None:
        raise PermanentError(
            Reason.INVALID_CONFIG,
            f"claim {claim.ref}, request {entry.result.request}, device {gpu.name}: "
            f"sharing.strategy {entry.config.sharing.strategy} is not available in this version of "
            "nvdra-gpu-plugin",
            "remove `sharing` from the config: several containers and pods may use one claim "
            "without it",
            claim=str(claim.ref),
            device=gpu.name,
        )


def _consumers(claim: ResourceClaim) -> list[Consumer]:
    return [each for each in claim.status.reserved_for or () if each.resource == "pods"]


def _other_generation(wanted: GpuHolding, holdings: Holdings) -> GpuHolding | None:
    for holding in holdings.of_pods(wanted.pods):
        if holding.generation != wanted.generation and holding.uid != wanted.uid:
            return holding
    return None


def _listed(inventory: Inventory) -> str:
    return ", ".join(inventory.by_name) or "no GPU"
