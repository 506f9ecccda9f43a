"""Locks per key: who gets them, in which order, and what is told when it takes too long."""

import asyncio
from collections import Counter

import pytest
import virtualtime
from hypothesis import given
from hypothesis import strategies as st
from nvdra_api.runtime.process.locks import Locks, Waited
from nvdra_api.types.errors import Reason, RetryableError


def now():
    return asyncio.get_running_loop().time()


def test_free_keys_are_held_at_once_even_past_the_deadline():
    async def main():
        async with Locks[str]().hold(["b", "a"], holder="claim-1", deadline=-1.0) as waited:
            return waited

    assert virtualtime.run(main) == Waited(0.0, None)


def test_a_key_named_twice_is_held_once():
    async def main():
        locks = Locks[str]()
        async with locks.hold(["a", "a"], holder="claim-1", deadline=0.0):
            pass
        async with locks.hold(["a"], holder="claim-2", deadline=0.0) as waited:
            return waited

    assert virtualtime.run(main) == Waited(0.0, None)


def test_who_waits_is_told_for_how_long_and_for_whom():
    async def main():
        locks = Locks[str]()
        told = []

        async def holds(name, seconds):
            async with locks.hold(["gpu"], holder=name, deadline=60.0) as waited:
                told.append(waited)
                await asyncio.sleep(seconds)

        async with asyncio.TaskGroup() as group:
            for name in ("first", "second", "third"):
                group.create_task(holds(name, 2.0))
        return told

    assert virtualtime.run(main) == [Waited(0.0, None), Waited(2.0, "first"), Waited(4.0, "first")]


def test_past_the_deadline_the_key_and_its_holder_are_named():
    async def main():
        locks = Locks[str]()
        async with (
            locks.hold(["0000:3b:00.0"], holder="ns/other:uid-1", deadline=0.0),
            locks.hold(["0000:3b:00.0"], holder="ns/mine:uid-2", deadline=3.5),
        ):
            pass

    with pytest.raises(RetryableError) as caught:
        virtualtime.run(main)
    assert caught.value.reason is Reason.LOCK_TIMEOUT
    assert caught.value.message == "0000:3b:00.0 is in use by ns/other:uid-1, waited 3.5 s for it"
    assert caught.value.facts == {
        "key": "0000:3b:00.0",
        "holder": "ns/other:uid-1",
        "waiter": "ns/mine:uid-2",
    }


def test_keys_already_taken_are_let_go_when_a_later_one_takes_too_long():
    async def main():
        locks = Locks[str]()
        async with locks.hold(["b"], holder="claim-1", deadline=0.0):
            with pytest.raises(RetryableError):
                async with locks.hold(["a", "b"], holder="claim-2", deadline=1.0):
                    pass
            async with locks.hold(["a"], holder="claim-3", deadline=0.0) as waited:
                return waited

    assert virtualtime.run(main) == Waited(0.0, None)


def test_two_claims_that_want_the_same_boards_cannot_block_each_other():
    async def main():
        locks = Locks[str]()
        order = []

        async def holds(name, keys):
            async with locks.hold(keys, holder=name, deadline=60.0):
                order.append(name)
                await asyncio.sleep(1.0)

        async with asyncio.TaskGroup() as group:
            group.create_task(holds("x", ["a", "b"]))
            group.create_task(holds("y", ["b", "a"]))
        return order

    assert virtualtime.run(main) == ["x", "y"]


def test_who_waits_for_its_first_key_holds_none_of_the_later_ones():
    async def main():
        locks = Locks[str]()
        async with asyncio.TaskGroup() as group:

            async def holds(keys):
                async with locks.hold(keys, holder="all", deadline=60.0):
                    pass

            async with locks.hold(["a"], holder="first", deadline=0.0):
                group.create_task(holds("hgfedcba"))
                await asyncio.sleep(1.0)
                async with locks.hold("bcdefgh", holder="second", deadline=0.0) as waited:
                    return waited

    assert virtualtime.run(main) == Waited(0.0, None)


def test_a_waiter_that_goes_away_is_passed_by():
    async def main():
        locks = Locks[str]()
        order = []

        async def holds(name):
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

    assert virtualtime.run(main) == ["stays"]


def test_a_key_handed_over_to_a_waiter_that_goes_away_goes_to_the_next():
    async def main():
        locks = Locks[str]()
        order = []

        async def holds(name):
            async with locks.hold(["a"], holder=name, deadline=60.0):
                order.append(name)

        async with asyncio.TaskGroup() as group:
            async with locks.hold(["a"], holder="first", deadline=0.0):
                waiters = [group.create_task(holds(name)) for name in ("gone", "stays")]
                await asyncio.sleep(1.0)
            waiters[0].cancel()  # it has the key by now, but has not run yet
        return order

    assert virtualtime.run(main) == ["stays"]


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
def test_whatever_happens_a_key_has_one_holder_and_is_free_at_the_end(calls):
    async def main():
        locks = Locks[str]()
        inside = Counter()
        reasons = set()

        async def call(number, keys, arrives, holds, patience, cancelled):
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

    assert virtualtime.run(main) == Waited(0.0, None)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=10))
def test_who_asks_first_is_served_first(entries):
    async def main():
        locks = Locks[str]()
        asked, served = [], []

        async def call(number, arrives, holds):
            await asyncio.sleep(arrives)
            asked.append(number)
            async with locks.hold(["a"], holder=str(number), deadline=1000.0):
                served.append(number)
                await asyncio.sleep(holds)

        async with asyncio.TaskGroup() as group:
            for number, entry in enumerate(entries):
                group.create_task(call(number, *entry))
        return asked, served

    asked, served = virtualtime.run(main)
    assert served == asked
