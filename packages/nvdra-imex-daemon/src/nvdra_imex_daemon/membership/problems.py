# SPDX-License-Identifier: Apache-2.0
"""Why this daemon is not ready: what its entry says, and when people are told.

Source: docs/reference/tracing.md, "Reason codes"; docs/reasons.md.
"""

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from nvdra_api.errors import DriverError, PermanentError, Reason, RetryableError
from nvdra_runtime.computedomain import imex_ctl

from nvdra_imex_daemon.membership.entries import MemberStatus

REPORT_AFTER_S: Final = 10.0
"""A problem that may pass by itself is reported to people once it has lasted this long."""
_REPORTED_AT_ONCE: Final = frozenset((Reason.DOMAIN_FULL,))
"""Reasons of retryable errors that are reported at once, because an administrator must act."""
MESSAGE_INTERVAL_S: Final = 2.0
"""Minimum time between two writes that change only the message. A starting IMEX goes through
several states in this time, and every write is sent to every member."""

_MAX_MESSAGE_LENGTH: Final = 1024
"""Limit in the definition of the clique, which refuses an entry with a longer text."""


def with_earlier_failure(
    problem: DriverError | None, failure: DriverError | None
) -> DriverError | None:
    """The problem of a running IMEX, combined with the failure of the run or start before it.

    While IMEX is starting, the failure alone is shown: it is all there is to say of an IMEX that
    ends again and again. Later the current problem is added, because after a crash IMEX waits for
    the nodes that it was connected with.

    Args:
        problem: Why IMEX is not READY; None if it is.
        failure: Why the run or start before failed; None if it did not.
    """
    if problem is None or failure is None:
        return problem
    if not imex_ctl.is_started(problem.message):
        return failure
    if failure.reason is not Reason.DAEMON_NOT_READY:
        return problem  # IMEX could not be started before, and now it could
    return RetryableError(
        failure.reason, f"{failure.message}; now {problem.message}", failure.remedy
    )


def member_status(problem: DriverError | None) -> MemberStatus:
    """What our entry is to say. A reason other than `DaemonNotReady` precedes the message."""
    if problem is None:
        return MemberStatus(is_ready=True)
    text = " ".join(problem.message.split())
    if problem.reason is not Reason.DAEMON_NOT_READY:
        text = f"{problem.reason}: {text}"
    return MemberStatus(is_ready=False, message=text[:_MAX_MESSAGE_LENGTH])


def write_delay_s(
    written: MemberStatus | None, desired: MemberStatus, written_at: float, now: float
) -> float:
    """Seconds until `desired` may be written: 0 unless only the message changes.

    Args:
        written: The status written last; None before the first.
        desired: The status to write.
        written_at: When `written` was written, monotonic seconds.
        now: Monotonic seconds.
    """
    if written is None or written.is_ready != desired.is_ready or written == desired:
        return 0.0
    return max(0.0, written_at + MESSAGE_INTERVAL_S - now)


@dataclass(frozen=True, slots=True)
class ProblemTracker:
    """The current problem, since when there has been one, and what was reported of it.

    Attributes:
        error: The current problem; None if there is none.
        since: When the first of the problems began, wall clock.
        began: The same in monotonic seconds.
        reported: The text that was reported last; empty if nothing was.
    """

    error: DriverError | None = None
    since: datetime | None = None
    began: float = 0.0
    reported: str = ""

    def updated(self, error: DriverError | None, at: datetime, now: float) -> "ProblemTracker":
        """The tracker with the problem that there is now."""
        if error is None:
            return ProblemTracker()
        if self.error is None:
            return ProblemTracker(error, at, now)
        return replace(self, error=error)

    def report_due_s(self, now: float) -> float | None:
        """Seconds until the problem must be reported; None if there is nothing new to report."""
        if self.error is None or self.reported == str(self.error):
            return None
        if (
            self.reported
            or isinstance(self.error, PermanentError)
            or self.error.reason in _REPORTED_AT_ONCE
        ):
            return 0.0
        return max(0.0, self.began + REPORT_AFTER_S - now)

    def marked_reported(self) -> "ProblemTracker":
        """The tracker after the problem was reported."""
        return replace(self, reported=str(self.error))
