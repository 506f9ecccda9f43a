# SPDX-License-Identifier: Apache-2.0
"""Locks per key: who gets them, in which order, and what is told when it takes too long."""

import asyncio
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nvdra_api.errors import Reason, RetryableError
from nvdra_runtime.process.locks import KeyedLocks, LockWait
from nvdra_testing import virtual_time


def now() -> Any:
    return asyncio.get_running_loop().time()


def test_free_keys_are_held_at_once_even_past_the_deadline() -> None:
    async def main() -> Any:
        async with KeyedLocks[str]().hold(["b", "a"], holder="claim-1", deadline=-1.0) as waited:
            return waited

    assert virtual_time.run_with_virtual_time(main) == LockWait(0.0, None)


def test_a_key_named_twice_is_held_once() -> None:
    async def main() -> Any:
        locks = KeyedLocks[str]()
        async with locks.hold(["a", "a"], holder="claim-1", deadline=0.0):
            pass
        async with locks.hold(["a"], holder="claim-2", deadline=0.0) as waited:
            return waited

    assert virtual_time.run_with_virtual_time(main) == LockWait(0.0, None)


def test_free_keys_can_be_taken_without_a_wait_and_the_rest_is_waited_for() -> None:
    async def main() -> Any:
        locks = KeyedLocks[str]()
        first = locks.hold(["b"], holder="first", deadline=0.0)
        second = locks.hold(["a", "b", "c"], holder="second", deadline=60.0)
        third = locks.hold(["c"], holder="third", deadline=0.0)
        taken = first.try_acquire(), second.try_acquire(), second.try_acquire(), third.try_acquire()
        third.release()
        asyncio.get_running_loop().call_later(2.0, first.release)
        waited = await second.acquire()
        again = await second.acquire()
        second.release()
        second.release()
        is_free = locks.hold("abc", holder="last", deadline=0.0).try_acquire()
        return taken, waited, again, is_free

    assert virtual_time.run_with_virtual_time(main) == (
        (True, False, False, True),
        LockWait(2.0, "first"),
        LockWait(0.0, None),
        True,
    )


def test_who_waits_is_told_for_how_long_and_for_whom() -> None:
    async def main() -> Any:
        locks = KeyedLocks[str]()
        told = []

        async def holds(name: str, seconds: float) -> None:
            async with locks.hold(["gpu"], holder=name, deadline=60.0) as waited:
                told.append(waited)
                await asyncio.sleep(seconds)

        async with asyncio.TaskGroup() as group:
            for name in ("first", "second", "third"):
                group.create_task(holds(name, 2.0))
        return told

    assert virtual_time.run_with_virtual_time(main) == [
        LockWait(0.0, None),
        LockWait(2.0, "first"),
        LockWait(4.0, "first"),
    ]


def test_past_the_deadline_the_key_is_named_and_to_operators_its_holder() -> None:
    async def main() -> None:
        locks = KeyedLocks[str]()
        async with (
            locks.hold(["0000:3b:00.0"], holder="ns/other:uid-1", deadline=0.0),
            locks.hold(["0000:3b:00.0"], holder="ns/mine:uid-2", deadline=3.5),
        ):
            pass

    with pytest.raises(RetryableError) as caught:
        virtual_time.run_with_virtual_time(main)
    assert caught.value.reason is Reason.LOCK_TIMEOUT
    assert caught.value.message == "0000:3b:00.0 is in use by another claim; waited 3.5 s for it"
    assert "ns/other" not in str(caught.value)
    assert caught.value.operator_message == (
        "0000:3b:00.0 is in use by ns/other:uid-1; waited 3.5 s for it"
    )
    assert caught.value.facts == {
        "key": "0000:3b:00.0",
        "holder": "ns/other:uid-1",
        "waiter": "ns/mine:uid-2",
    }


def test_keys_already_taken_are_let_go_when_a_later_one_takes_too_long() -> None:
    async def main() -> Any:
        locks = KeyedLocks[str]()
        async with locks.hold(["b"], holder="claim-1", deadline=0.0):
            with pytest.raises(RetryableError):
                async with locks.hold(["a", "b"], holder="claim-2", deadline=1.0):
                    pass
            async with locks.hold(["a"], holder="claim-3", deadline=0.0) as waited:
                return waited

    assert virtual_time.run_with_virtual_time(main) == LockWait(0.0, None)


def test_two_claims_that_want_the_same_boards_cannot_block_each_other() -> None:
    async def main() -> Any:
        locks = KeyedLocks[str]()
        order = []

        async def holds(name: str, keys: Any) -> None:
            async with locks.hold(keys, holder=name, deadline=60.0):
                order.append(name)
                await asyncio.sleep(1.0)

        async with asyncio.TaskGroup() as group:
            group.create_task(holds("x", ["a", "b"]))
            group.create_task(holds("y", ["b", "a"]))
        return order

    assert virtual_time.run_with_virtual_time(main) == ["x", "y"]


def test_who_waits_for_its_first_key_holds_none_of_the_later_ones() -> None:
    async def main() -> Any:
        locks = KeyedLocks[str]()
        async with asyncio.TaskGroup() as group:

            async def holds(keys: Any) -> None:
                async with locks.hold(keys, holder="all", deadline=60.0):
                    pass

            async with locks.hold(["a"], holder="first", deadline=0.0):
                group.create_task(holds("hgfedcba"))
                await asyncio.sleep(1.0)
                async with locks.hold("bcdefgh", holder="second", deadline=0.0) as waited:
                    return waited

    assert virtual_time.run_with_virtual_time(main) == LockWait(0.0, None)


def test_a_waiter_that_goes_away_is_passed_by() -> None:
    async def main() -> Any:
        locks = KeyedLocks[str]()
        order = []

        async def holds(name: str) -> None:
            async with locks.hold(["a"], holder=name, deadline=60.0):
                order.append(name)

        async with (
            asyncio.TaskGroup() as group,
            locks.hold(["a"], holder="first", deadline=0.0),
        ):
            waiters = [group.create_task(holds(name)) for name in ("gone", "stays")]
            await asyncio.sleep(1.0)
            waiters[0].cancel()
        return order

    assert virtual_time.run_with_virtual_time(main) == ["stays"]


def test_a_key_handed_over_to_a_waiter_that_goes_away_goes_to_the_next() -> None:
    async def main() -> Any:
        locks = KeyedLocks[str]()
        order = []

        async def holds(name: str) -> None:
            async with locks.hold(["a"], holder=name, deadline=60.0):
                order.append(name)

        async with asyncio.TaskGroup() as group:
            async with locks.hold(["a"], holder="first", deadline=0.0):
                waiters = [group.create_task(holds(name)) for name in ("gone", "stays")]
                await asyncio.sleep(1.0)
            waiters[0].cancel()  # it has the key by now, but has not run yet
        return order

    assert virtual_time.run_with_virtual_time(main) == ["stays"]


calls = st.lists(
    st.fixed_dictionaries(
        {
            "keys": st.sets(st.sampled_from("abc"), min_size=1),
            "arrives": st.integers(0, 5),
            "holds": st.integers(0, 4),
            "patience": st.integers(0, 8),
            "cancelled": st.none() | st.integers(0, 6),
        }
    ),
    max_size=12,
)


@given(calls)
def test_whatever_happens_a_key_has_one_holder_and_is_free_at_the_end(calls: Any) -> None:
    async def main() -> Any:
        locks = KeyedLocks[str]()
        inside: Counter[Any] = Counter()
        reasons = set()

        async def call(
            number: int,
            keys: Any,
            arrives: float,
            holds: float,
            patience: float,
            cancelled: float | None,
        ) -> None:
            await asyncio.sleep(arrives)
            try:
                async with locks.hold(keys, holder=str(number), deadline=now() + patience):
                    inside.update(keys)
                    assert all(inside[key] == 1 for key in keys)
                    try:
                        await asyncio.sleep(holds)
                    finally:
                        inside.subtract(keys)
            except RetryableError as error:
                reasons.add(error.reason)

        async with asyncio.TaskGroup() as group:
            for number, entry in enumerate(calls):
                task = group.create_task(call(number, **entry))
                if entry["cancelled"] is not None:
                    asyncio.get_running_loop().call_later(entry["cancelled"], task.cancel)
        assert reasons <= {Reason.LOCK_TIMEOUT}
        async with locks.hold("abc", holder="last", deadline=now()) as waited:
            return waited

    assert virtual_time.run_with_virtual_time(main) == LockWait(0.0, None)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=10))
def test_who_asks_first_is_served_first(entries: Any) -> None:
    async def main() -> Any:
        locks = KeyedLocks[str]()
        asked, served = [], []

        async def call(number: int, arrives: float, holds: float) -> None:
            await asyncio.sleep(arrives)
            asked.append(number)
            async with locks.hold(["a"], holder=str(number), deadline=1000.0):
                served.append(number)
                await asyncio.sleep(holds)

        async with asyncio.TaskGroup() as group:
            for number, entry in enumerate(entries):
                group.create_task(call(number, *entry))
        return asked, served

    asked, served = virtual_time.run_with_virtual_time(main)
    assert served == asked
