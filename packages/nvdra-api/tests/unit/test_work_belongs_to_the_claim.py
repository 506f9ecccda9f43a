"""Flights: one operation per key, joined by repeats, ordered by kind, outliving its callers."""

import asyncio
import gc
from collections import Counter, defaultdict

import pytest
import virtualtime
from hypothesis import given
from hypothesis import strategies as st
from nvdra_api.runtime.process.flights import SHUTDOWN_S, Flights
from nvdra_api.types.errors import PermanentError, Reason, RetryableError


class Operations:
    """Starts operations that take a while, and remembers what happened."""

    def __init__(self):
        self.log = []

    def take(self, name, seconds=1.0, error=None):
        async def operation():
            self.log.append(f"{name} begins")
            await asyncio.sleep(seconds)
            self.log.append(f"{name} ends")
            if error is not None:
                raise error
            return name

        return operation


def now():
    return asyncio.get_running_loop().time()


def test_a_repeat_joins_the_operation_under_way():
    async def main():
        operations = Operations()
        async with Flights[str]() as flights, asyncio.TaskGroup() as group:
            answers = [
                group.create_task(flights.join("uid", "prepare", operations.take(name), 60.0))
                for name in ("first", "second")
            ]
        return operations.log, [answer.result() for answer in answers]

    assert virtualtime.run(main) == (["first begins", "first ends"], ["first", "first"])


def test_an_operation_that_has_ended_is_not_joined():
    async def main():
        operations = Operations()
        async with Flights[str]() as flights:
            first = await flights.join("uid", "prepare", operations.take("first"), 60.0)
            second = await flights.join("uid", "prepare", operations.take("second"), 60.0)
        return first, second

    assert virtualtime.run(main) == ("first", "second")


def test_different_claims_do_not_wait_for_each_other():
    async def main():
        operations = Operations()
        async with Flights[str]() as flights, asyncio.TaskGroup() as group:
            for name in ("a", "b"):
                group.create_task(flights.join(name, "prepare", operations.take(name), 60.0))
        return operations.log

    assert virtualtime.run(main) == ["a begins", "b begins", "a ends", "b ends"]


def test_prepare_and_unprepare_of_a_claim_happen_in_the_order_they_were_asked_for():
    async def main():
        operations = Operations()
        async with Flights[str]() as flights, asyncio.TaskGroup() as group:
            for number, kind in enumerate(("prepare", "unprepare", "unprepare", "prepare")):
                operation = operations.take(f"{kind} {number}")
                group.create_task(flights.join("uid", kind, operation, 60.0))
        return operations.log

    assert virtualtime.run(main) == [
        "prepare 0 begins",
        "prepare 0 ends",
        "unprepare 1 begins",
        "unprepare 1 ends",
        "prepare 3 begins",
        "prepare 3 ends",
    ]


def test_past_the_deadline_the_caller_is_told_and_the_operation_goes_on():
    async def main():
        operations = Operations()
        async with Flights[str]() as flights:
            with pytest.raises(RetryableError) as caught:
                await flights.join("uid", "prepare", operations.take("slow", 10.0), 3.0)
            told_at = now()
            joined = await flights.join("uid", "prepare", operations.take("other"), 60.0)
        return told_at, caught.value.reason, joined, operations.log

    told_at, reason, joined, log = virtualtime.run(main)
    assert told_at == pytest.approx(3.0)
    assert reason is Reason.DEADLINE_EXCEEDED
    assert joined == "slow"
    assert log == ["slow begins", "slow ends"]


def test_a_caller_that_is_cancelled_leaves_the_operation_running():
    async def main():
        operations = Operations()
        async with Flights[str]() as flights, asyncio.TaskGroup() as group:
            operation = operations.take("op", 2.0)
            caller = group.create_task(flights.join("uid", "prepare", operation, 60.0))
            await asyncio.sleep(1.0)
            caller.cancel()
            return await flights.join("uid", "prepare", operations.take("other"), 60.0)

    assert virtualtime.run(main) == "op"


def test_a_failure_reaches_everyone_who_joined_and_nobody_else():
    async def main():
        operations = Operations()
        failure = PermanentError(Reason.UNKNOWN_DEVICE, "gpu-9 is not there")
        async with Flights[str]() as flights, asyncio.TaskGroup() as group:

            async def fails(start):
                with pytest.raises(PermanentError) as caught:
                    await flights.join("uid", "prepare", start, 60.0)
                return caught.value

            told = [
                group.create_task(fails(operations.take(name, error=failure)))
                for name in ("first", "second")
            ]
            other = group.create_task(
                flights.join("uid-2", "prepare", operations.take("other", 2.0), 60.0)
            )
        return failure, [task.result() for task in told], other.result()

    failure, told, other = virtualtime.run(main)
    assert told == [failure, failure]
    assert other == "other"


def test_a_bug_in_one_operation_lets_the_next_of_its_claim_run():
    async def main():
        operations = Operations()
        async with Flights[str]() as flights:
            with pytest.raises(ZeroDivisionError):
                await flights.join(
                    "uid", "prepare", operations.take("bug", error=ZeroDivisionError()), 60.0
                )
            return await flights.join("uid", "prepare", operations.take("next"), 60.0)

    assert virtualtime.run(main) == "next"


def test_leaving_waits_for_operations_but_not_for_ever():
    async def main():
        operations = Operations()
        async with asyncio.TaskGroup() as group:

            async def interrupted(flights):
                with pytest.raises(RetryableError) as caught:
                    await flights.join("hangs", "prepare", operations.take("hangs", 99.0), 60.0)
                return caught.value.message

            async with Flights[str]() as flights:
                quick = group.create_task(
                    flights.join("quick", "prepare", operations.take("quick", 1.0), 60.0)
                )
                hanging = group.create_task(interrupted(flights))
                await asyncio.sleep(0.5)
        return quick.result(), hanging.result(), now()

    quick, told, ended = virtualtime.run(main)
    assert quick == "quick"
    assert told == "prepare of hangs was interrupted: this process is stopping"
    assert ended == pytest.approx(0.5 + SHUTDOWN_S)


calls = st.lists(
    st.fixed_dictionaries(
        {
            "key": st.sampled_from("ab"),
            "kind": st.sampled_from(["prepare", "unprepare"]),
            "arrives": st.integers(0, 6),
            "lasts": st.integers(0, 4),
            "patience": st.integers(0, 9),
            "cancelled": st.none() | st.integers(0, 6),
        }
    ),
    max_size=12,
)


@given(calls)
def test_whatever_happens_a_claim_has_one_operation_at_a_time_and_the_last_wish_comes_last(calls):
    async def main():
        running = Counter()
        began = defaultdict(list)
        wishes = defaultdict(list)
        late = []

        async def call(flights, key, kind, arrives, lasts, patience, cancelled):
            await asyncio.sleep(arrives)
            wishes[key].append(kind)

            async def operation():
                running[key] += 1
                assert running[key] == 1
                began[key].append(kind)
                await asyncio.sleep(lasts)
                running[key] -= 1
                return kind

            try:
                assert await flights.join(key, kind, operation, now() + patience) == kind
            except RetryableError as error:
                late.append((error.reason, now() - arrives - patience))

        async with Flights[str]() as flights:
            async with asyncio.TaskGroup() as group:
                for entry in calls:
                    task = group.create_task(call(flights, **entry))
                    if entry["cancelled"] is not None:
                        asyncio.get_running_loop().call_later(entry["cancelled"], task.cancel)
            await asyncio.sleep(100)
        return wishes, began, late

    wishes, began, late = virtualtime.run(main)
    assert all(reason is Reason.DEADLINE_EXCEEDED for reason, _ in late)
    assert all(delay == pytest.approx(0.0) for _, delay in late)
    for key, kinds in wishes.items():
        assert began[key][-1] == kinds[-1]
        assert len(began[key]) <= len(kinds)


def test_a_failure_that_nobody_waits_for_any_more_is_no_complaint_of_the_loop():
    complaints = []

    async def main():
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: complaints.append(context["message"]))
        async with Flights[str]() as flights:
            operation = Operations().take("slow", 5.0, PermanentError(Reason.UNKNOWN_DEVICE, "x"))
            with pytest.raises(RetryableError):
                await flights.join("uid", "prepare", operation, now() + 1.0)

    virtualtime.run(main)
    gc.collect()
    assert complaints == []
