"""This node's part in a domain's trace: what is told of it, and that its span is there once."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from nvdra_api.protocol import identity
from nvdra_api.runtime.node.store import ROOT_MEMORY, Store
from nvdra_api.runtime.telemetry.metrics import Metrics
from nvdra_api.runtime.telemetry.recorder import Recorder
from nvdra_api.runtime.telemetry.spans import Span
from nvdra_api.runtime.telemetry.traces import Telemetry
from nvdra_api.types import keys
from nvdra_api.types.claims import ClaimRef, ResourceClaim
from nvdra_api.types.errors import Reason, RetryableError
from nvdra_api.types.ids import ClaimUID, CliqueID, DomainUID, NodeName
from nvdra_cd_plugin.membership import Domain
from nvdra_cd_plugin.story import Story

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
    recorder: Recorder = field(default_factory=Recorder)

    @asynccontextmanager
    async def process(self) -> AsyncIterator[Story]:
        self.telemetry = Telemetry(
            self.clock, Metrics(driver="compute-domain.nvidia.com", node=NODE), self.recorder
        )
        async with Store.opened(self.path, "boot-1", self.clock) as store:
            yield Story(NODE, self.telemetry, self.clock, store)

    def told(self, name: str) -> list[Span]:
        trace = self.recorder.trace(identity.trace_id(DOMAIN.uid))
        return [span for span in trace.spans if span.name == name] if trace else []


async def test_the_member_is_written_with_the_first_attempt_and_never_again(tmp_path: Path) -> None:
    setting = Setting(tmp_path / "state")
    joined = setting.clock.now()
    async with setting.process() as story:
        setting.clock.time += timedelta(seconds=43)
        story.member(REF, DOMAIN, CLIQUE, joined, WAITING)
        setting.clock.time += ROOT_MEMORY - timedelta(minutes=1)
        story.member(REF, DOMAIN, CLIQUE, joined, WAITING)  # the kubelet asks again, and again
    async with setting.process() as story:
        setting.clock.time += ROOT_MEMORY - timedelta(minutes=1)
        story.member(REF, DOMAIN, CLIQUE, joined, None)
    (member,) = setting.told("member")
    assert member.id == identity.member(DOMAIN.uid, NODE)
    assert member.parent == identity.domain_root(DOMAIN.uid)
    assert member.seconds == 43
    assert member.failure is not None
    assert member.failure.reason == "DaemonNotReady"


async def test_a_pod_that_comes_back_within_the_hour_finds_its_member_told(tmp_path: Path) -> None:
    setting = Setting(tmp_path / "state")
    async with setting.process() as story:
        story.member(REF, DOMAIN, CLIQUE, setting.clock.now(), None)
        setting.clock.time += 9 * ROOT_MEMORY
        story.left(DOMAIN.uid)
    setting.clock.time += ROOT_MEMORY - timedelta(minutes=1)
    async with setting.process() as story:
        story.member(REF, DOMAIN, CLIQUE, setting.clock.now(), None)
    assert len(setting.told("member")) == 1


async def test_what_was_noted_while_a_claim_waited_is_told_of_the_domain_too(
    tmp_path: Path,
) -> None:
    setting = Setting(tmp_path / "state")
    async with setting.process() as story:
        began = story.now()
        with setting.telemetry.step("wait domain") as span:
            span.event("peers", {keys.ABSENT_PEERS: ("node-2",)})
            span.set(keys.LACKS, "it has not said READY yet")
        story.part("wait domain", REF, DOMAIN, CLIQUE, began, WAITING, span)
    (wait,) = setting.told("wait domain")
    assert wait.operation == wait.id  # one of many, and forgotten without the others
    assert wait.parent == identity.member(DOMAIN.uid, NODE)
    assert wait.attributes[keys.LACKS] == "it has not said READY yet"
    assert [event.attributes for event in wait.events] == [{keys.ABSENT_PEERS: ("node-2",)}]
    assert [(link.trace, link.why) for link in wait.links] == [
        (identity.trace_id(REF.uid), keys.LINK_CLAIM)
    ]


async def test_a_daemons_way_to_the_node_begins_when_its_claim_is_made_there(
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
        story.scheduled(claim, DOMAIN, CLIQUE, joined, called)
        story.scheduled(claim, DOMAIN, CLIQUE, None, called)
    assert sorted(span.seconds for span in setting.told("schedule daemon")) == [2.6, 3]
