# SPDX-License-Identifier: Apache-2.0
"""Claims of channels and daemons: what is recorded, labelled and written, and in which order."""

import asyncio
import json
import shutil
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, closing, nullcontext, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from nvdra_api.errors import DriverError, PermanentError, Reason, RetryableError
from nvdra_api.ids import ClaimUID, CliqueID, DeviceName, DomainUID, NodeName, PoolName
from nvdra_api.resource.claims import ClaimRef, ResourceClaim
from nvdra_cd_plugin.cdi.edits import DevRoot
from nvdra_cd_plugin.cdi.spec_files import SpecFiles
from nvdra_cd_plugin.claims.changes.join_domain import JoinDomainKind
from nvdra_cd_plugin.claims.claim_specs import ClaimSpecs
from nvdra_cd_plugin.claims.preparer import Preparer
from nvdra_cd_plugin.daemon.domain_directories import DomainDirectories
from nvdra_cd_plugin.domains.claim_records import DomainClaimRecord, DomainDeviceRecord
from nvdra_cd_plugin.domains.domain import Domain
from nvdra_cd_plugin.membership.domain_spans import DomainSpans
from nvdra_cd_plugin.membership.node_membership import NodeMembership
from nvdra_cd_plugin.node import device_numbers
from nvdra_cd_plugin.node.device_numbers import DeviceNumbers
from nvdra_cd_plugin.node.file_worker import FileWorker
from nvdra_cdi.nvidia.options import Options
from nvdra_runtime.claims.device_wait_queue import DeviceWaitQueue
from nvdra_runtime.claims.engine import Engine
from nvdra_runtime.claims.prepare_result import PrepareResult
from nvdra_runtime.claims.prepared_claims import PreparedClaims
from nvdra_runtime.claims.records import DeviceInUseError
from nvdra_runtime.node import record_database
from nvdra_runtime.node.record_store import RecordStore
from nvdra_runtime.process.worker import Worker
from nvdra_runtime.telemetry import trace_ids
from nvdra_runtime.telemetry.instrumentation import Telemetry
from nvdra_runtime.telemetry.metrics.plugin_metrics import PluginMetrics
from nvdra_runtime.telemetry.recent_traces.recorder import TraceRecorder

GOLDEN = sorted((Path(__file__).parents[1] / "golden").glob("state-*.sqlite"))
GOLDEN_BOOT = "5a1f6a4e-0000-4000-8000-000000000001"

NODE = NodeName("node-1")
UID = DomainUID("11111111-2222-3333-4444-555555555555")
OTHER = DomainUID("99999999-2222-3333-4444-555555555555")
DOMAIN = Domain(UID, "team-a", "ring")
CLIQUE, ANOTHER_CLIQUE = CliqueID("rack-1.2"), CliqueID("rack-2.0")
CREATED = datetime(2026, 8, 1, tzinfo=UTC)
CDI = "k8s.compute-domain.nvidia.com"
NOT_READY = RetryableError(Reason.DAEMON_NOT_READY, "it has not said READY yet", "wait")


def planned(number: int = 1, device: str = "channel-0", **more: object) -> DomainClaimRecord:
    held = DomainDeviceRecord(
        request="r",
        pool=PoolName(NODE),
        device=DeviceName(device),
        kind=device.partition("-")[0],
        **more,
    )
    return DomainClaimRecord(
        namespace="team-a",
        name=f"claim-{number}",
        uid=ClaimUID(f"0000000{number}-bbbb-cccc-dddd-eeeeeeeeeeee"),
        domain=UID,
        mode="Single",
        devices=(held,),
    )


def given(record: DomainClaimRecord) -> str:
    return f"{CDI}/claim={record.uid}-{record.device.device}"


class Clock:
    def __init__(self) -> None:
        self.time = CREATED

    def now(self) -> datetime:
        return self.time

    def monotonic(self) -> float:
        return self.time.timestamp()


class World:
    """What outlives a process: the disk, the node's label, the API server and the fabric."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.clock = Clock()
        self.recorder = TraceRecorder()
        self.label: str | None = None
        self.log: list[str] = []
        self.domain = DOMAIN
        self.clique = CLIQUE
        self.is_api_there = True
        self.problem: DriverError | None = None

    def request(self, what: str) -> None:
        self.log.append(what)
        if not self.is_api_there:
            raise PermanentError(Reason.API_UNAVAILABLE, "no", "wait")

    def spec(self, record: DomainClaimRecord) -> Path:
        return self.root / "cdi" / f"{CDI}-claim_{record.uid}.yaml"

    def domain_spans(self) -> dict[str, float]:
        """The seconds of each span in the domain's trace."""
        trace = self.recorder.trace(trace_ids.trace_id(UID))
        return {span.name: span.seconds for span in trace.spans} if trace else {}


class Labels:
    def __init__(self, world: World) -> None:
        self._world = world

    async def set_domain_label(self, uid: DomainUID, deadline: float) -> bool:
        del deadline
        self._world.request("label")
        if self._world.label not in (None, uid):
            raise RetryableError(Reason.NODE_IN_OTHER_DOMAIN, "another one", "wait")
        is_new, self._world.label = self._world.label is None, uid
        return is_new

    async def remove_domain_label(self, uid: DomainUID, deadline: float) -> None:
        del deadline
        self._world.request("unlabel")
        self._world.label = None if self._world.label == uid else self._world.label


class Admission:
    """Admits each claim."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.plans: dict[ClaimUID, DomainClaimRecord] = {}

    def plan(self, claim: ResourceClaim) -> DomainClaimRecord:
        return self.plans[claim.ref.uid]

    async def admit(self, record: DomainClaimRecord, deadline: float) -> Domain:
        return await self.find(record, deadline)

    async def find(self, record: DomainClaimRecord, deadline: float) -> Domain:
        del record, deadline
        self._world.request("find")
        return self._world.domain


class Readiness:
    """The fabric, the host's IMEX and the domain's daemon."""

    def __init__(self, world: World) -> None:
        self._world = world

    async def wait(self, record: DomainClaimRecord, deadline: float) -> DomainClaimRecord:
        await self.wait_ready(deadline)
        return record.model_copy(update={"clique": self._world.clique})

    async def wait_clique_for_claim(self, *_: object) -> CliqueID:
        return self._world.clique

    async def wait_ready(self, *_: object) -> None:
        self._world.log.append("wait")
        if self._world.problem is not None:
            raise self._world.problem

    def track_daemon_claim(self, daemon: DomainClaimRecord) -> AbstractContextManager[None]:
        del daemon
        return nullcontext()


class Devices:
    def channel_count(self) -> int:
        return 4

    def channels(self, first: int, count: int) -> list[DeviceNumbers]:
        return [device_numbers.channel(number, 235) for number in range(first, first + count)]

    def management_capability(self) -> DeviceNumbers:
        return device_numbers.channel(0, 234)


class Specs(SpecFiles):
    def write_base(self) -> None:
        """There is no driver here."""


class Process:
    """One process of the plugin."""

    def __init__(
        self, world: World, store: RecordStore, worker: Worker, *, is_host_managed: bool
    ) -> None:
        self.world = world
        metrics = PluginMetrics(driver="d", node=NODE)
        telemetry = Telemetry(world.clock, metrics, world.recorder)
        self.prepared = PreparedClaims(store, DomainClaimRecord, lambda *_: None)
        waits = DeviceWaitQueue(self.prepared.wait_removed)
        spans = DomainSpans(NODE, telemetry, world.clock, store)
        unknown: Any = None
        fakes: Any = Readiness(world)
        self._admission = Admission(world)
        admission: Any = self._admission
        labels: Any = Labels(world)
        devices: Any = Devices()
        self.membership = NodeMembership(labels, self.prepared, unknown, waits)
        join = JoinDomainKind(self.prepared, self.membership, fakes, fakes, waits, spans, telemetry)
        specs = ClaimSpecs(
            devices,
            DomainDirectories(world.root),
            Specs(world.root / "cdi", Options),
            lambda: DevRoot("/"),
            FileWorker(worker),
            spans,
            telemetry,
        )
        engine: Engine[DomainClaimRecord] = Engine(
            lambda _: join, (specs,), self.prepared, lambda _: False, telemetry
        )
        self.preparer = Preparer(
            NODE,
            self.prepared,
            admission,
            fakes,
            engine,
            None if is_host_managed else join,
            fakes,
            spans,
        )

    async def prepare(self, record: DomainClaimRecord) -> PrepareResult:
        """As the service does it: a claim with a record is prepared again."""
        stored = self.prepared.get(record.uid)
        if stored is not None:
            return await self.preparer.prepare_again(stored, soon())
        metadata = {
            "namespace": record.namespace,
            "name": record.name,
            "uid": record.uid,
            "creationTimestamp": CREATED.isoformat(),
        }
        claim = ResourceClaim.model_validate({"metadata": metadata, "spec": {}})
        self._admission.plans[record.uid] = record
        return await self.preparer.prepare(claim, soon(), lambda _: None)

    async def unprepare(self, record: DomainClaimRecord) -> None:
        await self.preparer.unprepare(self.prepared[record.uid], soon())


def soon() -> float:
    return asyncio.get_running_loop().time() + 5


def cdi_names(result: PrepareResult) -> list[str]:
    return [name for device in result.devices for name in device.cdi_ids]


@asynccontextmanager
async def started(
    world: World, boot: str = "boot-1", *, is_host_managed: bool = False
) -> AsyncIterator[Process]:
    async with (
        RecordStore.open(world.root / "state.sqlite", boot, world.clock) as store,
        Worker("files") as worker,
    ):
        yield Process(world, store, worker, is_host_managed=is_host_managed)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """Its log has each write of a record, too."""
    world = World(tmp_path)
    commit = record_database.commit

    def noted(connection: Any, path: Any, identity: Any, statements: Any) -> None:
        for statement in statements:
            if " records " in f"{statement.sql} ":
                world.log.append("record" if "REPLACE" in statement.sql else "forget")
        commit(connection, path, identity, statements)

    monkeypatch.setattr(record_database, "commit", noted)
    return world


@pytest.fixture
async def plugin(world: World) -> AsyncIterator[Process]:
    async with started(world) as process:
        yield process


def stored(world: World) -> Iterator[tuple[str, dict[str, Any]]]:
    with closing(sqlite3.connect(world.root / "state.sqlite")) as connection:
        for state, payload in connection.execute("SELECT state, payload FROM records"):
            yield state, json.loads(payload)


async def test_a_channel_is_recorded_before_the_node_is_labelled(
    world: World, plugin: Process
) -> None:
    claim = planned()
    assert cdi_names(await plugin.prepare(claim)) == [given(claim)]
    assert world.log == ["find", "record", "label", "wait", "record"]
    assert "channel0" in world.spec(claim).read_text()
    record = plugin.prepared[claim.uid]
    assert (record.is_joining, record.clique, record.channels) == (False, CLIQUE, 1)
    assert set(world.domain_spans()) == {"label node", "member", "prepare", "wait domain"}
    world.log.clear()
    await plugin.unprepare(claim)
    assert world.log == ["unlabel", "forget"]
    assert not world.spec(claim).exists()
    assert world.label is None


async def test_a_daemon_is_recorded_when_it_has_its_files(world: World, plugin: Process) -> None:
    daemon = planned(2, "daemon-0")
    assert cdi_names(await plugin.prepare(daemon)) == [f"{CDI}/device=all", given(daemon)]
    assert world.log == ["find", "wait", "record"]
    assert f"CLIQUE_ID={CLIQUE}" in world.spec(daemon).read_text()
    assert set(world.domain_spans()) == {"prepare", "schedule daemon"}
    await plugin.unprepare(daemon)
    assert world.log[3:] == ["forget"]


async def test_a_failure_after_the_label_keeps_the_record_and_the_label(world: World) -> None:
    claim = planned()
    world.problem = NOT_READY
    async with started(world) as plugin:
        for _ in range(2):
            with pytest.raises(RetryableError, match="READY"):
                await plugin.prepare(claim)
        assert world.log == ["find", "record", "label", "wait", "find", "label", "wait"]
    async with started(world) as plugin:
        assert plugin.prepared[claim.uid].is_joining
        assert world.label == UID
        world.problem = None
        assert cdi_names(await plugin.prepare(claim)) == [given(claim)]


async def test_what_a_waiting_channel_writes_is_an_answer_that_0_1_0_completes(
    world: World,
) -> None:
    """It takes what is in `records` for prepared, and joins again if `is_joining` says so."""
    world.problem = NOT_READY
    async with started(world) as plugin:
        with pytest.raises(RetryableError):
            await plugin.prepare(planned())
    ((state, waiting),) = stored(world)
    assert state == "prepared"
    assert waiting["is_joining"] is True
    assert (waiting["domain"], waiting["domain_name"]) == (UID, "ring")
    assert not {"steps", "steps_boot"} & set(waiting)
    world.problem = None
    async with started(world) as plugin:
        await plugin.prepare(planned())
    ((state, complete),) = stored(world)
    assert state == "prepared"
    assert (complete["is_joining"], complete["clique"], complete["channels"]) == (False, CLIQUE, 1)
    assert complete["devices"][0]["cdi_names"] == [given(planned())]
    assert set(complete) == set(waiting)


@pytest.mark.parametrize("file", GOLDEN, ids=lambda path: path.stem)
async def test_records_of_an_earlier_release_are_carried_on(world: World, file: Path) -> None:
    shutil.copy(file, world.root / "state.sqlite")
    async with started(world, GOLDEN_BOOT) as plugin:
        before = dict(plugin.prepared)
        answers = {
            record.name: cdi_names(await plugin.prepare(record)) for record in before.values()
        }
        joining = next(record for record in before.values() if record.is_joining)
        assert world.log == ["find", "label", "wait", "record"], "the one that waits"
        assert answers.pop("joining") == [given(joining)]
        assert answers == {
            record.name: list(record.device.cdi_names)
            for record in before.values()
            if not record.is_joining
        }
        for record in before.values():
            await plugin.unprepare(record)
    assert list(stored(world)) == []
    assert world.label is None


async def test_a_label_that_another_domain_took_in_a_reboot_costs_no_record(world: World) -> None:
    """The claim was given its channel, so the node's label is corrected for it."""
    claim = planned()
    async with started(world) as plugin:
        await plugin.prepare(claim)
    world.label = OTHER
    async with started(world, "boot-2") as plugin:
        with pytest.raises(RetryableError) as caught:
            await plugin.prepare(claim)
        assert caught.value.reason is Reason.NODE_IN_OTHER_DOMAIN
        assert plugin.membership.needs_correction(OTHER)
        assert claim.uid in plugin.prepared


async def test_a_node_of_another_domain_has_no_part_in_the_first(
    world: World, plugin: Process
) -> None:
    world.label = OTHER
    with pytest.raises(RetryableError) as caught:
        await plugin.prepare(planned())
    assert caught.value.reason is Reason.NODE_IN_OTHER_DOMAIN
    assert world.log == ["find", "record", "label", "forget"]
    assert dict(plugin.prepared) == {}
    assert world.label == OTHER
    assert world.domain_spans() == {}


async def test_a_claim_with_channels_needs_no_api_server_and_no_write(world: World) -> None:
    claim = planned()
    async with started(world) as plugin:
        answer = await plugin.prepare(claim)
    world.log.clear()
    world.is_api_there = False
    for _ in range(2):
        async with started(world) as plugin:
            world.spec(claim).unlink()
            assert await plugin.prepare(claim) == answer
            assert await plugin.prepare(claim) == answer
    assert world.spec(claim).exists()
    assert world.log == []


async def test_after_a_reboot_a_channel_joins_anew_and_keeps_its_names(world: World) -> None:
    claim = planned()
    async with started(world) as plugin:
        answer = await plugin.prepare(claim)
    world.log.clear()
    world.clique = ANOTHER_CLIQUE
    world.problem = NOT_READY
    async with started(world, "boot-2") as plugin:
        with pytest.raises(RetryableError):
            await plugin.prepare(claim)
        assert not plugin.prepared[claim.uid].is_joining, "its label is restored if it is changed"
    async with started(world, "boot-2") as plugin:
        world.problem = None
        assert await plugin.prepare(claim) == answer
        assert plugin.prepared[claim.uid].clique == ANOTHER_CLIQUE
        assert await plugin.prepare(claim) == answer
    assert world.log == ["find", "label", "wait", "find", "label", "wait", "record"]


async def test_after_a_reboot_a_daemon_gets_the_clique_of_this_boot(world: World) -> None:
    daemon = planned(2, "daemon-0")
    async with started(world) as plugin:
        await plugin.prepare(daemon)
    world.log.clear()
    world.clique = ANOTHER_CLIQUE
    async with started(world, "boot-2") as plugin:
        await plugin.prepare(daemon)
        await plugin.prepare(daemon)
    assert world.log == ["wait", "record"]
    assert f"CLIQUE_ID={ANOTHER_CLIQUE}" in world.spec(daemon).read_text()


@pytest.mark.parametrize(("allows_all", "count"), [(True, 4), (False, 1)])
async def test_a_claim_has_as_many_channels_as_its_domain_and_itself_say(
    world: World, plugin: Process, *, allows_all: bool, count: int
) -> None:
    world.domain = Domain(UID, "team-a", "ring", allows_all_channels=allows_all)
    claim = planned().model_copy(update={"mode": "All"})
    await plugin.prepare(claim)
    assert plugin.prepared[claim.uid].channels == count


async def test_without_a_fabric_a_claim_has_no_channel_and_no_file(
    world: World, plugin: Process
) -> None:
    world.clique = CliqueID("")
    assert cdi_names(await plugin.prepare(planned())) == []
    assert not world.spec(planned()).exists()


async def test_a_host_that_runs_imex_goes_on_with_the_records_of_daemons(world: World) -> None:
    waiting, complete = planned(1), planned(2, "channel-1")
    world.problem = NOT_READY
    async with started(world) as plugin:
        with pytest.raises(RetryableError):
            await plugin.prepare(waiting)
        world.problem = None
        await plugin.prepare(complete)
    world.log.clear()
    async with started(world, is_host_managed=True) as plugin:
        assert cdi_names(await plugin.prepare(waiting)) == [given(waiting)]
        assert cdi_names(await plugin.prepare(complete)) == [given(complete)]
        assert world.log == ["find", "wait", "record"]
        await plugin.unprepare(waiting)
        assert world.log[3:] == ["forget"]
        assert world.label == UID
    world.log.clear()
    async with started(world) as plugin:
        assert cdi_names(await plugin.prepare(complete)) == [given(complete)]
        await plugin.unprepare(complete)
    assert world.log == ["unlabel", "forget"]


async def test_where_the_host_runs_imex_a_claim_is_recorded_when_it_is_ready(world: World) -> None:
    claim = planned(1, "channel-3")
    world.problem = NOT_READY
    async with started(world, is_host_managed=True) as plugin:
        with pytest.raises(RetryableError):
            await plugin.prepare(claim)
        assert dict(plugin.prepared) == {}
        world.problem = None
        assert cdi_names(await plugin.prepare(claim)) == [given(claim)]
    assert world.log == ["find", "wait", "find", "wait", "record"]
    assert world.label is None


async def test_a_spec_that_cannot_be_removed_keeps_the_record(
    world: World, plugin: Process
) -> None:
    """Without the record nothing would remove the spec, until the plugin starts again."""
    claim = planned()
    await plugin.prepare(claim)
    world.spec(claim).unlink()
    world.spec(claim).mkdir()  # a directory where the file was
    with pytest.raises(RetryableError) as caught:
        await plugin.unprepare(claim)
    assert caught.value.reason is Reason.STATE_UNAVAILABLE
    assert claim.uid in plugin.prepared
    world.spec(claim).rmdir()
    await plugin.unprepare(claim)
    assert dict(plugin.prepared) == {}


async def test_a_label_that_cannot_be_removed_keeps_the_record(
    world: World, plugin: Process
) -> None:
    claim = planned()
    await plugin.prepare(claim)
    world.is_api_there = False
    with pytest.raises(DriverError):
        await plugin.unprepare(claim)
    assert plugin.membership.domain() == UID
    assert world.spec(claim).exists()


async def test_of_claims_that_want_one_device_at_once_one_gets_it(
    world: World, plugin: Process
) -> None:
    del world
    claims = [planned(number) for number in range(6)]
    answers = await asyncio.gather(  # noqa: TID251 - some of them fail
        *(plugin.prepare(claim) for claim in claims), return_exceptions=True
    )
    refused = [answer for answer in answers if isinstance(answer, DeviceInUseError)]
    assert len(refused) == 5
    (holder,) = plugin.prepared
    assert {error.holder.uid for error in refused} == {holder}


async def test_a_refusal_says_since_when_the_device_is_held(world: World, plugin: Process) -> None:
    await plugin.prepare(planned(1))
    began = world.clock.time
    world.clock.time += timedelta(hours=1)
    with pytest.raises(DeviceInUseError) as caught:
        await plugin.prepare(planned(2))
    assert caught.value.since == began
    assert caught.value.holder.uid == planned(1).uid


async def test_no_device_is_given_while_it_is_unknown_which_claim_holds_it(
    plugin: Process,
) -> None:
    broken = ClaimRef("team-a", "broken", ClaimUID("u"))
    plugin.prepared.unreadable[broken.uid] = broken
    with pytest.raises(PermanentError, match="team-a/broken") as caught:
        await plugin.prepare(planned())
    assert caught.value.reason is Reason.STATE_CORRUPT
    plugin.prepared.unreadable.clear()
    plugin.prepared.incomplete_reason = "records were lost"
    with pytest.raises(PermanentError, match="records were lost"):
        await plugin.prepare(planned())
    assert dict(plugin.prepared) == {}


@pytest.mark.parametrize(("has_channel", "seconds"), [(True, 60), (False, 120)])
async def test_a_daemon_is_scheduled_since_its_node_is_a_member(
    world: World, plugin: Process, *, has_channel: bool, seconds: float
) -> None:
    """The first channel makes it one; without a channel the daemon's claim is as old as it says."""
    world.clock.time += timedelta(minutes=1)
    if has_channel:
        await plugin.prepare(planned(1))
    world.clock.time += timedelta(minutes=1)
    await plugin.prepare(planned(2, "daemon-0"))
    assert world.domain_spans()["schedule daemon"] == seconds


async def test_the_share_of_a_device_is_answered(plugin: Process) -> None:
    answer = await plugin.prepare(planned(1, share_id="share-7"))
    assert [device.share_id for device in answer.devices] == ["share-7"]


async def test_a_claim_in_progress_is_known_by_its_domain_until_it_has_ended(
    world: World, plugin: Process
) -> None:
    world.is_api_there = False
    with suppress(DriverError):
        await plugin.prepare(planned())
    assert plugin.preparer.in_progress == {}
