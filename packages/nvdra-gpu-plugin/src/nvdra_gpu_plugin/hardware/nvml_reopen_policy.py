# SPDX-License-Identifier: Apache-2.0
"""Decides when NVML is opened again: after a driver was replaced, or while GPUs do not work.

A GPU that was reset or plugged in again is another device to NVML. As opening NVML wakes every GPU
of the node, attempts become less and less frequent. There is no clock and no NVML here: times are
arguments in monotonic seconds, and `gpu_session` performs the action.
"""

from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Final, NamedTuple

from nvdra_runtime.process.backoff import Backoff

_MISSING_PAUSES_S: Final = (10.0, 60.0, 180.0)
"""When NVML is opened again for a GPU that the driver's files list and NVML does not. It was away
from the bus for a moment, or the module is still starting it; what is missing after minutes stays
so until the files change."""

_REOPEN_BACKOFF: Final = Backoff(first_s=60, ceiling_s=3600)


class Action(Enum):
    """What is done with the session."""

    KEEP = auto()
    """Nothing: it is as good as a new one would be, or a new one was tried shortly before."""
    REOPEN = auto()
    """Close it if the calls in progress end soon, and open NVML again."""
    OPEN = auto()
    """Open NVML, whatever calls are in progress: there is no session, or it is of no use."""


class SessionFacts(NamedTuple):
    """What is found of a session.

    Attributes:
        is_useful: Whether it is open, its driver still works, and is the library on the node.
        has_overdue: Whether a GPU does not answer. A session cannot be closed during a call, and
            the other GPUs work.
        is_current: Whether the driver's files are what they were when it was opened.
        do_all_work: Whether all of its GPUs work.
        has_all: Whether NVML reports every GPU that the kernel module drives.
    """

    is_useful: bool = True
    has_overdue: bool = False
    is_current: bool = True
    do_all_work: bool = True
    has_all: bool = True


@dataclass(frozen=True, slots=True)
class Attempts:
    """How often NVML was opened.

    Attributes:
        began_at: When this was last begun.
        opened_at: When it last succeeded.
        for_broken: Consecutive attempts because a GPU does not work.
        for_missing: Consecutive attempts because a GPU is missing.
    """

    began_at: float = 0.0
    opened_at: float = 0.0
    for_broken: int = 0
    for_missing: int = 0


class Plan(NamedTuple):
    """What is done now.

    Attributes:
        action: The action.
        attempts: Those made so far. What works again is tried as if for the first time.
        begun: The same once the action has begun.
    """

    action: Action
    attempts: Attempts
    begun: Attempts


def plan(found: SessionFacts, attempts: Attempts, now: float) -> Plan:
    """What is done with a session now."""
    if not found.is_useful:
        return Plan(Action.OPEN, attempts, attempts)
    if found.has_overdue:
        return Plan(Action.KEEP, attempts, attempts)
    if not found.is_current:
        first = replace(attempts, for_broken=0, for_missing=0)
        return Plan(Action.REOPEN, first, first)
    broken = 0 if found.do_all_work else attempts.for_broken
    missing = 0 if found.has_all else attempts.for_missing
    kept = replace(attempts, for_broken=broken, for_missing=missing)
    passed, pauses = now - attempts.opened_at, _MISSING_PAUSES_S[missing:]
    is_missing_due = not found.has_all and bool(pauses) and passed >= pauses[0]
    is_broken_due = not found.do_all_work and passed >= _REOPEN_BACKOFF.delay(broken + 1, 0.0)
    if not (is_missing_due or is_broken_due):
        return Plan(Action.KEEP, kept, kept)
    begun = replace(kept, for_broken=broken + is_broken_due, for_missing=missing + is_missing_due)
    return Plan(Action.REOPEN, kept, begun)
