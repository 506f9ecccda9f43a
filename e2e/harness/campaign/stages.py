"""Lanes for tests that are not asynchronous: one loop in a thread of its own serves all of them."""

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from apiserver import ApiServer

from campaign import lane
from campaign.lane import Lane

T = TypeVar("T")

OPEN_S = 60
CALL_S = 120
"""Nothing that a test asks of a lane takes so long."""


@dataclass(frozen=True)
class Stage:
    """A lane, and the way to it from any thread."""

    lane: Lane
    loop: asyncio.AbstractEventLoop

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """What the work returns or raises."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(CALL_S)


@contextmanager
def opened(server: ApiServer, count: int) -> Iterator[list[Stage]]:
    """That many stages, until the block is left."""
    stages: list[Stage] = []
    are_open, stop = threading.Event(), asyncio.Event()
    loops: list[asyncio.AbstractEventLoop] = []

    async def serve() -> None:
        loops.append(asyncio.get_running_loop())
        try:
            async with AsyncExitStack() as stack:
                for _ in range(count):
                    one = await stack.enter_async_context(lane.opened(server))
                    stages.append(Stage(one, loops[0]))
                are_open.set()
                await stop.wait()
        finally:
            are_open.set()  # whoever waits finds that some are missing

    thread = threading.Thread(target=lambda: asyncio.run(serve()), name="stages")
    thread.start()
    try:
        assert are_open.wait(OPEN_S), "the stages take too long to open"
        assert len(stages) == count, "a stage could not be opened: see the thread's failure"
        yield stages
    finally:
        loops[0].call_soon_threadsafe(stop.set)
        thread.join()
