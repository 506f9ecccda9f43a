# SPDX-License-Identifier: Apache-2.0
"""Which user waits for which, by the log of an MPS control daemon. Pure.

Without its option for several users a daemon has one server, for one user. Clients of another user
wait in cuInit until the last client of the first one has ended. Source:
docs/reference/nvml-simulator.md, "MPS".
"""

import re
from typing import Final, NamedTuple

_CLIENT: Final = re.compile(rb"NEW CLIENT \d{1,10} from user (\d{1,10}): Server is not ready")
_SERVER: Final = re.compile(rb"Starting new server \d{1,10} for user (\d{1,10})")
_PATIENCE_S: Final = 10.0
"""An init container of another user, or a probe, mostly ends before."""


class UserWait(NamedTuple):
    """Clients of a user that wait, and the user who has the server, by their IDs on the node."""

    waiting: int
    serving: int


class UserWaits:
    """What the lines of one daemon have said."""

    def __init__(self) -> None:
        self._serving: int | None = None
        self._wait: tuple[UserWait, float] | None = None

    def observe(self, line: bytes, now: float) -> None:
        """Take a line of the daemon's log, at this time."""
        if found := _SERVER.search(line):
            self._serving, self._wait = int(found[1]), None
        elif found := _CLIENT.search(line):
            self._take_client(int(found[1]), now)

    def _take_client(self, user: int, now: float) -> None:
        if self._wait is None and self._serving is not None and user != self._serving:
            self._wait = UserWait(user, self._serving), now

    def current(self, now: float) -> UserWait | None:
        """A wait that has lasted for long."""
        return self._wait[0] if self._wait and now - self._wait[1] >= _PATIENCE_S else None
