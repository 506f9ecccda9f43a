# SPDX-License-Identifier: Apache-2.0
"""How far a guest has come, from the lines of its second serial port. Nothing is read here.

State     Line          Next
starting  === begin     running
running   === end <n>   ended
Every other line belongs to the state: before `begin` it is about the start, after it a test's.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass

_BEGIN = "=== begin"
_END = re.compile(r"=== end (\d+)")


class Phase(enum.Enum):
    """How far a guest has come."""

    STARTING = "starting"
    RUNNING = "running"
    ENDED = "ended"


@dataclass(frozen=True)
class Progress:
    """What is known of a guest.

    Attributes:
        phase: How far it has come.
        status: The exit status of its command; None before its end.
    """

    phase: Phase = Phase.STARTING
    status: int | None = None

    def after(self, line: str) -> Progress:
        """What is known after one more line, without its end of line."""
        if self.phase is Phase.STARTING and line == _BEGIN:
            return Progress(Phase.RUNNING)
        found = _END.fullmatch(line)
        if self.phase is Phase.RUNNING and found:
            return Progress(Phase.ENDED, int(found[1]))
        return self
