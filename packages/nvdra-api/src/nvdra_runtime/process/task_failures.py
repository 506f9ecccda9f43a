# SPDX-License-Identifier: Apache-2.0
"""What the tasks of this process have failed of: for the metric, the log and `/readyz?verbose`.

`background_tasks` notes failures here. The process's telemetry says where they are counted, by the
context variable `TASK_FAILURES`; without it they are logged only.
"""

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final

from nvdra_runtime.process import log_records

LOG = log_records.logger(__name__)

SHOWN_S: Final = 600.0
"""How long a failure is shown in `/readyz?verbose`: a scrape and a person have the time to see it,
and a task that has worked for so long has recovered."""


@dataclass(frozen=True, slots=True)
class _Last:
    """The last failure of a task: which exception, when in monotonic seconds, how many so far."""

    error: str
    at: float
    count: int


class TaskFailures:
    """The unexpected failures of one process's tasks."""

    def __init__(self, count: Callable[[str], None], clock: Callable[[], float]) -> None:
        """Create it without failures.

        Args:
            count: Counts a failure of the task that is named.
            clock: Monotonic seconds.
        """
        self._count = count
        self._clock = clock
        self._last: dict[str, _Last] = {}

    def note(self, task: str, error: BaseException) -> None:
        """Take note of a failure."""
        self._count(task)
        before = self._last.get(task)
        count = 1 if before is None else before.count + 1
        self._last[task] = _Last(type(error).__name__, self._clock(), count)

    @property
    def description(self) -> str:
        """The tasks that have failed lately; empty if none has.

        It names the types of exceptions only, because their texts may have a tenant's words.
        """
        now = self._clock()
        texts = [
            f"{task} ({last.count} times, last {now - last.at:.0f} s ago: {last.error})"
            for task, last in sorted(self._last.items())
            if now - last.at < SHOWN_S
        ]
        return f"failed unexpectedly and goes on, see the log: {', '.join(texts)}" if texts else ""


TASK_FAILURES: Final[ContextVar[TaskFailures | None]] = ContextVar("task_failures", default=None)
"""Where failures of tasks are noted that are started in this context."""


def note(task: str, message: str, error: BaseException, /, **fields: object) -> None:
    """Log a failure with its traceback, and count it."""
    failures = TASK_FAILURES.get()
    if failures is not None:
        failures.note(task, error)
    try:
        LOG.failure(message, error, task=task, **fields)
    except Exception as unwritable:  # noqa: BLE001 - the text of an exception may raise, too
        LOG.warning(message, task=task, error=type(error).__name__, log=type(unwritable).__name__)
