"""Builds records of claims that the kubelet's checkpoint has and the state file lacks.

`nvdra_runtime.claims.record_recovery` calls it and adds the records.
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress

from nvdra_api import names
from nvdra_api.errors import DriverError, PermanentError
from nvdra_api.ids import GpuUUID, PciAddress
from nvdra_runtime.claims.claim_reader import ClaimReader
from nvdra_runtime.claims.kubelet_checkpoint import CheckpointClaim, CheckpointDevice

from nvdra_gpu_plugin.claims.node_specs import NodeSpecs
from nvdra_gpu_plugin.devices import device_identity, device_names
from nvdra_gpu_plugin.devices.claim_records import GpuClaimRecord, GpuDeviceRecord
from nvdra_gpu_plugin.devices.inventory import Inventory, MigDevice
from nvdra_gpu_plugin.devices.steps import MadeInstance
from nvdra_gpu_plugin.hardware.node_gpus import NodeGpus

_GPU_TIMEOUT_S = 1.0
"""How long to wait for GPUs to be described. A GPU that works takes milliseconds."""


class RecordBuilder:
    """Builds records of GPU claims."""

    def __init__(
        self, gpus: NodeGpus, specs: NodeSpecs, claim_reader: ClaimReader, boot_id: str
    ) -> None:
        self._boot_id = boot_id
        self._gpus = gpus
        self._specs = specs
        self._claim_reader = claim_reader

    async def build(
        self, claims: Sequence[CheckpointClaim], deadline: float
    ) -> AsyncGenerator[GpuClaimRecord, None]:
        """Build the record of each claim.

        Raises:
            RetryableError: `ApiUnavailable`: a claim must be read to know whether it has admin
                access.
        """
        named = {each.device for claim in claims for each in claim.devices(names.GPU_DRIVER)}
        # A GPU that hangs or is lost is recorded by its name, until the claim is prepared again.
        with suppress(DriverError):
            gpu_deadline = min(deadline, asyncio.get_running_loop().time() + _GPU_TIMEOUT_S)
            await self._gpus.wait_discovered(gpu_deadline)
            await self._gpus.wait_described(named, gpu_deadline)
        snapshot = self._gpus.snapshot
        inventory = Inventory() if snapshot is None else snapshot.inventory
        for claim in claims:
            admin_access = await self._admin_access_results(claim, deadline)
            generation = await self._generation(claim)
            record = _claim_record(claim, generation, inventory, admin_access)
            yield _with_steps(record, inventory, self._boot_id)

    async def _generation(self, claim: CheckpointClaim) -> str:
        """The generation of the spec that has the claim's names; empty if no spec has them."""
        for device in claim.devices(names.GPU_DRIVER):
            for cdi_id in device.cdi_ids:
                generation = await self._specs.find_generation(cdi_id)
                if generation:
                    return generation
        return ""

    async def _admin_access_results(
        self, claim: CheckpointClaim, deadline: float
    ) -> frozenset[tuple[str, str]]:
        """Request and device of each result with admin access; the checkpoint does not have it."""
        try:
            found = await self._claim_reader.fetch(claim.ref, deadline)
        except PermanentError:
            return frozenset()  # the claim is gone; without admin access its GPUs stay excluded
        allocation = found.status.allocation
        results = () if allocation is None else allocation.devices.results
        return frozenset(
            (result.base_request, result.device)
            for result in results
            if result.driver == names.GPU_DRIVER and result.admin_access
        )


def _claim_record(
    claim: CheckpointClaim,
    generation: str,
    inventory: Inventory,
    admin_access: frozenset[tuple[str, str]],
) -> GpuClaimRecord:
    devices = claim.devices(names.GPU_DRIVER)
    return GpuClaimRecord(
        namespace=claim.namespace,
        name=claim.name,
        uid=claim.uid,
        generation=generation,
        pods=claim.pods,
        devices=tuple(_device_record(device, inventory, admin_access) for device in devices),
    )


def _with_steps(record: GpuClaimRecord, inventory: Inventory, boot_id: str) -> GpuClaimRecord:
    """The record with the steps that have made its devices, according to their CDI names.

    If one of them is not there, which a reboot has destroyed, all are of an earlier boot.
    """
    devices, steps = [], []
    is_complete = True
    for device in record.devices:
        is_made = device.cdi_id.startswith(f"{names.GPU_CDI_CLAIM_DEVICE_KIND}=")
        found = inventory.by_name.get(device.device) if is_made else None
        place = inventory.partitions.get(device.device) if is_made else None
        if isinstance(found, MigDevice):
            made = MadeInstance(
                gpu_instance=found.gpu_instance,
                compute_instance=found.compute_instance,
                uuid=found.uuid,
            )
            steps.append(device_identity.make_mig_device(found, made))
            update = device_identity.partition_fields(found) | {"uuid": found.uuid}
            devices.append(device.model_copy(update=update))
        elif place is not None:
            is_complete = False
            steps.append(device_identity.make_mig_device(place))
            update = device_identity.partition_fields(place)
            devices.append(device.model_copy(update=update))
        else:
            devices.append(device)
    if not steps:
        return record
    return record.model_copy(
        update={
            "devices": tuple(devices),
            "steps": tuple(steps),
            "steps_boot": boot_id if is_complete else "",
        }
    )


def _device_record(
    device: CheckpointDevice, inventory: Inventory, admin_access: frozenset[tuple[str, str]]
) -> GpuDeviceRecord:
    found = inventory.by_name.get(device.device)
    is_mig = device_names.parse_mig_name(device.device) is not None
    unknown = {"kind": "mig" if is_mig else "gpu", "pci": PciAddress(""), "uuid": GpuUUID("")}
    request = device.requests[0] if device.requests else ""
    return GpuDeviceRecord(
        request=request,
        pool=device.pool,
        device=device.device,
        **(unknown if found is None else device_identity.fields(found)),
        is_admin=(request, device.device) in admin_access,
        share_id=device.share_id,
        cdi_id=device.cdi_ids[0] if device.cdi_ids else "",
    )
