"""What we have put on the node and others may take away: looked after, and put back.

CDI specs, the hook that containers are started with, the file that says who serves this node. The
sockets are looked after by `runtime.kubelet`.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from nvdra_api.runtime.process.worker import Worker
from nvdra_api.runtime.telemetry import logs

LOG = logs.logger(__name__)

_EVERY_S: Final = 5.0
"""A pod that starts in between fails at the runtime and is started again by the kubelet."""

Chore = Callable[[], None]
"""Puts one thing back, if need be; raises where that cannot be done."""

Failures = tuple[type[Exception], ...]
"""What a chore raises then; anything else is a bug."""


class Upkeep:
    """Does its chores again and again.

    Attributes:
        problem: What could not be put back; empty when nothing is missing.
    """

    def __init__(self, files: Worker, chores: tuple[Chore, ...], failures: Failures) -> None:
        self.problem = ""
        self._files = files
        self._chores = chores
        self._failures = failures

    async def run(self) -> None:
        """For ever.

        Raises:
            DriverError: A second instance serves this node.
        """
        while True:
            await asyncio.sleep(_EVERY_S)
            problems = [await self._tried(chore) for chore in self._chores]
            problem = "; ".join(filter(None, problems))
            if problem and problem != self.problem:
                LOG.error("A file of ours is gone and cannot be put back", error=problem)
            self.problem = problem

    async def _tried(self, chore: Chore) -> str:
        try:
            await self._files.run(chore)
        except self._failures as error:
            return str(error)
        return ""
