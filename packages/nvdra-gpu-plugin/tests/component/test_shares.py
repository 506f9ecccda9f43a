# SPDX-License-Identifier: Apache-2.0
"""Several claims have one GPU at once, each with a share; the test allocates as the scheduler does.

The node has no persistence mode: settings of a GPU last as long as the plugin has NVML open.
"""

import asyncio
import signal
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import pytest_asyncio
from nvdra_api.resource.claims import ClaimRef
from nvdra_testing.control_plane import apiserver
from nvdra_testing.hardware import driver_installation
from nvdra_testing.hardware.gpu_modes import time_slice
from nvdra_testing.kubelet.checkpoint_file import CheckpointFile
from nvdra_testing.node import plugin
from nvdra_testing.node import rig as rigs
from nvdra_testing.node.rig import Rig

GATES = "--feature-gates=ConsumableShares=true,TimeSlicingSettings=true"
FLAGS = GATES, "--consumable-shares=unlimited"


def limited(value: str, default: str, least: str, step: str) -> dict[str, Any]:
    """A capacity with its policy."""
    found = {"min": least, "max": value, "step": step}
    return {"value": value, "requestPolicy": {"default": default, "validRange": found}}


def share(rig: Rig, *devices: str, **how: Any) -> ClaimRef:
    """Create a claim with a share of each of these devices."""
    shares = how.pop("shares", [str(uuid4()) for _ in devices])
    return rig.create_claim(*devices, shares=shares, **how)


async def prepared(rig: Rig, *claims: ClaimRef) -> list[Any]:
    """The answers for these claims, in one call; none may be an error."""
    answers = await rig.dra.prepare(claims)
    assert not [answer.error for answer in answers.values() if answer.error]
    return [answers[claim.uid] for claim in claims]


async def refusal(rig: Rig, claim: ClaimRef) -> str:
    """Why the claim is not prepared, after it has waited."""
    text = await rig.dra.refusal(claim)
    assert text
    return text


def share_ids(answer: Any) -> list[str]:
    return [device.share_id for device in answer.devices]


@pytest.mark.soak
@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("unlimited", {"memory": limited("81559Mi", "0", "0", "1Mi")}),
        ("memory", {"memory": limited("81559Mi", "81559Mi", "1Mi", "1Mi")}),
        (
            "4",
            {
                "memory": limited("81559Mi", "0", "0", "1Mi"),
                "shares": limited("4", "1", "1", "1"),
            },
        ),
        (
            "1",
            {
                "memory": limited("81559Mi", "0", "0", "1Mi"),
                "shares": {
                    "value": "1",
                    "requestPolicy": {"default": "1", "validRange": {"min": "1", "max": "1"}},
                },
            },
        ),
    ],
)
async def test_each_way_of_sharing_is_published_as_the_api_server_keeps_it(
    rig: Rig, policy: str, expected: dict[str, Any]
) -> None:
    await rig.start(GATES, f"--consumable-shares={policy}")
    devices = rig.devices()
    assert len(devices) == 8
    assert all(each["allowMultipleAllocations"] for each in devices.values())
    assert all(each["capacity"] == expected for each in devices.values())
    before = [each["metadata"]["resourceVersion"] for each in rig.slices()]
    await rig.stop()
    await rig.start(GATES, f"--consumable-shares={policy}")
    assert [each["metadata"]["resourceVersion"] for each in rig.slices()] == before
    await rig.stop()
    await rig.start(GATES)
    assert "has no effect without --consumable-shares" in rig.process.log.read_text()
    for each in rig.devices().values():
        assert "allowMultipleAllocations" not in each
        assert each["capacity"] == {"memory": {"value": "81559Mi"}}


async def test_two_pods_have_a_share_of_one_gpu_and_each_lets_go_of_its_own(rig: Rig) -> None:
    await rig.start(*FLAGS)
    one, other = share(rig, "gpu-0"), share(rig, "gpu-0")
    answers = await prepared(rig, one, other)
    assert len({rigs.cdi_names(answer)[0] for answer in answers}) == 1
    assert len({share_ids(answer)[0] for answer in answers}) == 2
    whole = rig.create_claim("gpu-0")
    text = await refusal(rig, whole)
    assert text.startswith("DeviceInUse: gpu-0 is held by claim default/")
    await rig.dra.unprepare([one])
    assert set(rig.recorded_claims()) == {other.uid}
    assert (await prepared(rig, other)) == [answers[1]]
    assert (await refusal(rig, whole)).startswith("DeviceInUse: ")
    status = rig.status()
    assert "gpu-0 (share)" in status
    await rig.dra.unprepare([other])
    await prepared(rig, whole)
    assert (await refusal(rig, share(rig, "gpu-0"))).startswith("DeviceInUse: ")
    monitor = rig.create_claim("gpu-0", admin=True)
    await prepared(rig, monitor)


async def test_many_claims_are_given_shares_of_one_gpu_at_once(rig: Rig) -> None:
    await rig.start(*FLAGS)
    claims = [share(rig, "gpu-1", config=plugin.shared_by_time("Long")) for _ in range(12)]
    async with asyncio.TaskGroup() as group:
        for claim in claims:
            group.create_task(prepared(rig, claim))
    assert len(rig.recorded_claims()) == 12
    assert time_slice(rig.node, 1) == "Long"
    async with asyncio.TaskGroup() as group:
        for claim in claims:
            group.create_task(rig.dra.unprepare([claim]))
    assert time_slice(rig.node, 1) == "Default"
    assert rig.recorded_claims() == {}


async def test_a_whole_gpu_is_given_when_the_last_share_is_gone(rig: Rig) -> None:
    await rig.start(*FLAGS)
    shares = [share(rig, "gpu-2") for _ in range(3)]
    await prepared(rig, *shares)
    whole = rig.create_claim("gpu-2")
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(prepared(rig, whole))
        for each in shares:
            await asyncio.sleep(0.2)
            assert not waiting.done()
            await rig.dra.unprepare([each])
    async with asyncio.TaskGroup() as group:
        group.create_task(prepared(rig, share(rig, "gpu-2"), share(rig, "gpu-2")))
        await asyncio.sleep(0.2)
        await rig.dra.unprepare([whole])


async def test_one_claim_has_two_shares_of_a_gpu_and_its_status_names_both(rig: Rig) -> None:
    await rig.start(*FLAGS)
    ids = [str(uuid4()), str(uuid4())]
    claim = share(rig, "gpu-3", "gpu-3", shares=ids, config=plugin.shared_by_time("Short"))
    (answer,) = await prepared(rig, claim)
    assert share_ids(answer) == ids
    assert len(set(rigs.cdi_names(answer))) == 1

    def entries() -> Sequence[dict[str, Any]]:
        path = f"{plugin.claims_path(claim.namespace)}/{claim.name}"
        return rig.server.request("GET", path)["status"].get("devices") or ()

    await rig.wait_until(lambda: len(entries()) == 2, "the status")
    assert {each["shareID"] for each in entries()} == set(ids)
    uuid = rig.devices()["gpu-3"]["attributes"]["uuid"]["string"]
    assert {each["data"]["uuid"] for each in entries()} == {uuid}
    await rig.dra.unprepare([claim])
    assert time_slice(rig.node, 3) == "Default"


@pytest.mark.parametrize("how", ["restart", "kill", "reboot"])
async def test_shares_are_answered_as_before(rig: Rig, how: str) -> None:
    await rig.start(*FLAGS)
    rig.node.nvidia_smi("compute-policy", "-i", "4", "--set-timeslice=1")
    claims = [share(rig, "gpu-4", config=plugin.shared_by_time("Long")) for _ in range(2)]
    before = await prepared(rig, *claims)
    await rig.stop(signal.SIGKILL if how == "kill" else signal.SIGTERM)
    if how == "reboot":
        driver_installation.reboot(rig.node)
    await rig.start(*FLAGS)
    assert await prepared(rig, *claims) == before
    await rig.wait_until(lambda: time_slice(rig.node, 4) == "Long", "the time slice")
    third = share(rig, "gpu-4", config=plugin.shared_by_time("Long"))
    await prepared(rig, third)
    whole = rig.create_claim("gpu-4")
    assert (await refusal(rig, whole)).startswith("DeviceInUse: ")
    for each in (*claims, third):
        assert time_slice(rig.node, 4) == "Long"
        await rig.dra.unprepare([each])
    assert time_slice(rig.node, 4) == ("Default" if how == "reboot" else "Short")
    await prepared(rig, whole)


async def test_a_share_id_is_given_out_once(rig: Rig) -> None:
    await rig.start(*FLAGS)
    same = [str(uuid4())]
    claim = share(rig, "gpu-0", shares=same)
    await prepared(rig, claim)
    text = await refusal(rig, share(rig, "gpu-0", shares=same))
    assert text.startswith(f"DeviceInUse: gpu-0 is held by claim default/{claim.name}")
    await prepared(rig, share(rig, "gpu-1", shares=same))


async def test_who_wants_another_time_slice_is_told_who_has_which(rig: Rig) -> None:
    await rig.start(*FLAGS)
    first, second = (share(rig, "gpu-5", config=plugin.shared_by_time("Medium")) for _ in range(2))
    await prepared(rig, first, second)
    other = share(rig, "gpu-5", config=plugin.shared_by_time("Short"))
    text = await refusal(rig, other)
    assert text.startswith("DeviceInUse: gpu-5 is held by claim default/")
    assert "a share with time slice Medium, and this claim wants a share with time slice" in text
    assert "wants a share with no time slice" in await refusal(rig, share(rig, "gpu-5"))
    await rig.dra.unprepare([first])
    assert time_slice(rig.node, 5) == "Medium"
    async with asyncio.TaskGroup() as group:
        group.create_task(prepared(rig, other))
        await asyncio.sleep(0.2)
        await rig.dra.unprepare([second])
    assert time_slice(rig.node, 5) == "Short"


async def test_where_classes_configure_shares_no_claim_keeps_the_others_off_a_gpu(rig: Rig) -> None:
    own, of_class = (plugin.shared_by_time("Long", source) for source in ("FromClaim", "FromClass"))
    await rig.start(*FLAGS)
    held = share(rig, "gpu-5", config=own)
    (before,) = await prepared(rig, held)
    await rig.stop()
    await rig.start(*FLAGS, "--share-configs=class")
    assert await prepared(rig, held) == [before]
    text = await refusal(rig, share(rig, "gpu-6", config=own))
    assert text.startswith("InvalidConfig: ")
    assert "remove the config from the claim" in text
    await prepared(rig, *(share(rig, "gpu-6", config=of_class) for _ in range(2)))
    assert time_slice(rig.node, 6) == "Long"
    await prepared(rig, rig.create_claim("gpu-7", config=own))


@pytest.mark.soak
async def test_held_shares_stay_when_sharing_is_switched_off_and_new_ones_are_refused(
    rig: Rig,
) -> None:
    await rig.start(*FLAGS)
    claims = [share(rig, "gpu-6", config=plugin.shared_by_time("Long")) for _ in range(2)]
    before = await prepared(rig, *claims)
    await rig.stop()
    await rig.start()
    assert await prepared(rig, *claims) == before
    text = await refusal(rig, share(rig, "gpu-6"))
    assert text.startswith("InvalidConfig: ")
    assert "--consumable-shares" in text
    assert (await refusal(rig, rig.create_claim("gpu-6"))).startswith("DeviceInUse: ")
    await rig.dra.unprepare(claims)
    assert time_slice(rig.node, 6) == "Default"
    await prepared(rig, rig.create_claim("gpu-6"))


@pytest.mark.soak
@pytest.mark.parametrize("has_share_ids", [True, False])
async def test_shares_are_known_again_after_the_state_file_was_lost(
    rig: Rig, *, has_share_ids: bool
) -> None:
    """Kubelets before 1.35 have no share IDs in their checkpoint; the allocation has them."""
    await rig.start(*FLAGS)
    claims = [share(rig, "gpu-7") for _ in range(2)]
    answers = await prepared(rig, *claims)
    checkpoint = CheckpointFile(rig.node.kubelet)
    for claim, answer in zip(claims, answers, strict=True):
        for device in () if has_share_ids else answer.devices:
            device.ClearField("share_id")
        checkpoint.add_claim(claim, answer)
    await rig.stop()
    for path in rig.plugin_dir.glob("state.sqlite*"):
        path.unlink()
    await rig.start(*FLAGS)
    await rig.wait_until(lambda: len(rig.recorded_claims()) == 2, "the records")
    await prepared(rig, share(rig, "gpu-7"))
    assert (await refusal(rig, rig.create_claim("gpu-7"))).startswith("DeviceInUse: ")


@pytest.mark.soak
async def test_a_gpu_that_can_be_divided_is_shared_whole_and_its_partitions_are_not(
    rig: Rig,
) -> None:
    gates = "--feature-gates=ConsumableShares=true,DynamicMIG=true"
    await rig.start(gates, "--consumable-shares=4")
    shared = {name for name, each in rig.devices().items() if "allowMultipleAllocations" in each}
    assert shared == {f"gpu-{minor}" for minor in range(8)}
    assert len(rig.devices()) > len(shared)
    multiprocessors = rig.devices()["gpu-0"]["capacity"]["multiprocessors"]
    assert multiprocessors == limited("132", "0", "0", "1")
    claims = [share(rig, "gpu-0") for _ in range(2)]
    await prepared(rig, *claims)
    part = rig.create_claim("gpu-0-mig-1g10gb-19-0")
    assert (await refusal(rig, part)).startswith("DeviceInUse: ")
    await rig.dra.unprepare(claims)
    await prepared(rig, part)
    assert (await refusal(rig, share(rig, "gpu-0"))).startswith("DeviceInUse: ")


@pytest.mark.soak
async def test_a_mig_device_of_an_administrator_is_shared(rig: Rig) -> None:
    rig.node.nvidia_smi("-i", "0", "-mig", "1")
    rig.node.make_mig_device(0, "3g.40gb", 4)
    await rig.start(*FLAGS)
    name = "gpu-0-mig-3g40gb-9-4"
    device = rig.devices()[name]
    assert device["allowMultipleAllocations"]
    assert device["capacity"]["memorySlice4"] == limited("1", "0", "0", "1")
    one, other = share(rig, name), share(rig, name)
    answers = await prepared(rig, one, other)
    assert len({rigs.cdi_names(answer)[0] for answer in answers}) == 1
    assert (await refusal(rig, rig.create_claim(name))).startswith("DeviceInUse: ")


@pytest_asyncio.fixture
async def unserved(tmp_path: Path) -> AsyncIterator[Rig]:
    """A node whose API server drops shares."""
    with apiserver.run_apiserver(tmp_path, feature_gates="DRAConsumableCapacity=false") as server:
        async with rigs.open_rig(server, "node-c") as rig:
            yield rig


@pytest.mark.soak
async def test_where_shares_are_dropped_devices_are_for_one_claim_until_they_are_kept(
    unserved: Rig,
) -> None:
    rig = unserved
    await rig.start(GATES, "--consumable-shares=4")
    assert all(set(each["capacity"]) == {"memory"} for each in rig.devices().values())
    status, text = rig.process.get("/readyz?verbose")
    assert status == 200
    assert "DRAConsumableCapacity" in text
    assert "enable the feature gate DRAConsumableCapacity" in rig.process.log.read_text()
    await rig.wait_until(lambda: bool(rig.events("FeatureGateDisabled")), "an Event of the Node")
    (event,) = rig.events("FeatureGateDisabled")
    assert event["involvedObject"]["kind"] == "Node"
    assert "kube-scheduler" in event["message"]
    (slice_,) = rig.slices()
    assert slice_["metadata"]["generation"] == 1, "written once"
    await prepared(rig, rig.create_claim("gpu-0"))
    rig.server.restart_without_gates()
    await rig.wait_until(
        lambda: all("shares" in each["capacity"] for each in rig.devices().values()),
        "shares",
        timeout_s=60,
    )
    await rig.wait_until(
        lambda: "DRAConsumableCapacity" not in rig.process.get("/readyz?verbose")[1],
        "the missing fields not to be a remark any more",
    )
