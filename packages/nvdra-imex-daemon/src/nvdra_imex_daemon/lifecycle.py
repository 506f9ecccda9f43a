"""The life of the child process: when to start it, end it, kill it, start it again.

No clock and no process here: times are monotonic seconds and arguments, what to do is an answer.
`supervisor` does it. Source: spec/compute-domain.md §8.7, §14.2 (KW-27).
"""

import math
import signal
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Final

from nvdra_api.protocol.backoff import Backoff

TERM_S: Final = 8.0
"""From SIGTERM to SIGKILL, well within the 30 s that a pod has to end."""
CALM_S: Final = 60.0
"""A child that ran so long has worked: the next back-off begins anew."""
RESTART: Final = Backoff(first_s=0.25, ceiling_s=30)
"""A crash costs a quarter of a second; a child that cannot run is tried twice a minute."""
GATHER_S: Final = 0.5
"""From a change of the peers to the signal: nodes that join together cost one signal."""
SPACING_S: Final = 6.0
"""Between two signals to one child: NVIDIA documents that IMEX ignores a SIGUSR1 within 5 s of the
one before."""


class Phase(Enum):
    """Where the child is."""

    DOWN = auto()
    UP = auto()
    ENDING = auto()


class Act(Enum):
    """What is to be done now."""

    NOTHING = auto()
    START = auto()
    TERMINATE = auto()
    KILL = auto()


@dataclass(frozen=True, slots=True)
class Life:
    """The child as far as its supervisor knows.

    Attributes:
        phase: Where it is.
        since: When the phase began.
        due: DOWN: not to be started before. ENDING: to be killed then.
        failures: Ends that nobody asked for, in a row.
    """

    phase: Phase = Phase.DOWN
    since: float = 0.0
    due: float = 0.0
    failures: int = 0


def act(life: Life, now: float, *, is_wanted: bool, is_stale: bool = False) -> Act:
    """What to do now.

    Args:
        life: The child.
        now: Monotonic seconds.
        is_wanted: Whether there should be a child.
        is_stale: Whether the one that runs must make way for another.
    """
    if life.phase is Phase.DOWN and is_wanted and now >= life.due:
        return Act.START
    if life.phase is Phase.UP and (is_stale or not is_wanted):
        return Act.TERMINATE
    if life.phase is Phase.ENDING and now >= life.due:
        return Act.KILL
    return Act.NOTHING


def next_act(life: Life, *, is_wanted: bool) -> float:
    """When time alone will make `act` say something; infinity when only an event can."""
    if life.phase is Phase.ENDING or (life.phase is Phase.DOWN and is_wanted):
        return life.due
    return math.inf


def started(life: Life, now: float) -> Life:
    """The child runs."""
    return replace(life, phase=Phase.UP, since=now)


def refused(life: Life, now: float, chance: float) -> Life:
    """The child could not be started.

    Args:
        life: The child.
        now: Monotonic seconds.
        chance: A random number, 0 ≤ chance < 1.
    """
    failures = life.failures + 1
    return Life(Phase.DOWN, now, now + RESTART.delay(failures, chance), failures)


def terminated(life: Life, now: float) -> Life:
    """SIGTERM was sent."""
    return replace(life, phase=Phase.ENDING, since=now, due=now + TERM_S)


def killed(life: Life) -> Life:
    """SIGKILL was sent; what is left is to wait."""
    return replace(life, due=math.inf)


def ended(life: Life, now: float, chance: float) -> Life:
    """The child is gone; one that nobody asked to end is started after a while."""
    if life.phase is Phase.ENDING:
        return Life(Phase.DOWN, now, now, 0)
    has_worked = now - life.since >= CALM_S
    failures = 1 if has_worked else life.failures + 1
    return Life(Phase.DOWN, now, now + RESTART.delay(failures, chance), failures)


def signal_at(now: float, former: float) -> float:
    """When to tell the child that peers changed just now.

    Args:
        now: Monotonic seconds.
        former: When it was told last; minus infinity where it never was.
    """
    return max(now + GATHER_S, former + SPACING_S)


def end_of(code: int) -> str:
    """How a child ended, from its return code as `subprocess` gives it: negative is a signal."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"signal {signal.Signals(-code).name}"
    except ValueError:
        return f"signal {-code}"
