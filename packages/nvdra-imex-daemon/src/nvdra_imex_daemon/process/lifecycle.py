# SPDX-License-Identifier: Apache-2.0
"""Decides when to start, terminate, kill and restart the child process.

There is no clock and no process here: times are arguments in monotonic seconds, and the result is
the action that `supervisor` performs. Source: docs/reference/imex.md, "Process supervision";
docs/reference/compute-domain.md, "Races and correctness" (KW-27).
"""

import math
import signal
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Final

from nvdra_runtime.process.backoff import Backoff

TERMINATION_GRACE_S: Final = 8.0
"""Time from SIGTERM to SIGKILL, well within the 30 s that a pod has to terminate."""
STABLE_S: Final = 60.0
"""A child that ran this long was working: the backoff starts again from its first value."""
RESTART_BACKOFF: Final = Backoff(first_s=0.25, ceiling_s=30)
"""Restarts are delayed by 0.25 s at first; a child that keeps failing starts twice a minute."""
SIGNAL_DELAY_S: Final = 0.5
"""Time from a change of the peers to the signal: nodes that join together cause one signal."""
SIGNAL_INTERVAL_S: Final = 6.0
"""Minimum time between two signals. NVIDIA documents that IMEX ignores a SIGUSR1 that comes within
5 s of the one before."""


class Phase(Enum):
    """The phase of the child."""

    DOWN = auto()
    UP = auto()
    ENDING = auto()


class ChildAction(Enum):
    """The action to perform now."""

    NOTHING = auto()
    START = auto()
    TERMINATE = auto()
    KILL = auto()


@dataclass(frozen=True, slots=True)
class ChildLifecycle:
    """What the supervisor knows of the child.

    Attributes:
        phase: The current phase.
        since: When the phase began.
        due: In phase DOWN, when it may be started; in phase ENDING, when it is to be killed.
        failures: Number of consecutive unexpected ends and failed starts.
    """

    phase: Phase = Phase.DOWN
    since: float = 0.0
    due: float = 0.0
    failures: int = 0


def next_action(
    life: ChildLifecycle, now: float, *, is_wanted: bool, is_stale: bool = False
) -> ChildAction:
    """The action to perform now.

    Args:
        life: The child.
        now: Monotonic seconds.
        is_wanted: Whether a child should be running.
        is_stale: Whether the running child must be replaced.
    """
    if life.phase is Phase.DOWN and is_wanted and now >= life.due:
        return ChildAction.START
    if life.phase is Phase.UP and (is_stale or not is_wanted):
        return ChildAction.TERMINATE
    if life.phase is Phase.ENDING and now >= life.due:
        return ChildAction.KILL
    return ChildAction.NOTHING


def next_action_at(life: ChildLifecycle, *, is_wanted: bool) -> float:
    """When the next action is due without any event; infinity if only an event can cause one."""
    if life.phase is Phase.ENDING or (life.phase is Phase.DOWN and is_wanted):
        return life.due
    return math.inf


def started(life: ChildLifecycle, now: float) -> ChildLifecycle:
    """The child after it was started."""
    return replace(life, phase=Phase.UP, since=now)


def start_failed(life: ChildLifecycle, now: float, random_fraction: float) -> ChildLifecycle:
    """The child after a start has failed.

    Args:
        life: The child.
        now: Monotonic seconds.
        random_fraction: A random number, 0 ≤ random_fraction < 1.
    """
    failures = life.failures + 1
    return ChildLifecycle(
        Phase.DOWN, now, now + RESTART_BACKOFF.delay(failures, random_fraction), failures
    )


def terminated(life: ChildLifecycle, now: float) -> ChildLifecycle:
    """The child after SIGTERM was sent."""
    return replace(life, phase=Phase.ENDING, since=now, due=now + TERMINATION_GRACE_S)


def killed(life: ChildLifecycle) -> ChildLifecycle:
    """The child after SIGKILL was sent: nothing is left to do but wait."""
    return replace(life, due=math.inf)


def ended(life: ChildLifecycle, now: float, random_fraction: float) -> ChildLifecycle:
    """The child after its end. If the end was unexpected, the next start is delayed."""
    if life.phase is Phase.ENDING:
        return ChildLifecycle(Phase.DOWN, now, now, 0)
    was_stable = now - life.since >= STABLE_S
    failures = 1 if was_stable else life.failures + 1
    return ChildLifecycle(
        Phase.DOWN, now, now + RESTART_BACKOFF.delay(failures, random_fraction), failures
    )


def signal_at(now: float, last_signal: float) -> float:
    """When to signal the child that the peers have just changed.

    Args:
        now: Monotonic seconds.
        last_signal: When it was last signalled; minus infinity if never.
    """
    return max(now + SIGNAL_DELAY_S, last_signal + SIGNAL_INTERVAL_S)


def describe_exit(code: int) -> str:
    """How a child ended, from its return code in `subprocess`, where a signal is negative."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"signal {signal.Signals(-code).name}"
    except ValueError:
        return f"signal {-code}"
