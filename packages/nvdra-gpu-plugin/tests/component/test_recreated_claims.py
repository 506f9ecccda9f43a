# SPDX-License-Identifier: Apache-2.0
"""A claim that is deleted and created again with the same name."""

import asyncio
from typing import Any

import pytest_asyncio
from nvdra_api.resource.claims import ClaimRef
from nvdra_testing.kubelet.checkpoint_file import CheckpointFile
from nvdra_testing.node import plugin
from nvdra_testing.node.rig import Rig, cdi_names


@pytest_asyncio.fixture
async def kubelet(rig: Rig) -> CheckpointFile:
    state = CheckpointFile(rig.node.kubelet)
    state.write()
    await rig.start()
    return state


async def answer(rig: Rig, claim: ClaimRef, **how: Any) -> Any:
    return (await rig.dra.prepare([claim], **how))[claim.uid]


def again(rig: Rig, old: ClaimRef, *devices: str) -> ClaimRef:
    """A new claim of the old one's name, in its place."""
    rig.delete_claim(old)
    return rig.create_claim(*devices, name=old.name)


async def test_the_new_one_waits_for_the_old_ones_gpu_until_that_is_unprepared(
    rig: Rig, kubelet: CheckpointFile
) -> None:
    old = rig.create_claim("gpu-0")
    kubelet.add_claim(old, await answer(rig, old))
    new = again(rig, old, "gpu-0")
    assert new.uid != old.uid
    text = await rig.dra.refusal(new)
    assert text.startswith(f"DeviceInUse: gpu-0 is held by claim default/{old.name}")
    assert old.uid in text
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(answer(rig, new))
        assert not (await rig.dra.unprepare([old]))[old.uid].error
    assert not waiting.result().error
    assert set(rig.recorded_claims()) == {new.uid}


async def test_on_another_gpu_the_new_one_does_not_wait_and_outlives_the_old_ones_end(
    rig: Rig, kubelet: CheckpointFile
) -> None:
    old = rig.create_claim("gpu-0")
    kubelet.add_claim(old, await answer(rig, old))
    new = again(rig, old, "gpu-1")
    assert cdi_names(await answer(rig, new, timeout_s=4))[0].startswith(
        "k8s.gpu.nvidia.com/device=gpu-1-"
    )
    assert set(rig.recorded_claims()) == {old.uid, new.uid}
    assert not (await rig.dra.unprepare([old]))[old.uid].error
    assert set(rig.recorded_claims()) == {new.uid}


async def test_the_new_ones_end_before_the_old_ones_leaves_the_old_one_alone(
    rig: Rig, kubelet: CheckpointFile
) -> None:
    old = rig.create_claim("gpu-0")
    before = await answer(rig, old)
    assert not before.error
    kubelet.add_claim(old, before)
    new = again(rig, old, "gpu-0")
    assert await rig.dra.refusal(new)
    assert not (await rig.dra.unprepare([new]))[new.uid].error
    assert set(rig.recorded_claims()) == {old.uid}
    # A container of the old pod may be started once more: its answer has not changed.
    assert await answer(rig, old) == before


async def test_an_old_one_that_is_not_held_any_more_is_not_prepared_in_the_new_ones_name(
    rig: Rig, kubelet: CheckpointFile
) -> None:
    del kubelet
    old = rig.create_claim("gpu-0")
    await answer(rig, old)
    new = again(rig, old, "gpu-0")
    assert not (await rig.dra.unprepare([old]))[old.uid].error
    assert (await answer(rig, old)).error.startswith("ClaimUIDChanged: ")
    assert not (await answer(rig, new)).error
    assert (await answer(rig, old)).error.startswith("ClaimUIDChanged: ")
    assert set(rig.recorded_claims()) == {new.uid}


async def test_an_old_one_that_the_kubelet_has_forgotten_gives_way_to_the_new_one(
    rig: Rig, kubelet: CheckpointFile
) -> None:
    del kubelet
    old = rig.create_claim("gpu-0")
    await answer(rig, old)
    new = again(rig, old, "gpu-0")
    assert not await rig.dra.refusal(new, timeout_s=6)
    assert set(rig.recorded_claims()) == {new.uid}


async def test_both_in_one_call_are_told_apart(rig: Rig, kubelet: CheckpointFile) -> None:
    old = rig.create_claim("gpu-0")
    before = await answer(rig, old)
    assert not before.error
    kubelet.add_claim(old, before)
    new = again(rig, old, "gpu-1")
    answers = await rig.dra.prepare([old, new])
    assert answers[old.uid] == before
    assert cdi_names(answers[new.uid]) != cdi_names(before)
    ended = await rig.dra.unprepare([new, old])
    assert not any(each.error for each in ended.values())
    assert not rig.recorded_claims()
    assert rig.server.request("GET", f"{plugin.CLAIMS}/{new.name}")["metadata"]["uid"] == new.uid
