"""What our entry says, and what people are told: the worst of what is known, in one line.

Source: spec/tracing.md §3; docs/reasons.md.
"""

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from nvdra_api.protocol import imex
from nvdra_api.types.errors import DriverError, PermanentError, Reason, RetryableError

from nvdra_imex_daemon.entries import Report

PATIENCE_S: Final = 10.0
"""What may pass by itself is nothing to report; what is still the case after so long is."""
_AT_ONCE: Final = frozenset((Reason.DOMAIN_FULL,))
"""Reasons that pass only when somebody acts, although not here."""
SETTLE_S: Final = 2.0
"""Between two writes that change nothing but the words: an IMEX that starts goes through several
states in that time, and every write is sent to every member."""


def with_past(lack: DriverError | None, failure: DriverError | None) -> DriverError | None:
    """What is missing, of an IMEX that runs although the one before it, or its start, failed.

    While it starts, only why it had to: one that ends again and again has nothing else to say.
    Later what it waits for as well, because after a crash it waits for whom it was connected with.

    Args:
        lack: What it says itself; None when it is READY.
        failure: Why there is no former one any more, or why it could not be started before; None
            where nothing went wrong.
    """
    if lack is None or failure is None:
        return lack
    if not imex.is_started(lack.message):
        return failure
    if failure.reason is not Reason.DAEMON_NOT_READY:
        return lack  # what was missing for its start is there now
    return RetryableError(failure.reason, f"{failure.message}; now {lack.message}", failure.remedy)


def report(lack: DriverError | None) -> Report:
    """What the entry is to say; a reason of its own stands before the text."""
    if lack is None:
        return Report(is_ready=True)
    text = " ".join(lack.message.split())
    if lack.reason is not Reason.DAEMON_NOT_READY:
        text = f"{lack.reason}: {text}"
    return Report(is_ready=False, message=text)


def held_back_s(told: Report | None, wanted: Report, told_at: float, now: float) -> float:
    """Seconds before `wanted` may be written: nothing but words waits.

    Args:
        told: What was written last; None before the first.
        wanted: What is to be written.
        told_at: When, monotonic seconds.
        now: Likewise.
    """
    if told is None or told.is_ready != wanted.is_ready or told == wanted:
        return 0.0
    return max(0.0, told_at + SETTLE_S - now)


@dataclass(frozen=True, slots=True)
class Complaint:
    """What people have to hear of, and since when; kept from look to look.

    Attributes:
        lack: What is missing now; None while all is well.
        since: When the first thing went missing, wall clock.
        began: Likewise, monotonic seconds.
        told: The text that was said last; empty before.
    """

    lack: DriverError | None = None
    since: datetime | None = None
    began: float = 0.0
    told: str = ""

    def after(self, lack: DriverError | None, at: datetime, now: float) -> "Complaint":
        """The complaint after another look."""
        if lack is None:
            return Complaint()
        if self.lack is None:
            return Complaint(lack, at, now)
        return replace(self, lack=lack)

    def due_s(self, now: float) -> float | None:
        """Seconds until it must be said; None when there is nothing new to say."""
        if self.lack is None or self.told == str(self.lack):
            return None
        if self.told or isinstance(self.lack, PermanentError) or self.lack.reason in _AT_ONCE:
            return 0.0
        return max(0.0, self.began + PATIENCE_S - now)

    def said(self) -> "Complaint":
        """The complaint once it has been said."""
        return replace(self, told=str(self.lack))
