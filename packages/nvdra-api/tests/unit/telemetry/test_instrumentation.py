# SPDX-License-Identifier: Apache-2.0
"""A step makes its span, its measurement and its log record together."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nvdra_api.errors import PermanentError, Reason, RetryableError
from nvdra_api.ids import ClaimUID, NodeName, SpanID, TraceID
from nvdra_api.resource.claims import ClaimRef
from nvdra_runtime.process.worker import Worker
from nvdra_runtime.telemetry import instrumentation, keys, trace_ids
from nvdra_runtime.telemetry.active_span import ActiveSpan
from nvdra_runtime.telemetry.instrumentation import SpanScope, Telemetry
from nvdra_runtime.telemetry.metrics.plugin_metrics import PluginMetrics
from nvdra_runtime.telemetry.recent_traces.recorder import TraceRecorder
from nvdra_runtime.telemetry.spans import Span
from nvdra_runtime.telemetry.trace_ids import Link

NODE = NodeName("node-a")
DRIVER = "gpu.nvidia.com"
Records = Callable[[], list[dict[str, Any]]]


def operation(
    telemetry: Telemetry, ref: ClaimRef, name: str = keys.PREPARE, **more: Any
) -> SpanScope:
    trace, root = instrumentation.claim_trace_and_root(ref, NODE)
    attributes = instrumentation.claim_attributes(ref)
    return telemetry.operation(name, trace=trace, parent=root, attributes=attributes, **more)


def spans(telemetry: Telemetry, ref: ClaimRef) -> dict[str, Span]:
    trace = telemetry.recorder.trace(instrumentation.claim_trace_and_root(ref, NODE)[0])
    return {span.name: span for span in trace.spans} if trace else {}


def sample(telemetry: Telemetry, name: str, **labels: str) -> float | None:
    return telemetry.metrics.registry.get_sample_value(name, {"driver": DRIVER, **labels})


def test_a_step_is_a_span_a_measurement_and_a_log_record(
    telemetry: Telemetry, ref: ClaimRef, clock: Any, records: Records
) -> None:
    with operation(telemetry, ref) as prepare, telemetry.step("fetch claim") as step:
        clock.advance(0.002)
        step.set_attribute("nvdra.code", 200)

    span = spans(telemetry, ref)["fetch claim"]
    assert (span.parent, span.seconds, span.attributes) == (prepare.id, 0.002, {"nvdra.code": 200})
    assert sample(telemetry, "nvdra_step_seconds_sum", step="fetch claim") == 0.002
    record = records()[0]
    assert record["message"] == "Finished: fetch claim"
    assert (record["v"], record["seconds"], record["code"]) == (4, 0.002, 200)
    assert (record["trace_id"], record["span_id"]) == (span.trace, span.id)
    assert (record["kind"], record["namespace"], record["name"], record["uid"]) == (
        "ResourceClaim",
        *ref,
    )


def test_an_operation_hangs_below_the_root_that_is_written_later(
    telemetry: Telemetry, ref: ClaimRef, clock: Any
) -> None:
    trace, root = instrumentation.claim_trace_and_root(ref, NODE)
    created = clock.now()
    clock.advance(1)
    with operation(telemetry, ref):
        clock.advance(0.003)
    telemetry.write_finished_span(
        "claim", trace=trace, id=root, parent=None, start=created, end=clock.now()
    )

    found = spans(telemetry, ref)
    assert found["prepare"].parent == found["claim"].id == root
    assert found["claim"].seconds == pytest.approx(1.003)


def test_a_step_that_did_nothing_leaves_nothing(
    telemetry: Telemetry, ref: ClaimRef, records: Records
) -> None:
    with operation(telemetry, ref), telemetry.step("wait lock") as step:
        step.discard()

    assert list(spans(telemetry, ref)) == ["prepare"]
    assert sample(telemetry, "nvdra_step_seconds_count", step="wait lock") is None
    assert [record["message"] for record in records()] == ["Finished: prepare"]


def test_a_step_with_something_below_it_cannot_be_discarded(
    telemetry: Telemetry, ref: ClaimRef
) -> None:
    with operation(telemetry, ref), telemetry.step("outer") as outer:
        with telemetry.step("inner"):
            pass
        outer.discard()

    assert spans(telemetry, ref)["inner"].parent == spans(telemetry, ref)["outer"].id


def test_an_operation_whose_steps_did_nothing_can_be_discarded_with_them(
    telemetry: Telemetry, ref: ClaimRef, records: Records
) -> None:
    with operation(telemetry, ref) as whole:
        with telemetry.step("look") as step:
            step.discard()
        whole.discard()

    assert list(telemetry.recorder.traces()) == []
    assert list(records()) == []
    assert sample(telemetry, "nvdra_operations_in_flight", operation="prepare") == 0


def test_a_discarded_step_that_fails_after_all_is_told(telemetry: Telemetry, ref: ClaimRef) -> None:
    with suppress(RetryableError), operation(telemetry, ref), telemetry.step("wait") as step:
        step.discard()
        raise RetryableError(Reason.LOCK_TIMEOUT, "gpu-0 is held by claim x")

    assert "wait" in spans(telemetry, ref)


def test_a_failure_is_told_with_the_same_reason_everywhere(
    telemetry: Telemetry, ref: ClaimRef, records: Records
) -> None:
    with (
        suppress(PermanentError),
        telemetry.kubelet_call(keys.PREPARE, trace_ids.trace_id(ref.uid)) as call,
        operation(telemetry, ref),
        telemetry.step("verify devices"),
    ):
        call.device_kind = "gpu"
        raise PermanentError(Reason.DEVICE_UNHEALTHY, "gpu-3 has fallen off the bus")

    for span in spans(telemetry, ref).values():
        assert span.failure is not None
        assert span.failure.reason == "DeviceUnhealthy"
        assert span.failure.message == "gpu-3 has fallen off the bus"
    labels = {
        "operation": "prepare",
        "device_kind": "gpu",
        "outcome": "permanent",
        "reason": "DeviceUnhealthy",
    }
    assert sample(telemetry, "nvdra_claim_operation_seconds_count", **labels) == 1
    step, operation_ = records()
    assert (step["level"], operation_["level"]) == ("INFO", "WARNING")
    assert operation_["reason"] == "DeviceUnhealthy"
    assert operation_["error"] == "gpu-3 has fallen off the bus"


def test_a_bug_is_internal_and_its_stack_is_in_the_log(
    telemetry: Telemetry, ref: ClaimRef, records: Records
) -> None:
    with pytest.raises(ZeroDivisionError), operation(telemetry, ref):
        _ = 1 // 0

    failure = spans(telemetry, ref)["prepare"].failure
    assert failure is not None
    assert (failure.outcome, failure.reason) == (keys.Outcome.INTERNAL, "Internal")
    (record,) = records()
    assert record["level"] == "ERROR"
    assert "_ = 1 // 0" in record["stack"]


async def test_what_the_end_of_the_process_interrupts_is_cancelled(
    telemetry: Telemetry, ref: ClaimRef
) -> None:
    async def prepare() -> None:
        with operation(telemetry, ref):
            await asyncio.Event().wait()

    with pytest.raises(TimeoutError):
        await asyncio.wait_for(prepare(), 0.001)

    assert spans(telemetry, ref)["prepare"].attributes[keys.OUTCOME] == "cancelled"


def test_in_flight_counts_from_beginning_to_end_of_both_outcomes(
    telemetry: Telemetry, ref: ClaimRef
) -> None:
    def in_flight() -> tuple[float | None, float | None]:
        labels = {"operation": "prepare"}
        return (
            sample(telemetry, "nvdra_operations_in_flight", **labels),
            sample(telemetry, "nvidia_dra_requests_inflight", **labels),
        )

    before = in_flight()
    with suppress(KeyError), operation(telemetry, ref), operation(telemetry, ref):
        during = in_flight()
        raise KeyError

    assert (before, during, in_flight()) == ((0, 0), (2, 2), (0, 0))


def test_a_step_outside_any_operation_is_measured_and_in_no_trace(
    telemetry: Telemetry, records: Records
) -> None:
    with telemetry.step("publish slices"), telemetry.step("write slice"):
        pass

    assert telemetry.recorder.traces() == []
    assert sample(telemetry, "nvdra_step_seconds_count", step="write slice") == 1
    assert all("trace_id" not in record for record in records())


async def test_concurrent_claims_do_not_mix_their_steps(telemetry: Telemetry) -> None:
    refs = [
        ClaimRef("ns", name, ClaimUID(f"{name * 8}-0000-4000-8000-000000000000")) for name in "abc"
    ]
    everybody_is_inside = asyncio.Barrier(len(refs))

    async def prepare(ref: ClaimRef) -> None:
        with operation(telemetry, ref):
            await everybody_is_inside.wait()
            with telemetry.step("fetch claim"):
                await everybody_is_inside.wait()

    async with asyncio.TaskGroup() as group:
        for ref in refs:
            group.create_task(prepare(ref))

    for ref in refs:
        found = spans(telemetry, ref)
        assert found["fetch claim"].parent == found["prepare"].id


async def test_a_worker_thread_works_below_the_span_it_was_given(
    telemetry: Telemetry, ref: ClaimRef
) -> None:
    def create(above: ActiveSpan) -> None:
        with telemetry.step("create mig", parent=above) as span:
            span.add_event("tried a placement", {"nvdra.start": 4})

    async with Worker("nvml") as worker:
        with operation(telemetry, ref), telemetry.step("apply") as apply:
            await worker.run(create, apply)

    found = spans(telemetry, ref)
    assert found["create mig"].parent == found["apply"].id
    assert found["create mig"].events[0].name == "tried a placement"


def test_a_clock_that_is_set_back_bends_no_span(
    telemetry: Telemetry, ref: ClaimRef, clock: Any
) -> None:
    with operation(telemetry, ref):
        with telemetry.step("before"):
            clock.advance(0.5)
        clock.wall = clock.wall.replace(year=2000)
        with telemetry.step("after"):
            clock.advance(0.25)

    found = spans(telemetry, ref)
    assert found["after"].start_ns == found["before"].end_ns
    assert found["prepare"].seconds == 0.75


def test_a_retroactive_span_never_ends_before_it_starts(
    telemetry: Telemetry, ref: ClaimRef, clock: Any
) -> None:
    later = clock.now()
    clock.advance(-3)
    trace, root = instrumentation.claim_trace_and_root(ref, NODE)
    telemetry.write_finished_span(
        "schedule", trace=trace, parent=root, start=later, end=clock.now()
    )

    assert spans(telemetry, ref)["schedule"].seconds == 0


def test_only_a_slow_or_failed_nvml_call_has_a_span(
    telemetry: Telemetry, ref: ClaimRef, clock: Any
) -> None:
    lost = PermanentError(Reason.DEVICE_UNHEALTHY, "gpu-0 is lost")
    with operation(telemetry, ref), telemetry.step("verify devices"):
        clock.advance(1)
        telemetry.record_nvml_call("nvmlDeviceGetName", 0.0001)
        telemetry.record_nvml_call("nvmlDeviceGetUUID", 0.2)
        telemetry.record_nvml_call("nvmlDeviceGetMemoryInfo", 0.0001, lost)

    trace = telemetry.recorder.traces()[0]
    calls = [span for span in trace.spans if span.name == "call nvml"]
    functions = {span.attributes[keys.NVML_FUNCTION]: span for span in calls}
    assert set(functions) == {"nvmlDeviceGetUUID", "nvmlDeviceGetMemoryInfo"}
    assert functions["nvmlDeviceGetUUID"].seconds == pytest.approx(0.2)
    assert functions["nvmlDeviceGetMemoryInfo"].failure is not None
    value = telemetry.metrics.registry.get_sample_value
    for function in ("nvmlDeviceGetName", "nvmlDeviceGetUUID", "nvmlDeviceGetMemoryInfo"):
        assert value("nvdra_nvml_call_seconds_count", {"function": function}) == 1


def test_inbound_context_is_linked_and_not_inherited(telemetry: Telemetry, ref: ClaimRef) -> None:
    link = Link(TraceID("a" * 32), SpanID("b" * 16), "inbound")
    with operation(telemetry, ref, links=(link,)):
        pass

    span = spans(telemetry, ref)["prepare"]
    assert span.links == (link,)
    assert span.trace == "3f0c1a527c1b4d0e8a550123456789ab"


@dataclass(frozen=True)
class Program:
    """Steps inside steps: what each does after the steps below it."""

    ending: str
    below: tuple["Program", ...]


PROGRAMS = st.recursive(
    st.builds(Program, st.sampled_from(["return", "raise", "discard"]), st.just(())),
    lambda inner: st.builds(
        Program,
        st.sampled_from(["return", "raise", "discard"]),
        st.lists(inner, max_size=3).map(tuple),
    ),
    max_leaves=12,
)


@given(PROGRAMS)
def test_whatever_steps_do_every_span_lies_within_a_parent_that_is_there(program: Program) -> None:
    clock = MovingClock()
    telemetry = Telemetry(clock, PluginMetrics(driver=DRIVER, node=NODE), TraceRecorder())
    ref = ClaimRef("ns", "claim", ClaimUID("3f0c1a52-7c1b-4d0e-8a55-0123456789ab"))

    def run(part: Program) -> None:
        with telemetry.step("step") as step:
            for inner in part.below:
                try:
                    run(inner)
                except RetryableError:
                    continue
            if part.ending == "discard":
                step.discard()
            if part.ending == "raise":
                raise RetryableError(Reason.API_UNAVAILABLE, "no answer")

    with suppress(RetryableError), operation(telemetry, ref):
        run(program)
        raise RetryableError(Reason.API_UNAVAILABLE, "no answer")

    (trace,) = telemetry.recorder.traces()
    by_id = {span.id: span for span in trace.spans}
    root = instrumentation.claim_trace_and_root(ref, NODE)[1]
    for span in trace.spans:
        assert span.parent == root or span.parent in by_id
        if span.parent in by_id:
            assert by_id[span.parent].start_ns <= span.start_ns
            assert span.end_ns <= by_id[span.parent].end_ns


class MovingClock:
    """A millisecond passes whenever somebody looks."""

    def __init__(self) -> None:
        self._seconds = 0.0

    def now(self) -> datetime:
        return datetime(2026, 11, 5, tzinfo=UTC)

    def monotonic(self) -> float:
        self._seconds += 0.001
        return self._seconds
