# SPDX-License-Identifier: Apache-2.0
"""What could not be done for a claim: since when, how often, and who is told."""

import asyncio
import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import pytest
from nvdra_api.errors import DriverError, PermanentError, Reason, RetryableError
from nvdra_api.ids import ClaimUID, NodeName
from nvdra_api.meta import JsonObject
from nvdra_api.resource.claims import ClaimRef, ResourceClaim
from nvdra_runtime.claims.failures import MAX_FAILURES, ClaimFailure, FailureRecorder
from nvdra_runtime.kube.client import Client
from nvdra_runtime.kube.event_recorder import EventRecorder
from nvdra_runtime.telemetry import instrumentation, keys, logs, trace_ids
from nvdra_runtime.telemetry.instrumentation import Telemetry
from nvdra_runtime.telemetry.metrics.plugin_metrics import PluginMetrics
from nvdra_runtime.telemetry.recent_traces.recorder import TraceRecorder
from nvdra_runtime.telemetry.spans import Span
from nvdra_testing import virtual_time

NODE = NodeName("node-a")
DRIVER = "port.example.com"
START = datetime(2026, 1, 1, tzinfo=UTC)


def ref(name: str = "a") -> ClaimRef:
    return ClaimRef("ml", name, ClaimUID(f"uid-{name}"))


def claim(*pods: str) -> ResourceClaim:
    return ResourceClaim.model_validate(
        {
            "metadata": {"namespace": "ml", "name": "a", "uid": ref().uid},
            "status": {
                "reservedFor": [
                    {"resource": "pods", "name": pod, "uid": f"uid-{pod}"} for pod in pods
                ]
            },
        }
    )


def unknown(since: datetime | None = None) -> PermanentError:
    return PermanentError(Reason.UNKNOWN_DEVICE, "port-9 is not there", "plug it in", since=since)


def busy() -> RetryableError:
    return RetryableError(Reason.LOCK_TIMEOUT, "port-1 is busy")


def minutes(count: float) -> datetime:
    return START + timedelta(minutes=count)


@dataclass
class Clock:
    time: datetime = START

    def now(self) -> datetime:
        return self.time

    def monotonic(self) -> float:
        return self.time.timestamp()


class ApiServer(Client):
    """Has one claim of the pod `late`, and keeps the Events that are created."""

    def __init__(self) -> None:
        self.events: list[JsonObject] = []

    async def get_claim(self, ref: ClaimRef, deadline: float) -> ResourceClaim:
        del ref, deadline
        return claim("late")

    async def create(
        self, path: str, body: JsonObject, deadline: float, *, normalized: bool = False
    ) -> JsonObject:
        del path, deadline, normalized
        self.events.append(body)
        return body


@dataclass
class Setting:
    clock: Clock = field(default_factory=Clock)
    api: ApiServer = field(default_factory=ApiServer)

    def __post_init__(self) -> None:
        self.events = EventRecorder(self.api, DRIVER, NODE, self.clock.now)
        self.telemetry = Telemetry(
            self.clock, PluginMetrics(driver=DRIVER, node=NODE), TraceRecorder()
        )
        self.failures = FailureRecorder(NODE, self.events, self.telemetry, self.clock)

    def record(
        self, error: Exception, at: datetime = START, name: str = "a", operation: str = keys.PREPARE
    ) -> DriverError:
        self.clock.time = at
        return self.failures.record(ref(name), operation, error, claim())

    def write_events(self) -> list[tuple[str, str, str, str]]:
        """Write the Events. Returns the object, type, reason and message of each."""

        async def main() -> None:
            async with self.events.running():
                await asyncio.sleep(1.0)

        virtual_time.run_with_virtual_time(main)
        return [
            (each["involvedObject"]["name"], each["type"], each["reason"], each["message"])
            for each in self.api.events
        ]

    def spans(self, name: str) -> list[Span]:
        trace = self.telemetry.recorder.trace(trace_ids.trace_id(ref().uid))
        return [span for span in trace.spans if span.name == name] if trace else []


@pytest.fixture
def setting() -> Setting:
    return Setting()


@pytest.fixture
def log_at() -> Iterator[Callable[[int], None]]:
    """Sets the verbosity of the log, and takes the log down again."""
    made: list[logs.ConfiguredLogging] = []

    def configure(verbosity: int) -> None:
        made.append(logs.configure(logs.LogFormat.JSON, verbosity, "nvdra-test", io.StringIO()))

    yield configure
    for each in made:
        each.close()


def test_a_failure_that_repeats_keeps_the_time_of_the_first_and_is_counted(
    setting: Setting,
) -> None:
    first = setting.record(unknown())
    second = setting.record(unknown(), minutes(5))
    assert first.since == second.since == START
    assert setting.failures.latest() == (
        ClaimFailure(
            ref=ref(),
            operation=keys.PREPARE,
            reason=Reason.UNKNOWN_DEVICE,
            message="port-9 is not there, since 2026-01-01T00:00:00Z; plug it in",
            since=START,
            latest=minutes(5),
            count=2,
        ),
    )


def test_an_error_that_knows_its_time_keeps_it(setting: Setting) -> None:
    error = unknown(since=minutes(-30))
    assert setting.record(error) is error
    (failure,) = setting.failures.latest()
    assert (failure.since, failure.latest) == (minutes(-30), START)


def test_another_reason_is_another_failure(setting: Setting) -> None:
    setting.record(unknown())
    assert setting.record(busy(), minutes(5)).since == minutes(5)
    (failure,) = setting.failures.latest()
    assert (failure.reason, failure.since, failure.count) == (Reason.LOCK_TIMEOUT, minutes(5), 1)


def test_a_failure_after_a_success_is_another_failure(setting: Setting) -> None:
    setting.record(unknown())
    setting.clock.time = minutes(1)
    setting.failures.record_success(ref(), keys.PREPARE, claim(), ["port-9"])
    (ended,) = setting.failures.latest()
    assert (ended.count, ended.ended) == (1, minutes(1))
    setting.clock.time = minutes(2)
    setting.failures.record_success(ref(), keys.PREPARE, claim(), ["port-9"])
    assert setting.failures.latest() == (ended,)
    assert setting.record(unknown(), minutes(3)).since == minutes(3)
    (again,) = setting.failures.latest()
    assert (again.since, again.count, again.ended) == (minutes(3), 1, None)


def test_prepare_and_unprepare_of_a_claim_fail_independently(setting: Setting) -> None:
    setting.record(unknown(), operation=keys.PREPARE)
    setting.record(unknown(), minutes(1), operation=keys.UNPREPARE)
    setting.failures.record_success(ref(), keys.PREPARE, claim(), ["port-9"])
    assert [(each.operation, each.count, each.ended) for each in setting.failures.latest()] == [
        (keys.UNPREPARE, 1, None),
        (keys.PREPARE, 1, minutes(1)),
    ]


def test_all_failures_of_a_claim_end_with_it(setting: Setting) -> None:
    setting.record(unknown(), operation=keys.PREPARE)
    setting.record(unknown(), operation=keys.UNPREPARE)
    setting.record(unknown(), name="other")
    setting.clock.time = minutes(1)
    setting.failures.end(ref().uid)
    setting.clock.time = minutes(2)
    setting.failures.end(ref().uid)
    assert [(each.ref.name, each.ended) for each in setting.failures.latest()] == [
        ("other", None),
        ("a", minutes(1)),
        ("a", minutes(1)),
    ]


def test_the_failure_that_was_repeated_least_recently_is_dropped_first(setting: Setting) -> None:
    for number in range(MAX_FAILURES):
        setting.record(unknown(), name=f"{number}")
    setting.record(unknown(), name="0")
    setting.record(unknown(), name="new")
    names = [failure.ref.name for failure in setting.failures.latest()]
    assert len(names) == MAX_FAILURES
    assert names[:2] == ["new", "0"]
    assert names[-1] == "2"


def test_a_bug_is_an_internal_error_that_does_not_show_what_it_says(setting: Setting) -> None:
    error = setting.record(ZeroDivisionError("secret"))
    assert error.reason is Reason.INTERNAL
    assert error.message == (
        "prepare of claim ml/a:uid-a failed on node node-a with an unexpected ZeroDivisionError"
    )
    assert "secret" not in setting.failures.latest()[0].message


@pytest.mark.parametrize("reason", [Reason.DEVICE_UNHEALTHY, Reason.DEVICE_NODE_MISSING])
def test_a_device_that_became_unhealthy_is_counted_once(setting: Setting, reason: Reason) -> None:
    def counted() -> float:
        registry = setting.telemetry.metrics.registry
        return sum(
            sample.value
            for metric in registry.collect()
            for sample in metric.samples
            if sample.name.endswith("health_events_total") and reason in sample.labels.values()
        )

    before = counted()
    for minute in range(3):
        setting.record(PermanentError(reason, "port-1 is broken"), minutes(minute))
    assert counted() - before == 1
    setting.failures.record_success(ref(), keys.PREPARE, claim(), ["port-1"])
    setting.record(PermanentError(reason, "port-1 is broken"), minutes(4))
    assert counted() - before == 2


def test_the_claim_and_its_pods_get_the_event(setting: Setting) -> None:
    setting.failures.record(ref(), keys.PREPARE, unknown(), claim("train-0", "train-1"))
    message = "port-9 is not there, since 2026-01-01T00:00:00Z; plug it in"
    assert setting.write_events() == [
        (name, "Warning", Reason.UNKNOWN_DEVICE, message) for name in ("a", "train-0", "train-1")
    ]


def test_the_pods_of_a_claim_that_was_not_read_are_found_later(setting: Setting) -> None:
    setting.failures.record(ref(), keys.UNPREPARE, unknown())
    assert [event[0] for event in setting.write_events()] == ["a", "late"]


@pytest.mark.parametrize(
    ("operation", "reason"), [(keys.PREPARE, "Prepared"), (keys.UNPREPARE, "Unprepared")]
)
def test_a_success_is_an_event_only_if_the_log_is_detailed(
    setting: Setting, log_at: Callable[[int], None], operation: str, reason: str
) -> None:
    log_at(4)
    setting.failures.record_success(ref("quiet"), operation, None, ["port-1"])
    log_at(5)
    setting.failures.record_success(ref(), operation, claim(), ["port-2"])
    assert setting.write_events() == [("a", "Normal", reason, f"port-2 on node {NODE}")]


def test_an_error_that_the_operation_recorded_is_answered_and_not_recorded_again(
    setting: Setting,
) -> None:
    trace, _ = instrumentation.claim_trace_and_root(ref(), NODE)
    error = setting.record(unknown())
    with setting.telemetry.kubelet_call(keys.PREPARE, trace) as call:
        text = setting.failures.record_answer(ref(), keys.PREPARE, error, call)
    assert text == (
        "UnknownDevice: port-9 is not there, since 2026-01-01T00:00:00Z; plug it in "
        f"(trace {trace})"
    )
    assert [failure.count for failure in setting.failures.latest()] == [1]
    assert call.failure is not None
    assert call.failure.reason == Reason.UNKNOWN_DEVICE
    assert setting.spans("wait prepare") == []


def test_an_operation_that_outlasts_its_call_is_recorded_with_a_span_of_the_wait(
    setting: Setting,
) -> None:
    trace, root = instrumentation.claim_trace_and_root(ref(), NODE)
    late = RetryableError(Reason.DEADLINE_EXCEEDED, "prepare of uid-a is not done yet")
    with setting.telemetry.kubelet_call(keys.PREPARE, trace) as call:
        setting.clock.time = minutes(0.75)
        text = setting.failures.record_answer(ref(), keys.PREPARE, late, call)
    assert text == (
        "DeadlineExceeded: prepare of uid-a is not done yet, since 2026-01-01T00:00:45Z "
        f"(trace {trace})"
    )
    (failure,) = setting.failures.latest()
    assert (failure.reason, failure.since) == (Reason.DEADLINE_EXCEEDED, minutes(0.75))
    (span,) = setting.spans("wait prepare")
    assert (span.parent, span.seconds) == (root, 45.0)
    assert span.failure is not None
    assert span.failure.reason == Reason.DEADLINE_EXCEEDED


def test_what_names_other_namespaces_reaches_operators_and_no_event(setting: Setting) -> None:
    error = RetryableError(
        Reason.DEVICE_IN_USE, "port-1 is held", operator_message="port-1 is held by claim web/b"
    )
    setting.record(error)
    trace, _ = instrumentation.claim_trace_and_root(ref(), NODE)
    with setting.telemetry.kubelet_call(keys.PREPARE, trace) as call:
        answered = setting.failures.record_answer(ref(), keys.PREPARE, error, call)
    since = "since 2026-01-01T00:00:00Z"
    assert answered == f"DeviceInUse: port-1 is held, {since} (trace {trace})"
    assert [message for *_, message in setting.write_events()] == [f"port-1 is held, {since}"]
    (failure,) = setting.failures.latest()
    assert failure.message == f"port-1 is held by claim web/b, {since}"
    assert call.failure is not None
    assert call.failure.message == failure.message
