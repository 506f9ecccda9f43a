# SPDX-License-Identifier: Apache-2.0
"""One operation per key: repeated calls join it, kinds keep their order, callers may leave."""

import asyncio
import gc
from collections import Counter, defaultdict
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nvdra_api.errors import PermanentError, Reason, RetryableError
from nvdra_runtime.process.single_flight import SHUTDOWN_TIMEOUT_S, SingleFlight
from nvdra_testing import virtual_time

Start = Callable[[], Coroutine[Any, Any, str]]


class Operations:
    """Creates operations that take a while, and remembers what happened."""

    def __init__(self) -> None:
        self.log: list[str] = []

    def take(self, name: str, seconds: float = 1.0, error: Exception | None = None) -> Start:
        async def operation() -> str:
            self.log.append(f"{name} begins")
            await asyncio.sleep(seconds)
            self.log.append(f"{name} ends")
            if error is not None:
                raise error
            return name

        return operation


def join(
    flights: SingleFlight[str], key: str, kind: str, start: Start, deadline: float
) -> Coroutine[Any, Any, str]:
    operation = flights.find(key, kind) or flights.start(key, kind, start())
    return operation.wait(deadline)


def now() -> float:
    return asyncio.get_running_loop().time()


def test_a_repeat_joins_the_operation_under_way() -> None:
    async def main() -> Any:
        operations = Operations()
        async with SingleFlight[str]() as flights, asyncio.TaskGroup() as group:
            answers = [
                group.create_task(join(flights, "uid", "prepare", operations.take(name), 60.0))
                for name in ("first", "second")
            ]
        return operations.log, [answer.result() for answer in answers]

    assert virtual_time.run_with_virtual_time(main) == (
        ["first begins", "first ends"],
        ["first", "first"],
    )


def test_an_operation_that_has_ended_is_not_joined() -> None:
    async def main() -> Any:
        operations = Operations()
        async with SingleFlight[str]() as flights:
            first = await join(flights, "uid", "prepare", operations.take("first"), 60.0)
            second = await join(flights, "uid", "prepare", operations.take("second"), 60.0)
        return first, second

    assert virtual_time.run_with_virtual_time(main) == ("first", "second")


def test_different_claims_do_not_wait_for_each_other() -> None:
    async def main() -> Any:
        operations = Operations()
        async with SingleFlight[str]() as flights, asyncio.TaskGroup() as group:
            for name in ("a", "b"):
                group.create_task(join(flights, name, "prepare", operations.take(name), 60.0))
        return operations.log

    assert virtual_time.run_with_virtual_time(main) == ["a begins", "b begins", "a ends", "b ends"]


def test_prepare_and_unprepare_of_a_claim_happen_in_the_order_they_were_asked_for() -> None:
    async def main() -> Any:
        operations = Operations()
        async with SingleFlight[str]() as flights, asyncio.TaskGroup() as group:
            for number, kind in enumerate(("prepare", "unprepare", "unprepare", "prepare")):
                operation = operations.take(f"{kind} {number}")
                group.create_task(join(flights, "uid", kind, operation, 60.0))
        return operations.log

    assert virtual_time.run_with_virtual_time(main) == [
        "prepare 0 begins",
        "prepare 0 ends",
        "unprepare 1 begins",
        "unprepare 1 ends",
        "prepare 3 begins",
        "prepare 3 ends",
    ]


def test_past_the_deadline_the_caller_is_told_and_the_operation_goes_on() -> None:
    async def main() -> Any:
        operations = Operations()
        async with SingleFlight[str]() as flights:
            with pytest.raises(RetryableError) as caught:
                await join(flights, "uid", "prepare", operations.take("slow", 10.0), 3.0)
            told_at = now()
            joined = await join(flights, "uid", "prepare", operations.take("other"), 60.0)
        return told_at, caught.value.reason, joined, operations.log

    told_at, reason, joined, log = virtual_time.run_with_virtual_time(main)
    assert told_at == pytest.approx(3.0)
    assert reason is Reason.DEADLINE_EXCEEDED
    assert joined == "slow"
    assert log == ["slow begins", "slow ends"]


def test_a_caller_that_is_cancelled_leaves_the_operation_running() -> None:
    async def main() -> Any:
        operations = Operations()
        async with SingleFlight[str]() as flights, asyncio.TaskGroup() as group:
            operation = operations.take("op", 2.0)
            caller = group.create_task(join(flights, "uid", "prepare", operation, 60.0))
            await asyncio.sleep(1.0)
            caller.cancel()
            return await join(flights, "uid", "prepare", operations.take("other"), 60.0)

    assert virtual_time.run_with_virtual_time(main) == "op"


def test_a_failure_reaches_everyone_who_joined_and_nobody_else() -> None:
    async def main() -> Any:
        operations = Operations()
        failure = PermanentError(Reason.UNKNOWN_DEVICE, "gpu-9 is not there")
        async with SingleFlight[str]() as flights, asyncio.TaskGroup() as group:

            async def fails(start: Any) -> Any:
                with pytest.raises(PermanentError) as caught:
                    await join(flights, "uid", "prepare", start, 60.0)
                return caught.value

            told = [
                group.create_task(fails(operations.take(name, error=failure)))
                for name in ("first", "second")
            ]
            other = group.create_task(
                join(flights, "uid-2", "prepare", operations.take("other", 2.0), 60.0)
            )
        return failure, [task.result() for task in told], other.result()

    failure, told, other = virtual_time.run_with_virtual_time(main)
    assert told == [failure, failure]
    assert other == "other"


def test_a_bug_in_one_operation_lets_the_next_of_its_claim_run() -> None:
    async def main() -> Any:
        operations = Operations()
        async with SingleFlight[str]() as flights:
            with pytest.raises(ZeroDivisionError):
                await join(
                    flights,
                    "uid",
                    "prepare",
                    operations.take("bug", error=ZeroDivisionError()),
                    60.0,
                )
            return await join(flights, "uid", "prepare", operations.take("next"), 60.0)

    assert virtual_time.run_with_virtual_time(main) == "next"


def test_leaving_waits_for_operations_but_not_for_ever() -> None:
    async def main() -> Any:
        operations = Operations()
        async with asyncio.TaskGroup() as group:

            async def interrupted(flights: Any) -> Any:
                with pytest.raises(RetryableError) as caught:
                    await join(flights, "hangs", "prepare", operations.take("hangs", 99.0), 60.0)
                return caught.value.message

            async with SingleFlight[str]() as flights:
                quick = group.create_task(
                    join(flights, "quick", "prepare", operations.take("quick", 1.0), 60.0)
                )
                hanging = group.create_task(interrupted(flights))
                await asyncio.sleep(0.5)
        return quick.result(), hanging.result(), now()

    quick, told, ended = virtual_time.run_with_virtual_time(main)
    assert quick == "quick"
    assert told == "prepare of hangs was interrupted: this process is stopping"
    assert ended == pytest.approx(0.5 + SHUTDOWN_TIMEOUT_S)


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
def test_whatever_happens_a_claim_has_one_operation_at_a_time_and_the_last_wish_comes_last(
    calls: Any,
) -> None:
    async def main() -> Any:
        running: Counter[Any] = Counter()
        began: defaultdict[Any, list[Any]] = defaultdict(list)
        wishes: defaultdict[Any, list[Any]] = defaultdict(list)
        late: list[Any] = []

        async def call(
            flights: Any,
            key: Any,
            kind: Any,
            arrives: float,
            lasts: Any,
            patience: float,
            cancelled: float | None,
        ) -> None:
            await asyncio.sleep(arrives)
            wishes[key].append(kind)

            async def operation() -> Any:
                running[key] += 1
                assert running[key] == 1
                began[key].append(kind)
                await asyncio.sleep(lasts)
                running[key] -= 1
                return kind

            try:
                assert await join(flights, key, kind, operation, now() + patience) == kind
            except RetryableError as error:
                late.append((error.reason, now() - arrives - patience))

        async with SingleFlight[str]() as flights:
            async with asyncio.TaskGroup() as group:
                for entry in calls:
                    task = group.create_task(call(flights, **entry))
                    if entry["cancelled"] is not None:
                        asyncio.get_running_loop().call_later(entry["cancelled"], task.cancel)
            await asyncio.sleep(100)
        return wishes, began, late

    wishes, began, late = virtual_time.run_with_virtual_time(main)
    assert all(reason is Reason.DEADLINE_EXCEEDED for reason, _ in late)
    assert all(delay == pytest.approx(0.0) for _, delay in late)
    for key, kinds in wishes.items():
        assert began[key][-1] == kinds[-1]
        assert len(began[key]) <= len(kinds)


def test_a_failure_that_nobody_waits_for_any_more_is_no_complaint_of_the_loop() -> None:
    complaints = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: complaints.append(context["message"]))
        async with SingleFlight[str]() as flights:
            operation = Operations().take("slow", 5.0, PermanentError(Reason.UNKNOWN_DEVICE, "x"))
            with pytest.raises(RetryableError):
                await join(flights, "uid", "prepare", operation, now() + 1.0)

    virtual_time.run_with_virtual_time(main)
    gc.collect()
    assert complaints == []
