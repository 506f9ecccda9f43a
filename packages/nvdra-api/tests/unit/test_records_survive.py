"""The state store: what was acknowledged is there after a restart, a crash, in any order."""

import asyncio
import signal
import sqlite3
import subprocess
import sys
import tempfile
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import waiting
from hypothesis import given, settings
from hypothesis import strategies as st
from nvdra_api.runtime.node import database
from nvdra_api.runtime.node.store import ROOT_MEMORY, Record, Store
from nvdra_api.runtime.process.worker import Worker
from nvdra_api.types.claims import ClaimRef
from nvdra_api.types.errors import PermanentError, Reason, RetryableError
from nvdra_api.types.ids import ClaimUID


class MovedClock:
    """A clock that stands until the test moves it."""

    def __init__(self):
        self.time = datetime(2026, 8, 1, 12, 0, tzinfo=UTC)

    def now(self):
        return self.time

    def monotonic(self):
        return self.time.timestamp()


class CountingWorker(Worker):
    """How often the disk is asked."""

    calls = 0

    def hand(self, receiver, function, *arguments):
        self.calls += 1
        super().hand(receiver, function, *arguments)


def ref(number):
    return ClaimRef("ns", f"claim-{number}", ClaimUID(f"uid-{number}"))


def opened(path, boot_id="boot-1", clock=None):
    return Store.opened(path, boot_id, clock or MovedClock())


async def test_a_record_is_stamped_with_boot_and_times(tmp_path):
    clock = MovedClock()
    async with opened(tmp_path / "s", clock=clock) as store:
        began = clock.time
        started = await store.put(ref(1), "started", "{}")
        clock.time += timedelta(seconds=3)
        prepared = await store.put(ref(1), "prepared", '{"a":1}')
    assert started == Record(ref(1), "started", "boot-1", began, began, "{}")
    assert prepared == Record(ref(1), "prepared", "boot-1", began, clock.time, '{"a":1}')
    assert prepared.uid == "uid-1"
    async with opened(tmp_path / "s") as store:
        assert dict(store.records()) == {"uid-1": prepared}


async def test_a_record_of_another_boot_is_kept_and_says_so(tmp_path):
    async with opened(tmp_path / "s", boot_id="boot-1") as store:
        await store.put(ref(1), "prepared", "{}")
    async with opened(tmp_path / "s", boot_id="boot-2") as store:
        assert store.records()[ClaimUID("uid-1")].boot_id == "boot-1"
        assert (await store.put(ref(1), "prepared", "{}")).boot_id == "boot-2"


async def test_deleting_what_is_not_there_is_fine(tmp_path):
    async with opened(tmp_path / "s") as store:
        await store.delete(ClaimUID("uid-1"))
        assert dict(store.records()) == {}


async def test_only_the_owner_can_read_the_file(tmp_path):
    async with opened(tmp_path / "s") as store:
        await store.put(ref(1), "prepared", "{}")
        assert {path.stat().st_mode & 0o077 for path in tmp_path.iterdir()} == {0}


async def test_changes_that_queue_while_one_is_synced_share_the_next_sync(tmp_path):
    async with CountingWorker("store") as worker:
        path = tmp_path / "s"
        found = await worker.run(database.open_or_set_aside, path, "boot-1", datetime.now(UTC))
        store = Store(path, "boot-1", MovedClock(), worker, found)
        worker.calls = 0
        async with asyncio.TaskGroup() as group:
            for number in range(100):
                group.create_task(store.put(ref(number), "prepared", "{}"))
        assert worker.calls == 2
        await worker.run(found.connection.close)
    async with opened(path) as store:
        assert len(store.records()) == 100


async def test_a_change_is_made_even_if_its_caller_has_gone(tmp_path):
    async with opened(tmp_path / "s") as store:
        async with asyncio.TaskGroup() as group:
            gone = group.create_task(store.put(ref(1), "prepared", "{}"))
            await asyncio.sleep(0)
            gone.cancel()
        await store.put(ref(2), "prepared", "{}")
        assert set(store.records()) == {"uid-1", "uid-2"}


async def test_leaving_waits_for_what_is_queued(tmp_path):
    async with asyncio.TaskGroup() as group, opened(tmp_path / "s") as store:
        for number in range(10):
            group.create_task(store.put(ref(number), "prepared", "{}"))
        await asyncio.sleep(0)
    async with opened(tmp_path / "s") as store:
        assert len(store.records()) == 10


async def test_a_disk_that_refuses_is_told_and_changes_nothing(tmp_path):
    async with Worker("store") as worker:
        path = tmp_path / "s"
        found = await worker.run(database.open_or_set_aside, path, "boot-1", datetime.now(UTC))
        store = Store(path, "boot-1", MovedClock(), worker, found)
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


async def test_a_file_of_a_newer_release_is_refused_and_left_alone(tmp_path):
    path = tmp_path / "s"
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(PermanentError, match="has version 99, this release reads 1"):
        async with opened(path):
            pass
    assert [entry.name for entry in tmp_path.iterdir()] == ["s"]


async def test_a_directory_that_is_missing_is_told(tmp_path):
    with pytest.raises(RetryableError, match="No such file or directory"):
        async with opened(tmp_path / "nowhere" / "s"):
            pass


async def test_a_root_span_counts_as_written_for_an_hour_after_its_record(tmp_path):
    clock = MovedClock()
    uid = ClaimUID("uid-1")
    async with opened(tmp_path / "s", clock=clock) as store:
        assert not store.root_written(uid)
        await store.put(ref(1), "prepared", "{}")
        store.mark_root(uid)
        clock.time += 3 * ROOT_MEMORY
        store.mark_root(ClaimUID("uid-2"))
        assert store.root_written(uid)
        await store.delete(uid)
    async with opened(tmp_path / "s", clock=clock) as store:
        assert store.root_written(uid)
        clock.time += ROOT_MEMORY
        store.mark_root(ClaimUID("uid-3"))
        assert not store.root_written(uid)
        assert not store.root_written(ClaimUID("uid-2"))
    async with opened(tmp_path / "s", clock=clock) as store:
        assert not store.root_written(uid)
        assert store.root_written(ClaimUID("uid-3"))


def roots_on_disk(path):
    with closing(sqlite3.connect(path)) as connection:
        return {uid for (uid,) in connection.execute("SELECT uid FROM roots")}


async def test_the_mark_of_a_root_goes_to_the_disk_with_the_next_change(tmp_path):
    async with opened(tmp_path / "s") as store:
        store.mark_root(ClaimUID("uid-1"))
        assert store.root_written(ClaimUID("uid-1"))
        assert roots_on_disk(tmp_path / "s") == set()
        await store.put(ref(2), "prepared", "{}")
        assert roots_on_disk(tmp_path / "s") == {"uid-1"}


async def test_the_mark_of_a_root_goes_to_the_disk_by_itself_when_nothing_changes(tmp_path):
    async with opened(tmp_path / "s") as store:
        store.mark_root(ClaimUID("uid-1"))
        await waiting.until(lambda: roots_on_disk(tmp_path / "s") == {"uid-1"})


WRITER = """
import asyncio, sys
from pathlib import Path
from nvdra_api.runtime.node.store import Store
from nvdra_api.runtime.process.clock import SystemClock
from nvdra_api.types.claims import ClaimRef

async def main():
    async with Store.opened(Path(sys.argv[1]), "boot-1", SystemClock()) as store:
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


def test_what_was_acknowledged_before_the_process_was_killed_is_there(tmp_path):
    path = tmp_path / "s"
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True
    ) as writer:
        lines = [writer.stdout.readline() for _ in range(500)]
        writer.send_signal(signal.SIGKILL)
        lines += writer.stdout.readlines()
    told = dict(reversed(line.split()) for line in lines if line.endswith("\n"))

    async def look():
        async with opened(path) as store:
            assert store.doubt is None
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


@settings(max_examples=50, deadline=None)
@given(operations, st.booleans())
def test_any_order_of_changes_and_restarts_ends_with_what_was_asked_for(operations, at_once):
    async def apply(path, steps):
        async with opened(path) as store, asyncio.TaskGroup() as group:
            for step in steps:
                match step:
                    case ("put", number, state):
                        change = store.put(ref(number), state, "{}")
                    case ("delete", number):
                        change = store.delete(ref(number).uid)
                    case ("mark", number):
                        store.mark_root(ref(number).uid)
                        continue
                if at_once:
                    group.create_task(change)
                else:
                    await change

    async def look(path):
        async with opened(path) as store:
            states = {uid: record.state for uid, record in store.records().items()}
            return states, {n for n in range(5) if store.root_written(ref(n).uid)}

    wanted, marked, sessions = {}, set(), [[]]
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
