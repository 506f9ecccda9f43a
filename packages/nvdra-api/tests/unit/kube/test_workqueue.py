# SPDX-License-Identifier: Apache-2.0
"""The work queue: at once, one at a time per key, again after a failure; on a clock that jumps."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from nvdra_api.errors import Reason, RetryableError
from nvdra_runtime.kube import workqueue
from nvdra_runtime.kube.fair_slots import FairSlots
from nvdra_runtime.kube.workqueue import WorkQueue
from nvdra_runtime.process.backoff import Backoff
from nvdra_testing import virtual_time

BACKOFF = Backoff(first_s=1, ceiling_s=8, jitter=0)
UNREACHED = RetryableError(Reason.API_UNAVAILABLE, "no answer")


class Worker:
    """Works as told; keeps what it was asked for, and when."""

    def __init__(
        self, work: Callable[[str], Awaitable[float | None]], calm_s: float = 0.0, **options: Any
    ) -> None:
        self._work = work
        self.asked: list[tuple[str, float]] = []
        self.at_once = self.most_at_once = 0
        self.failures: list[float] = []
        self.queue = WorkQueue[str](
            self._once,
            on_failure=lambda key, error, retry_s: self.failures.append(retry_s),
            backoff=BACKOFF,
            max_concurrent=3,
            min_interval_s=calm_s,
            **options,
        )

    async def _once(self, key: str) -> float | None:
        self.asked.append((key, asyncio.get_running_loop().time()))
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            return await self._work(key)
        finally:
            self.at_once -= 1


async def nothing(_: str) -> float | None:
    return None


async def ten_seconds(_: str) -> float | None:
    await asyncio.sleep(10)
    return None


def test_a_key_is_worked_on_at_once_and_once() -> None:
    async def main() -> None:
        worker = Worker(nothing)
        async with worker.queue.running():
            for _ in range(5):
                worker.queue.add("a")
            await asyncio.sleep(100)
        assert worker.asked == [("a", 0.0)]
        assert worker.queue.depth == 0

    virtual_time.run_with_virtual_time(main)


def test_what_is_added_before_the_start_is_worked_on_at_the_start() -> None:
    async def main() -> None:
        worker = Worker(nothing)
        worker.queue.add("a")
        await asyncio.sleep(7)
        async with worker.queue.running():
            await asyncio.sleep(1)
        assert worker.asked == [("a", 7.0)]

    virtual_time.run_with_virtual_time(main)


def test_a_key_that_changes_while_it_is_worked_on_is_worked_on_once_more() -> None:
    async def main() -> None:
        worker = Worker(ten_seconds)
        async with worker.queue.running():
            worker.queue.add("a")
            await asyncio.sleep(5)
            worker.queue.add("a")
            worker.queue.add("a")
            assert worker.queue.depth == 1
            await asyncio.sleep(100)
        assert worker.asked == [("a", 0.0), ("a", 10.0)]
        assert worker.most_at_once == 1

    virtual_time.run_with_virtual_time(main)


def test_several_keys_are_worked_on_together_up_to_a_bound() -> None:
    async def main() -> None:
        worker = Worker(ten_seconds)
        async with worker.queue.running():
            for key in "abcde":
                worker.queue.add(key)
            await asyncio.sleep(100)
        assert [when for _, when in worker.asked] == [0.0, 0.0, 0.0, 10.0, 10.0]
        assert worker.most_at_once == 3

    virtual_time.run_with_virtual_time(main)


def test_a_failing_key_is_tried_again_after_delays_that_double() -> None:
    async def main() -> None:
        left = iter([UNREACHED] * 5)

        async def work(_: str) -> float | None:
            if error := next(left, None):
                raise error
            return None

        worker = Worker(work)
        async with worker.queue.running():
            worker.queue.add("a")
            await asyncio.sleep(2.5)
            assert worker.queue.failing_count == 1
            await asyncio.sleep(100)
        assert worker.failures == [1, 2, 4, 8, 8]
        assert [when for _, when in worker.asked] == [0, 1, 3, 7, 15, 23]
        assert worker.queue.failing_count == 0

    virtual_time.run_with_virtual_time(main)


def test_a_change_cuts_the_wait_of_a_failing_key_short() -> None:
    async def main() -> None:
        async def work(_: str) -> float | None:
            raise UNREACHED

        worker = Worker(work)
        async with worker.queue.running():
            worker.queue.add("a")
            await asyncio.sleep(7.5)  # tried at 0, 1, 3 and 7; the next would be at 15
            for _ in range(100):
                worker.queue.add("a")
            await asyncio.sleep(1)
        assert [when for _, when in worker.asked] == [0, 1, 3, 7, 8]

    virtual_time.run_with_virtual_time(main)


def test_a_key_can_ask_to_be_looked_at_later() -> None:
    async def main() -> None:
        answers = iter([30.0, None])

        async def work(_: str) -> float | None:
            return next(answers)

        worker = Worker(work)
        async with worker.queue.running():
            worker.queue.add("a")
            await asyncio.sleep(100)
        assert [when for _, when in worker.asked] == [0, 30]

    virtual_time.run_with_virtual_time(main)


def test_leaving_finishes_what_is_in_hand_and_begins_nothing() -> None:
    async def main() -> None:
        done: list[str] = []

        async def work(key: str) -> float | None:
            await asyncio.sleep(2)
            done.append(key)
            return 1.0

        worker = Worker(work)
        async with worker.queue.running():
            for key in "abcde":
                worker.queue.add(key)
            await asyncio.sleep(1)
        assert sorted(done) == ["a", "b", "c"]
        assert asyncio.get_running_loop().time() == 2

    virtual_time.run_with_virtual_time(main)


def test_leaving_does_not_wait_for_ever() -> None:
    async def main() -> None:
        worker = Worker(lambda _: asyncio.sleep(1000))
        async with worker.queue.running():
            worker.queue.add("a")
            await asyncio.sleep(1)
        assert asyncio.get_running_loop().time() == 1 + workqueue.DRAIN_TIMEOUT_S

    virtual_time.run_with_virtual_time(main)


def test_leaving_finishes_nothing_that_somebody_else_has_now() -> None:
    async def main() -> None:
        worker = Worker(lambda _: asyncio.sleep(2))
        async with worker.queue.running():
            worker.queue.add("a")
            await asyncio.sleep(1)
            worker.queue.skip_drain()
        assert asyncio.get_running_loop().time() == 1

    virtual_time.run_with_virtual_time(main)


@pytest.mark.parametrize("error", [RecursionError, MemoryError, ZeroDivisionError])
def test_a_key_that_fails_unexpectedly_is_retried_with_back_off_and_others_are_processed(
    error: type[Exception],
) -> None:
    async def main() -> None:
        processed: list[str] = []

        async def work(key: str) -> float | None:
            processed.append(key)
            if key == "poisoned":
                raise error
            return None

        worker = Worker(work)
        worker.queue.add("poisoned")
        async with worker.queue.running():
            await asyncio.sleep(10)
            worker.queue.add("other")
            await asyncio.sleep(1)
            assert "other" in processed
            assert 3 <= processed.count("poisoned") <= 8  # 0.25, 0.5, 1, 2, 4 s with jitter
            assert worker.queue.failing_count == 1

    virtual_time.run_with_virtual_time(main)


def test_what_changes_shortly_after_a_look_waits_for_calm_and_is_one_look() -> None:
    async def main() -> None:
        worker = Worker(nothing, calm_s=2)
        async with worker.queue.running():
            worker.queue.add("a")
            for _ in range(3):
                await asyncio.sleep(0.5)
                worker.queue.add("a")
            await asyncio.sleep(50)
            worker.queue.add("a")
            await asyncio.sleep(1)
        assert [when for _, when in worker.asked] == [0, 2, 51.5]

    virtual_time.run_with_virtual_time(main)


def namespace_of(key: str) -> str:
    return key.partition("/")[0]


def test_a_namespace_with_many_keys_delays_no_other() -> None:
    async def main() -> None:
        worker = Worker(ten_seconds, group_of=namespace_of)
        async with worker.queue.running():
            for number in range(300):
                worker.queue.add(f"many/{number}")
            worker.queue.add("few/0")
            worker.queue.add("few/1")
            await asyncio.sleep(25)
        assert [(key, when) for key, when in worker.asked if key.startswith("few")] == [
            ("few/0", 10.0),
            ("few/1", 20.0),
        ]

    virtual_time.run_with_virtual_time(main)


def test_a_turn_of_a_task_that_was_cancelled_is_the_next_ones() -> None:
    async def main() -> None:
        slots, held, tasks = FairSlots(1), list[str](), dict[str, asyncio.Task[None]]()

        async def hold(name: str) -> None:
            async with slots.hold(name):
                held.append(name)
                await asyncio.sleep(1)

        async with asyncio.TaskGroup() as group:
            for name in "abcd":
                tasks[name] = group.create_task(hold(name))
            await asyncio.sleep(0.5)
            tasks["b"].cancel()  # while it waits
            tasks["a"].cancel()
            while "a" in tasks and not tasks["a"].done():  # noqa: ASYNC110 - no time passes
                await asyncio.sleep(0)
            tasks["c"].cancel()  # it has the slot, and has not run yet
        assert held == ["a", "d"]
        async with asyncio.timeout(1), slots.hold("e"):
            pass

    virtual_time.run_with_virtual_time(main)
