# SPDX-License-Identifier: Apache-2.0
"""Prepared claims in memory and in the record store."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

from nvdra_api.ids import ClaimUID
from nvdra_runtime.claims.prepared_claims import PreparedClaims
from nvdra_runtime.node.record_store import RecordStore
from nvdra_runtime.process.clock import SystemClock
from nvdra_testing.port_records import PortClaimRecord, record

Reports = list[tuple[dict[str, int], dict[str, int]]]


@asynccontextmanager
async def opened(path: Path, reports: Reports) -> AsyncIterator[PreparedClaims[PortClaimRecord]]:
    def note(claims: Mapping[str, int], devices: Mapping[str, int]) -> None:
        reports.append((dict(claims), dict(devices)))

    async with RecordStore.open(path / "state.sqlite", "boot", SystemClock()) as store:
        yield PreparedClaims(store, PortClaimRecord, note)


async def test_records_survive_a_restart_until_they_are_removed(
    tmp_path: Path,
) -> None:
    first, second = record(1, 3, 4), record(2, 7)
    async with opened(tmp_path, []) as prepared:
        await prepared.add(first.ref, first)
        await prepared.add(second.ref, second)
        await prepared.remove(first.uid)
        assert dict(prepared) == {second.uid: second}
    reports: Reports = []
    async with opened(tmp_path, reports) as prepared:
        assert dict(prepared) == {second.uid: second}
        assert prepared.prepared_at(second.uid) <= SystemClock().now()
    assert reports == [({"port": 1}, {"port": 1})]


async def test_a_claim_that_is_being_removed_still_says_since_when_it_was_prepared(
    tmp_path: Path,
) -> None:
    claim = record(1, 3)
    async with RecordStore.open(tmp_path / "state.sqlite", "boot", SystemClock()) as store:
        prepared = PreparedClaims(store, PortClaimRecord, lambda claims, devices: None)
        await prepared.add(claim.ref, claim)
        prepared_at = prepared.prepared_at(claim.uid)
        async with asyncio.TaskGroup() as group:
            group.create_task(prepared.remove(claim.uid))
            while claim.uid in store.records():  # noqa: ASYNC110 - no event marks this moment
                await asyncio.sleep(0)
            assert claim.uid in prepared  # it has left the disk and not yet the index
            assert prepared.prepared_at(claim.uid) == prepared_at
        assert claim.uid not in prepared


async def test_what_an_ended_claim_has_left_is_known_from_its_end_until_it_is_undone(
    tmp_path: Path,
) -> None:
    claim, other = record(1, 3), record(2, 4)
    ended_at = datetime(2026, 1, 2, tzinfo=UTC)
    ended = claim.model_copy(update={"is_released": True, "released_at": ended_at})
    changes: list[list[PortClaimRecord]] = []
    async with opened(tmp_path, []) as prepared:
        prepared.on_released_change(lambda: changes.append(prepared.released))
        for each in (claim, other):
            await prepared.add_started(each.ref, each)
            await prepared.add(each.ref, each)
        assert prepared.held_since(claim.uid) == prepared.prepared_at(claim.uid)
        await prepared.remove(other.uid)
        assert changes == [], "nothing is left of claims that are prepared and unprepared"
        await prepared.add_started(claim.ref, ended)
        assert changes == [[ended]]
        assert prepared.held_since(claim.uid) == ended_at
    async with opened(tmp_path, []) as prepared:
        assert prepared.released == [ended]
        prepared.on_released_change(lambda: changes.append(prepared.released))
        await prepared.add(claim.ref, claim)  # it is prepared anew
        await prepared.add_started(claim.ref, ended.model_copy(update={"released_at": None}))
        assert prepared.held_since(claim.uid) is None, "an earlier release has left it"
        await prepared.remove(claim.uid)
        assert [len(each) for each in changes] == [1, 0, 1, 0]


async def test_a_claim_that_is_added_again_counts_once(tmp_path: Path) -> None:
    reports: Reports = []
    async with opened(tmp_path, reports) as prepared:
        for lines in ((1, 2), (1, 2, 3)):
            await prepared.add(record(1).ref, record(1, *lines))
        assert reports[-1] == ({"port": 1}, {"port": 3})


async def test_an_unreadable_record_is_reported_until_its_claim_is_prepared_again(
    tmp_path: Path,
) -> None:
    whole, broken = record(1, 1), record(2, 2)
    async with RecordStore.open(tmp_path / "state.sqlite", "boot", SystemClock()) as store:
        await store.put(whole.ref, "prepared", whole.model_dump_json())
        await store.put(broken.ref, "prepared", '{"namespace": "ml"}')
    async with opened(tmp_path, []) as prepared:
        assert dict(prepared) == {whole.uid: whole}
        assert prepared.unreadable == {broken.uid: broken.ref}
        await prepared.add(broken.ref, broken)
        assert prepared.unreadable == {}
        assert set(prepared) == {whole.uid, broken.uid}


async def test_a_wait_ends_when_the_record_is_removed(tmp_path: Path) -> None:
    async with opened(tmp_path, []) as prepared, asyncio.TaskGroup() as group:
        await prepared.wait_removed(ClaimUID("uid-9"))  # not held: nothing to wait for
        await prepared.add(record(1).ref, record(1, 1))
        waiting = [group.create_task(prepared.wait_removed(ClaimUID("uid-1"))) for _ in range(2)]
        impatient = group.create_task(prepared.wait_removed(ClaimUID("uid-1")))
        await asyncio.sleep(0)
        impatient.cancel()
        await prepared.add(record(2).ref, record(2, 2))
        assert not any(task.done() for task in waiting)
        await prepared.remove(ClaimUID("uid-1"))
    assert all(task.done() for task in waiting)


async def test_a_record_is_of_the_boot_in_which_it_was_last_written(tmp_path: Path) -> None:
    claim, file = record(1, 3), tmp_path / "state.sqlite"
    async with RecordStore.open(file, "first boot", SystemClock()) as store:
        prepared = PreparedClaims(store, PortClaimRecord, lambda claims, devices: None)
        await prepared.add(claim.ref, claim)
        assert prepared.is_of_this_boot(claim.uid)
    for is_same_boot in (False, True):
        async with RecordStore.open(file, "second boot", SystemClock()) as store:
            prepared = PreparedClaims(store, PortClaimRecord, lambda claims, devices: None)
            assert prepared.is_of_this_boot(claim.uid) is is_same_boot
            await prepared.add(claim.ref, claim)
            assert prepared.is_of_this_boot(claim.uid)


async def test_a_started_record_holds_its_devices_and_is_told_from_an_answer(
    tmp_path: Path,
) -> None:
    claim = record(1, 3)
    async with opened(tmp_path, []) as prepared:
        await prepared.add_started(claim.ref, claim)
        assert prepared[claim.uid] == claim
        assert prepared.is_started(claim.uid)
        assert prepared.started == [claim]
    async with opened(tmp_path, []) as prepared:
        assert prepared.started == [claim]
        await prepared.add(claim.ref, claim)
        assert not prepared.is_started(claim.uid)
        assert prepared.started == []
    async with opened(tmp_path, []) as prepared:
        assert prepared.started == []
        await prepared.add_started(claim.ref, claim)
        await prepared.remove(claim.uid)
        assert prepared.started == []
        assert dict(prepared) == {}
