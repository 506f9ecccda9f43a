# SPDX-License-Identifier: Apache-2.0
"""This node's spans in the trace of a domain; the span `member` is written once."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from nvdra_api.errors import Reason, RetryableError
from nvdra_api.ids import ClaimUID, CliqueID, DeviceName, DomainUID, NodeName, PoolName
from nvdra_api.resource.claims import ResourceClaim
from nvdra_cd_plugin.domains.claim_records import DomainClaimRecord, DomainDeviceRecord
from nvdra_cd_plugin.membership.domain_spans import DomainSpans, Shown
from nvdra_runtime.node.record_store import ROOT_SPAN_RETENTION, RecordStore
from nvdra_runtime.telemetry import keys, trace_ids
from nvdra_runtime.telemetry.instrumentation import Telemetry
from nvdra_runtime.telemetry.metrics.plugin_metrics import PluginMetrics
from nvdra_runtime.telemetry.recent_traces import waterfall
from nvdra_runtime.telemetry.recent_traces.recorder import TraceRecorder
from nvdra_runtime.telemetry.spans import Span
from nvdra_runtime.telemetry.trace_ids import Link

NODE = NodeName("node-1")
DOMAIN = DomainUID("11111111-2222-3333-4444-555555555555")
CLIQUE = CliqueID("2df84740-d3cb-b5ce-4e7e-98352b5a71b5.2")
CHANNEL = DomainClaimRecord(
    namespace="team-a",
    name="w-channel",
    uid=ClaimUID("aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee"),
    domain=DOMAIN,
    domain_namespace="team-a",
    domain_name="ring",
    clique=CLIQUE,
    devices=(
        DomainDeviceRecord(
            request="r", pool=PoolName(NODE), device=DeviceName("channel-0"), kind="channel"
        ),
    ),
)
WAITING = RetryableError(Reason.DAEMON_NOT_READY, "it has not said READY yet", "wait")


@dataclass
class Clock:
    time: datetime = datetime(2026, 1, 1, tzinfo=UTC)

    def now(self) -> datetime:
        return self.time

    def monotonic(self) -> float:
        return self.time.timestamp()


@dataclass
class Setting:
    """One node; what is told there by one process after the other."""

    path: Path
    clock: Clock = field(default_factory=Clock)
    recorder: TraceRecorder = field(default_factory=TraceRecorder)

    @asynccontextmanager
    async def process(self) -> AsyncIterator[DomainSpans]:
        self.telemetry = Telemetry(
            self.clock, PluginMetrics(driver="compute-domain.nvidia.com", node=NODE), self.recorder
        )
        async with RecordStore.open(self.path, "boot-1", self.clock) as store:
            yield DomainSpans(NODE, self.telemetry, self.clock, store)

    def attempt(
        self,
        story: DomainSpans,
        error: RetryableError | None,
        joined_at: datetime | None = None,
        claim: DomainClaimRecord = CHANNEL,
        name: str = "prepare",
    ) -> None:
        """Write the spans of an attempt at a channel, or of an operation in it."""
        with suppress(RetryableError), story.operation(name, claim, joined_at):
            if error is not None:
                raise error

    def told(self, name: str) -> list[Span]:
        trace = self.recorder.trace(trace_ids.trace_id(DOMAIN))
        return [span for span in trace.spans if span.name == name] if trace else []


async def test_the_member_is_written_with_the_first_attempt_and_never_again(tmp_path: Path) -> None:
    setting = Setting(tmp_path / "state")
    joined = setting.clock.now()
    async with setting.process() as story:
        setting.clock.time += timedelta(seconds=43)
        setting.attempt(story, WAITING, joined)
        setting.clock.time += ROOT_SPAN_RETENTION - timedelta(minutes=1)
        setting.attempt(story, WAITING, joined)  # the kubelet asks again, and again
    async with setting.process() as story:
        setting.clock.time += ROOT_SPAN_RETENTION - timedelta(minutes=1)
        setting.attempt(story, None, joined)
    (member,) = setting.told("member")
    assert member.id == trace_ids.member_span_id(DOMAIN, NODE)
    assert member.parent == trace_ids.domain_root_span_id(DOMAIN)
    assert member.seconds == 43
    assert member.failure is not None
    assert member.failure.reason == "DaemonNotReady"


async def test_a_pod_that_returns_within_an_hour_writes_no_second_member(tmp_path: Path) -> None:
    setting = Setting(tmp_path / "state")
    async with setting.process() as story:
        setting.attempt(story, None, setting.clock.now())
        setting.clock.time += 9 * ROOT_SPAN_RETENTION
        story.emit_left(CHANNEL, setting.clock.now())
    setting.clock.time += ROOT_SPAN_RETENTION - timedelta(minutes=1)
    async with setting.process() as story:
        setting.attempt(story, None, setting.clock.now())
    assert len(setting.told("member")) == 1


async def test_attributes_and_events_of_a_wait_are_copied_to_the_domains_trace(
    tmp_path: Path,
) -> None:
    setting = Setting(tmp_path / "state")
    async with setting.process() as story:
        with story.operation("wait domain", CHANNEL) as shown:
            with setting.telemetry.step("wait domain") as span:
                span.add_event("peers", {keys.ABSENT_PEERS: ("node-2",)})
                span.set_attribute(keys.LACKS, "it has not said READY yet")
            shown.span = span
    (wait,) = setting.told("wait domain")
    assert wait.operation == wait.id  # one of many, and forgotten without the others
    assert wait.parent == trace_ids.member_span_id(DOMAIN, NODE)
    assert wait.attributes[keys.LACKS] == "it has not said READY yet"
    assert [event.attributes for event in wait.events] == [{keys.ABSENT_PEERS: ("node-2",)}]
    assert [(link.trace, link.kind) for link in wait.links] == [
        (trace_ids.trace_id(CHANNEL.uid), keys.LINK_CLAIM)
    ]


async def test_schedule_daemon_starts_when_the_claim_is_created(
    tmp_path: Path,
) -> None:
    setting = Setting(tmp_path / "state")
    created = setting.clock.now()
    stored = {
        "metadata": {
            "namespace": "nvdra-system",
            "name": "daemon",
            "uid": "bbbbbbbb-bbbb-cccc-dddd-eeeeeeeeeeee",
            "creationTimestamp": created.isoformat(),
        },
        "spec": {},
    }
    claim = ResourceClaim.model_validate(stored)
    joined, called = created + timedelta(seconds=0.4), created + timedelta(seconds=3)
    async with setting.process() as story:
        # Kubernetes keeps whole seconds: a claim seems to be older than what it was made for.
        story.emit_schedule_daemon(claim, CHANNEL, Shown(called, CLIQUE), joined)
        story.emit_schedule_daemon(claim, CHANNEL, Shown(called, CLIQUE), None)
    assert sorted(span.seconds for span in setting.told("schedule daemon")) == [2.6, 3]


LARGE = CHANNEL.model_copy(update={"has_member_traces": True})
OWN = trace_ids.member_trace_id(DOMAIN, NODE)
WHOLE = trace_ids.trace_id(DOMAIN)
MEMBER = trace_ids.member_span_id(DOMAIN, NODE)


async def test_a_member_of_a_large_domain_is_one_span_and_a_link_in_its_trace(
    tmp_path: Path,
) -> None:
    setting = Setting(tmp_path / "state")
    async with setting.process() as story:
        for attempt in range(30):
            began = story.now()
            setting.clock.time += timedelta(seconds=45)
            error = RetryableError(Reason.DAEMON_NOT_READY, f"it says {attempt}", "wait")
            setting.attempt(story, error, None, LARGE, "wait domain")
            setting.attempt(story, error, began, LARGE)
    async with setting.process() as story:  # after a restart
        setting.attempt(story, None, None, LARGE)
    whole, own = setting.recorder.trace(WHOLE), setting.recorder.trace(OWN)
    assert whole is not None
    assert own is not None
    assert sorted(span.name for span in whole.spans) == ["member", "split trace"]
    root, *attempts = own.spans
    assert (root.name, root.id, root.parent) == ("member", MEMBER, None)
    assert len(attempts) + own.omitted == 61
    assert {span.parent for span in attempts} == {MEMBER}


async def test_the_traces_of_a_large_domain_and_of_its_member_lead_to_each_other(
    tmp_path: Path,
) -> None:
    setting = Setting(tmp_path / "state")
    async with setting.process() as story:
        setting.attempt(story, WAITING, None, LARGE, "wait domain")
        assert story.link(LARGE) == Link(OWN, MEMBER, keys.LINK_DOMAIN)
        assert story.link(CHANNEL) == Link(WHOLE, MEMBER, keys.LINK_DOMAIN)
    (split,) = setting.told("split trace")
    assert split.parent == MEMBER
    assert split.links == (Link(OWN, MEMBER, keys.LINK_MEMBER),)
    own = setting.recorder.trace(OWN)
    assert own is not None
    root, wait = own.spans
    assert root.links == (Link(WHOLE, MEMBER, keys.LINK_DOMAIN),)
    assert [(link.trace, link.kind) for link in wait.links] == [
        (trace_ids.trace_id(CHANNEL.uid), keys.LINK_CLAIM)
    ]
    whole = setting.recorder.trace(WHOLE)
    assert whole is not None
    assert f"linked (member) to trace {OWN}" in waterfall.render(whole)


async def test_a_domain_that_grows_large_continues_in_the_traces_of_its_members(
    tmp_path: Path,
) -> None:
    setting = Setting(tmp_path / "state")
    async with setting.process() as story:
        setting.attempt(story, WAITING, story.now())
        setting.attempt(story, None, None, LARGE)
    whole, own = setting.recorder.trace(WHOLE), setting.recorder.trace(OWN)
    assert whole is not None
    assert own is not None
    assert sorted(span.name for span in whole.spans) == ["member", "prepare", "split trace"]
    assert [span.name for span in own.spans] == ["member", "prepare"]


async def test_the_root_of_a_members_own_trace_is_renewed_with_its_member_span(
    tmp_path: Path,
) -> None:
    setting = Setting(tmp_path / "state")
    async with setting.process() as story:
        setting.attempt(story, None, None, LARGE)
        setting.clock.time += 9 * ROOT_SPAN_RETENTION
        story.emit_left(LARGE, story.now())
    setting.clock.time += ROOT_SPAN_RETENTION - timedelta(minutes=1)
    async with setting.process() as story:
        setting.attempt(story, None, None, LARGE)
    assert len(setting.told("split trace")) == 1


async def test_an_operation_that_is_left_out_is_in_no_trace(tmp_path: Path) -> None:
    setting = Setting(tmp_path / "state")
    async with setting.process() as story:
        with suppress(RetryableError), story.operation("prepare", CHANNEL, story.now()) as shown:
            shown.is_left_out = True
            raise WAITING
    assert setting.recorder.trace(WHOLE) is None


async def test_a_claim_that_leaves_before_its_first_attempt_has_ended_writes_the_member(
    tmp_path: Path,
) -> None:
    setting = Setting(tmp_path / "state")
    async with setting.process() as story:
        joined = story.now()
        setting.clock.time += timedelta(seconds=7)
        story.emit_left(CHANNEL.model_copy(update={"is_joining": True}), joined)
    (member,) = setting.told("member")
    assert member.seconds == 7
    assert member.failure is not None
