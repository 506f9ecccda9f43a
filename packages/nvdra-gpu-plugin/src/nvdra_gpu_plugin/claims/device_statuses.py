# SPDX-License-Identifier: Apache-2.0
"""What a claim's `status.devices` says of its devices: which hardware each one is.

A slice names the GPU of a whole GPU, and cannot name a MIG device that is made for a claim: its
UUID is known only here. Source: KEP-4817, AllocatedDeviceStatus.
"""

from datetime import datetime
from typing import Final

from nvdra_api import names
from nvdra_api.meta import JsonObject

from nvdra_gpu_plugin.devices.claim_records import GpuClaimRecord, GpuDeviceRecord

READY: Final = "Ready"
PREPARED: Final = "Prepared"


def of_record(record: GpuClaimRecord, prepared_at: datetime) -> list[JsonObject]:
    """An entry for each device whose hardware is known, in the order of the record.

    A device that several requests have got has one entry, because the API knows it by driver, pool,
    name and share ID.

    Args:
        record: A prepared claim.
        prepared_at: When it was prepared on this node, in UTC.
    """
    known = {(each.pool, each.device, each.share_id): each for each in record.devices if each.uuid}
    return [_entry(device, prepared_at) for device in known.values()]


def _entry(device: GpuDeviceRecord, prepared_at: datetime) -> JsonObject:
    """Data has the names that the attributes of slices have."""
    data = {
        "type": device.kind,
        "uuid": device.uuid,
        "parentUUID": device.parent_uuid,
        "profile": device.profile,
        "pciBusID": device.pci,
    }
    return {
        "driver": names.GPU_DRIVER,
        "pool": device.pool,
        "device": device.device,
        **({} if device.share_id is None else {"shareID": device.share_id}),
        "conditions": [
            {
                "type": READY,
                "status": "True",
                "reason": PREPARED,
                "message": "",
                "lastTransitionTime": prepared_at.strftime("%Y-%m-%dT%H:%M:%SZ"),
            }
        ],
        "data": {name: value for name, value in data.items() if value},
    }
