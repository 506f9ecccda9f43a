# SPDX-License-Identifier: Apache-2.0
"""The engine with a kind of change that no driver has: a file with the claim's UID."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from nvdra_api.errors import PermanentError, Reason, RetryableError
from nvdra_api.ids import ClaimUID, DeviceName, NodeName
from nvdra_runtime.claims.changes import Change, ChangeKind, ChangingRecord, Keep
from nvdra_runtime.claims.engine import Engine
from nvdra_runtime.claims.prepared_claims import PreparedClaims
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


class Node:
    """The engine of one process."""

    def __init__(self, root: Path, store: RecordStore) -> None:
        clock = SystemClock()
        self.kind = MarkKind(root)
        self.prepared = PreparedClaims(store, MarkRecord, lambda *_: None)
        telemetry = Telemetry(clock, PluginMetrics(driver="d", node=NodeName("n")), TraceRecorder())
        self.engine: Engine[MarkRecord] = Engine(
            lambda _: self.kind, (), self.prepared, lambda _: False, telemetry
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
