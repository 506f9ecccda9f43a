# SPDX-License-Identifier: Apache-2.0
"""Throws each exception into each task of a running program, and sees everything else go on."""

import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import Final

from nvdra_runtime.process.background_tasks import ENDS_PROCESS

from nvdra_testing.faults import task_faults
from nvdra_testing.faults.task_faults import Connection, RunningTask

EXPECTED: Final = frozenset({"OSError", "UnicodeEncodeError"})
"""Some loops expect these of what they await, which is then no unexpected failure."""

_WAIT_S: Final = 60.0
_ALL_AGAIN_S: Final = 180.0
"""A child process that has ended several times is started again after a minute, and its tasks."""
_SETTLED_S: Final = 1.0


def unsupervised(tasks: Sequence[RunningTask]) -> list[str]:
    """The tasks of ours whose failure would reach the main function, or be lost.

    A task that another one than the main function starts fails in that one.
    """
    main = tasks[0]
    return [
        f"{task.name}: {task.work}"
        for task in tasks[1:]
        if task.is_ours and not task.is_supervised and task.parent in (0, main.id)
    ]


class Campaign:
    """The campaign against one program."""

    def __init__(self, connection: Connection, metrics: Callable[[], str]) -> None:
        """Create it.

        Args:
            connection: The program's tasks.
            metrics: The program's page of metrics.
        """
        self._connection = connection
        self._metrics = metrics

    def settled(self) -> list[RunningTask]:
        """The running tasks, once none waits before it is repeated and none starts or ends."""
        before: list[int] = []
        until = time.monotonic() + _WAIT_S
        while time.monotonic() < until:
            tasks = self._connection.tasks()
            repeated = [task.id for task in tasks if task.is_repeated]
            if repeated == before and not any(task.is_backing_off for task in tasks):
                return tasks
            before = repeated
            time.sleep(_SETTLED_S)
        raise AssertionError(f"tasks do not settle: {self._connection.tasks()}")

    def failures(self) -> Counter[str]:
        """The failures of each task, as the metric counts them."""
        found: Counter[str] = Counter()
        for line in self._metrics().splitlines():
            if line.startswith('nvdra_task_failures_total{task="'):
                found[line.split('"')[1]] = int(float(line.rpartition(" ")[2]))
        return found

    def run(self, errors: Collection[str] = tuple(task_faults.ERRORS)) -> set[str]:
        """Throw each of these into each task. Returns the names of the tasks."""
        names = self._repeated()
        for error in errors:
            tasks = self.settled()
            assert not unsupervised(tasks)
            # Children first: a task that fails ends those that it has started.
            for task in reversed(tasks):
                if task.is_repeated and _label(task) not in ENDS_PROCESS:
                    self._throw(task, error)
            self._wait_again(names, error)
        return set(names)

    def _wait_again(self, names: Counter[str], error: str) -> None:
        """Wait until the same tasks run as before this was thrown."""
        until = time.monotonic() + _ALL_AGAIN_S
        while (again := self._repeated()) != names:
            assert time.monotonic() < until, f"after {error}: {again} and not {names}"

    def _repeated(self) -> Counter[str]:
        return Counter(_label(task) for task in self.settled() if task.is_repeated)

    def _throw(self, task: RunningTask, error: str) -> None:
        before, failures = self._connection.tasks(), self.failures()
        if task.id not in {each.id for each in before if not each.is_backing_off}:
            return  # it has ended, or has not begun again since an earlier failure
        assert self._connection.throw(task, error)
        until = time.monotonic() + _WAIT_S
        while error not in EXPECTED and self.failures()[_label(task)] == failures[_label(task)]:
            assert time.monotonic() < until, f"{error} in {task} is not counted"
        # A task that has ended without a failure was done; `run` waits for those that never are.
        now, failures_now = {other.id for other in self._connection.tasks()}, self.failures()
        lost = [
            other
            for other in before
            if other.id not in now
            and failures_now[_label(other)] > failures[_label(other)]
            and not _is_below(other, task, before)
        ]
        assert not lost, f"{error} in {task} has ended {lost}"


def _label(task: RunningTask) -> str:
    """The name of the task without which of several it is."""
    head, _, last = task.name.rpartition(" ")
    return head if last.isdigit() else task.name


def _is_below(task: RunningTask, top: RunningTask, tasks: Sequence[RunningTask]) -> bool:
    """Whether `top` has started the task, itself or by a task that it has started."""
    by_id = {each.id: each for each in tasks}
    current: RunningTask | None = task
    while current is not None:
        if current.id == top.id:
            return True
        current = by_id.get(current.parent)
    return False
