# SPDX-License-Identifier: Apache-2.0
"""The status of a claim says which hardware it has got; nothing waits for that."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest_asyncio
from nvdra_api.resource.claims import ClaimRef
from nvdra_testing.control_plane import apiserver
from nvdra_testing.node import plugin
from nvdra_testing.node import rig as rigs
from nvdra_testing.node.rig import Rig

GATE = "--feature-gates=DynamicMIG=true"
MADE = "gpu-1-mig-1g10gb-19-0"
NIC = {"driver": "nic.example.com", "pool": "p", "device": "nic-0"}
OFF = ",".join(
    f"{gate}=false"
    for gate in (
        "DRAResourceClaimDeviceStatus",
        "DRAResourceClaimGranularStatusAuthorization",
        "DRADeviceBindingConditions",
    )
)
"""The gate, and those that need it."""
GONE = 30
"""Claims that come and go; one that is written takes a second."""
FAILED = "Cannot write into a claim's status"
UNKEPT = "does not keep which devices"


def claim_path(claim: ClaimRef) -> str:
    return f"{plugin.claims_path(claim.namespace)}/{claim.name}"


def entries(rig: Rig, claim: ClaimRef) -> dict[str, dict[str, Any]]:
    """The status of the claim's devices, by the driver and the device."""
    status = rig.server.request("GET", claim_path(claim))["status"]
    return {f"{each['driver']}/{each['device']}": each for each in status.get("devices") or ()}


def write_as_other_driver(rig: Rig, claim: ClaimRef) -> None:
    """Add the entry of another driver that has a device in the same claim."""
    found = rig.server.request("GET", claim_path(claim))
    found["status"]["devices"] = [{**NIC, "data": {"speed": 400}}]
    rig.server.request("PUT", f"{claim_path(claim)}/status", found)


async def prepared(rig: Rig, *devices: str) -> ClaimRef:
    claim = rig.create_claim(*devices)
    assert not (await rig.dra.prepare([claim]))[claim.uid].error
    return claim


async def test_the_status_has_the_uuid_of_a_gpu_and_of_a_mig_device_that_was_made(
    rig: Rig,
) -> None:
    await rig.start(GATE)
    claim = rig.create_claim("gpu-0", MADE, others=[NIC])
    write_as_other_driver(rig, claim)
    assert not (await rig.dra.prepare([claim]))[claim.uid].error
    await rig.wait_until(lambda: len(entries(rig, claim)) == 3, "the status")
    found = entries(rig, claim)
    attributes = rig.devices()["gpu-0"]["attributes"]
    assert found["gpu.nvidia.com/gpu-0"]["data"]["uuid"] == attributes["uuid"]["string"]
    made = found[f"gpu.nvidia.com/{MADE}"]["data"]
    assert made["uuid"].startswith("MIG-")
    assert made["uuid"] in rig.node.nvidia_smi("-L")
    assert made["profile"] == "1g.10gb"
    assert found["nic.example.com/nic-0"]["data"] == {"speed": 400}

    before = rig.server.request("GET", claim_path(claim))["metadata"]["resourceVersion"]
    await rig.stop()
    await rig.start(GATE)
    later = await prepared(rig, "gpu-2")
    await rig.wait_until(lambda: bool(entries(rig, later)), "the status of the next claim")
    after = rig.server.request("GET", claim_path(claim))["metadata"]["resourceVersion"]
    assert after == before, "applying the same again changes nothing"


async def test_a_claim_is_written_when_the_api_server_is_back(rig: Rig) -> None:
    await rig.start()
    claim = await prepared(rig, "gpu-3")
    rig.server.stop()
    await rig.wait_until(lambda: FAILED in rig.process.log.read_text(), "a failed write")
    rig.server.start()
    await rig.wait_until(lambda: bool(entries(rig, claim)), "the status", timeout_s=60)


async def test_a_claim_that_is_not_allocated_any_more_keeps_no_other_from_being_written(
    rig: Rig,
) -> None:
    await rig.start()
    claim = await prepared(rig, "gpu-5")
    found = rig.server.request("GET", claim_path(claim))
    found["status"] = {}
    rig.server.request("PUT", f"{claim_path(claim)}/status", found)
    other = await prepared(rig, "gpu-6")
    await rig.wait_until(lambda: bool(entries(rig, other)), "the other claim's status")
    assert entries(rig, claim) == {}


@pytest_asyncio.fixture
async def unserved(tmp_path: Path) -> AsyncIterator[Rig]:
    """A node whose API server drops the status of devices."""
    with apiserver.run_apiserver(tmp_path, feature_gates=OFF) as server:
        async with rigs.open_rig(server, "node-s") as rig:
            yield rig


async def test_a_claim_that_stays_does_not_wait_for_those_that_are_gone(rig: Rig) -> None:
    await rig.start()
    for _ in range(GONE):
        claim = await prepared(rig, "gpu-0")
        assert not (await rig.dra.unprepare([claim]))[claim.uid].error
    staying = await prepared(rig, "gpu-0")
    await rig.wait_until(lambda: bool(entries(rig, staying)), "the status", timeout_s=GONE / 2)


async def test_where_it_is_not_kept_this_is_said_once_and_pods_get_their_gpus(
    unserved: Rig,
) -> None:
    rig = unserved
    await rig.start()
    first, second = await prepared(rig, "gpu-0"), await prepared(rig, "gpu-1")
    await rig.wait_until(lambda: UNKEPT in rig.process.log.read_text(), "the log")
    third = await prepared(rig, "gpu-2")
    assert [entries(rig, each) for each in (first, second, third)] == [{}, {}, {}]
    assert rig.process.log.read_text().count(UNKEPT) == 1
