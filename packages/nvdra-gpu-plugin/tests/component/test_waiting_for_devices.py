# SPDX-License-Identifier: Apache-2.0
"""A claim whose GPU another claim holds waits inside the call, and reports the holder."""

import asyncio
import signal
import sqlite3
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager, closing
from datetime import datetime
from typing import Any

from nvdra_api.resource.claims import ClaimRef
from nvdra_testing.control_plane import domain_objects
from nvdra_testing.faults import api_proxy
from nvdra_testing.node.rig import Rig, cdi_names

SHORT_S = 4.0
"""Of a call with so much time, 2 s are for waiting."""


@asynccontextmanager
async def preparing(rig: Rig, *claims: ClaimRef, **how: Any) -> AsyncIterator[list[Any]]:
    """The claims are being prepared, in this order; afterwards their answers."""
    answers: list[Any] = []
    async with asyncio.TaskGroup() as group:
        tasks = []
        for claim in claims:
            tasks.append(group.create_task(one(rig.dra.prepare([claim], **how), claim)))
            await waiting(rig, claim)
        yield answers
    answers.extend(task.result() for task in tasks)


async def one(call: Awaitable[Any], claim: ClaimRef) -> Any:
    return (await call)[claim.uid]


def prepared_at(rig: Rig, claim: ClaimRef) -> str:
    """Since when the claim is prepared, by the state file, as texts for people say it."""
    path = rig.plugin_dir / "state.sqlite"
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
        found = connection.execute("SELECT created FROM records WHERE uid = ?", (claim.uid,))
        ((created,),) = found.fetchall()
    return datetime.fromisoformat(created).strftime("since %Y-%m-%dT%H:%M:%SZ")


async def waiting(rig: Rig, claim: ClaimRef) -> None:
    """Return once the claim is known to the plugin and its GPU has been looked at."""
    await rig.wait_until(lambda: bool(rig.spans(claim, "resolve config")), f"{claim.name} to wait")


async def test_a_gpu_is_handed_over_as_soon_as_its_holder_is_unprepared(rig: Rig) -> None:
    await rig.start()
    holder, wanted = rig.create_claim("gpu-0"), rig.create_claim("gpu-0")
    before = (await rig.dra.prepare([holder]))[holder.uid]
    async with preparing(rig, wanted) as answers:
        released = asyncio.get_running_loop().time()
        assert not (await rig.dra.unprepare([holder]))[holder.uid].error
    assert asyncio.get_running_loop().time() - released < 2
    assert not answers[0].error
    assert cdi_names(answers[0]) == cdi_names(before)
    assert set(rig.recorded_claims()) == {wanted.uid}
    (wait,) = rig.spans(wanted, "wait device")
    assert wait["attributes"]["nvdra.holder"] == holder.uid


async def test_while_it_waits_its_pod_says_who_holds_the_gpu_since_when_and_for_whom(
    rig: Rig,
) -> None:
    await rig.start()
    holder, wanted = (
        rig.create_claim("gpu-0", pod="training-0"),
        rig.create_claim("gpu-0", pod="next-0"),
    )
    await rig.dra.prepare([holder])
    since = prepared_at(rig, holder)
    await asyncio.sleep(1.1)  # so that no other time is the same second
    async with preparing(rig, wanted):
        await rig.wait_until(lambda: len(rig.events("DeviceInUse")) == 2, "the events")
        assert wanted.uid not in rig.recorded_claims()
        told = rig.events("DeviceInUse")
        await rig.dra.unprepare([holder])
    assert {event["involvedObject"]["name"] for event in told} == {wanted.name, "next-0"}
    for event in told:
        text = event["message"]
        assert text.startswith(f"gpu-0 is held by claim default/{holder.name} (UID {holder.uid})")
        assert f"for pod training-0, {since}; " in text
        assert "as soon as the kubelet unprepares" in text


async def test_a_holder_of_another_namespace_is_named_to_operators_only(rig: Rig) -> None:
    await rig.start()
    theirs, ours = (domain_objects.create_namespace(rig.server) for _ in range(2))
    holder = rig.create_claim("gpu-0", namespace=theirs, name="their-secret", pod="their-pod")
    wanted = rig.create_claim("gpu-0", namespace=ours, pod="next-0")
    await rig.dra.prepare([holder])
    answer = await rig.dra.refusal(wanted)
    await rig.wait_until(lambda: len(rig.events("DeviceInUse")) == 2, "the events")
    events = rig.events("DeviceInUse")
    assert {event["involvedObject"]["name"] for event in events} == {wanted.name, "next-0"}
    for told in (answer.removeprefix("DeviceInUse: "), *(event["message"] for event in events)):
        assert told.startswith("gpu-0 is held by a claim of another namespace, since 20"), told
        assert not any(each in told for each in (theirs, "their", holder.uid)), told
    (prepare,) = rig.spans(wanted, "prepare")
    named = f"gpu-0 is held by claim {theirs}/their-secret (UID {holder.uid}) for pod their-pod"
    assert named in prepare["error"]["message"]
    assert named in rig.status()
    assert named in rig.process.log.read_text()


async def test_a_holder_that_stays_is_the_reason_before_the_call_ends(rig: Rig) -> None:
    await rig.start()
    holder, wanted = rig.create_claim("gpu-0", pod="training-0"), rig.create_claim("gpu-0")
    await rig.dra.prepare([holder])
    since = prepared_at(rig, holder)
    await asyncio.sleep(1.1)
    text = await rig.dra.refusal(wanted)
    assert text.startswith(f"DeviceInUse: gpu-0 is held by claim default/{holder.name}")
    assert f"for pod training-0, {since}; " in text
    assert set(rig.recorded_claims()) == {holder.uid}


async def test_those_that_wait_are_served_in_the_order_they_came(rig: Rig) -> None:
    await rig.start()
    holder, *queue = (rig.create_claim("gpu-0") for _ in range(4))
    await rig.dra.prepare([holder])
    served: list[str] = []
    async with preparing(rig, *queue) as answers:
        for holding in [holder, *queue[:-1]]:
            await rig.dra.unprepare([holding])
            await rig.wait_until(lambda: bool(rig.recorded_claims()), "the next")
            served.extend(rig.recorded_claims())
    assert served == [claim.uid for claim in queue]
    assert not any(answer.error for answer in answers)


async def test_the_first_keeps_its_turn_although_its_claim_is_slow_to_be_read(rig: Rig) -> None:
    async with api_proxy.run_proxy(rig.server, rig.node.kubelet.parent) as proxy:
        await rig.start(f"--kubeconfig={proxy.kubeconfig}")
        holder, first, second = (rig.create_claim("gpu-0") for _ in range(3))
        await rig.dra.prepare([holder])
        async with preparing(rig, first, second) as answers:
            with proxy.inject(rf".*{first.name}", delay_s=1):
                await rig.dra.unprepare([holder])
                await rig.wait_until(lambda: bool(rig.recorded_claims()), "the next")
            assert set(rig.recorded_claims()) == {first.uid}
            await rig.dra.unprepare([first])
        assert not any(answer.error for answer in answers)


async def test_other_gpus_and_monitoring_are_not_held_up_by_a_claim_that_waits(rig: Rig) -> None:
    await rig.start()
    holder, wanted = rig.create_claim("gpu-0"), rig.create_claim("gpu-0", "gpu-1")
    await rig.dra.prepare([holder])
    async with preparing(rig, wanted, timeout_s=2 * SHORT_S):
        monitor, other = rig.create_claim("gpu-0", admin=True), rig.create_claim("gpu-1")
        answers = await rig.dra.prepare([monitor, other], timeout_s=SHORT_S)
        assert not any(answer.error for answer in answers.values())
    assert set(rig.recorded_claims()) == {holder.uid, monitor.uid, other.uid}


async def test_a_pod_that_is_deleted_while_it_waits_is_let_go_at_once(rig: Rig) -> None:
    await rig.start()
    holder, wanted = rig.create_claim("gpu-0"), rig.create_claim("gpu-0")
    await rig.dra.prepare([holder])
    async with preparing(rig, wanted) as answers:
        began = asyncio.get_running_loop().time()
        assert not (await rig.dra.unprepare([wanted]))[wanted.uid].error
        assert asyncio.get_running_loop().time() - began < 2
    assert answers[0].error.startswith("DeviceInUse: ")
    assert set(rig.recorded_claims()) == {holder.uid}
    # It may be wanted again: what was given up was that one attempt.
    async with preparing(rig, wanted) as answers:
        await rig.dra.unprepare([holder])
    assert not answers[0].error


async def test_a_claim_that_was_deleted_while_it_waited_is_given_nothing(rig: Rig) -> None:
    await rig.start()
    holder, wanted = rig.create_claim("gpu-0"), rig.create_claim("gpu-0")
    await rig.dra.prepare([holder])
    async with preparing(rig, wanted) as answers:
        rig.delete_claim(wanted)
        await rig.dra.unprepare([holder])
    assert answers[0].error.startswith("ClaimNotFound: ")
    assert not rig.recorded_claims()


async def test_the_plugin_does_not_wait_for_a_gpu_when_it_is_to_end(rig: Rig) -> None:
    await rig.start()
    holder, wanted = rig.create_claim("gpu-0"), rig.create_claim("gpu-0")
    await rig.dra.prepare([holder])
    async with preparing(rig, wanted) as answers:
        began = asyncio.get_running_loop().time()
        rig.process.process.send_signal(signal.SIGTERM)
    assert asyncio.get_running_loop().time() - began < 5
    assert answers[0].error.startswith("DeviceInUse: ")
    assert rig.process.process.wait(timeout=20) == 0
