# SPDX-License-Identifier: Apache-2.0
"""What the device metadata files of a claim say, as part of its record.

Every device is described with the attributes that are published of it. They are kept in the record,
so that the files can be written again at any time, before the hardware is known and without the API
server.

Source: KEP-5304; docs/reference/resource-claims.md, "Device metadata files".
"""

from typing import Final

from nvdra_api import names
from nvdra_api.meta import JsonObject
from nvdra_api.resource.claims import ResourceClaim

from nvdra_gpu_plugin.devices import device_identity
from nvdra_gpu_plugin.devices.claim_records import (
    ClaimMetadataRecord,
    DeviceMetadataRecord,
    GpuClaimRecord,
    GpuDeviceRecord,
)
from nvdra_gpu_plugin.devices.inventory import Gpu, Inventory, MigDevice
from nvdra_gpu_plugin.publishing import attributes

_POD_CLAIM_NAME: Final = "resource.kubernetes.io/pod-claim-name"
"""Annotation of a claim that was made from a template."""


def cdi_id(record: GpuClaimRecord, request: str) -> str:
    """The CDI name that mounts the metadata file of a request.

    Args:
        record: The claim.
        request: The name of the request without the subrequest.
    """
    return f"{names.GPU_CDI_METADATA_KIND}={record.uid}_{request}"


def with_metadata(
    record: GpuClaimRecord, claim: ResourceClaim, inventory: Inventory, *, numa_as_list: bool
) -> GpuClaimRecord:
    """The record of a claim that gets device metadata files.

    Args:
        record: What the claim gets.
        claim: The claim as the API server returned it.
        inventory: The node's GPUs. A device that is not there has no attributes.
        numa_as_list: As for `attributes.whole_gpu`.
    """
    allocation = claim.status.allocation
    results = () if allocation is None else allocation.devices.results
    references = {
        (result.base_request, result.device): result.request
        for result in results
        if result.driver == names.GPU_DRIVER
    }
    mounted: set[str] = set()
    devices: list[GpuDeviceRecord] = []
    for device in record.devices:
        metadata = DeviceMetadataRecord(
            request=references.get((device.request, device.device), device.request),
            attributes=_attributes(device, inventory, numa_as_list=numa_as_list) or {},
            cdi_id="" if device.request in mounted else cdi_id(record, device.request),
        )
        mounted.add(device.request)
        devices.append(device.model_copy(update={"metadata": metadata}))
    of_claim = ClaimMetadataRecord(
        pod_claim_name=claim.metadata.annotations.get(_POD_CLAIM_NAME, "")
    )
    return record.model_copy(update={"devices": tuple(devices), "metadata": of_claim})


def with_present_attributes(
    record: GpuClaimRecord, inventory: Inventory, *, numa_as_list: bool
) -> GpuClaimRecord:
    """The record with what is published of its devices today, as after a reboot.

    Args:
        record: A claim, with or without metadata files.
        inventory: The node's GPUs. A device that is not there keeps its attributes.
        numa_as_list: As for `attributes.whole_gpu`.
    """
    if record.metadata is None:
        return record
    devices: list[GpuDeviceRecord] = []
    for device in record.devices:
        found = _attributes(device, inventory, numa_as_list=numa_as_list)
        if device.metadata is not None and found is not None:
            metadata = device.metadata.model_copy(update={"attributes": found})
            devices.append(device.model_copy(update={"metadata": metadata}))
        else:
            devices.append(device)
    return with_generation(record.model_copy(update={"devices": tuple(devices)}), record)


def with_generation(record: GpuClaimRecord, former: GpuClaimRecord) -> GpuClaimRecord:
    """The record with the next generation, if its metadata files do not say the same as before."""
    if record.metadata is None or former.metadata is None or _facts(record) == _facts(former):
        return record
    generation = former.metadata.generation + 1
    metadata = record.metadata.model_copy(update={"generation": generation})
    return record.model_copy(update={"metadata": metadata})


def _facts(record: GpuClaimRecord) -> list[tuple[DeviceMetadataRecord | None, str]]:
    return [(device.metadata, device.uuid) for device in record.devices]


def _attributes(
    device: GpuDeviceRecord, inventory: Inventory, *, numa_as_list: bool
) -> dict[str, JsonObject] | None:
    """What is published of a device; None if it is not there.

    A MIG device that is made for the claim has no UUID here: it may be made again.
    """
    found = device_identity.find(device, inventory)
    gpu = device_identity.find_gpu(device, inventory)
    vfio = device_identity.find_vfio(device, inventory)
    if vfio is not None:
        named = attributes.vfio_device(vfio, numa_as_list=numa_as_list)
    elif device.is_made and gpu is not None:
        published = attributes.partitions(gpu, [device.profile], numa_as_list=numa_as_list)
        named = published[device.profile]
    elif isinstance(found, MigDevice):
        named = attributes.mig_device(found, inventory.gpu_of(found), numa_as_list=numa_as_list)
    elif isinstance(found, Gpu):
        named = attributes.whole_gpu(found, numa_as_list=numa_as_list)
    else:
        return None
    return {
        name: value.model_dump(mode="json", by_alias=True, exclude_none=True)
        for name, value in named.items()
    }
