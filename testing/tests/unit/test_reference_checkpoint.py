# SPDX-License-Identifier: Apache-2.0
"""The checkpoint that tests lay down is what the reference driver writes, byte by byte."""

from typing import Any

import pytest
from nvdra_testing.cluster import reference_checkpoint

UID = "dab5ab50-d59a-42a6-af16-cfd4628c0f7a"
BOOT_ID = "5f1d2c3e-0000-4000-8000-000000000001"
RESULT = {"device": "gpu-0", "driver": "gpu.nvidia.com", "pool": "node-a", "request": "gpu"}
POD = {"name": "pod1", "resource": "pods", "uid": "0b5ff6c0-5f0c-4f44-9c0c-3d2f1a000001"}
DEVICE = {
    "Requests": ["gpu"],
    "PoolName": "node-a",
    "DeviceName": "gpu-0",
    "CDIDeviceIDs": [f"k8s.gpu.nvidia.com/claim={UID}-gpu-0"],
}
GPU = {"uuid": "GPU-7277883e-ce1e-3b6e-6cc1-6d52e80cdb86"}


def claim(state: dict[str, Any]) -> dict[str, Any]:
    """A claim whose status has its keys in the order of an API server's answer."""
    devices = [{"gpu": {"info": GPU, "device": DEVICE}, "mig": None}]
    return {
        "status": {"allocation": {"devices": {"results": [RESULT]}}, "reservedFor": [POD]},
        "preparedDevices": [{"devices": devices, "configState": state}],
    }


@pytest.mark.parametrize(
    ("document", "expected"),
    [("{}", 1558789936), ('{"checksum":0,"v1":{}}', 1083090442)],
)
def test_the_checksum_is_the_reference_driver_s(document: str, expected: int) -> None:
    assert reference_checkpoint.checksum(document) == expected


def test_a_file_without_claims() -> None:
    assert reference_checkpoint.text({}, BOOT_ID) == (
        '{"checksum":1083090442,"v1":{},"v2":{"checksum":2044581258,"nodeBootID":'
        f'"{BOOT_ID}"}}}}'
    )


@pytest.mark.parametrize(
    ("state", "outer", "inner", "size"),
    [
        ({"timeSliceApplied": True}, 1777299623, 2366883139, 1336),
        ({"mpsControlDaemonID": "", "timeSliceApplied": True}, 1682088850, 1521700778, None),
    ],
    ids=["without an MPS daemon", "as released versions write it"],
)
def test_a_file_with_a_claim(
    state: dict[str, Any], outer: int, inner: int, size: int | None
) -> None:
    text = reference_checkpoint.text({UID: claim(state)}, BOOT_ID)
    assert text.startswith(f'{{"checksum":{outer},"v1":')
    assert f'"v2":{{"checksum":{inner},' in text
    assert size in (None, len(text))
