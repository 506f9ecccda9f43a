# SPDX-License-Identifier: Apache-2.0
"""Each claim of a call is answered by itself, in time, and by the work that is under way."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar, TypeVarTuple

import pytest
from nvdra_api.errors import PermanentError, Reason, RetryableError
from nvdra_api.ids import ClaimUID, DeviceName, NodeName, PoolName
from nvdra_api.resource.claims import ClaimRef, ResourceClaim
from nvdra_runtime.claims.claim_reader import ClaimReader
from nvdra_runtime.claims.device_wait_queue import DeviceWaitQueue, NotifyWaiting
from nvdra_runtime.claims.failures import FailureRecorder
from nvdra_runtime.claims.kubelet_checkpoint import KubeletCheckpoint
from nvdra_runtime.claims.prepare_result import PrepareResult
from nvdra_runtime.claims.prepared_claims import PreparedClaims
from nvdra_runtime.claims.record_recovery import RecordRecovery
from nvdra_runtime.claims.records import DeviceInUseError, DeviceRecord, PreparedClaimRecord
from nvdra_runtime.claims.root_spans import RootSpanWriter
from nvdra_runtime.claims.service import ClaimService
from nvdra_runtime.kube.client import Client
from nvdra_runtime.kube.event_recorder import EventRecorder
from nvdra_runtime.node import record_database
from nvdra_runtime.node.record_store import RecordStore
from nvdra_runtime.process.single_flight import SingleFlight
from nvdra_runtime.process.worker import ResultReceiver, Worker
from nvdra_runtime.telemetry import trace_ids
from nvdra_runtime.telemetry.instrumentation import Telemetry
from nvdra_runtime.telemetry.metrics.plugin_metrics import PluginMetrics
from nvdra_runtime.telemetry.recent_traces.recorder import TraceRecorder
from nvdra_testing import virtual_time

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

NODE = NodeName("node-a")
DRIVER = "port.example.com"
BROKEN = PermanentError(Reason.UNKNOWN_DEVICE, "port-9 is not there", "plug it in")


class PortRecord(DeviceRecord):
    """A device of another driver."""

    kind: str = "port"

    @property
    def cdi_ids(self) -> tuple[str, ...]:
        return (f"example.com/port={self.device}",)


class PortClaimRecord(PreparedClaimRecord):
    devices: tuple[PortRecord, ...]


def ref(name: str) -> ClaimRef:
    return ClaimRef("ml", name, ClaimUID(f"uid-{name}"))


def record(name: str, port: str) -> PortClaimRecord:
    device = PortRecord(request="port", pool=PoolName(NODE), device=DeviceName(port))
    return PortClaimRecord(namespace="ml", name=name, uid=ref(name).uid, devices=(device,))


def claim(name: str, port: str) -> ResourceClaim:
    result = {"request": "port", "driver": DRIVER, "pool": NODE, "device": port}
    return ResourceClaim.model_validate(
        {
            "metadata": {"namespace": "ml", "name": name, "uid": ref(name).uid},
            "status": {"allocation": {"devices": {"results": [result]}}},
        }
    )


class LoopClock:
    """Follows the loop's virtual time."""

    def now(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=self.monotonic())

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()


class ThreadlessWorker(Worker):
    """Makes each call at once: a thread would need real time."""

    async def run(
        self, function: Callable[[*Ts], T], *arguments: *Ts, deadline: float | None = None
    ) -> T:
        del deadline
        return function(*arguments)

    def submit_for(
        self, receiver: ResultReceiver, function: Callable[[*Ts], Any], *arguments: *Ts
    ) -> None:
        receiver.set_result(function(*arguments))


class ApiServer(Client):
    """Has the claims that a test creates."""

    def __init__(self) -> None:
        self.claims: dict[ClaimRef, ResourceClaim] = {}
        self.reads: list[str] = []

    async def get_claim(self, ref: ClaimRef, deadline: float) -> ResourceClaim:
        del deadline
        self.reads.append(ref.name)
        if ref not in self.claims:
            raise PermanentError(Reason.CLAIM_NOT_FOUND, f"claim {ref} does not exist")
        return self.claims[ref]


class PortPreparer:
    """A driver whose claims have one port each, and may take long or fail.

    Attributes:
        calls: What was called, for which claim.
        seconds: How long the calls for a claim take.
        errors: What they raise afterwards.
    """

    def __init__(self, prepared: PreparedClaims[PortClaimRecord]) -> None:
        self.calls: list[str] = []
        self.seconds: dict[str, float] = {}
        self.errors: dict[str, Exception] = {}
        self._prepared = prepared

    async def prepare(
        self, claim: ResourceClaim, deadline: float, notify: NotifyWaiting
    ) -> PrepareResult:
        del deadline, notify
        await self._call("prepare", claim.ref.name)
        assert claim.status.allocation is not None
        (result,) = claim.status.allocation.devices.results
        for holder in self._prepared.values():
            if any(device.device == result.device for device in holder.devices):
                raise DeviceInUseError(claim.ref, result.device, holder, (result.device,))
        await self._prepared.add(claim.ref, new := record(claim.ref.name, result.device))
        return new.prepare_result()

    async def prepare_again(self, record: PortClaimRecord, deadline: float) -> PrepareResult:
        del deadline
        await self._call("prepare again", record.name)
        return record.prepare_result()

    async def unprepare(self, record: PortClaimRecord, deadline: float) -> None:
        del deadline
        await self._call("unprepare", record.name)
        await self._prepared.remove(record.uid)

    async def _call(self, what: str, name: str) -> None:
        self.calls.append(f"{what} {name}")
        await asyncio.sleep(self.seconds.get(name, 0.0))
        if name in self.errors:
            raise self.errors[name]


class Setting:
    """A service with its state file."""

    def __init__(self, store: RecordStore, operations: SingleFlight[ClaimUID]) -> None:
        clock = LoopClock()
        self.api = ApiServer()
        self.prepared = PreparedClaims(store, PortClaimRecord, lambda *_: None)
        self.preparer = PortPreparer(self.prepared)
        self.telemetry = Telemetry(clock, PluginMetrics(driver=DRIVER, node=NODE), TraceRecorder())
        events = EventRecorder(self.api, DRIVER, NODE, clock.now)
        recovery: RecordRecovery[PortClaimRecord] = RecordRecovery(
            DRIVER,
            NODE,
            store,
            self.prepared,
            KubeletCheckpoint(Path("/nowhere")),
            no_records,
            events,
        )
        recovery.done.set()
        self.wait_queue = DeviceWaitQueue(self.prepared.wait_removed)
        self.root_spans = RootSpanWriter(NODE, self.api, store, self.telemetry)
        self.failures = FailureRecorder(NODE, events, self.telemetry, clock)
        self.service = ClaimService(
            ClaimReader(self.api, self.wait_queue, self.telemetry),
            self.preparer,
            recovery,
            self.wait_queue,
            operations,
            self.root_spans,
            self.failures,
            self.telemetry,
        )

    def create(self, **ports: str) -> None:
        for name, port in ports.items():
            self.api.claims[ref(name)] = claim(name, port)

    async def prepare(self, *names: str, seconds: float = 45.0) -> dict[str, PrepareResult | str]:
        refs = [ref(name) for name in names]
        answers = await self.service.prepare(refs, now() + seconds, None)
        return {each.name: answers[each.uid] for each in refs}

    async def unprepare(self, *names: str, seconds: float = 45.0) -> dict[str, str | None]:
        refs = [ref(name) for name in names]
        answers = await self.service.unprepare(refs, now() + seconds, None)
        return {each.name: answers[each.uid] for each in refs}


async def no_records(*_: object) -> AsyncGenerator[PortClaimRecord, None]:
    nothing: tuple[PortClaimRecord, ...] = ()
    for each in nothing:
        yield each


def now() -> float:
    return asyncio.get_running_loop().time()


Run = Callable[[Callable[[Setting], Coroutine[Any, Any, T]]], T]


@pytest.fixture
def run(tmp_path: Path) -> Run[Any]:
    """Runs a test in virtual time, with a service whose state file is real."""

    @asynccontextmanager
    async def opened() -> AsyncIterator[Setting]:
        path, clock = tmp_path / "state.sqlite", LoopClock()
        database = record_database.open_or_replace_corrupt(path, "boot", clock.now())
        store = RecordStore(path, "boot", clock, ThreadlessWorker("store"), database)
        try:
            async with SingleFlight[ClaimUID]() as operations:
                yield Setting(store, operations)
        finally:
            database.connection.close()

    def run_test(test: Callable[[Setting], Coroutine[Any, Any, T]]) -> T:
        async def main() -> T:
            async with opened() as setting:
                return await test(setting)

        return virtual_time.run_with_virtual_time(main)

    return run_test


def test_the_claims_of_a_call_are_prepared_at_the_same_time(run: Run[None]) -> None:
    async def test(setting: Setting) -> None:
        setting.create(a="port-1", b="port-2", c="port-3")
        setting.preparer.seconds = {"a": 3.0, "b": 3.0, "c": 1.0}
        assert await setting.prepare("a", "b", "c") == {
            "a": record("a", "port-1").prepare_result(),
            "b": record("b", "port-2").prepare_result(),
            "c": record("c", "port-3").prepare_result(),
        }
        assert now() == pytest.approx(3.0)
        setting.preparer.calls.clear()
        assert await setting.unprepare("a", "b", "c") == {"a": None, "b": None, "c": None}
        assert now() == pytest.approx(6.0)
        assert dict(setting.prepared) == {}

    run(test)


def test_each_claim_is_answered_by_itself_even_if_one_meets_a_bug(run: Run[None]) -> None:
    async def test(setting: Setting) -> None:
        setting.create(good="port-1", bad="port-2", bug="port-3")
        setting.preparer.errors = {"bad": BROKEN, "bug": ZeroDivisionError("secret")}
        answers = await setting.prepare("bug", "bad", "gone", "good")
        texts = {name: str(answer).partition(":")[0] for name, answer in answers.items()}
        assert answers["good"] == record("good", "port-1").prepare_result()
        assert [texts[name] for name in ("bug", "bad", "gone")] == [
            Reason.INTERNAL,
            Reason.UNKNOWN_DEVICE,
            Reason.CLAIM_NOT_FOUND,
        ]
        assert "secret" not in str(answers["bug"])
        assert set(setting.prepared) == {ref("good").uid}
        assert {(each.ref.name, each.reason) for each in setting.failures.latest()} == {
            ("bug", Reason.INTERNAL),
            ("bad", Reason.UNKNOWN_DEVICE),
            ("gone", Reason.CLAIM_NOT_FOUND),
        }

    run(test)


def test_a_claim_that_failed_is_prepared_by_the_next_call(run: Run[None]) -> None:
    async def test(setting: Setting) -> None:
        setting.create(a="port-1")
        setting.preparer.errors = {"a": ZeroDivisionError()}
        await setting.prepare("a")
        setting.preparer.errors.clear()
        assert await setting.prepare("a") == {"a": record("a", "port-1").prepare_result()}
        (failure,) = setting.failures.latest()
        assert failure.ended is not None

    run(test)


def test_a_claim_that_is_prepared_is_verified_and_not_read_again(run: Run[None]) -> None:
    async def test(setting: Setting) -> None:
        setting.create(a="port-1")
        first = await setting.prepare("a")
        setting.api.claims.clear()
        assert await setting.prepare("a") == first
        assert setting.preparer.calls == ["prepare a", "prepare again a"]
        assert setting.api.reads == ["a"]

    run(test)


def test_a_call_joins_the_prepare_that_another_call_has_started(run: Run[None]) -> None:
    async def test(setting: Setting) -> None:
        setting.create(a="port-1")
        setting.preparer.seconds = {"a": 5.0}
        async with asyncio.TaskGroup() as group:
            first = group.create_task(setting.prepare("a"))
            await asyncio.sleep(2.0)
            second = group.create_task(setting.prepare("a"))
        assert first.result() == second.result() == {"a": record("a", "port-1").prepare_result()}
        assert setting.preparer.calls == ["prepare a"]
        assert now() == pytest.approx(5.0)

    run(test)


def test_a_call_is_answered_before_its_deadline_while_the_work_goes_on(run: Run[None]) -> None:
    async def test(setting: Setting) -> None:
        setting.create(slow="port-1", quick="port-2")
        setting.preparer.seconds = {"slow": 15.0}
        answers = await setting.prepare("slow", "quick", seconds=10.0)
        assert now() == pytest.approx(9.0)
        assert str(answers["slow"]).startswith(f"{Reason.DEADLINE_EXCEEDED}:")
        assert answers["quick"] == record("quick", "port-2").prepare_result()
        again = await setting.prepare("slow", seconds=10.0)
        assert again == {"slow": record("slow", "port-1").prepare_result()}
        assert now() == pytest.approx(15.0)
        assert setting.preparer.calls == ["prepare slow", "prepare quick"]

    run(test)


def test_an_unprepare_follows_the_prepare_that_is_under_way(run: Run[None]) -> None:
    async def test(setting: Setting) -> None:
        setting.create(a="port-1")
        setting.preparer.seconds = {"a": 5.0}
        async with asyncio.TaskGroup() as group:
            prepare = group.create_task(setting.prepare("a"))
            await asyncio.sleep(1.0)
            unprepare = group.create_task(setting.unprepare("a"))
        assert prepare.result() == {"a": record("a", "port-1").prepare_result()}
        assert unprepare.result() == {"a": None}
        assert setting.preparer.calls == ["prepare a", "unprepare a"]
        assert dict(setting.prepared) == {}

    run(test)


def test_a_claim_whose_device_is_in_use_is_prepared_when_the_holder_is_unprepared(
    run: Run[None],
) -> None:
    async def test(setting: Setting) -> None:
        setting.create(old="port-1", new="port-1")
        await setting.prepare("old")
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(setting.prepare("new"))
            await asyncio.sleep(7.0)
            assert not waiting.done()
            await setting.unprepare("old")
        assert waiting.result() == {"new": record("new", "port-1").prepare_result()}
        assert now() == pytest.approx(7.0)
        assert setting.wait_queue.blocking_claims.get_nowait() == ref("old").uid
        (failure,) = setting.failures.latest()
        assert (failure.ref, failure.reason) == (ref("new"), Reason.DEVICE_IN_USE)
        assert failure.ended is not None

    run(test)


def test_a_claim_that_is_deleted_while_it_waits_is_not_prepared(run: Run[None]) -> None:
    async def test(setting: Setting) -> None:
        setting.create(old="port-1", new="port-1")
        await setting.prepare("old")
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(setting.prepare("new"))
            await asyncio.sleep(1.0)
            del setting.api.claims[ref("new")]
            await setting.unprepare("old")
        assert str(waiting.result()["new"]).startswith(f"{Reason.CLAIM_NOT_FOUND}:")
        assert dict(setting.prepared) == {}

    run(test)


def test_a_wait_for_a_device_ends_before_the_deadline_and_names_the_holder(run: Run[None]) -> None:
    async def test(setting: Setting) -> None:
        setting.create(old="port-1", new="port-1")
        await setting.prepare("old")
        answer = str((await setting.prepare("new", seconds=10.0))["new"])
        assert now() == pytest.approx(8.0)
        assert answer.startswith(f"{Reason.DEVICE_IN_USE}: port-1 is held by claim ml/old")

    run(test)


def test_an_unprepare_ends_the_wait_of_its_claim_at_once(run: Run[None]) -> None:
    async def test(setting: Setting) -> None:
        setting.create(old="port-1", new="port-1")
        await setting.prepare("old")
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(setting.prepare("new"))
            await asyncio.sleep(3.0)
            assert await setting.unprepare("new") == {"new": None}
        assert now() == pytest.approx(3.0)
        assert str(waiting.result()["new"]).startswith(f"{Reason.DEVICE_IN_USE}:")
        assert set(setting.prepared) == {ref("old").uid}

    run(test)


def test_a_claim_may_wait_again_after_an_unprepare_has_ended_its_wait(run: Run[None]) -> None:
    async def test(setting: Setting) -> None:
        setting.create(old="port-1", new="port-1")
        await setting.prepare("old")
        await setting.unprepare("new")
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(setting.prepare("new"))
            await asyncio.sleep(3.0)
            await setting.unprepare("old")
        assert waiting.result() == {"new": record("new", "port-1").prepare_result()}

    run(test)


def test_a_claim_may_wait_again_before_the_call_that_ended_its_wait_is_answered(
    run: Run[None],
) -> None:
    async def test(setting: Setting) -> None:
        setting.create(old="port-1", new="port-1", slow="port-2")
        await setting.prepare("old", "slow")
        setting.preparer.seconds = {"slow": 10.0}
        async with asyncio.TaskGroup() as group:
            group.create_task(setting.unprepare("new", "slow"))
            await asyncio.sleep(1.0)
            waiting = group.create_task(setting.prepare("new"))
            await asyncio.sleep(2.0)
            await setting.unprepare("old")
        assert waiting.result() == {"new": record("new", "port-1").prepare_result()}

    run(test)


def test_a_claim_without_a_record_needs_no_unprepare(run: Run[None]) -> None:
    async def test(setting: Setting) -> None:
        setting.prepared.unreadable[ref("unreadable").uid] = ref("unreadable")
        assert await setting.unprepare("never", "unreadable") == {"never": None, "unreadable": None}
        assert setting.preparer.calls == []
        assert setting.prepared.unreadable == {}

    run(test)


@pytest.mark.parametrize("is_prepared", [False, True])
def test_a_failed_prepare_is_over_once_the_claim_is_unprepared(
    run: Run[None], is_prepared: bool
) -> None:
    async def test(setting: Setting) -> None:
        setting.create(a="port-1")
        if is_prepared:
            await setting.prepare("a")
        setting.preparer.errors = {"a": BROKEN}
        await setting.prepare("a")
        (failure,) = setting.failures.latest()
        assert failure.ended is None
        setting.preparer.errors.clear()
        assert await setting.unprepare("a") == {"a": None}
        (failure,) = setting.failures.latest()
        assert failure.ended is not None

    run(test)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (BROKEN, Reason.UNKNOWN_DEVICE),
        (RetryableError(Reason.LOCK_TIMEOUT, "port-1 is busy"), Reason.LOCK_TIMEOUT),
        (ZeroDivisionError(), Reason.INTERNAL),
    ],
)
def test_an_unprepare_that_fails_is_answered_and_keeps_the_record(
    run: Run[None], error: Exception, reason: Reason
) -> None:
    async def test(setting: Setting) -> None:
        setting.create(a="port-1", b="port-2")
        await setting.prepare("a", "b")
        setting.preparer.errors = {"a": error}
        answers = await setting.unprepare("a", "b")
        assert answers["b"] is None
        assert str(answers["a"]).startswith(f"{reason}:")
        assert set(setting.prepared) == {ref("a").uid}

    run(test)


def test_a_stale_claim_is_unprepared_without_a_call_of_the_kubelet(run: Run[None]) -> None:
    async def test(setting: Setting) -> None:
        setting.create(a="port-1", b="port-2")
        await setting.prepare("a", "b")
        setting.preparer.errors = {"b": BROKEN}
        await setting.service.unprepare_stale(ref("a"), now() + 45.0)
        with pytest.raises(PermanentError, match="port-9 is not there"):
            await setting.service.unprepare_stale(ref("b"), now() + 45.0)
        assert set(setting.prepared) == {ref("b").uid}

    run(test)


def test_the_root_span_is_written_once_however_often_the_kubelet_asks(run: Run[None]) -> None:
    async def test(setting: Setting) -> None:
        setting.create(a="port-1")
        for error in (BROKEN, None):
            setting.preparer.errors = {"a": error} if error else {}
            await setting.prepare("a")
            setting.root_spans.flush()
        trace = setting.telemetry.recorder.trace(trace_ids.trace_id(ref("a").uid))
        assert trace is not None
        (root,) = [span for span in trace.spans if span.name == "claim"]
        attempts = [span for span in trace.spans if span.name == "prepare"]
        assert [span.parent for span in attempts] == [root.id, root.id]
        assert root.failure is not None
        assert root.failure.reason == Reason.UNKNOWN_DEVICE

    run(test)
