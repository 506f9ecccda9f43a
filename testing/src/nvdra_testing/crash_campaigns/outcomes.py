# SPDX-License-Identifier: Apache-2.0
"""The results of a crash campaign: recordings, strikes, and what each strike showed."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from nvdra_testing.crash_campaigns.points import CallPosition, KillPoint


@dataclass(frozen=True)
class StrikeResult:
    """How one struck run went.

    Attributes:
        hit: Where the process died; None when it did not die in a call that counts.
        outcome: What was found after the restart and the retry.
        is_correct: Whether everything was as it must be.
        end: How the operation ended, when it ended before the strike.
        next_place: Where to strike after a miss, when this run has shown it; None to try again.
    """

    hit: KillPoint | None
    outcome: str
    is_correct: bool
    end: str
    next_place: CallPosition | None = None


@dataclass(frozen=True)
class Recording:
    """The calls of an undisturbed run.

    Attributes:
        points: The calls that change something, in order, and where they were made.
        others: The number of calls that change nothing, by kind.
        root: The directory of the sandbox.
    """

    points: Sequence[tuple[KillPoint, CallPosition]]
    others: Counter[str]
    root: str


@dataclass
class PointResult:
    """One recorded call, and what happened when the process was struck there.

    Attributes:
        recorded_at: The directory of the sandbox where the call was recorded.
        is_selected: Whether this campaign strikes here.
        tries: The number of runs that were to strike here.
        is_hit: Whether a process has died exactly here.
        outcome: What that run showed, or a run that was to strike here and went wrong.
        misses: Where the process died instead, or how the operation ended.
    """

    point: KillPoint
    place: CallPosition
    recorded_at: str
    is_selected: bool = True
    tries: int = 0
    is_hit: bool = False
    outcome: str = ""
    is_correct: bool = True
    misses: list[str] = field(default_factory=list)


@dataclass
class CampaignResult:
    """What a campaign found for one operation.

    Attributes:
        rows: The recorded calls, in order.
        others: The number of recorded calls that change nothing, by kind.
        differences: How the recordings differ from the golden list.
        recorded: The recorded calls in the form of the golden list.
        seconds: How long the campaign took.
    """

    operation: str
    rows: list[PointResult] = field(default_factory=list)
    others: Counter[str] = field(default_factory=Counter)
    differences: list[str] = field(default_factory=list)
    recorded: str = ""
    seconds: float = 0.0

    @property
    def selected(self) -> list[PointResult]:
        """The calls that this campaign strikes at."""
        return [row for row in self.rows if row.is_selected]

    @property
    def missed(self) -> list[PointResult]:
        """The selected calls at which no process has died."""
        return [row for row in self.selected if not row.is_hit]

    @property
    def incorrect(self) -> list[PointResult]:
        """The calls after which something was not as it must be."""
        return [row for row in self.rows if not row.is_correct]
