"""What a campaign is about to find out, and has found: recordings, strikes, rows of its table."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from campaign.points import Place, Point


@dataclass(frozen=True)
class Strike:
    """How a run went.

    Attributes:
        hit: Where the process died; None when it died nowhere that counts.
        outcome: What was found after the restart and the retry.
        is_right: Whether all was as it must be.
        end: How the operation ended, where strace did not end it.
        aim: Where to aim after a miss, when this run has told; None to try the same again.
    """

    hit: Point | None
    outcome: str
    is_right: bool
    end: str
    aim: Place | None = None


@dataclass(frozen=True)
class Recording:
    """What an undisturbed run changed, in order, and how often it did what changes nothing."""

    points: Sequence[tuple[Point, Place]]
    others: Counter[str]
    root: str


@dataclass
class Row:
    """One recorded call, and what came of being killed there.

    Attributes:
        recorded_at: Directory of the lane where it was met.
        tries: Runs that aimed at it.
        is_hit: Whether a process has died exactly here.
        outcome: Of that run, or of one that aimed at it and went wrong.
        misses: Where the process died instead, or how the operation ended.
    """

    point: Point
    place: Place
    recorded_at: str
    tries: int = 0
    is_hit: bool = False
    outcome: str = ""
    is_right: bool = True
    misses: list[str] = field(default_factory=list)


@dataclass
class Campaign:
    """What was found for one operation.

    Attributes:
        rows: By recorded call, in order.
        others: What was recorded and changes nothing, by kind.
        seconds: How long it took.
    """

    operation: str
    rows: list[Row] = field(default_factory=list)
    others: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0

    @property
    def missed(self) -> list[Row]:
        """Calls that no run has died at."""
        return [row for row in self.rows if not row.is_hit]

    @property
    def wrong(self) -> list[Row]:
        """Calls after which something was not as it must be."""
        return [row for row in self.rows if not row.is_right]
