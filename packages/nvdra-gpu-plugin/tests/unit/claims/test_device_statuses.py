# SPDX-License-Identifier: Apache-2.0
"""What the status of a claim says of its devices."""

from datetime import UTC, datetime
from typing import Any

import pytest
from nvdra_gpu_plugin.claims import device_statuses
from nvdra_gpu_plugin.devices.claim_records import GpuClaimRecord

AT = datetime(2026, 11, 24, 2, 30, 5, 999, tzinfo=UTC)
GPU: dict[str, Any] = {
    "request": "gpu",
    "pool": "node-1",
    "device": "gpu-0",
    "pci": "0000:18:00.0",
    "uuid": "GPU-0",
    "cdi_id": "k8s.gpu.nvidia.com/device=gpu-0",
}
MADE: dict[str, Any] = {
    **GPU,
    "device": "gpu-0-mig-1g10gb-19-0",
    "kind": "mig",
    "uuid": "MIG-7",
    "parent_uuid": "GPU-0",
    "profile": "1g.10gb",
    "memory_slices": (0, 1),
}


def record(*devices: dict[str, Any]) -> GpuClaimRecord:
    return GpuClaimRecord.model_validate(
        {"namespace": "ns", "name": "c", "uid": "u", "generation": "580", "devices": devices}
    )


@pytest.mark.parametrize(
    ("device", "data"),
    [
        (GPU, {"type": "gpu", "uuid": "GPU-0", "pciBusID": "0000:18:00.0"}),
        (
            MADE,
            {
                "type": "mig",
                "uuid": "MIG-7",
                "parentUUID": "GPU-0",
                "profile": "1g.10gb",
                "pciBusID": "0000:18:00.0",
            },
        ),
    ],
    ids=["whole GPU", "MIG device"],
)
def test_an_entry_names_the_allocated_device_and_its_hardware(
    device: dict[str, Any], data: dict[str, str]
) -> None:
    (entry,) = device_statuses.of_record(record(device), AT)
    assert (entry["driver"], entry["pool"], entry["device"]) == (
        "gpu.nvidia.com",
        "node-1",
        device["device"],
    )
    assert entry["data"] == data
    (condition,) = entry["conditions"]
    assert (condition["type"], condition["status"]) == ("Ready", "True")
    assert condition["reason"], "the API server asks for one"
    assert condition["lastTransitionTime"] == "2026-11-24T02:30:05Z"


def test_a_device_of_two_requests_has_one_entry_and_an_unknown_one_none() -> None:
    again = {**GPU, "request": "watch", "is_admin": True}
    unknown = {**GPU, "device": "gpu-1", "uuid": ""}
    entries = device_statuses.of_record(record(GPU, again, unknown), AT)
    assert [entry["device"] for entry in entries] == ["gpu-0"]


def test_each_share_of_a_gpu_has_an_entry_with_its_share_id() -> None:
    one, other = "1a000000-0000-4000-8000-000000000001", "1b000000-0000-4000-8000-000000000002"
    shares = [{**GPU, "share_id": each, "is_shared": True} for each in (one, other, one)]
    found = device_statuses.of_record(record(*shares), AT)
    assert [each["shareID"] for each in found] == [one, other]
    assert {each["data"]["uuid"] for each in found} == {"GPU-0"}
    (whole,) = device_statuses.of_record(record(GPU), AT)
    assert "shareID" not in whole
