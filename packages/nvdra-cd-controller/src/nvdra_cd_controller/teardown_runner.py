# SPDX-License-Identifier: Apache-2.0
"""Performs the steps of a domain's teardown, as far as they can be done now."""

import asyncio
from typing import Final, NamedTuple

from nvdra_api.errors import DriverError

from nvdra_cd_controller import teardown
from nvdra_cd_controller.domain_snapshot import DomainSnapshot
from nvdra_cd_controller.informers import DomainInformers
from nvdra_cd_controller.object_writer import ObjectWriter
from nvdra_cd_controller.teardown import Step

_MAX_CONCURRENT: Final = 4
"""Actions of one step at a time. The client's rate limit serves requests as they come: a step of
thousands of actions, which any user can cause, would delay the requests of all other domains."""


class TeardownResult(NamedTuple):
    """What a run has reached.

    Attributes:
        snapshot: The domain after the run.
        waits_for: What the deletion waits for, as text; empty if it is complete.
        is_stuck: Whether actions had no effect in the caches, so that the run must be repeated.
    """

    snapshot: DomainSnapshot
    waits_for: str
    is_stuck: bool


class TeardownRunner:
    """Runs the teardowns of one controller."""

    def __init__(self, informers: DomainInformers, writer: ObjectWriter) -> None:
        self._informers = informers
        self._writer = writer

    async def run(self, snapshot: DomainSnapshot) -> TeardownResult:
        """Perform step after step until nothing is left to do but wait.

        Raises:
            DriverError: An action failed.
        """
        previous: Step | None = None
        while True:
            step = teardown.next_step(snapshot)
            if not step.actions or step == previous:
                return TeardownResult(snapshot, step.waits_for, bool(step.actions))
            await self._perform_step(snapshot, step)
            previous, snapshot = step, self._informers.snapshot(snapshot.uid)

    async def _perform_step(self, snapshot: DomainSnapshot, step: Step) -> None:
        """Perform the actions, a few at a time; raise the first failure once all have ended."""
        failures: list[DriverError] = []
        left = iter(step.actions)

        async def perform_next() -> None:
            for action in left:
                try:
                    await self._writer.perform(snapshot, action)
                except DriverError as error:
                    failures.append(error)

        async with asyncio.TaskGroup() as group:
            for _ in range(_MAX_CONCURRENT):
                group.create_task(perform_next())
        if failures:
            raise failures[0]
