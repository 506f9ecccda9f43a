# SPDX-License-Identifier: Apache-2.0
"""The trace of a claim, received over OTLP: its steps and their durations."""

import asyncio
import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack

import pytest
from nvdra_api.ids import NodeName
from nvdra_api.resource.claims import ClaimRef
from nvdra_runtime.telemetry import trace_ids
from nvdra_testing.node.rig import Rig
from nvdra_testing.telemetry import otlp_receiver
from nvdra_testing.telemetry.otlp_receiver import Receiver, Span

EXPORT_SOON = {"OTEL_BSP_SCHEDULE_DELAY": "50"}


@pytest.fixture
def collector() -> Iterator[Receiver]:
    with otlp_receiver.receiver() as receiver:
        yield receiver


async def start(rig: Rig, collector: Receiver) -> None:
    await rig.start(environ={"OTEL_EXPORTER_OTLP_ENDPOINT": collector.endpoint, **EXPORT_SOON})


async def spans_of(collector: Receiver, claim: ClaimRef, *names: str) -> list[Span]:
    """The claim's trace, once it has spans of all these names."""
    trace = trace_ids.trace_id(claim.uid)
    return await asyncio.to_thread(
        collector.wait,
        lambda spans: set(names) <= {span.name for span in spans},
        trace_id=trace,
    )


def below(spans: Sequence[Span], parent: Span) -> list[Span]:
    return sorted(
        (span for span in spans if span.parent_id == parent.span_id),
        key=lambda span: span.start_ns,
    )


def only(spans: Sequence[Span], name: str) -> Span:
    (found,) = [span for span in spans if span.name == name]
    return found


async def test_a_claims_life_is_one_tree_with_a_span_per_step(
    rig: Rig, collector: Receiver
) -> None:
    await start(rig, collector)
    claim = rig.create_claim("gpu-0")
    await rig.dra.prepare([claim])
    await rig.dra.unprepare([claim])
    spans = await spans_of(collector, claim, "claim", "schedule", "prepare", "unprepare")
    root = only(spans, "claim")
    assert root.parent_id == ""
    assert root.span_id == trace_ids.claim_root_span_id(claim.uid, NodeName(rig.node.name))
    assert [span.name for span in below(spans, root)] == ["schedule", "prepare", "unprepare"]
    assert [span.name for span in below(spans, only(spans, "prepare"))] == [
        "fetch claim",
        "resolve config",
        "verify devices",
        "commit state",
    ]
    assert [span.name for span in below(spans, only(spans, "unprepare"))] == ["commit state"]
    proof = only(spans, "verify devices").attributes
    assert proof["hw.type"] == "gpu"
    assert proof["hw.id"] == (rig.devices()["gpu-0"]["attributes"]["uuid"]["string"],)
    ids = {span.span_id for span in spans}
    assert not [span.name for span in spans if span.parent_id and span.parent_id not in ids]
    assert root.resource["service.name"] == "nvdra-gpu-plugin"
    assert root.resource["k8s.node.name"] == rig.node.name


async def test_a_slow_gpu_is_where_the_trace_says_the_time_went(
    rig: Rig, collector: Receiver
) -> None:
    await start(rig, collector)
    rig.node.simctl("slow", "1000", "--gpu", "0")
    claim = rig.create_claim("gpu-0")
    assert not (await rig.dra.prepare([claim]))[claim.uid].error
    spans = await spans_of(collector, claim, "claim", "prepare")
    prepare = only(spans, "prepare")
    assert prepare.seconds >= 1
    assert sum(span.seconds for span in below(spans, prepare)) >= 0.9 * prepare.seconds
    calls = [span for span in spans if span.name == "call nvml"]
    assert {call.parent_id for call in calls} == {only(spans, "verify devices").span_id}
    assert all(call.seconds >= 1 for call in calls)


async def test_a_wait_for_another_claim_is_a_span_that_names_it(
    rig: Rig, collector: Receiver
) -> None:
    await start(rig, collector)
    rig.node.simctl("slow", "1000", "--gpu", "0")
    first, second = rig.create_claim("gpu-0"), rig.create_claim("gpu-0")
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(rig.dra.prepare([claim], timeout_s=5)) for claim in (first, second)
        ]
    held = {claim.uid for claim in (first, second)} & set(rig.recorded_claims())
    assert len(held) == 1
    refused = first if second.uid in held else second
    assert "DeviceInUse" in [task.result() for task in tasks][refused is second][refused.uid].error
    spans = await spans_of(collector, refused, "claim", "prepare", "wait lock")
    wait = only(spans, "wait lock")
    assert wait.seconds >= 0.2
    assert next(iter(held)) in str(wait.attributes["nvdra.holder"])
    assert "wait lock" not in {
        span.name for span in collector.spans(trace_ids.trace_id(next(iter(held))))
    }


async def test_a_claim_whose_every_prepare_fails_has_its_root_once(
    rig: Rig, collector: Receiver
) -> None:
    await start(rig, collector)
    rig.node.simctl("gpu", "lose", "5")
    claim = rig.create_claim("gpu-5")
    for _ in range(3):
        assert "DeviceUnhealthy: gpu-5" in (await rig.dra.prepare([claim]))[claim.uid].error
    spans = await asyncio.to_thread(
        collector.wait,
        lambda spans: (
            [span.name for span in spans].count("prepare") == 3
            and "claim" in {span.name for span in spans}
        ),
        trace_id=trace_ids.trace_id(claim.uid),
    )
    root = only(spans, "claim")
    attempts = [span for span in spans if span.name == "prepare"]
    assert {span.parent_id for span in attempts} == {root.span_id}
    assert [span.attributes["nvdra.attempt"] for span in attempts] == [1, 2, 3]
    for span in (root, *attempts):
        assert span.is_error
        assert span.attributes["error.type"] == "DeviceUnhealthy"


async def test_context_that_a_user_put_on_the_claim_is_linked_and_not_inherited(
    rig: Rig, collector: Receiver
) -> None:
    await start(rig, collector)
    theirs = "0af7651916cd43dd8448eb211c80319c"
    annotation = {"tracing.k8s.io/traceparent": f"00-{theirs}-b7ad6b7169203331-00"}
    claim = rig.create_claim("gpu-0", annotations=annotation)
    await rig.dra.prepare([claim])
    root = only(await spans_of(collector, claim, "claim"), "claim")
    assert [link.trace_id for link in root.links] == [theirs]
    assert not collector.spans(theirs)


async def test_context_on_the_pod_is_linked_from_the_wait_in_the_scheduler(
    rig: Rig, collector: Receiver
) -> None:
    await start(rig, collector)
    theirs = "1af7651916cd43dd8448eb211c80319c"
    pod = rig.server.create(
        "/api/v1/namespaces/default/pods",
        {
            "metadata": {
                "generateName": "traced-",
                "annotations": {"tracing.k8s.io/traceparent": f"00-{theirs}-b7ad6b7169203331-01"},
            },
            "spec": {"containers": [{"name": "c", "image": "i"}]},
        },
    )["metadata"]
    claim = rig.create_claim("gpu-0", pod=pod["name"], pod_uid=pod["uid"])
    await rig.dra.prepare([claim])
    schedule = only(await spans_of(collector, claim, "claim", "schedule"), "schedule")
    assert [(link.trace_id, link.attributes) for link in schedule.links] == [
        (theirs, {"nvdra.link": "inbound"})
    ]
    stranger = rig.create_claim("gpu-1", pod=pod["name"])  # for an older pod of that name
    await rig.dra.prepare([stranger])
    assert not only(await spans_of(collector, stranger, "claim", "schedule"), "schedule").links


async def test_context_that_the_caller_sends_is_linked_from_the_attempt(
    rig: Rig, collector: Receiver
) -> None:
    await start(rig, collector)
    theirs = "2af7651916cd43dd8448eb211c80319c"
    claim = rig.create_claim("gpu-0")
    metadata = [("traceparent", f"00-{theirs}-b7ad6b7169203331-01")]
    await rig.dra.prepare([claim], metadata=metadata)
    prepare = only(await spans_of(collector, claim, "claim", "prepare"), "prepare")
    assert [(link.trace_id, link.attributes) for link in prepare.links] == [
        (theirs, {"nvdra.link": "inbound"})
    ]


async def test_the_debug_page_shows_the_trace_without_a_collector(rig: Rig) -> None:
    await rig.start()
    claim = rig.create_claim("gpu-0")
    await rig.dra.prepare([claim])
    status, text = rig.process.get(f"/debug/traces/{claim.uid}?format=text", debug=True)
    assert status == 200
    assert "fetch claim" in text
    assert rig.process.get(f"/debug/traces/{claim.uid}")[0] == 404
    assert "prepare" in str(rig.process.trace(claim.uid))


async def test_spans_that_wait_for_a_pod_when_the_plugin_ends_are_written_before_it_has(
    rig: Rig, collector: Receiver
) -> None:
    await start(rig, collector)
    first, second = (rig.create_claim(name) for name in ("gpu-0", "gpu-1"))
    for name in ("gpu-0", "gpu-1"):
        rig.node.simctl("slow", "1000", "--function", "nvmlDeviceGetMemoryInfo", "--gpu", name[-1])
    with ExitStack() as stack:
        async with asyncio.TaskGroup() as group:
            for claim in (first, second):
                group.create_task(rig.dra.prepare([claim]))
            await rig.wait_until(lambda: _fetched(rig) == 2, "both claims to be fetched")
            # Whoever asks for a pod now waits, and the next one behind it.
            stack.enter_context(rig.server.paused())
        for claim in (first, second):
            await spans_of(collector, claim, "claim")
        assert not [
            span.name
            for claim in (first, second)
            for span in collector.spans(trace_ids.trace_id(claim.uid))
            if span.name == "schedule"
        ]
        assert rig.process.stop() == 0
    for claim in (first, second):
        await spans_of(collector, claim, "claim", "schedule")


def _fetched(rig: Rig) -> int:
    _, text = rig.process.get("/metrics")
    counts = re.findall(r'^nvdra_\w+_count\{.*step="fetch claim".*\} (\d+)', text, re.MULTILINE)
    return int(counts[0]) if counts else 0
