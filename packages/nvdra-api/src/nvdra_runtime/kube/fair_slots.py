# SPDX-License-Identifier: Apache-2.0
"""A semaphore whose waiters take turns by group: no group delays another by its number."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from nvdra_runtime.kube.turns import Turns


class FairSlots:
    """A number of slots, each of which one task holds at a time."""

    def __init__(self, count: int) -> None:
        self._free = count
        self._waiting = Turns[asyncio.Future[None]]()

    @asynccontextmanager
    async def hold(self, group: str) -> AsyncIterator[None]:
        """Hold a slot for the block, from this group's turn on."""
        await self._acquire(group)
        try:
            yield
        finally:
            self._release()

    async def _acquire(self, group: str) -> None:
        if self._free:
            self._free -= 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(group, turn)
        try:
            await turn
        except asyncio.CancelledError:
            self._waiting.remove(group, turn)
            if turn.done() and not turn.cancelled():  # it has the slot already
                self._release()
            raise

    def _release(self) -> None:
        while len(self._waiting):
            turn = self._waiting.take()
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1
