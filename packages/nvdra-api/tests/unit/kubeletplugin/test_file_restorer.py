# SPDX-License-Identifier: Apache-2.0
"""The periodic check of the plugin's files: what it says, and what it does not hide."""

import asyncio
import io
import json
import selectors
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from nvdra_api.errors import PermanentError, Reason
from nvdra_runtime.kubeletplugin.file_restorer import FileRestorer
from nvdra_runtime.process.worker import Worker
from nvdra_runtime.telemetry import logs
from nvdra_runtime.telemetry.logs import LogFormat


class SkippedTime(selectors.DefaultSelector):
    """Waits of the loop take no time: its clock moves on by what they would have taken."""

    seconds = 0.0

    def select(self, timeout: float | None = None) -> Any:
        if timeout is None or timeout <= 0:
            return super().select(timeout)
        self.seconds += timeout
        return super().select(0)


class Loop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self.skipped = SkippedTime()
        super().__init__(self.skipped)

    def time(self) -> float:
        return self.skipped.seconds


class EndOfTest(BaseException):
    """The scripted rounds are over. The restorer does not expect it, so it ends."""


class File:
    """A file that the disk lets us restore in some rounds, and in others not."""

    def __init__(self, *rounds: str | Exception) -> None:
        self.rounds = list(rounds)
        self.threads: set[str] = set()
        self.seconds: list[float] = []
        self.problems: list[str] = []
        self.restorer: FileRestorer
        self.loop: asyncio.AbstractEventLoop

    def check(self) -> None:
        self.threads.add(threading.current_thread().name)
        self.seconds.append(round(self.loop.time(), 1))
        self.problems.append(self.restorer.problem)
        outcome = self.rounds.pop(0) if self.rounds else EndOfTest()
        if isinstance(outcome, BaseException):
            raise outcome
        if outcome:
            raise OSError(outcome)


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    stream = io.StringIO()
    made = logs.configure(LogFormat.JSON, 0, "nvdra-test", stream)
    yield stream
    made.close()


def run(*files: File) -> None:
    """Let time pass until the first file has had all its rounds; raise what the restorer raises."""

    async def story() -> None:
        async with Worker("files") as worker:
            restorer = FileRestorer(worker, tuple(each.check for each in files), (OSError,))
            assert restorer.problem == ""
            for each in files:
                each.restorer, each.loop = restorer, asyncio.get_running_loop()
            await restorer.run()

    with asyncio.Runner(loop_factory=Loop) as runner:
        runner.run(story())


def test_the_files_are_checked_every_five_seconds_on_the_thread_of_files() -> None:
    file = File("", "")
    with pytest.raises(EndOfTest):
        run(file)
    assert file.seconds == [5.0, 10.0, 15.0]
    assert file.threads == {"files"}


def test_what_cannot_be_restored_is_a_problem_until_it_can() -> None:
    file = File("the hook is gone", "the hook is gone", "")
    with pytest.raises(EndOfTest):
        run(file)
    assert file.problems == ["", "the hook is gone", "the hook is gone", ""]


def test_the_problems_of_several_files_are_told_together_in_the_order_of_the_checks() -> None:
    first = File("no lock", "no lock", "")
    second, third = File("", "", ""), File("no spec", "", "no spec")
    with pytest.raises(EndOfTest):
        run(first, second, third)
    assert first.problems == ["", "no lock; no spec", "no lock", "no spec"]


def test_a_check_runs_although_the_one_before_it_failed() -> None:
    first, second = File("no lock"), File("")
    with pytest.raises(EndOfTest):
        run(first, second)
    assert second.problems == [""]


def test_a_problem_that_lasts_is_logged_once_and_another_one_again(log: io.StringIO) -> None:
    with pytest.raises(EndOfTest):
        run(File("no lock", "no lock", "no hook", "", "no hook"))
    records = [json.loads(line) for line in log.getvalue().splitlines()]
    told = [each["error"] for each in records if "cannot be restored" in each["message"]]
    assert told == ["no lock", "no hook", "no hook"]


def test_an_error_that_no_check_may_raise_is_a_problem_of_its_own_and_others_are_checked() -> None:
    first, second = File("", ValueError("a bug"), "", ""), File("", "no spec", "")
    with pytest.raises(EndOfTest):
        run(first, second)
    assert first.problems == ["", "", "a bug: ValueError; no spec", ""]


def test_another_instance_that_has_the_lock_ends_the_loop() -> None:
    error = PermanentError(Reason.LOCK_TIMEOUT, "another instance runs")
    with pytest.raises(PermanentError, match="another instance"):
        run(File("", error))
