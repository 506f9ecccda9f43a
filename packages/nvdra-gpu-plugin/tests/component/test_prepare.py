# SPDX-License-Identifier: Apache-2.0
"""Prepare and unprepare: one GPU, several, shared claims, repeated and concurrent calls."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from nvdra_api.resource.claims import ClaimRef
from nvdra_runtime.kubeletplugin import registration
from nvdra_testing.node.rig import Rig, cdi_edits, cdi_names


async def prepare(rig: Rig, claim: ClaimRef) -> Any:
    answer = (await rig.dra.prepare([claim]))[claim.uid]
    assert not answer.error
    return answer


async def test_a_claim_for_one_gpu_gets_the_device_node_of_that_gpu_and_no_other(rig: Rig) -> None:
    await rig.start()
    claim = rig.create_claim("gpu-3")
    answer = await prepare(rig, claim)
    (device,) = answer.devices
    assert (device.pool_name, device.device_name) == (rig.node.name, "gpu-3")
    assert list(device.request_names) == ["gpu"]
    (name,) = device.cdi_device_ids
    nodes = [node["path"] for node in cdi_edits(rig, name)["deviceNodes"]]
    assert "/dev/nvidia3" in nodes
    assert not {f"/dev/nvidia{minor}" for minor in range(8) if minor != 3} & set(nodes)


async def test_a_claim_for_several_gpus_gets_them_in_the_order_of_its_allocation(rig: Rig) -> None:
    await rig.start()
    answer = await prepare(rig, rig.create_claim("gpu-5", "gpu-0", "gpu-7"))
    assert [device.device_name for device in answer.devices] == ["gpu-5", "gpu-0", "gpu-7"]
    assert len(set(cdi_names(answer))) == 3


@pytest.mark.protocol("P22")
async def test_the_first_alternative_that_fits_is_answered_under_its_main_request(rig: Rig) -> None:
    await rig.start()
    answer = await prepare(rig, rig.create_claim("gpu-1", request="accelerator/small"))
    assert list(answer.devices[0].request_names) == ["accelerator"]


@pytest.mark.protocol("P30")
async def test_a_repeated_prepare_is_answered_byte_for_byte_as_the_first(rig: Rig) -> None:
    await rig.start()
    claim = rig.create_claim("gpu-0", "gpu-1")
    first = await prepare(rig, claim)
    second = await prepare(rig, claim)
    assert first.SerializeToString(deterministic=True) == second.SerializeToString(
        deterministic=True
    )


async def test_several_claims_in_one_call_are_each_answered_on_their_own(rig: Rig) -> None:
    await rig.start()
    good = [rig.create_claim(f"gpu-{minor}") for minor in range(4)]
    bad = rig.create_claim("gpu-99")
    answers = await rig.dra.prepare([*good, bad])
    assert [answers[claim.uid].devices[0].device_name for claim in good] == [
        "gpu-0",
        "gpu-1",
        "gpu-2",
        "gpu-3",
    ]
    assert answers[bad.uid].error.startswith("UnknownDevice: ")


@pytest.mark.protocol("P24")
async def test_eight_claims_at_once_all_get_their_gpu(rig: Rig) -> None:
    await rig.start()
    claims = [rig.create_claim(f"gpu-{minor}") for minor in range(8)]
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(prepare(rig, claim)) for claim in claims]
    assert [task.result().devices[0].device_name for task in tasks] == [
        f"gpu-{minor}" for minor in range(8)
    ]


async def test_concurrent_calls_for_one_claim_are_one_piece_of_work(rig: Rig) -> None:
    await rig.start()
    claim = rig.create_claim("gpu-2")
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(prepare(rig, claim)) for _ in range(6)]
    assert len({task.result().SerializeToString(deterministic=True) for task in tasks}) == 1
    assert len(rig.recorded_claims()) == 1


async def test_two_claims_that_want_one_gpu_at_once_do_not_both_get_it(rig: Rig) -> None:
    await rig.start()
    claims = [rig.create_claim("gpu-4") for _ in range(6)]
    # While the GPU is asked for the first claim, the others come to it.
    rig.node.simctl("slow", "300", "--gpu", "4")
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(rig.dra.prepare([claim], timeout_s=6)) for claim in claims]
    answers = [task.result()[claim.uid] for task, claim in zip(tasks, claims, strict=True)]
    assert sorted(bool(answer.error) for answer in answers) == [False] + [True] * 5
    assert sum("DeviceInUse: gpu-4" in answer.error for answer in answers) == 5
    (holder,) = rig.recorded_claims()
    assert [
        claim.uid for claim, answer in zip(claims, answers, strict=True) if not answer.error
    ] == [holder]


async def test_a_gpu_is_free_again_after_its_claim_is_unprepared(rig: Rig) -> None:
    await rig.start()
    first, second = rig.create_claim("gpu-6"), rig.create_claim("gpu-6")
    await prepare(rig, first)
    assert not (await rig.dra.unprepare([first]))[first.uid].error
    await prepare(rig, second)
    assert set(rig.recorded_claims()) == {second.uid}


@pytest.mark.protocol("P32")
async def test_unpreparing_a_claim_that_is_not_held_succeeds(rig: Rig) -> None:
    await rig.start()
    claim = rig.create_claim("gpu-0")
    assert not (await rig.dra.unprepare([claim]))[claim.uid].error


@pytest.mark.protocol("P28")
async def test_admin_access_excludes_nobody_and_is_excluded_by_nobody(rig: Rig) -> None:
    await rig.start()
    for claim in (
        rig.create_claim("gpu-0"),
        rig.create_claim("gpu-0", admin=True),
        rig.create_claim("gpu-1"),
    ):
        await prepare(rig, claim)


async def test_v1beta1_answers_like_v1(rig: Rig) -> None:
    await rig.start()
    claim = rig.create_claim("gpu-0")
    old = await rig.dra.prepare([claim], service=registration.DRA_V1BETA1)
    new = await rig.dra.prepare([claim])
    assert old[claim.uid].SerializeToString() == new[claim.uid].SerializeToString()


async def test_ten_rounds_on_all_gpus_leave_no_record_and_no_file(rig: Rig) -> None:
    await rig.start()
    before = files(rig.node.cdi)
    for _ in range(10):
        claims = [rig.create_claim(f"gpu-{minor}") for minor in range(8)]
        answers = await rig.dra.prepare(claims)
        assert not [answer.error for answer in answers.values() if answer.error]
        assert not [
            answer.error for answer in (await rig.dra.unprepare(claims)).values() if answer.error
        ]
    assert rig.recorded_claims() == {}
    assert files(rig.node.cdi) == before


def files(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}
