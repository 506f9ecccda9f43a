# SPDX-License-Identifier: Apache-2.0
"""Builds records of claims that the kubelet's checkpoint has and the state file lacks.

`nvdra_runtime.claims.record_recovery` calls it and adds the records.
"""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from nvdra_api import names
from nvdra_api.errors import DriverError, PermanentError
from nvdra_api.ids import GpuUUID, PciAddress
from nvdra_api.resource.claims import DeviceRequestAllocationResult, ResourceClaim
from nvdra_runtime.claims.claim_reader import ClaimReader
from nvdra_runtime.claims.kubelet_checkpoint import CheckpointClaim, CheckpointDevice
from nvdra_runtime.process.worker import Worker

from nvdra_gpu_plugin.claims import vfio_recovery
from nvdra_gpu_plugin.claims.claim_metadata import ClaimMetadata
from nvdra_gpu_plugin.claims.node_specs import NodeSpecs
from nvdra_gpu_plugin.devices import device_identity, device_names
from nvdra_gpu_plugin.devices.claim_records import (
    MPS_SUFFIX,
    DeviceMetadataRecord,
    GpuClaimRecord,
    GpuDeviceRecord,
)
from nvdra_gpu_plugin.devices.inventory import Inventory, MigDevice
from nvdra_gpu_plugin.devices.steps import MadeInstance, SetComputeMode
from nvdra_gpu_plugin.hardware.node_gpus import NodeGpus
from nvdra_gpu_plugin.mps import daemon_files

_GPU_TIMEOUT_S = 1.0
"""How long to wait for GPUs to be described. A GPU that works takes milliseconds."""


class RecordBuilder:
    """Builds records of GPU claims."""

    def __init__(
        self,
        gpus: NodeGpus,
        specs: NodeSpecs,
        metadata: ClaimMetadata,
        claim_reader: ClaimReader,
        boot_id: str,
        plugin_dir: Path,
        files: Worker,
    ) -> None:
        self._plugin_dir = plugin_dir
        self._files = files
        self._boot_id = boot_id
        self._gpus = gpus
        self._specs = specs
        self._metadata = metadata
        self._claim_reader = claim_reader

    async def build(
        self, claims: Sequence[CheckpointClaim], deadline: float
    ) -> AsyncGenerator[GpuClaimRecord, None]:
        """Build the record of each claim.

        Raises:
            RetryableError: `ApiUnavailable`: a claim must be read to know whether it has admin
                access or shares, and what its device metadata says.
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
            found = await self._read(claim, deadline)
            generation = await self._generation(claim)
            record = _claim_record(claim, generation, inventory, _results(found))
            record = await self._with_daemons(_with_steps(record, inventory, self._boot_id))
            boards = self._gpus.state.passthrough.boards
            record = vfio_recovery.with_bindings(record, inventory, boards, self._boot_id)
            # The files of a claim that is gone stay as they are, and go with a later start.
            if found is not None and any(device.metadata for device in record.devices):
                record = self._metadata.recovered(record, found, inventory)
            yield record

    async def _with_daemons(self, record: GpuClaimRecord) -> GpuClaimRecord:
        """The record with its MPS daemons, according to what they have left on the node.

        What the compute modes of the GPUs were before is not known: they become the default.
        """
        if not any(device.mps_cdi_id for device in record.devices):
            return record
        found = await self._files.run(daemon_files.steps_of, self._plugin_dir, record.uid)
        modes = tuple(
            SetComputeMode(gpu=device.gpu_uuid, device=device.device, mode=SetComputeMode.EXCLUSIVE)
            for device in record.devices
            if device.mps_cdi_id and device.kind == "gpu" and device.uuid
        )
        boot = record.steps_boot if record.steps else self._boot_id
        return record.with_steps((*record.steps, *modes, *found)).model_copy(
            update={"steps_boot": boot}
        )

    async def _generation(self, claim: CheckpointClaim) -> str:
        """The generation of the spec that has the claim's names; empty if no spec has them."""
        for device in claim.devices(names.GPU_DRIVER):
            for cdi_id in device.cdi_ids:
                generation = await self._specs.find_generation(cdi_id)
                if generation:
                    return generation
        return ""

    async def _read(self, claim: CheckpointClaim, deadline: float) -> ResourceClaim | None:
        """The claim in the API server; None if it is gone."""
        try:
            return await self._claim_reader.fetch(claim.ref, deadline)
        except PermanentError:
            return None


def _results(
    claim: ResourceClaim | None,
) -> Mapping[tuple[str, str], DeviceRequestAllocationResult]:
    """A claim's results by request and device; the checkpoint has not all of them.

    It does not have admin access, and before Kubernetes 1.35 no share ID. Several shares of one
    device for one request differ in nothing else. Without admin access the GPUs of a claim that is
    gone stay excluded.
    """
    allocation = None if claim is None else claim.status.allocation
    results = () if allocation is None else allocation.devices.results
    return {
        (result.base_request, result.device): result
        for result in results
        if result.driver == names.GPU_DRIVER
    }


def _claim_record(
    claim: CheckpointClaim,
    generation: str,
    inventory: Inventory,
    results: Mapping[tuple[str, str], DeviceRequestAllocationResult],
) -> GpuClaimRecord:
    devices = claim.devices(names.GPU_DRIVER)
    return GpuClaimRecord(
        namespace=claim.namespace,
        name=claim.name,
        uid=claim.uid,
        generation=generation,
        pods=claim.pods,
        devices=tuple(_device_record(device, inventory, results) for device in devices),
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
    device: CheckpointDevice,
    inventory: Inventory,
    results: Mapping[tuple[str, str], DeviceRequestAllocationResult],
) -> GpuDeviceRecord:
    found = inventory.by_name.get(device.device)
    is_mig = device_names.parse_mig_name(device.device) is not None
    unknown = {"kind": "mig" if is_mig else "gpu", "pci": PciAddress(""), "uuid": GpuUUID("")}
    request = device.requests[0] if device.requests else ""
    result = results.get((request, device.device))
    share_id = device.share_id or (None if result is None else result.share_id)
    return GpuDeviceRecord(
        request=request,
        pool=device.pool,
        device=device.device,
        **(unknown if found is None else device_identity.fields(found)),
        is_admin=result is not None and bool(result.admin_access),
        share_id=device.share_id,
        is_shared=share_id is not None,
        cdi_id=device.cdi_ids[0] if device.cdi_ids else "",
        mps_cdi_id=next((each for each in device.cdi_ids[1:] if each.endswith(MPS_SUFFIX)), ""),
        metadata=_metadata(device, request),
    )


def _metadata(device: CheckpointDevice, request: str) -> DeviceMetadataRecord | None:
    """What a device was answered with for its request's metadata file; None if with nothing."""
    kind = f"{names.GPU_CDI_METADATA_KIND}="
    mounted = next((each for each in device.cdi_ids[1:] if each.startswith(kind)), None)
    return None if mounted is None else DeviceMetadataRecord(request=request, cdi_id=mounted)
