# SPDX-License-Identifier: Apache-2.0
"""Prepared claims that no longer exist are unprepared, unless a pod may still use them."""

import asyncio
import re
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest_asyncio
from nvdra_api.resource.claims import ClaimRef
from nvdra_gpu_plugin.devices.claim_records import GpuClaimRecord
from nvdra_runtime.claims.device_wait_queue import DeviceWaitQueue
from nvdra_runtime.claims.kubelet_checkpoint import KubeletCheckpoint
from nvdra_runtime.claims.prepared_claims import PreparedClaims
from nvdra_runtime.claims.stale_claims import StaleClaimCleanup
from nvdra_runtime.kube import client as kube
from nvdra_runtime.kube.connection import KubeSettings
from nvdra_runtime.node.record_store import RecordStore
from nvdra_runtime.process import background_tasks
from nvdra_runtime.process.clock import SystemClock
from nvdra_testing.faults import api_proxy
from nvdra_testing.faults.api_proxy import GET_CLAIM, FaultyProxy
from nvdra_testing.kubelet.checkpoint_file import CheckpointFile
from nvdra_testing.node import plugin
from nvdra_testing.node.rig import Rig, cdi_names
from nvdra_testing.polling import wait_until


@pytest_asyncio.fixture
async def kubelet(rig: Rig) -> CheckpointFile:
    """The kubelet's files, which say that it holds nothing."""
    state = CheckpointFile(rig.node.kubelet)
    state.write()
    return state


@pytest_asyncio.fixture
async def started(rig: Rig, kubelet: CheckpointFile) -> AsyncIterator[Rig]:
    del kubelet
    await rig.start()
    yield rig


async def answer(rig: Rig, claim: ClaimRef, **how: Any) -> Any:
    return (await rig.dra.prepare([claim], **how))[claim.uid]


async def test_a_claim_that_is_gone_and_that_nobody_uses_gives_way_at_once(started: Rig) -> None:
    orphan, new = started.create_claim("gpu-0"), started.create_claim("gpu-0")
    before = await answer(started, orphan)
    started.delete_claim(orphan)
    assert cdi_names(await answer(started, new, timeout_s=6)) == cdi_names(before)
    assert set(started.recorded_claims()) == {new.uid}
    assert "Unpreparing a claim that is gone" in started.process.log.read_text()
    # What the kubelet may say of it later changes nothing.
    assert not (await started.dra.unprepare([orphan]))[orphan.uid].error
    assert set(started.recorded_claims()) == {new.uid}


async def test_a_force_deleted_pods_gpu_is_handed_out_when_the_kubelet_lets_go_not_before(
    started: Rig, kubelet: CheckpointFile
) -> None:
    """The pod and its claim are gone from the API server; its container still runs."""
    old = started.create_claim("gpu-0", pod="training-0")
    kubelet.add_claim(old, await answer(started, old))
    started.delete_claim(old)
    new = started.create_claim("gpu-0", pod="next-0")
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(answer(started, new))
        await started.wait_until(lambda: len(started.events("DeviceInUse")) == 2, "the events")
        assert set(started.recorded_claims()) == {old.uid}
        told = [event["message"] for event in started.events("DeviceInUse")]
        assert ["for pod training-0" in text for text in told] == [True, True]
        let_go = asyncio.get_running_loop().time()
        assert not (await started.dra.unprepare([old]))[old.uid].error
        kubelet.remove_claim(old)
    assert asyncio.get_running_loop().time() - let_go < 2
    assert not waiting.result().error
    assert set(started.recorded_claims()) == {new.uid}


async def test_a_pod_whose_directory_is_there_may_run_although_the_kubelet_forgot_its_claim(
    started: Rig, kubelet: CheckpointFile
) -> None:
    orphan, new = started.create_claim("gpu-0"), started.create_claim("gpu-0")
    await answer(started, orphan)
    (pod,) = _pods(started, orphan)
    directory = kubelet.create_pod_dir(pod)
    started.delete_claim(orphan)
    assert (await started.dra.refusal(new, timeout_s=5)).startswith("DeviceInUse: ")
    assert set(started.recorded_claims()) == {orphan.uid}
    directory.rmdir()
    assert not await started.dra.refusal(new, timeout_s=5)


async def test_nothing_is_released_while_the_kubelets_own_record_cannot_be_read(
    started: Rig, kubelet: CheckpointFile
) -> None:
    orphan, new = started.create_claim("gpu-0"), started.create_claim("gpu-0")
    await answer(started, orphan)
    started.delete_claim(orphan)
    for damage in (b"", b'{"Data":"{}","Checksum":1}', b"\xff\x00"):
        kubelet.path.write_bytes(damage)
        assert (await started.dra.refusal(new)).startswith("DeviceInUse: ")
    kubelet.path.unlink()
    assert (await started.dra.refusal(new)).startswith("DeviceInUse: ")
    assert "it is not known whether a pod still uses it" in started.process.log.read_text()
    assert set(started.recorded_claims()) == {orphan.uid}
    kubelet.write()
    assert not await started.dra.refusal(new, timeout_s=5)


async def test_a_claim_that_was_allocated_to_something_else_holds_nothing_back(
    started: Rig,
) -> None:
    """Its pod has gone, the claim lives on and was given another device."""
    claim, new = started.create_claim("gpu-0"), started.create_claim("gpu-0")
    await answer(started, claim)
    found = started.server.request("GET", f"{plugin.CLAIMS}/{claim.name}")
    found["status"] = {}
    started.server.request("PUT", f"{plugin.CLAIMS}/{claim.name}/status", found)
    assert not await started.dra.refusal(new, timeout_s=6)
    assert set(started.recorded_claims()) == {new.uid}


async def test_a_claim_that_still_exists_keeps_its_gpu_whatever_the_kubelet_says(
    started: Rig,
) -> None:
    holder, new = started.create_claim("gpu-0"), started.create_claim("gpu-0")
    await answer(started, holder)
    assert (await started.dra.refusal(new, timeout_s=5)).startswith("DeviceInUse: ")
    assert set(started.recorded_claims()) == {holder.uid}


async def test_an_answer_that_is_not_the_api_servers_releases_nothing(
    rig: Rig, kubelet: CheckpointFile
) -> None:
    del kubelet
    async with api_proxy.run_proxy(rig.server, rig.node.kubelet.parent) as proxy:
        await rig.start(f"--kubeconfig={proxy.kubeconfig}")
        holder, new = rig.create_claim("gpu-0"), rig.create_claim("gpu-0")
        await answer(rig, holder)
        of_holder = rf".*resourceclaims/{holder.name}"
        for status in (404, 403, 500):
            with proxy.inject(of_holder, status=status, body="a proxy's page") as spoilage:
                assert (await rig.dra.refusal(new)).startswith("DeviceInUse: ")
                assert spoilage.hits
        assert set(rig.recorded_claims()) == {holder.uid}


async def test_each_held_claim_is_asked_for_once_a_round_in_its_own_time(
    rig: Rig, kubelet: CheckpointFile
) -> None:
    """The round is 10 minutes, here 4 s; what is gone goes although nobody wants its GPU."""
    del kubelet
    await rig.start()
    claims = [rig.create_claim(f"gpu-{minor}") for minor in range(8)]
    await rig.dra.prepare(claims)
    assert rig.process.stop() == 0
    async with (
        api_proxy.run_proxy(rig.server, rig.node.kubelet.parent) as proxy,
        looking_after(rig, proxy, round_s=4.0) as held,
    ):

        def asked() -> list[tuple[float, str]]:
            return sorted(
                (when, what) for when, what in proxy.requests if re.match(GET_CLAIM, what)
            )

        await wait_until(lambda: len(asked()) == 8)
        first = asked()
        rig.delete_claim(claims[0])
        await wait_until(lambda: len(asked()) >= 16 and len(held) == 7)
        both = asked()
    assert len({what for _, what in first}) == 8, first
    assert first[-1][0] - first[0][0] > 4 / 2, "they were not spread over the round"
    assert both[15][0] - both[8][0] > 4 / 2, "they were not spread over the second one"
    assert max(Counter(what for _, what in both[:16]).values()) == 2, both
    assert set(held) == {claim.uid for claim in claims[1:]}


async def test_what_the_kubelets_record_names_is_not_asked_for(
    rig: Rig, kubelet: CheckpointFile
) -> None:
    """10,000 idle nodes must not cost the API server anything."""
    await rig.start()
    claims = [rig.create_claim(f"gpu-{minor}") for minor in range(8)]
    for uid, answered in (await rig.dra.prepare(claims)).items():
        kubelet.add_claim(next(claim for claim in claims if claim.uid == uid), answered)
    assert rig.process.stop() == 0
    async with (
        api_proxy.run_proxy(rig.server, rig.node.kubelet.parent) as proxy,
        looking_after(rig, proxy, round_s=0.2) as held,
    ):
        await asyncio.sleep(2)
        assert not [what for _, what in proxy.requests if re.match(GET_CLAIM, what)]
        rig.delete_claim(claims[0])
        kubelet.remove_claim(claims[0])
        await wait_until(lambda: len(held) == 7)
        asked = {what for _, what in proxy.requests if re.match(GET_CLAIM, what)}
    assert len(asked) == 1, asked
    assert set(held) == {claim.uid for claim in claims[1:]}


@asynccontextmanager
async def looking_after(
    rig: Rig, proxy: FaultyProxy, round_s: float
) -> AsyncIterator[PreparedClaims[GpuClaimRecord]]:
    """The part of the plugin that looks after held claims, with shorter rounds."""
    path = rig.node.kubelet / "plugins" / plugin.DRIVER / "state.sqlite"
    async with (
        RecordStore.open(path, "boot", SystemClock()) as store,
        kube.connect(KubeSettings(str(proxy.kubeconfig))) as api,
    ):
        held = PreparedClaims(store, GpuClaimRecord, lambda *_: None)

        async def release(ref: ClaimRef, deadline: float) -> None:
            del deadline
            await held.remove(ref.uid)

        evidence, turns = KubeletCheckpoint(rig.node.kubelet), DeviceWaitQueue(held.wait_removed)
        working = StaleClaimCleanup(plugin.DRIVER, api, held, turns, evidence, release, round_s)
        async with background_tasks.running(
            round=working.run_periodically, at_once=working.check_blocking_claims
        ):
            yield held


def _pods(rig: Rig, claim: ClaimRef) -> list[str]:
    found = rig.server.request("GET", f"{plugin.CLAIMS}/{claim.name}")
    return [consumer["uid"] for consumer in found["status"]["reservedFor"]]
