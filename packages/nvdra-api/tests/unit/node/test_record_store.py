# SPDX-License-Identifier: Apache-2.0
"""The state store: what was acknowledged is there after a restart, a crash, in any order."""

import asyncio
import signal
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVarTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nvdra_api.errors import PermanentError, Reason, RetryableError
from nvdra_api.ids import ClaimUID
from nvdra_api.resource.claims import ClaimRef
from nvdra_runtime.node import record_database
from nvdra_runtime.node.record_store import (
    MAX_ROOT_SPANS,
    ROOT_SPAN_RETENTION,
    RecordStore,
    StoredRecord,
)
from nvdra_runtime.process.worker import ResultReceiver, Worker
from nvdra_testing import polling


class MovedClock:
    """A clock that stands until the test moves it."""

    def __init__(self) -> None:
        self.time = datetime(2026, 8, 1, 12, 0, tzinfo=UTC)

    def now(self) -> Any:
        return self.time

    def monotonic(self) -> Any:
        return self.time.timestamp()


Ts = TypeVarTuple("Ts")


class CountingWorker(Worker):
    """How often the disk is asked."""

    calls = 0

    def submit_for(
        self, receiver: ResultReceiver, function: Callable[[*Ts], Any], *arguments: *Ts
    ) -> None:
        self.calls += 1
        super().submit_for(receiver, function, *arguments)


def ref(number: int) -> Any:
    return ClaimRef("ns", f"claim-{number}", ClaimUID(f"uid-{number}"))


def opened(path: Path, boot_id: str = "boot-1", clock: Any = None) -> Any:
    return RecordStore.open(path, boot_id, clock or MovedClock())


async def test_a_record_is_stamped_with_boot_and_times(tmp_path: Path) -> None:
    clock = MovedClock()
    async with opened(tmp_path / "s", clock=clock) as store:
        began = clock.time
        started = await store.put(ref(1), "started", "{}")
        clock.time += timedelta(seconds=3)
        prepared = await store.put(ref(1), "prepared", '{"a":1}')
    assert started == StoredRecord(ref(1), "started", "boot-1", began, began, "{}")
    assert prepared == StoredRecord(ref(1), "prepared", "boot-1", began, clock.time, '{"a":1}')
    assert prepared.uid == "uid-1"
    async with opened(tmp_path / "s") as store:
        assert dict(store.records()) == {"uid-1": prepared}


async def test_a_record_of_another_boot_is_kept_and_says_so(tmp_path: Path) -> None:
    async with opened(tmp_path / "s", boot_id="boot-1") as store:
        await store.put(ref(1), "prepared", "{}")
    async with opened(tmp_path / "s", boot_id="boot-2") as store:
        assert store.records()[ClaimUID("uid-1")].boot_id == "boot-1"
        assert (await store.put(ref(1), "prepared", "{}")).boot_id == "boot-2"


async def test_deleting_what_is_not_there_is_fine(tmp_path: Path) -> None:
    async with opened(tmp_path / "s") as store:
        await store.delete(ClaimUID("uid-1"))
        assert dict(store.records()) == {}


async def test_only_the_owner_can_read_the_file(tmp_path: Path) -> None:
    async with opened(tmp_path / "s") as store:
        await store.put(ref(1), "prepared", "{}")
        assert {path.stat().st_mode & 0o077 for path in tmp_path.iterdir()} == {0}


async def test_changes_that_queue_while_one_is_synced_share_the_next_sync(tmp_path: Path) -> None:
    async with CountingWorker("store") as worker:
        path = tmp_path / "s"
        found = await worker.run(
            record_database.open_or_replace_corrupt, path, "boot-1", datetime.now(UTC)
        )
        store = RecordStore(path, "boot-1", MovedClock(), worker, found)
        worker.calls = 0
        async with asyncio.TaskGroup() as group:
            for number in range(100):
                group.create_task(store.put(ref(number), "prepared", "{}"))
        assert worker.calls == 2
        await worker.run(found.connection.close)
    async with opened(path) as store:
        assert len(store.records()) == 100


async def test_a_change_is_made_even_if_its_caller_has_gone(tmp_path: Path) -> None:
    async with opened(tmp_path / "s") as store:
        async with asyncio.TaskGroup() as group:
            gone = group.create_task(store.put(ref(1), "prepared", "{}"))
            await asyncio.sleep(0)
            gone.cancel()
        await store.put(ref(2), "prepared", "{}")
        assert set(store.records()) == {"uid-1", "uid-2"}


async def test_leaving_waits_for_what_is_queued(tmp_path: Path) -> None:
    async with asyncio.TaskGroup() as group, opened(tmp_path / "s") as store:
        for number in range(10):
            group.create_task(store.put(ref(number), "prepared", "{}"))
        await asyncio.sleep(0)
    async with opened(tmp_path / "s") as store:
        assert len(store.records()) == 10


async def test_a_disk_that_refuses_is_told_and_changes_nothing(tmp_path: Path) -> None:
    async with Worker("store") as worker:
        path = tmp_path / "s"
        found = await worker.run(
            record_database.open_or_replace_corrupt, path, "boot-1", datetime.now(UTC)
        )
        store = RecordStore(path, "boot-1", MovedClock(), worker, found)
        await store.put(ref(1), "prepared", "{}")
        cursor = await worker.run(found.connection.execute, "PRAGMA max_page_count = 1")
        await worker.run(cursor.close)
        with pytest.raises(RetryableError, match="disk is full") as caught:
            await store.put(ref(1), "prepared", "x" * 100_000)
        assert caught.value.reason is Reason.STATE_UNAVAILABLE
        assert "disk is full" in store.problem
        assert store.records()[ClaimUID("uid-1")].payload == "{}"
        await store.delete(ClaimUID("uid-1"))
        assert store.problem == ""
        assert dict(store.records()) == {}
        await worker.run(found.connection.close)


async def test_a_file_of_a_newer_release_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "s"
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(PermanentError, match="has version 99, this release reads 1"):
        async with opened(path):
            pass
    assert [entry.name for entry in tmp_path.iterdir()] == ["s"]


async def test_a_directory_that_is_missing_is_told(tmp_path: Path) -> None:
    with pytest.raises(RetryableError, match="No such file or directory"):
        async with opened(tmp_path / "nowhere" / "s"):
            pass


async def test_a_root_span_counts_as_written_for_an_hour_after_its_record(tmp_path: Path) -> None:
    clock = MovedClock()
    uid = ClaimUID("uid-1")
    async with opened(tmp_path / "s", clock=clock) as store:
        assert not store.is_root_span_written(uid)
        await store.put(ref(1), "prepared", "{}")
        store.mark_root_span_written(uid)
        clock.time += 3 * ROOT_SPAN_RETENTION
        store.mark_root_span_written(ClaimUID("uid-2"))
        assert store.is_root_span_written(uid)
        await store.delete(uid)
    async with opened(tmp_path / "s", clock=clock) as store:
        assert store.is_root_span_written(uid)
        clock.time += ROOT_SPAN_RETENTION
        store.mark_root_span_written(ClaimUID("uid-3"))
        assert not store.is_root_span_written(uid)
        assert not store.is_root_span_written(ClaimUID("uid-2"))
    async with opened(tmp_path / "s", clock=clock) as store:
        assert not store.is_root_span_written(uid)
        assert store.is_root_span_written(ClaimUID("uid-3"))


def roots_on_disk(path: Path) -> Any:
    with closing(sqlite3.connect(path)) as connection:
        return {uid for (uid,) in connection.execute("SELECT uid FROM roots")}


async def test_the_mark_of_a_root_goes_to_the_disk_with_the_next_change(tmp_path: Path) -> None:
    async with opened(tmp_path / "s") as store:
        store.mark_root_span_written(ClaimUID("uid-1"))
        assert store.is_root_span_written(ClaimUID("uid-1"))
        assert roots_on_disk(tmp_path / "s") == set()
        await store.put(ref(2), "prepared", "{}")
        assert roots_on_disk(tmp_path / "s") == {"uid-1"}


async def test_the_mark_of_a_root_goes_to_the_disk_by_itself_when_nothing_changes(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path / "s") as store:
        store.mark_root_span_written(ClaimUID("uid-1"))
        await polling.wait_until(lambda: roots_on_disk(tmp_path / "s") == {"uid-1"})


WRITER = """
import asyncio, sys
from pathlib import Path
from nvdra_runtime.node.record_store import RecordStore
from nvdra_runtime.process.clock import SystemClock
from nvdra_api.resource.claims import ClaimRef

async def main():
    async with RecordStore.open(Path(sys.argv[1]), "boot-1", SystemClock()) as store:
        async def chain(name):
            number = 0
            while True:
                uid = f"{name}-{number}"
                await store.put(ClaimRef("ns", "claim", uid), "prepared", "x" * 500)
                print("put", uid, flush=True)
                if number % 3 == 0:
                    await store.delete(uid)
                    print("deleted", uid, flush=True)
                number += 1

        async with asyncio.TaskGroup() as group:
            for name in "abcdefgh":
                group.create_task(chain(name))

asyncio.run(main())
"""


def test_what_was_acknowledged_before_the_process_was_killed_is_there(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True
    ) as writer:
        assert writer.stdout is not None
        lines = [writer.stdout.readline() for _ in range(500)]
        assert all(lines), "the writer has ended by itself"
        writer.send_signal(signal.SIGKILL)
        lines += writer.stdout.readlines()
    pairs = (line.split() for line in lines if line.endswith("\n"))
    told = {second: first for first, second in pairs}

    async def look() -> Any:
        async with opened(path) as store:
            assert store.recovery_marker is None
            return set(store.records())

    held = asyncio.run(look())
    put = {uid for uid, verb in told.items() if verb == "put"}
    # A delete may have been committed and not told yet.
    assert {uid for uid in put - held if int(uid[2:]) % 3} == set()
    assert held & {uid for uid, verb in told.items() if verb == "deleted"} == set()


uids = st.integers(0, 4)
operations = st.lists(
    st.one_of(
        st.tuples(st.just("put"), uids, st.sampled_from(["started", "prepared"])),
        st.tuples(st.just("delete"), uids),
        st.tuples(st.just("mark"), uids),
        st.tuples(st.just("reopen")),
    ),
    max_size=15,
)


@settings(max_examples=50)
@given(operations, st.booleans())
def test_any_order_of_changes_and_restarts_ends_with_what_was_asked_for(
    operations: Any, at_once: Any
) -> None:
    async def apply(path: Path, steps: Any) -> None:
        async with opened(path) as store, asyncio.TaskGroup() as group:
            for step in steps:
                match step:
                    case ("put", number, state):
                        change = store.put(ref(number), state, "{}")
                    case ("delete", number):
                        change = store.delete(ref(number).uid)
                    case ("mark", number):
                        store.mark_root_span_written(ref(number).uid)
                        continue
                if at_once:
                    group.create_task(change)
                else:
                    await change

    async def look(path: Path) -> Any:
        async with opened(path) as store:
            states = {uid: record.state for uid, record in store.records().items()}
            return states, {n for n in range(5) if store.is_root_span_written(ref(n).uid)}

    wanted: dict[str, Any] = {}
    marked: set[str] = set()
    sessions: list[list[Any]] = [[]]
    for step in operations:
        match step:
            case ("put", number, state):
                wanted[ref(number).uid] = state
            case ("delete", number):
                wanted.pop(ref(number).uid, None)
            case ("mark", number):
                marked.add(number)
        if step == ("reopen",):
            sessions.append([])
        else:
            sessions[-1].append(step)
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "s")
        for steps in sessions:
            asyncio.run(apply(path, steps))
        assert asyncio.run(look(path)) == (wanted, marked)


async def test_roots_are_forgotten_by_the_process_that_has_written_them(tmp_path: Path) -> None:
    clock = MovedClock()
    async with opened(tmp_path / "s", clock=clock) as store:
        for number in range(3):
            store.mark_root_span_written(f"uid-{number}")
            clock.time += ROOT_SPAN_RETENTION
        assert [store.is_root_span_written(f"uid-{number}") for number in range(3)] == [
            *(False, False, True)
        ]
        await store.put(ref(9), "prepared", "{}")
        assert roots_on_disk(tmp_path / "s") == {"uid-2"}


async def test_the_oldest_roots_are_forgotten_when_there_are_too_many(tmp_path: Path) -> None:
    clock = MovedClock()
    others = [f"uid-of-{number}" for number in range(MAX_ROOT_SPANS + 10)]
    async with opened(tmp_path / "s", clock=clock) as store:
        await store.put(ref(1), "prepared", "{}")
        store.mark_root_span_written(ref(1).uid)
        for uid in others:
            clock.time += timedelta(milliseconds=1)
            store.mark_root_span_written(uid)
        known = {ref(1).uid, *filter(store.is_root_span_written, others)}
        assert store.is_root_span_written(ref(1).uid)
        assert len(known) <= MAX_ROOT_SPANS + 1  # beside the claim that is held
        assert known >= set(others[11:])
        await store.put(ref(2), "prepared", "{}")
        assert roots_on_disk(tmp_path / "s") == known


async def test_marks_after_a_change_go_to_the_disk_by_themselves_too(tmp_path: Path) -> None:
    async with opened(tmp_path / "s") as store:
        store.mark_root_span_written("uid-1")
        await store.put(ref(2), "prepared", "{}")
        store.mark_root_span_written("uid-3")
        await polling.wait_until(lambda: roots_on_disk(tmp_path / "s") == {"uid-1", "uid-3"})


async def test_a_started_record_is_not_where_earlier_releases_look(tmp_path: Path) -> None:
    """Release 0.1.0 answers the kubelet with every record of the table `records`."""
    path = tmp_path / "s"

    def seen_by_earlier_releases() -> list[str]:
        with closing(sqlite3.connect(path)) as connection:
            return [uid for (uid,) in connection.execute("SELECT uid FROM records")]

    async with opened(path) as store:
        await store.put(ref(1), "started", "{}")
        await store.put(ref(2), "prepared", "{}")
        assert seen_by_earlier_releases() == ["uid-2"]
        await store.put(ref(1), "prepared", '{"a":1}')
        await store.put(ref(2), "started", '{"b":1}')
        assert seen_by_earlier_releases() == ["uid-1"]
    async with opened(path) as store:
        states = {uid: record.state for uid, record in store.records().items()}
        assert states == {"uid-1": "prepared", "uid-2": "started"}
        await store.delete(ClaimUID("uid-1"))
        await store.delete(ClaimUID("uid-2"))
    async with opened(path) as store:
        assert dict(store.records()) == {}


async def test_a_claim_that_an_earlier_release_prepared_meanwhile_is_prepared(
    tmp_path: Path,
) -> None:
    """What was started is found again when that claim is gone."""
    path = tmp_path / "s"
    async with opened(path) as store:
        await store.put(ref(1), "started", "{}")
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(
            "INSERT INTO records SELECT uid, namespace, name, 'prepared', boot_id, created, "
            "updated, '[]' FROM started_records"
        )
        connection.commit()
    async with opened(path) as store:
        assert store.records()[ClaimUID("uid-1")].payload == "[]"
        await store.delete(ClaimUID("uid-1"))
    async with opened(path) as store:
        assert store.records()[ClaimUID("uid-1")].state == "started"


async def test_a_file_without_started_records_is_as_earlier_releases_write_it(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path / "s") as store:
        await store.put(ref(1), "prepared", "{}")
    with closing(sqlite3.connect(tmp_path / "s")) as connection:
        tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_schema")}
    assert "started_records" not in tables
