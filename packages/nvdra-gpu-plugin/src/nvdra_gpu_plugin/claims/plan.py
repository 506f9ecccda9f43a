# SPDX-License-Identifier: Apache-2.0
"""Decides which devices a claim gets, and whether it may have them. `preparer` does the rest."""

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from nvdra_api import names
from nvdra_api.errors import PermanentError, Reason
from nvdra_api.gates import FeatureGates
from nvdra_api.ids import DeviceName, GpuUUID, NodeName, PodUID, PoolName
from nvdra_api.resource.claims import (
    ClaimRef,
    DeviceRequestAllocationResult,
    ResourceClaim,
    ResourceClaimConsumerReference,
)
from nvdra_api.v1beta1 import DeviceConfig, GpuConfig, MigDeviceConfig, VfioDeviceConfig
from nvdra_runtime.claims import opaque_configs, records
from nvdra_runtime.claims.opaque_configs import ConfiguredResult
from nvdra_runtime.claims.records import DeviceInUseError

from nvdra_gpu_plugin.claims import shares, vfio_plan
from nvdra_gpu_plugin.devices import device_identity, device_names
from nvdra_gpu_plugin.devices.claim_index import GpuClaimIndex
from nvdra_gpu_plugin.devices.claim_records import MPS_SUFFIX, GpuClaimRecord, GpuDeviceRecord
from nvdra_gpu_plugin.devices.inventory import Allocated, Gpu, Inventory, MigPartition
from nvdra_gpu_plugin.devices.spec_generation import SpecGeneration
from nvdra_gpu_plugin.devices.steps import (
    DisableMigMode,
    SetComputeMode,
    ShareByTime,
    Step,
)
from nvdra_gpu_plugin.devices.vfio_devices import VfioDevice
from nvdra_gpu_plugin.hardware.device_state import Snapshot
from nvdra_gpu_plugin.mps import daemon_plan
from nvdra_gpu_plugin.share_policy import SharePolicy

DriverVersions = Mapping[str, str]
"""Generation of a CDI spec → the version of its driver."""
AddMetadata = Callable[[GpuClaimRecord, ResourceClaim, Inventory], GpuClaimRecord]


class Planned(NamedTuple):
    """What a claim is to get.

    Attributes:
        record: Its devices and the changes that they need.
        unapplied_configs: Which of the claim's configs have no effect, and why.
        minimum_capacity: The least capacity that it asks for of whole devices, or empty.
    """

    record: GpuClaimRecord
    unapplied_configs: tuple[str, ...]
    minimum_capacity: str


class Planner(NamedTuple):
    """Plans the claims of one node.

    Attributes:
        node: The node.
        gates: Which configs are accepted.
        add_metadata: Gives the record the device metadata that the claim gets.
        shares: How several claims share a device; None if none do.
    """

    node: NodeName
    gates: FeatureGates
    add_metadata: AddMetadata
    shares: SharePolicy | None = None

    def plan(self, claim: ResourceClaim, snapshot: Snapshot) -> Planned:
        """What the claim gets on the node's GPUs as they are now.

        Raises:
            PermanentError: As `make`; `FeatureGateDisabled`.
        """
        configured = opaque_configs.resolve(claim, names.GPU_DRIVER, _config_kind, self.gates)
        inventory, generation = snapshot.inventory, snapshot.spec.generation
        record = make(claim, configured, inventory, generation, self.node, self.shares)
        record = self.add_metadata(record, claim, inventory)
        unapplied = tuple(opaque_configs.unapplied(claim, names.GPU_DRIVER, configured))
        return Planned(record, unapplied, shares.minimum_capacity(claim, configured))


def make(
    claim: ResourceClaim,
    configured: Sequence[ConfiguredResult],
    inventory: Inventory,
    generation: SpecGeneration,
    node: NodeName,
    policy: SharePolicy | None = None,
) -> GpuClaimRecord:
    """Return the record of a claim that gets the devices that were allocated to it.

    Args:
        claim: The claim as the API server returned it.
        configured: This driver's results, each with its config, in the order of the allocation.
        inventory: The node's GPUs.
        generation: Their CDI names.
        node: This node, whose name is also the name of its pool.
        policy: How several claims share a device of this node; None if none do.

    Raises:
        PermanentError: `UnknownDevice`; `InvalidConfig`: the claim was allocated part of a device
            that is handed out whole, its devices cannot be shared as their configs say, or it has
            vfio devices with admin access or for two back ends; `VfioNotPossible`.
    """
    found = [_find_device(claim, entry.result, inventory, node) for entry in configured]
    for entry, device in zip(configured, found, strict=True):
        if isinstance(device, VfioDevice):
            vfio_plan.check(claim.ref, entry.result, device, inventory)
        shares.check_allocation(claim.ref, entry.result, device, policy)
    records_of_devices = tuple(
        _device_record(claim, entry, device, generation, policy)
        for entry, device in zip(configured, found, strict=True)
    )
    shares.check_configs(claim.ref, configured, records_of_devices, policy)
    daemons = daemon_plan.steps(claim.ref, configured, found)
    pods = _consumers(claim)
    needs_node_spec = any(not device.is_vfio for device in records_of_devices)
    has_vfio = any(device.is_vfio for device in records_of_devices)
    bindings = vfio_plan.bindings(configured, found) if has_vfio else ()
    return GpuClaimRecord(
        namespace=claim.ref.namespace,
        name=claim.ref.name,
        uid=claim.ref.uid,
        generation=generation.name if needs_node_spec else "",
        pods=tuple(PodUID(pod.uid) for pod in pods),
        pod_names=tuple(pod.name for pod in pods),
        devices=records_of_devices,
        steps=(*_steps(configured, found), *bindings, *daemons),
    )


def check_free(
    record: GpuClaimRecord, claim_index: GpuClaimIndex, driver_versions: DriverVersions
) -> None:
    """Check that no other claim holds one of the devices. The caller holds their GPUs' locks.

    Args:
        record: What the claim would get.
        claim_index: The prepared claims.
        driver_versions: The version of the driver in specs of other generations.

    Raises:
        DeviceInUseError: Another claim holds one, or has a share of one and wants it in another
            way.
        PermanentError: `DriverMismatch`: one pod would get the libraries of two drivers.
    """
    for device in record.devices:
        holder = claim_index.conflicting_claim(device, record.uid)
        if holder is not None:
            keys = tuple(each.wait_key for each in record.devices)
            raise DeviceInUseError(record.ref, device.device, holder, keys)
        if device.is_shared:
            sharer = claim_index.sharing_claim(device, record.uid)
            shares.check_same_use(record, device, sharer)
    older = _claim_with_other_driver(record, claim_index, driver_versions)
    if older is not None:
        named = records.name_one([older.ref], record.namespace).text
        raise PermanentError(
            Reason.DRIVER_MISMATCH,
            f"claim {record.ref} would be given the libraries of driver {record.generation}, "
            f"but {named} of the same pod was prepared with those of "
            f"{driver_versions.get(older.generation) or older.generation}, before the driver "
            "changed",
            "delete the pod, so that all its claims are prepared with one driver",
            claim=str(record.ref),
            holder=str(older.ref),
        )


def check_records_complete(
    record: GpuClaimRecord, unreadable: Iterable[ClaimRef], incomplete_reason: str = ""
) -> None:
    """Check that the records say of every GPU who holds it.

    Args:
        record: What the claim would get. Admin access is always possible.
        unreadable: Claims whose records cannot be read. They may hold any GPU.
        incomplete_reason: Why records may be missing; empty if none are.

    Raises:
        PermanentError: `StateCorrupt`.
    """
    others = [ref for ref in unreadable if ref.uid != record.uid]
    if not (others or incomplete_reason) or all(device.is_admin for device in record.devices):
        return
    free = f"whether {', '.join(device.device for device in record.devices)} is free"
    if others:
        holder = records.name_one(others, record.namespace)
        problem = f"holds GPUs of this node and its record cannot be read, so {free} cannot be told"
        raise PermanentError(
            Reason.STATE_CORRUPT,
            f"{holder.text} {problem}",
            "delete the pods of that claim, which the plugin's log names; once it is unprepared, "
            "the record is gone",
            operator_message=f"{holder.operator_text} {problem}",
            claim=str(record.ref),
            holder=str(others[0]),
        )
    raise PermanentError(
        Reason.STATE_CORRUPT,
        f"{free} cannot be told: {incomplete_reason}",
        "make the kubelet's file readable for the plugin, or drain the node and reboot it",
        claim=str(record.ref),
    )


def existing_devices(
    record: GpuClaimRecord, inventory: Inventory, left_out: Container[DeviceName]
) -> list[GpuDeviceRecord]:
    """What of a claim must work before anything is changed for it.

    Args:
        record: What the claim would get.
        inventory: The node's GPUs. One that goes to vfio is looked at as a GPU, if NVML has it.
        left_out: GPUs that need not be looked at.
    """
    whole = {gpu.pci: gpu for gpu in inventory.gpus}
    found = []
    for device in record.devices:
        gpu = whole.get(device.pci) if device.is_vfio else None
        if gpu is not None:
            as_gpu = {"device": gpu.name, **device_identity.fields(gpu)}
            found.append(device.model_copy(update=as_gpu))
        else:
            found.append(device)
    return [device for device in found if device.device not in left_out]


def with_mig_mode_off(record: GpuClaimRecord, gpus: Iterable[Gpu]) -> GpuClaimRecord:
    """The record of a claim with whole GPUs of which these are in MIG mode and can leave it."""
    steps = tuple(DisableMigMode(gpu=gpu.uuid, device=gpu.name) for gpu in gpus)
    return record.model_copy(update={"steps": (*steps, *record.steps)})


def _steps(configured: Sequence[ConfiguredResult], devices: Sequence[Allocated]) -> Iterator[Step]:
    """What the claim's devices need done. Who only monitors a GPU does not change it."""
    by_time = set[GpuUUID]()  # a claim can have several shares of a GPU
    for entry, device in zip(configured, devices, strict=True):
        if isinstance(device, MigPartition):
            yield device_identity.make_mig_device(device)
        elif isinstance(device, Gpu) and not entry.result.admin_access:
            config = entry.config
            interval = config.time_slice if isinstance(config, GpuConfig) else None
            if interval is not None and device.uuid not in by_time:
                by_time.add(device.uuid)
                yield ShareByTime(gpu=device.uuid, device=device.name, interval=interval)
            elif daemon_plan.mps_config(entry) is not None:
                # One MPS server alone may use the GPU, so that no process goes around its limits.
                yield SetComputeMode(
                    gpu=device.uuid, device=device.name, mode=SetComputeMode.EXCLUSIVE
                )


def _device_record(
    claim: ResourceClaim,
    entry: ConfiguredResult,
    device: Allocated,
    generation: SpecGeneration,
    policy: SharePolicy | None,
) -> GpuDeviceRecord:
    result, mps_cdi_id = entry.result, ""
    if daemon_plan.mps_config(entry) is not None:
        mps_cdi_id = f"{names.GPU_CDI_CLAIM_DEVICE_KIND}={claim.ref.uid}-{device.name}{MPS_SUFFIX}"
    cdi_id = f"{names.GPU_CDI_CLAIM_DEVICE_KIND}={claim.ref.uid}-{device.name}"
    if isinstance(device, MigPartition):
        identity = device_identity.partition_fields(device)
    elif isinstance(device, VfioDevice):
        identity = device_identity.vfio_fields(device)
    else:
        identity = device_identity.fields(device)
        cdi_id = generation.cdi_ids[device.name]
    return GpuDeviceRecord(
        request=result.base_request,
        pool=PoolName(result.pool),
        device=device.name,
        **identity,
        is_admin=bool(result.admin_access),
        share_id=result.share_id,
        is_shared=shares.is_share(result, device, policy),
        cdi_id=cdi_id,
        mps_cdi_id=mps_cdi_id,
    )


def _find_device(
    claim: ResourceClaim,
    result: DeviceRequestAllocationResult,
    inventory: Inventory,
    node: NodeName,
) -> Allocated:
    """The device, which exists or can be made. What exists is not made."""
    remedy = (
        "delete the pod so that it is scheduled anew; kubectl get resourceslices shows what the "
        "node offers"
    )
    name = DeviceName(result.device)
    device: Allocated | None = inventory.by_name.get(name) or inventory.partitions.get(name)
    device = device or inventory.vfio_by_name.get(name)
    if result.pool != node:
        problem = f"pool {result.pool} is not this node's pool {node}"
    elif device is None:
        problem = f"{result.device} is not on node {node}, which has {_list_devices(inventory)}"
    elif isinstance(device, MigPartition) and result.admin_access:
        gpu = inventory.by_uuid[device.parent_uuid].name
        problem = f"{device.name} exists only for the claim that it is made for"
        remedy = (
            f"ask for admin access to {gpu}, which shows all MIG devices of that GPU; Kubernetes "
            "allocates it while no claim has the GPU or a part of it"
        )
    elif isinstance(device, Gpu) and device.is_mig_enabled:
        problem = f"{result.device} is in MIG mode and cannot be handed out whole"
    else:
        return device
    raise PermanentError(
        Reason.UNKNOWN_DEVICE,
        f"claim {claim.ref}, request {result.request}: {problem}",
        remedy,
        claim=str(claim.ref),
        device=result.device,
    )


def _consumers(claim: ResourceClaim) -> list[ResourceClaimConsumerReference]:
    return [each for each in claim.status.reserved_for or () if each.resource == "pods"]


def _claim_with_other_driver(
    record: GpuClaimRecord, claim_index: GpuClaimIndex, driver_versions: DriverVersions
) -> GpuClaimRecord | None:
    def version(of: GpuClaimRecord) -> str:
        return driver_versions.get(of.generation) or of.generation

    if not version(record):
        return None  # no device of it comes with libraries
    for other in claim_index.claims_of_pods(record.pods):
        if other.uid != record.uid and version(other) not in (version(record), ""):
            return other
    return None


def _list_devices(inventory: Inventory) -> str:
    names_of_all = (*inventory.devices, *inventory.vfio)
    return ", ".join(device.name for device in names_of_all) or "no GPU"


def _config_kind(result: DeviceRequestAllocationResult) -> type[DeviceConfig]:
    if device_names.is_vfio_name(result.device):
        return VfioDeviceConfig
    is_mig = device_names.parse_mig_name(result.device) is not None
    return MigDeviceConfig if is_mig else GpuConfig
