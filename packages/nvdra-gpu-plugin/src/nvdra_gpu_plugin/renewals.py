"""When NVML is opened anew: there is another driver, or boards that do not work.

A board that was reset or plugged in again is another one to NVML. Opening wakes every board of the
node, so it becomes rare.
"""

from collections.abc import Collection
from typing import Final

from nvdra_api.protocol.backoff import Backoff

from nvdra_gpu_plugin.boards import Board
from nvdra_gpu_plugin.installation import Installation
from nvdra_gpu_plugin.sessions import Session

_RENEW: Final = Backoff(first_s=60, ceiling_s=3600)


class Renewals:
    """The rhythm of one node.

    Attributes:
        opened_at: When NVML was opened last, in monotonic seconds.
    """

    def __init__(self) -> None:
        self.opened_at = 0.0
        self._count = 0

    def is_due(
        self, session: Session | None, boards: Collection[Board], found: Installation, now: float
    ) -> bool:
        """Whether to open NVML now; who asks does it, then.

        Args:
            session: The one that is open.
            boards: Those that it shows.
            found: The driver as its files tell of it now.
            now: Monotonic seconds.
        """
        if session is None or session.is_over or session.installation.loadable != found.loadable:
            return True
        if any(board.is_late for board in boards):
            return False  # a session cannot be closed below a call, and the others serve
        if session.installation != found:
            return True
        if not any(board.fault for board in boards) and _shows_all(session):
            self._count = 0
            return False
        if now - self.opened_at < _RENEW.delay(self._count + 1, 0.0):
            return False
        self._count += 1
        return True


def _shows_all(session: Session) -> bool:
    """Whether NVML has every board that the kernel module drives."""
    return session.count >= len(session.installation.boards)
