# SPDX-License-Identifier: Apache-2.0
"""A state file that is damaged or gone: nothing that memory has is lost, and no doubt is hidden."""

import asyncio
import sqlite3
import sys
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from nvdra_api.errors import Reason, RetryableError
from nvdra_api.ids import ClaimUID
from nvdra_api.resource.claims import ClaimRef
from nvdra_runtime.node import corrupt_files, record_database
from nvdra_runtime.node.record_database import Statement, StoredRecord
from nvdra_runtime.node.record_store import RecordStore


class MovedClock:
    """A clock that stands until the test moves it."""

    def __init__(self) -> None:
        self.time = datetime(2026, 8, 1, 12, 0, tzinfo=UTC)

    def now(self) -> Any:
        return self.time

    def monotonic(self) -> float:
        return 0.0


def ref(number: int) -> Any:
    return ClaimRef("ns", f"claim-{number}", ClaimUID(f"uid-{number}"))


def opened(path: Path, boot_id: str = "boot-1", clock: Any = None) -> Any:
    return RecordStore.open(path, boot_id, clock or MovedClock())


async def filled(path: Path, count: int = 200) -> None:
    async with opened(path) as store:
        await fill(store, range(count))


async def fill(store: RecordStore, numbers: Any) -> None:
    async with asyncio.TaskGroup() as group:
        for number in numbers:
            group.create_task(store.put(ref(number), "prepared", "x" * 200))


def with_garbage(path: Path) -> None:
    path.write_bytes(b"this is no database, however long one looks at it" * 100)


def with_a_wrong_page(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[4096:12288] = b"\xff" * 8192
    path.write_bytes(content)


def cut_in_half(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def cut_to_nothing(path: Path) -> None:
    path.write_bytes(b"")


def changed_by(sql: str) -> Any:
    """A damage that SQLite's own check does not find."""

    def damage(path: Path) -> None:
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute(sql)

    return pytest.param(damage, id=sql)


DAMAGES = [with_garbage, with_a_wrong_page, cut_in_half, cut_to_nothing]
UNNOTICED = [
    changed_by("UPDATE records SET state = 'somehow'"),
    changed_by("UPDATE records SET payload = CAST(x'ff' AS TEXT)"),
    changed_by("UPDATE records SET payload = x'7b7d'"),
    changed_by("UPDATE records SET created = x'ff'"),
    changed_by("INSERT INTO roots VALUES (CAST(x'ff' AS TEXT), '2026-08-01T12:00:00+00:00')"),
    changed_by("INSERT INTO roots VALUES ('uid', x'ff')"),
    changed_by("INSERT INTO roots VALUES (NULL, '2026-08-01T12:00:00+00:00')"),
    changed_by("DROP TABLE records"),
    changed_by("ALTER TABLE records RENAME COLUMN payload TO payloae"),
]


@pytest.mark.parametrize("damage", [*DAMAGES, *UNNOTICED])
async def test_what_cannot_be_read_at_the_start_is_set_aside_and_in_doubt_until_settled(
    tmp_path: Path, damage: Any
) -> None:
    path = tmp_path / "s"
    await filled(path)
    damage(path)
    for _ in range(2):  # also for the next process, should this one die
        async with opened(path) as store:
            assert store.recovery_marker is not None
            assert store.recovery_marker.corrupt_file == tmp_path / "s.corrupt-20260801T120000Z"
            assert store.recovery_marker.corrupt_file.exists()
            await store.put(ref(1), "prepared", "{}")
            assert len(store.records()) == 1
    async with opened(path) as store:
        await store.finish_recovery()
        assert store.recovery_marker is None
    async with opened(path) as store:
        assert store.recovery_marker is None
        assert len(store.records()) == 1


async def test_a_doubt_ends_with_the_boot_of_the_pods_it_is_about(tmp_path: Path) -> None:
    path = tmp_path / "s"
    await filled(path, 1)
    cut_to_nothing(path)
    async with opened(path) as store:
        assert store.recovery_marker is not None
    async with opened(path, boot_id="boot-2") as store:
        assert store.recovery_marker is None
    async with opened(path) as store:
        assert store.recovery_marker is None


async def test_a_doubt_ends_when_its_file_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "s"
    await filled(path, 1)
    cut_to_nothing(path)
    async with opened(path) as store:
        store.recovery_marker.path.unlink()
    async with opened(path) as store:
        assert store.recovery_marker is None


async def test_a_process_that_died_between_two_steps_of_setting_aside_leaves_the_doubt(
    tmp_path: Path,
) -> None:
    path = tmp_path / "s"
    await filled(path, 1)
    corrupt_files.move_aside(path, "boot-1", datetime(2026, 8, 1, tzinfo=UTC))
    assert not path.exists()
    async with opened(path) as store:
        assert store.recovery_marker is not None
        assert dict(store.records()) == {}


async def test_a_first_start_that_was_cut_off_leaves_no_doubt(tmp_path: Path) -> None:
    path = tmp_path / "s"
    (tmp_path / "s.new").write_bytes(b"half")
    async with opened(path) as store:
        assert store.recovery_marker is None
        await store.put(ref(1), "prepared", "{}")
    assert {entry.name for entry in tmp_path.iterdir()} == {"s"}


async def test_what_was_set_aside_before_is_not_overwritten_whatever_the_clock_says(
    tmp_path: Path,
) -> None:
    path, clock = tmp_path / "s", MovedClock()
    for hours in (1, -1, 0):
        clock.time += timedelta(hours=hours)
        path.write_bytes(b"no database, the %d th" % hours)
        async with opened(path, clock=clock):
            pass
    aside = sorted(entry.name for entry in tmp_path.iterdir() if "corrupt" in entry.name)
    assert aside == [
        "s.corrupt-20260801T120000Z",
        "s.corrupt-20260801T120000Z-2",
        "s.corrupt-20260801T130000Z",
    ]


@pytest.mark.parametrize("damage", [*DAMAGES, lambda path: path.unlink()])
async def test_a_file_that_is_damaged_while_it_is_used_is_written_anew_from_memory(
    tmp_path: Path, damage: Any
) -> None:
    path = tmp_path / "s"
    await filled(path)
    async with opened(path) as store:
        store.mark_root_span_written(ref(7).uid)
        damage(path)
        # What SQLite has not looked at again it cannot know: a change makes it look.
        await fill(store, range(200, 300))
        await fill(store, range(300, 400))
        await store.delete(ref(0).uid)
        assert store.problem == ""
        assert store.recovery_marker is None
        known = dict(store.records())
        assert len(known) == 399
    async with opened(path) as store:
        assert store.recovery_marker is None
        assert dict(store.records()) == known
        assert store.is_root_span_written(ref(7).uid)


async def test_a_directory_that_is_removed_with_the_file_is_made_again(tmp_path: Path) -> None:
    path = tmp_path / "d" / "s"
    path.parent.mkdir()
    async with opened(path) as store:
        await store.put(ref(1), "prepared", "{}")
        for entry in path.parent.iterdir():
            entry.unlink()
        path.parent.rmdir()
        await store.put(ref(2), "prepared", "{}")
    async with opened(path) as store:
        assert set(store.records()) == {"uid-1", "uid-2"}


async def test_a_file_that_cannot_be_written_anew_yet_is_as_soon_as_it_can(tmp_path: Path) -> None:
    path = tmp_path / "d" / "s"
    path.parent.mkdir()
    async with opened(path) as store:
        await store.put(ref(1), "prepared", "{}")
        path.parent.rename(tmp_path / "moved")
        path.parent.write_text("a file in the directory's place")
        with pytest.raises(RetryableError) as caught:
            await store.put(ref(2), "prepared", "{}")
        assert caught.value.reason is Reason.STATE_UNAVAILABLE
        assert store.problem
        assert set(store.records()) == {"uid-1"}
        path.parent.unlink()
        await store.put(ref(3), "prepared", "{}")
        assert store.problem == ""
    async with opened(path) as store:
        assert set(store.records()) == {"uid-1", "uid-3"}


async def test_a_doubt_is_not_ended_by_a_later_damage(tmp_path: Path) -> None:
    path = tmp_path / "s"
    await filled(path, 1)
    cut_to_nothing(path)
    async with opened(path) as store:
        path.unlink()
        await store.put(ref(2), "prepared", "{}")
        assert store.recovery_marker is not None
    async with opened(path) as store:
        assert store.recovery_marker is not None


DYING = """
import os, sys
from datetime import UTC, datetime
from pathlib import Path
from nvdra_runtime.node import record_database

path = Path(sys.argv[1])
moved = False

def die_after_the_move(event, arguments):
    global moved
    if moved and event in ("open", "os.rename", "os.remove"):
        os._exit(9)
    if event == "os.rename" and str(arguments[0]) == str(path):
        moved = True

sys.addaudithook(die_after_the_move)
record_database.open_or_replace_corrupt(path, "boot-1", datetime(2026, 8, 1, tzinfo=UTC))
"""


async def test_a_process_that_dies_right_after_the_move_leaves_the_doubt(tmp_path: Path) -> None:
    path = tmp_path / "s"
    await filled(path, 1)
    cut_to_nothing(path)
    died = await asyncio.create_subprocess_exec(sys.executable, "-c", DYING, str(path))
    assert await died.wait() == 9
    assert not path.exists(), "it died after the move"
    async with opened(path) as store:
        assert store.recovery_marker is not None
        assert store.recovery_marker.corrupt_file == tmp_path / "s.corrupt-20260801T000000Z"


async def test_the_log_of_a_file_that_is_gone_is_not_replayed_into_a_new_one(
    tmp_path: Path,
) -> None:
    path = tmp_path / "s"
    async with opened(path) as store:
        await fill(store, range(200))
        log = path.with_name("s-wal").read_bytes()
        assert log
    path.unlink()
    path.with_name("s-wal").write_bytes(log)
    async with opened(path) as store:
        assert dict(store.records()) == {}
        await store.put(ref(1), "prepared", "{}")
    async with opened(path) as store:
        assert set(store.records()) == {"uid-1"}


async def test_a_file_that_is_written_anew_knows_which_root_spans_are_written(
    tmp_path: Path,
) -> None:
    path = tmp_path / "s"
    async with opened(path) as store:
        store.mark_root_span_written(ref(7).uid)
        await store.put(ref(1), "prepared", "{}")  # the mark is on the disk with it
        path.unlink()
        await store.put(ref(2), "prepared", "{}")
    async with opened(path) as store:
        assert store.is_root_span_written(ref(7).uid)
        assert set(store.records()) == {"uid-1", "uid-2"}


def record(number: int) -> StoredRecord:
    now = datetime(2026, 8, 1, tzinfo=UTC)
    return StoredRecord(ref(number), "prepared", "boot-1", now, now, "{}")


def test_changes_of_which_one_fails_are_not_made_and_hinder_no_later_ones(tmp_path: Path) -> None:
    path, now = tmp_path / "s", datetime(2026, 8, 1, tzinfo=UTC)
    found = record_database.open_or_replace_corrupt(path, "boot-1", now)
    failing = [
        *record_database.put_record(record(1), has_started=False),
        Statement("INSERT INTO nothing", ()),
    ]
    with pytest.raises(sqlite3.OperationalError):
        record_database.commit(found.connection, path, found.file_identity, failing)
    fine = record_database.put_record(record(2), has_started=False)
    record_database.commit(found.connection, path, found.file_identity, fine)
    found.connection.close()
    again = record_database.open_or_replace_corrupt(path, "boot-1", now)
    again.connection.close()
    assert again.records == (record(2),)


def test_an_error_of_pythons_own_is_no_damage(tmp_path: Path) -> None:
    path, now = tmp_path / "s", datetime(2026, 8, 1, tzinfo=UTC)
    found = record_database.open_or_replace_corrupt(path, "boot-1", now)
    found.connection.close()
    statements = record_database.put_record(record(1), has_started=False)
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        record_database.commit(found.connection, path, found.file_identity, statements)


async def test_a_file_that_was_put_in_its_place_is_set_aside_and_not_overwritten(
    tmp_path: Path,
) -> None:
    path = tmp_path / "s"
    async with opened(path) as store:
        await store.put(ref(1), "prepared", "{}")
        (tmp_path / "other").write_bytes(b"somebody's")
        (tmp_path / "other").rename(path)
        for number in (2, 3, 4):  # only the first of them finds it
            await store.put(ref(number), "prepared", "{}")
        assert store.problem == ""
    (aside,) = tmp_path.glob("s.corrupt-*T120000Z")
    assert aside.read_bytes() == b"somebody's"
    logs = {f"{aside.name}-wal", f"{aside.name}-shm"}
    assert {each.name for each in tmp_path.glob("s.corrupt-*")} == {aside.name, *logs}
    async with opened(path) as store:
        assert set(store.records()) == {"uid-1", "uid-2", "uid-3", "uid-4"}
