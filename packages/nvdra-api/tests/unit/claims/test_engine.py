# SPDX-License-Identifier: Apache-2.0
"""The engine with a kind of change that no driver has: a file with the claim's UID."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from nvdra_api.errors import PermanentError, Reason, RetryableError
from nvdra_api.ids import ClaimUID, DeviceName, NodeName
from nvdra_runtime.claims.changes import ChangeKind, ClaimFiles, Keep, LateKind
from nvdra_runtime.claims.engine import Engine, NotInForceError
from nvdra_runtime.claims.prepared_claims import PreparedClaims
from nvdra_runtime.claims.records import Change, ChangingRecord
from nvdra_runtime.node.record_store import RecordStore
from nvdra_runtime.process.clock import SystemClock
from nvdra_runtime.telemetry.instrumentation import Telemetry
from nvdra_runtime.telemetry.metrics.plugin_metrics import PluginMetrics
from nvdra_runtime.telemetry.recent_traces.recorder import TraceRecorder
from nvdra_testing.port_records import PortClaimRecord, record

UID = ClaimUID("uid-1")


class Mark(Change):
    """A file with the claim's UID."""

    FOUND = frozenset({"former"})

    name: str
    former: str | None = None

    @property
    def place(self) -> str:
        """One file is written after the other."""
        return "files"


class MarkRecord(PortClaimRecord, ChangingRecord):
    """A claim that marks files."""

    steps: tuple[Mark, ...] = ()


class MarkKind(ChangeKind[MarkRecord, Mark]):
    """Writes the file, and puts back what was in it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.problem: Exception | None = None
        self.killed_at = ""

    def _path(self, change: Mark) -> Path:
        if self.problem is not None:
            raise self.problem
        return self.root / change.name

    async def inspect(self, claim: MarkRecord, change: Mark) -> Mark:
        """What was in the file."""
        path = self._path(change)
        return change.model_copy(update={"former": path.read_text() if path.exists() else None})

    async def apply(self, claim: MarkRecord, change: Mark, keep: Keep[Mark]) -> Mark:
        """Write the file."""
        if change.name == self.killed_at:
            raise RuntimeError  # as good as a kill: nothing undoes what was made
        self._path(change).write_text(claim.uid)
        return change

    async def is_in_force(self, claim: MarkRecord, change: Mark) -> bool:
        """Whether the claim's UID is in it."""
        path = self._path(change)
        return path.exists() and path.read_text() == claim.uid

    async def revert(self, claim: MarkRecord, change: Mark) -> None:
        """Write what was in it."""
        path = self._path(change)
        path.unlink(missing_ok=True)
        if change.former is not None:
            path.write_text(change.former)


class LateMarkKind(LateKind[MarkRecord, Mark], MarkKind):
    """Writes the file, and waits for another one beside it."""

    needs_start = False

    def _waited_for(self, claim: MarkRecord) -> Path:
        return self.root / f"late-{claim.name}"

    async def is_in_force(self, claim: MarkRecord, change: Mark) -> bool:
        """Whether both are there."""
        return self._waited_for(claim).exists() and await super().is_in_force(claim, change)

    def pending(self, claim: MarkRecord) -> RetryableError:
        """Nothing was waited for yet."""
        return RetryableError(Reason.DAEMON_NOT_READY, f"{claim.name} waits", "wait")

    async def wait_in_force(self, claim: MarkRecord, deadline: float) -> None:
        """Make what is waited for."""
        del deadline
        self._waited_for(claim).touch()

    async def end(self, claim: MarkRecord) -> None:
        """Remove both."""
        self._waited_for(claim).unlink(missing_ok=True)
        for change in claim.steps:
            await self.revert(claim, change)


class Files:
    """`ClaimFiles` that only log what they are asked for."""

    def __init__(self) -> None:
        self.log: list[str] = []

    async def completed(self, record: MarkRecord, former: MarkRecord | None) -> MarkRecord:
        """The record with a pod for each call."""
        self.log.append(f"complete {len(record.steps)}" + ("" if former is None else " again"))
        return record.model_copy(update={"pods": (*record.pods, "pod")})

    @asynccontextmanager
    async def being_written(self, record: MarkRecord) -> AsyncIterator[None]:
        """Log it."""
        self.log.append(f"write {len(record.pods)}")
        yield

    async def withdraw(self, record: MarkRecord) -> None:
        """Log it."""
        self.log.append(f"withdraw {record.name}")

    @asynccontextmanager
    async def being_removed(self, record: MarkRecord) -> AsyncIterator[None]:
        """Log it."""
        self.log.append(f"remove {record.name}")
        yield


class Node:
    """The engine of one process."""

    def __init__(
        self,
        root: Path,
        store: RecordStore,
        kind: type[MarkKind] = MarkKind,
        files: tuple[ClaimFiles[MarkRecord], ...] = (),
    ) -> None:
        clock = SystemClock()
        self.kind = kind(root)
        self.prepared = PreparedClaims(store, MarkRecord, lambda *_: None)
        telemetry = Telemetry(clock, PluginMetrics(driver="d", node=NodeName("n")), TraceRecorder())
        self.engine: Engine[MarkRecord] = Engine(
            lambda _: self.kind, files, self.prepared, lambda _: False, telemetry
        )

    async def prepare(self, claim: MarkRecord) -> None:
        async def verify() -> None:
            """Everything is as it should be."""

        await self.engine.prepare(claim, verify)


@asynccontextmanager
async def opened(root: Path, boot: str = "boot-1") -> AsyncIterator[Node]:
    async with RecordStore.open(root / "state.sqlite", boot, SystemClock()) as store:
        yield Node(root, store)


def claim(*names: str) -> MarkRecord:
    fields: dict[str, Any] = record(1, 3).model_dump()
    marks = tuple(Mark(device=DeviceName("port-3"), name=name) for name in names)
    return MarkRecord.model_validate(fields | {"uid": UID, "steps": marks})


def marked(root: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in root.glob("mark-*")}


async def test_a_change_is_made_and_undone(tmp_path: Path) -> None:
    (tmp_path / "mark-a").write_text("before")
    async with opened(tmp_path) as node:
        await node.prepare(claim("mark-a", "mark-b"))
        assert marked(tmp_path) == {"mark-a": UID, "mark-b": UID}
        assert not node.prepared.is_started(UID)
        await node.engine.release(node.prepared[UID], may_use_devices=True)
        assert marked(tmp_path) == {"mark-a": "before"}
        assert dict(node.prepared) == {}


async def test_a_failed_attempt_leaves_nothing_and_a_killed_one_is_resumed(tmp_path: Path) -> None:
    (tmp_path / "mark-a").write_text("before")
    async with opened(tmp_path) as node:
        node.kind.killed_at = "mark-b"
        with pytest.raises(RuntimeError):
            await node.prepare(claim("mark-a", "mark-b"))
        assert marked(tmp_path) == {"mark-a": UID}
    async with opened(tmp_path) as node:
        assert [each.uid for each in node.engine.left_over] == [UID]
        await node.prepare(claim("mark-a", "mark-b"))
        await node.engine.release(node.prepared[UID], may_use_devices=True)
        assert marked(tmp_path) == {"mark-a": "before"}
        node.kind.problem = PermanentError(Reason.INVALID_CONFIG, "no")
        with pytest.raises(PermanentError):
            await node.prepare(claim("mark-a"))
        assert dict(node.prepared) == {}


async def test_what_is_gone_is_made_again(tmp_path: Path) -> None:
    async with opened(tmp_path) as node:
        await node.prepare(claim("mark-a"))
        (tmp_path / "mark-a").unlink()
        await node.engine.restore(node.prepared[UID])
        assert marked(tmp_path) == {"mark-a": UID}
    (tmp_path / "mark-a").write_text("of this boot")
    async with opened(tmp_path, "boot-2") as node:
        await node.engine.restore(node.prepared[UID])
        assert marked(tmp_path) == {"mark-a": UID}
        await node.engine.release(node.prepared[UID], may_use_devices=True)
        assert marked(tmp_path) == {"mark-a": "of this boot"}


async def test_a_device_that_does_not_work_keeps_no_claim_and_one_in_use_does(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path) as node:
        await node.prepare(claim("mark-a"))
        node.kind.problem = RetryableError(Reason.DEVICE_IN_USE, "PID 7 uses it")
        with pytest.raises(RetryableError, match="PID 7"):
            await node.engine.release(node.prepared[UID], may_use_devices=True)
        assert not node.prepared[UID].is_released
        node.kind.problem = PermanentError(Reason.DEVICE_UNHEALTHY, "it is lost")
        await node.engine.release(node.prepared[UID], may_use_devices=True)
        (left,) = node.engine.left_over
        assert left.is_released
        node.kind.problem = None
        await node.engine.revert(left)
        assert dict(node.prepared) == {}
        assert marked(tmp_path) == {}


async def test_of_an_earlier_boot_nothing_is_undone(tmp_path: Path) -> None:
    async with opened(tmp_path) as node:
        await node.prepare(claim("mark-a"))
    (tmp_path / "mark-a").write_text("of this boot")
    async with opened(tmp_path, "boot-2") as node:
        await node.engine.release(node.prepared[UID], may_use_devices=False)
        assert dict(node.prepared) == {}
        assert marked(tmp_path) == {"mark-a": "of this boot"}


async def test_a_claim_that_was_unprepared_meanwhile_does_not_come_back(tmp_path: Path) -> None:
    async with opened(tmp_path) as node:
        await node.prepare(claim())
        former = node.prepared[UID]
        await node.engine.release(former, may_use_devices=True)
        await node.engine.restore(former.model_copy(update={"pods": ("pod-1",)}))
        assert dict(node.prepared) == {}


async def test_files_complete_a_record_before_its_first_commit_and_when_it_is_made_again(
    tmp_path: Path,
) -> None:
    files = Files()
    async with RecordStore.open(tmp_path / "state.sqlite", "boot-1", SystemClock()) as store:
        node = Node(tmp_path, store, files=(files,))
        pods = len(claim().pods)
        await node.prepare(claim("mark-a"))
        assert files.log == ["complete 1", f"write {pods + 1}"]
        assert len(node.prepared[UID].pods) == pods + 1
        await node.engine.restore(node.prepared[UID])
        assert files.log[2:] == [f"write {pods + 1}"]
        (tmp_path / "mark-a").unlink()
        await node.engine.restore(node.prepared[UID])
        assert files.log[3:] == ["complete 1 again", f"write {pods + 2}"]
        assert len(node.prepared[UID].pods) == pods + 2


async def test_a_change_that_needs_no_start_is_recorded_and_then_made_by_restore(
    tmp_path: Path,
) -> None:
    async with RecordStore.open(tmp_path / "state.sqlite", "boot-1", SystemClock()) as store:
        node = Node(tmp_path, store, LateMarkKind)
        await node.engine.commit(claim("mark-a").begun("boot-1"))
        assert not node.prepared.is_started(UID), "it is an answer that restore completes"
        assert marked(tmp_path) == {}
        for _ in range(2):  # an attempt that fails in between keeps the record and the change
            with pytest.raises(NotInForceError, match="waits") as waiting:
                await node.engine.restore(node.prepared[UID])
            assert marked(tmp_path) == {"mark-a": UID}
        assert await node.engine.not_in_force() == [UID]
        await node.engine.wait_in_force(waiting.value, deadline=0)
        await node.engine.restore(node.prepared[UID])
        assert await node.engine.not_in_force() == []
        await node.engine.release(node.prepared[UID], may_use_devices=True)
        assert dict(node.prepared) == {}
        assert marked(tmp_path) == {}


async def test_a_change_that_needs_no_start_is_never_written_as_started(tmp_path: Path) -> None:
    async with RecordStore.open(tmp_path / "state.sqlite", "boot-1", SystemClock()) as store:
        node = Node(tmp_path, store, LateMarkKind)
        await node.engine.commit(claim("mark-a").begun("boot-1"))
        node.kind.problem = RetryableError(Reason.API_UNAVAILABLE, "no")
        with pytest.raises(RetryableError):
            await node.engine.release(node.prepared[UID], may_use_devices=True)
        assert not node.prepared.is_started(UID)
