"""Who wrote what to the API server while an operation went on, as the interposer has seen it.

Each controller has a token of its own, by which it is known.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import NamedTuple

from interposer import Interposer

from campaign.requests import Request


class Write(NamedTuple):
    """One request that changes something.

    Attributes:
        who: The controller.
    """

    who: str
    request: Request


@dataclass
class Writers:
    """The writes of one operation, `begin` to now.

    Attributes:
        names: Of the controllers, by token.
    """

    proxy: Interposer
    names: dict[str, str] = field(default_factory=dict)
    _asked: int = 0
    _answered: int = 0

    def begin(self) -> None:
        """Forget what was before."""
        self._asked, self._answered = len(self.proxy.asked), len(self.proxy.answered)

    def answered(self) -> int:
        """How many writes have been answered."""
        told = map(Request.told, self.proxy.answered[self._answered :])
        return sum(request.is_write for request in told)

    def writes(self) -> list[Write]:
        """All of them, in the order in which they came."""
        asked = list(zip(self.proxy.tokens, self.proxy.asked, strict=True))[self._asked :]
        found = [
            Write(self.names.get(token, "somebody"), Request.told(text))
            for token, (_, text) in asked
        ]
        return [write for write in found if write.request.is_write]


def made_twice(writes: Iterable[Write]) -> list[str]:
    """What was made more than once; Events tell of things, and are none."""
    made = Counter(str(write.request) for write in _acts(writes) if write.request.verb == "POST")
    return [what for what, times in made.items() if times > 1]


def contested(writes: Sequence[Write], *, is_told: bool) -> str:
    """How two controllers acted at a time; empty when each had its turn.

    Args:
        writes: Of both, leases and Events among them.
        is_told: The first one was told to end: it gives the lease back, and acts no more.
    """
    turns = [who for who, _ in groupby(write.who for write in _acts(writes))]
    if len(turns) != len(set(turns)):
        return f"they took turns: {turns}"
    if not is_told or len(turns) < 2:
        return ""
    *_, last = [each for each in writes if each.who == turns[0] and not each.request.is_event]
    return f"{turns[0]} ended with {last.request}" if last.request.is_act else ""


def _acts(writes: Iterable[Write]) -> Iterator[Write]:
    return (each for each in writes if each.request.is_act and not each.request.is_event)
