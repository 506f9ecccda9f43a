# SPDX-License-Identifier: Apache-2.0
"""Tasks run while a block runs. A failure is counted, and the task goes on; few end the block."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

import pytest
from nvdra_api.errors import Reason, RetryableError
from nvdra_runtime.process import background_tasks
from nvdra_runtime.process.background_tasks import BackgroundTasks
from nvdra_runtime.process.task_failures import SHOWN_S, TASK_FAILURES, TaskFailures

FAILURES = [
    RecursionError("maximum recursion depth exceeded"),
    UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogates not allowed"),
    MemoryError(),
    OSError(28, "No space left on device"),
    Exception("bare"),
    RetryableError(Reason.API_UNAVAILABLE, "not caught by its loop"),
    ExceptionGroup("of a task group", [ValueError("one of several")]),
]


class Unprintable(Exception):
    """An exception whose text cannot be made."""

    def __str__(self) -> str:
        raise RecursionError("while it is printed")


class Counted:
    """The failures of the tasks that a test starts after it."""

    def __init__(self) -> None:
        self.tasks: list[str] = []
        self.now = 0.0
        self.failures = TaskFailures(self.tasks.append, lambda: self.now)
        TASK_FAILURES.set(self.failures)


def failing(errors: list[BaseException], done: asyncio.Event) -> Callable[[], Awaitable[None]]:
    """A task that raises these one after the other, and then works."""

    async def run() -> None:
        await asyncio.sleep(0)
        if errors:
            raise errors.pop(0)
        done.set()
        await asyncio.Event().wait()

    return run


async def test_a_task_has_the_name_of_its_keyword_and_ends_with_the_block() -> None:
    names: list[str] = []
    started, ended = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        task = asyncio.current_task()
        assert task is not None
        names.append(task.get_name())
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async with background_tasks.running(clique_label=work):
        await started.wait()
    assert names == ["clique label"]
    assert ended.is_set()


@pytest.mark.parametrize("error", FAILURES, ids=lambda error: type(error).__name__)
async def test_a_task_that_fails_is_counted_and_repeated_while_others_go_on(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    counted, is_repeated, other_ended = Counted(), asyncio.Event(), asyncio.Event()

    async def other() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            other_ended.set()

    async with background_tasks.running(status_writer=failing([error], is_repeated), other=other):
        await is_repeated.wait()
        assert not other_ended.is_set()
    assert counted.tasks == ["status writer"]
    (record,) = [each for each in caplog.records if "has failed unexpectedly" in each.message]
    assert isinstance(error, RetryableError) or record.exc_info is not None
    assert type(error).__name__ in counted.failures.description


async def test_a_failure_that_cannot_be_printed_is_counted_all_the_same() -> None:
    counted, is_repeated = Counted(), asyncio.Event()
    async with background_tasks.running(events=failing([Unprintable()], is_repeated)):
        await is_repeated.wait()
    assert counted.tasks == ["events"]


async def test_a_cancellation_that_was_not_requested_does_not_end_a_task() -> None:
    counted, is_repeated = Counted(), asyncio.Event()
    run = failing([asyncio.CancelledError()], is_repeated)  # as grpc.aio raises for a lost server
    async with background_tasks.running(peer_health=run):
        await is_repeated.wait()
    assert counted.tasks == ["peer health"]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3)], ids=["interrupt", "exit"])
def test_the_end_of_the_process_passes(error: BaseException) -> None:
    async def main() -> None:
        async with background_tasks.running(work=failing([error], asyncio.Event())):
            await asyncio.Event().wait()

    with pytest.raises(type(error)):
        asyncio.run(main())


@pytest.mark.parametrize("name", background_tasks.ENDS_PROCESS)
async def test_a_task_of_the_table_ends_the_block(name: str) -> None:
    async def block() -> None:
        async with BackgroundTasks() as tasks:
            tasks.start(name, failing([ValueError("broken")], asyncio.Event()))
            await asyncio.Event().wait()

    with pytest.raises(ExceptionGroup) as caught:
        await block()
    assert str(caught.value.exceptions[0]) == "broken"


async def test_work_for_one_object_that_fails_is_counted_and_not_repeated() -> None:
    counted, done = Counted(), asyncio.Event()

    async def check(uid: str) -> None:
        if uid == "poisoned":
            raise RecursionError
        done.set()

    async with BackgroundTasks() as tasks:
        failed = tasks.start_once("stale claims", partial(check, "poisoned"), "poisoned")
        tasks.start_once("stale claims", partial(check, "other"), "other")
        await asyncio.wait([failed])
        await done.wait()
        assert failed.get_name() == "stale claims poisoned"
    assert counted.tasks == ["stale claims"]


async def test_work_that_is_cancelled_before_it_begins_is_not_called() -> None:
    calls: list[str] = []

    async def check() -> None:
        calls.append("checked")

    async with BackgroundTasks() as tasks:
        tasks.start_once("stale claims", check).cancel()
    assert not calls


async def test_several_tasks_run_until_all_have_returned_or_one_is_cancelled() -> None:
    seen: list[str] = []

    async def first() -> None:
        seen.append("first")

    async def second() -> None:
        seen.append("second")

    await background_tasks.run_all(first=first, second=second)
    assert sorted(seen) == ["first", "second"]


async def test_an_object_that_fails_keeps_no_other_from_its_turn() -> None:
    counted, done = Counted(), asyncio.Event()
    served: list[str] = []

    async def serve() -> None:
        for claim in ("a", "poisoned", "b"):
            with background_tasks.contain("Cannot serve", claim=claim) as contained:
                if claim == "poisoned":
                    raise MemoryError
                served.append(claim)
            assert (contained.error is not None) is (claim == "poisoned")
        done.set()
        await asyncio.Event().wait()

    async with background_tasks.running(metadata=serve):
        await done.wait()
    assert served == ["a", "b"]
    assert counted.tasks == ["metadata"]


async def test_what_a_loop_answers_itself_is_not_contained() -> None:
    for error in (RetryableError(Reason.API_UNAVAILABLE, "away"), asyncio.CancelledError()):
        with pytest.raises(type(error)), background_tasks.contain("Cannot serve"):
            raise error


def test_failures_are_described_for_ten_minutes_without_their_texts() -> None:
    counted = Counted()
    assert counted.failures.description == ""
    counted.failures.note("events", ValueError("tenant-a"))
    counted.now = 5.0
    counted.failures.note("events", KeyError("tenant-b"))
    counted.now = 8.0
    text = "failed unexpectedly and goes on, see the log: events (2 times, last 3 s ago: KeyError)"
    assert counted.failures.description == text
    counted.now = 5.0 + SHOWN_S
    assert counted.failures.description == ""
