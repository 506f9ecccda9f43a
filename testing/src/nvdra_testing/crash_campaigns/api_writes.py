# SPDX-License-Identifier: Apache-2.0
"""The writes to the API server during an operation, and which controller sent them.

The proxy sees all requests. Each controller has a token of its own.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import NamedTuple

from nvdra_testing.crash_campaigns.traced_requests import TracedRequest
from nvdra_testing.faults.api_proxy import FaultyProxy


class ApiWrite(NamedTuple):
    """One request that changes something.

    Attributes:
        writer: The name of the controller.
    """

    writer: str
    request: TracedRequest


@dataclass
class WriteLog:
    """The writes of one operation since `begin`.

    Attributes:
        names: The names of the controllers, by token.
    """

    proxy: FaultyProxy
    names: dict[str, str] = field(default_factory=dict)
    _asked: int = 0
    _answered: int = 0

    def begin(self) -> None:
        """Forget all earlier requests."""
        self._asked, self._answered = len(self.proxy.requests), len(self.proxy.forwarded)

    def answered(self) -> int:
        """The number of writes that have been answered."""
        told = map(TracedRequest.from_text, self.proxy.forwarded[self._answered :])
        return sum(request.is_write for request in told)

    def writes(self) -> list[ApiWrite]:
        """All writes, in the order of their arrival."""
        asked = list(zip(self.proxy.tokens, self.proxy.requests, strict=True))[self._asked :]
        found = [
            ApiWrite(self.names.get(token, "somebody"), TracedRequest.from_text(text))
            for token, (_, text) in asked
        ]
        return [write for write in found if write.request.is_write]


def created_twice(writes: Iterable[ApiWrite]) -> list[str]:
    """Objects that were created more than once, other than events."""
    made = Counter(
        str(write.request) for write in _domain_writes(writes) if write.request.verb == "POST"
    )
    return [what for what, times in made.items() if times > 1]


def find_overlap(writes: Sequence[ApiWrite], *, is_told: bool) -> str:
    """How two controllers worked at the same time; empty if one followed the other.

    Args:
        writes: The writes of both, including leases and events.
        is_told: Whether the first controller was told to end; it then releases its lease last.
    """
    turns = [who for who, _ in groupby(write.writer for write in _domain_writes(writes))]
    if len(turns) != len(set(turns)):
        return f"they took turns: {turns}"
    if not is_told or len(turns) < 2:
        return ""
    *_, last = [each for each in writes if each.writer == turns[0] and not each.request.is_event]
    return f"{turns[0]} ended with {last.request}" if last.request.changes_domain else ""


def _domain_writes(writes: Iterable[ApiWrite]) -> Iterator[ApiWrite]:
    return (each for each in writes if each.request.changes_domain and not each.request.is_event)
