# SPDX-License-Identifier: Apache-2.0
"""Waits inside a call: in the order of coming, told of when they last, ended by who is asked to."""

import asyncio
from collections.abc import Iterable

import pytest
from nvdra_api.errors import DriverError, PermanentError, Reason, RetryableError
from nvdra_api.ids import ClaimUID
from nvdra_api.resource.claims import ClaimRef
from nvdra_runtime.claims.device_wait_queue import NOTIFY_AFTER_S, DeviceWaitQueue
from nvdra_runtime.claims.records import DeviceInUseError, PreparedClaimRecord


def ref(name: str) -> ClaimRef:
    return ClaimRef("ml", name, ClaimUID(f"uid-{name}"))


class Books:
    """Who holds what, as a driver's records say: one holder per place."""

    def __init__(self, **holders: str) -> None:
        self.holders = holders
        self.moved = asyncio.Event()

    async def released(self, uid: ClaimUID) -> None:
        while f"{uid}" in (f"uid-{holder}" for holder in self.holders.values()):
            await self.moved.wait()

    def move(self, place: str, holder: str) -> None:
        self.holders[place] = holder
        self.moved.set()
        self.moved = asyncio.Event()

    def refusal(self, wanted: ClaimRef, places: Iterable[str]) -> DeviceInUseError | None:
        for place in places:
            if holder := self.holders.get(place):
                held = PreparedClaimRecord(
                    namespace="ml", name=holder, uid=ref(holder).uid, devices=()
                )
                return DeviceInUseError(wanted, place, held, tuple(places))
        return None


def soon(seconds: float = 5.0) -> float:
    return asyncio.get_running_loop().time() + seconds


async def taken(
    turns: DeviceWaitQueue, books: Books, name: str, *places: str, until: float = 5.0
) -> None:
    """What a driver's prepare does: take the places once nobody else has them."""
    told: list[DriverError] = []
    async with turns.join(ref(name), soon(until), told.append) as turn:
        while refusal := books.refusal(ref(name), places):
            await turn.wait_released(refusal)
        for place in places:
            books.move(place, name)


async def test_those_that_wait_for_one_place_get_it_in_the_order_of_coming() -> None:
    books = Books(a="first")
    turns = DeviceWaitQueue(books.released)
    async with asyncio.TaskGroup() as group:
        order: list[str] = []

        async def wait(name: str) -> None:
            await taken(turns, books, name, "a")
            order.append(name)
            await asyncio.sleep(0)
            books.move("a", "")

        for name in ("second", "third", "fourth"):
            group.create_task(wait(name))
        await asyncio.sleep(0.01)
        assert order == []
        books.move("a", "")
    assert order == ["second", "third", "fourth"]


async def test_who_wants_another_place_is_not_held_up() -> None:
    books = Books(a="first")
    turns = DeviceWaitQueue(books.released)
    async with asyncio.TaskGroup() as group:
        group.create_task(taken(turns, books, "second", "a"))
        await asyncio.sleep(0.01)
        await taken(turns, books, "third", "b")
        assert books.holders == {"a": "first", "b": "third"}
        books.move("a", "")


async def test_the_holder_is_named_to_whoever_looks_after_claims_that_are_gone() -> None:
    books = Books(a="first")
    turns = DeviceWaitQueue(books.released)
    async with asyncio.TaskGroup() as group:
        group.create_task(taken(turns, books, "second", "a"))
        assert await turns.blocking_claims.get() == "uid-first"
        books.move("a", "")


@pytest.mark.parametrize("ending", ["deadline", "unprepare", "stop"])
async def test_a_wait_that_is_ended_fails_with_what_it_met(ending: str) -> None:
    books = Books(a="first")
    turns = DeviceWaitQueue(books.released)
    until = 0.05 if ending == "deadline" else 60
    waiting = asyncio.get_running_loop().create_task(
        taken(turns, books, "second", "a", until=until)
    )
    await asyncio.sleep(0.01)
    if ending == "unprepare":
        turns.cancel(ref("second").uid)
    elif ending == "stop":
        turns.close()
    with pytest.raises(DeviceInUseError, match="a is held by claim ml/first"):
        await asyncio.wait_for(waiting, 1)


async def test_a_wait_for_what_never_comes_fails_with_the_reason_and_only_that_wait() -> None:
    queue = DeviceWaitQueue(Books().released)
    waits_for = RetryableError(Reason.DAEMON_NOT_READY, "it is starting", "wait")
    gone = PermanentError(Reason.DOMAIN_NOT_FOUND, "it is gone", "nothing to do")
    queue.fail(ref("a").uid, gone)  # it does not wait yet
    waiting = asyncio.get_running_loop().create_task(queue.pause(ref("a"), waits_for, 60))
    await asyncio.sleep(0.01)
    queue.fail(ref("b").uid, waits_for)
    queue.fail(ref("a").uid, gone)
    with pytest.raises(PermanentError, match="it is gone"):
        await asyncio.wait_for(waiting, 1)
    with pytest.raises(RetryableError, match="it is starting"):
        await queue.pause(ref("a"), waits_for, -1)


async def test_a_claim_that_is_not_wanted_waits_for_nothing_until_it_is_wanted_again() -> None:
    turns = DeviceWaitQueue(Books().released)
    error = RetryableError(Reason.API_UNAVAILABLE, "no answer", "wait")
    turns.cancel(ref("a").uid)
    with pytest.raises(RetryableError, match="no answer"):
        await turns.pause(ref("a"), error, 60)
    await turns.pause(ref("b"), error, 0.01)
    turns.resume(ref("a").uid)
    await turns.pause(ref("a"), error, 0.01)


async def test_the_user_is_told_once_of_a_wait_that_lasts() -> None:
    books = Books(a="first")
    turns = DeviceWaitQueue(books.released)
    told: list[DriverError] = []
    async with turns.join(ref("second"), soon(NOTIFY_AFTER_S + 0.3), told.append) as turn:
        refusal = books.refusal(ref("second"), ["a"])
        assert refusal is not None
        with pytest.raises(DeviceInUseError):
            await turn.wait_released(refusal)
    assert told == [refusal]
