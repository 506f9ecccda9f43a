# SPDX-License-Identifier: Apache-2.0
"""This node's spans in the trace of a domain; the span `member` is written once."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from nvdra_api.errors import Reason, RetryableError
from nvdra_api.ids import ClaimUID, CliqueID, DomainUID, NodeName
from nvdra_api.resource.claims import ClaimRef, ResourceClaim
from nvdra_cd_plugin.domains.domain import Domain
from nvdra_cd_plugin.membership.domain_spans import DomainSpans
from nvdra_runtime.node.record_store import ROOT_SPAN_RETENTION, RecordStore
from nvdra_runtime.telemetry import keys, trace_ids
from nvdra_runtime.telemetry.instrumentation import Telemetry
from nvdra_runtime.telemetry.metrics.plugin_metrics import PluginMetrics
from nvdra_runtime.telemetry.recent_traces import waterfall
from nvdra_runtime.telemetry.recent_traces.recorder import TraceRecorder
from nvdra_runtime.telemetry.spans import Span
from nvdra_runtime.telemetry.trace_ids import Link

NODE = NodeName("node-1")
DOMAIN = Domain(DomainUID("11111111-2222-3333-4444-555555555555"), "team-a", "ring")
REF = ClaimRef("team-a", "w-channel", ClaimUID("aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee"))
CLIQUE = CliqueID("2df84740-d3cb-b5ce-4e7e-98352b5a71b5.2")
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

    def told(self, name: str) -> list[Span]:
        trace = self.recorder.trace(trace_ids.trace_id(DOMAIN.uid))
        return [span for span in trace.spans if span.name == name] if trace else []


async def test_the_member_is_written_with_the_first_attempt_and_never_again(tmp_path: Path) -> None:
    setting = Setting(tmp_path / "state")
    joined = setting.clock.now()
    async with setting.process() as story:
        setting.clock.time += timedelta(seconds=43)
        story.emit_member(REF, DOMAIN, CLIQUE, joined, WAITING)
        setting.clock.time += ROOT_SPAN_RETENTION - timedelta(minutes=1)
        story.emit_member(REF, DOMAIN, CLIQUE, joined, WAITING)  # the kubelet asks again, and again
    async with setting.process() as story:
        setting.clock.time += ROOT_SPAN_RETENTION - timedelta(minutes=1)
        story.emit_member(REF, DOMAIN, CLIQUE, joined, None)
    (member,) = setting.told("member")
    assert member.id == trace_ids.member_span_id(DOMAIN.uid, NODE)
    assert member.parent == trace_ids.domain_root_span_id(DOMAIN.uid)
    assert member.seconds == 43
    assert member.failure is not None
    assert member.failure.reason == "DaemonNotReady"


async def test_a_pod_that_returns_within_an_hour_writes_no_second_member(tmp_path: Path) -> None:
    setting = Setting(tmp_path / "state")
    async with setting.process() as story:
        story.emit_member(REF, DOMAIN, CLIQUE, setting.clock.now(), None)
        setting.clock.time += 9 * ROOT_SPAN_RETENTION
        story.renew_member_mark(DOMAIN)
    setting.clock.time += ROOT_SPAN_RETENTION - timedelta(minutes=1)
    async with setting.process() as story:
        story.emit_member(REF, DOMAIN, CLIQUE, setting.clock.now(), None)
    assert len(setting.told("member")) == 1


async def test_attributes_and_events_of_a_wait_are_copied_to_the_domains_trace(
    tmp_path: Path,
) -> None:
    setting = Setting(tmp_path / "state")
    async with setting.process() as story:
        began = story.now()
        with setting.telemetry.step("wait domain") as span:
            span.add_event("peers", {keys.ABSENT_PEERS: ("node-2",)})
            span.set_attribute(keys.LACKS, "it has not said READY yet")
        story.emit_operation("wait domain", REF, DOMAIN, CLIQUE, began, WAITING, span)
    (wait,) = setting.told("wait domain")
    assert wait.operation == wait.id  # one of many, and forgotten without the others
    assert wait.parent == trace_ids.member_span_id(DOMAIN.uid, NODE)
    assert wait.attributes[keys.LACKS] == "it has not said READY yet"
    assert [event.attributes for event in wait.events] == [{keys.ABSENT_PEERS: ("node-2",)}]
    assert [(link.trace, link.kind) for link in wait.links] == [
        (trace_ids.trace_id(REF.uid), keys.LINK_CLAIM)
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
        story.emit_schedule_daemon(claim, DOMAIN, CLIQUE, joined, called)
        story.emit_schedule_daemon(claim, DOMAIN, CLIQUE, None, called)
    assert sorted(span.seconds for span in setting.told("schedule daemon")) == [2.6, 3]


LARGE = replace(DOMAIN, has_member_traces=True)
OWN = trace_ids.member_trace_id(DOMAIN.uid, NODE)
WHOLE = trace_ids.trace_id(DOMAIN.uid)
MEMBER = trace_ids.member_span_id(DOMAIN.uid, NODE)


async def test_a_member_of_a_large_domain_is_one_span_and_a_link_in_its_trace(
    tmp_path: Path,
) -> None:
    setting = Setting(tmp_path / "state")
    async with setting.process() as story:
        for attempt in range(30):
            began = story.now()
            setting.clock.time += timedelta(seconds=45)
            error = RetryableError(Reason.DAEMON_NOT_READY, f"it says {attempt}", "wait")
            story.emit_operation("wait domain", REF, LARGE, CLIQUE, began, error)
            story.emit_operation("prepare", REF, LARGE, CLIQUE, began, error)
            story.emit_member(REF, LARGE, CLIQUE, began, error)
    async with setting.process() as story:  # after a restart
        story.emit_operation("prepare", REF, LARGE, CLIQUE, story.now(), None)
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
        story.emit_operation("wait domain", REF, LARGE, CLIQUE, story.now(), WAITING)
        assert story.link(LARGE) == Link(OWN, MEMBER, keys.LINK_DOMAIN)
        assert story.link(DOMAIN) == Link(WHOLE, MEMBER, keys.LINK_DOMAIN)
    (split,) = setting.told("split trace")
    assert split.parent == MEMBER
    assert split.links == (Link(OWN, MEMBER, keys.LINK_MEMBER),)
    own = setting.recorder.trace(OWN)
    assert own is not None
    root, wait = own.spans
    assert root.links == (Link(WHOLE, MEMBER, keys.LINK_DOMAIN),)
    assert [(link.trace, link.kind) for link in wait.links] == [
        (trace_ids.trace_id(REF.uid), keys.LINK_CLAIM)
    ]
    whole = setting.recorder.trace(WHOLE)
    assert whole is not None
    assert f"linked (member) to trace {OWN}" in waterfall.render(whole)


async def test_a_domain_that_grows_large_continues_in_the_traces_of_its_members(
    tmp_path: Path,
) -> None:
    setting = Setting(tmp_path / "state")
    async with setting.process() as story:
        story.emit_operation("prepare", REF, DOMAIN, CLIQUE, story.now(), WAITING)
        story.emit_member(REF, DOMAIN, CLIQUE, story.now(), WAITING)
        story.emit_operation("prepare", REF, LARGE, CLIQUE, story.now(), None)
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
        story.emit_operation("prepare", REF, LARGE, CLIQUE, story.now(), None)
        setting.clock.time += 9 * ROOT_SPAN_RETENTION
        story.renew_member_mark(LARGE)
    setting.clock.time += ROOT_SPAN_RETENTION - timedelta(minutes=1)
    async with setting.process() as story:
        story.emit_operation("prepare", REF, LARGE, CLIQUE, story.now(), None)
    assert len(setting.told("split trace")) == 1
