# SPDX-License-Identifier: Apache-2.0
"""One thread, one queue: order, hand-over, what hangs, what is dropped."""

import asyncio
import threading
from pathlib import Path
from typing import Any, Never

import pytest
from nvdra_runtime.process.worker import Worker, WorkerGroup


def now() -> Any:
    return asyncio.get_running_loop().time()


async def test_a_call_returns_its_value_and_raises_its_error() -> None:
    async with Worker("w") as worker:
        assert await worker.run(divmod, 7, 2) == (3, 1)
        with pytest.raises(ZeroDivisionError):
            await worker.run(divmod, 7, 0)


async def test_a_stray_stop_iteration_is_an_error_like_any_other() -> None:
    async with Worker("w") as worker:
        with pytest.raises(RuntimeError, match="StopIteration"):
            await worker.run(next, iter(()))
        assert await worker.run(len, "abc") == 3


async def test_calls_run_one_after_the_other_in_the_order_they_were_handed_over() -> None:
    done: list[Any] = []
    async with Worker("w") as worker, asyncio.TaskGroup() as group:
        for number in range(50):
            group.create_task(worker.run(done.append, number))
    assert done == list(range(50))


async def test_every_call_runs_on_the_same_thread_which_has_the_name() -> None:
    def name() -> Any:
        return Path(f"/proc/self/task/{threading.get_native_id()}/comm").read_text()

    async with Worker("nvml-0000:3b:00.0") as worker:
        assert await worker.run(threading.current_thread) is await worker.run(
            threading.current_thread
        )
        assert (await worker.run(threading.current_thread)).name == "nvml-0000:3b:00.0"
        assert await worker.run(name) == "nvml-0000:3b:00\n"


async def test_a_call_that_hangs_keeps_only_its_own_worker_busy() -> None:
    hangs = threading.Event()
    async with Worker("slow") as slow, Worker("quick") as quick:
        with pytest.raises(TimeoutError):
            await slow.run(hangs.wait, deadline=now())
        assert await quick.run(len, "abc") == 3
        hangs.set()
        assert await slow.run(len, "abc") == 3


async def test_work_whose_waiter_has_gone_before_it_began_is_dropped() -> None:
    hangs = threading.Event()
    done: list[Any] = []
    async with Worker("w") as worker:
        first = worker.submit(hangs.wait)
        with pytest.raises(TimeoutError):
            await worker.run(done.append, "too late", deadline=now())
        hangs.set()
        await first
        await worker.run(done.append, "in time")
    assert done == ["in time"]


async def test_a_failure_that_nobody_waits_for_is_reported() -> None:
    hangs = threading.Event()
    began = threading.Event()
    reported = []

    def fail() -> Never:
        began.set()
        hangs.wait()
        raise ZeroDivisionError

    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: reported.append(context["exception"]))
    async with Worker("w") as worker, Worker("other") as other:
        future = worker.submit(fail)
        await other.run(began.wait)
        future.cancel()
        hangs.set()
        await worker.run(len, "abc")
    assert [type(error) for error in reported] == [ZeroDivisionError]


async def test_leaving_lets_the_queue_run_dry() -> None:
    done: list[Any] = []
    async with Worker("w") as worker:
        for number in range(10):
            worker.submit(done.append, number)
    assert done == list(range(10))


async def test_a_worker_that_has_ended_takes_no_more_work() -> None:
    async with Worker("w") as worker:
        pass
    with pytest.raises(RuntimeError, match="worker w has ended"):
        worker.submit(len, "abc")


async def test_many_outcomes_all_arrive() -> None:
    async with Worker("a") as a, Worker("b") as b:
        futures = [worker.submit(abs, -n) for n in range(2000) for worker in (a, b)]
        assert [await future for future in futures] == [n for n in range(2000) for _ in "ab"]


async def test_a_worker_is_busy_until_its_last_call_is_done() -> None:
    hangs = threading.Event()
    async with Worker("w") as worker:
        assert not worker.is_busy
        hanging = worker.submit(hangs.wait)
        dropped = worker.submit(len, "abc")
        dropped.cancel()
        assert worker.is_busy
        hangs.set()
        assert await hanging
        await worker.run(len, "abc")
        assert not worker.is_busy


async def test_threads_that_hang_are_waited_for_together() -> None:
    hangs = threading.Event()
    began = now()
    async with WorkerGroup(shutdown_s=0.1) as threads:
        for number in range(20):
            threads.start_worker(f"board-{number}").submit(hangs.wait)
    assert now() - began < 1
    hangs.set()


async def test_threads_end_when_their_queues_have_run_dry() -> None:
    done: list[Any] = []
    async with WorkerGroup() as threads:
        for number in range(3):
            threads.start_worker(f"board-{number}").submit(done.append, number)
    assert sorted(done) == [0, 1, 2]
