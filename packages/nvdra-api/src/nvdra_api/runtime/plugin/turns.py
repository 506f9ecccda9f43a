"""Waiting inside a call for what time alone can bring: a device's release, an API server's return.

Nothing is polled and no lock of a device is held: `HeldClaims` says when a claim is released.
Source: style.md §12, "a retryable one may be waited out inside the call".
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Self

from nvdra_api.runtime.process.locks import Locks
from nvdra_api.types.claims import ClaimRef
from nvdra_api.types.errors import DriverError
from nvdra_api.types.holdings import DeviceInUseError
from nvdra_api.types.ids import ClaimUID

TELL_S = 1.0
"""How long a wait for a device may last before it is told where users look: most pods that are on
their way out are gone by then."""

Tell = Callable[[DriverError], object]
"""Tells the user why a claim waits."""

Released = Callable[[ClaimUID], Awaitable[None]]
"""Returns once the claim is held no more: `HeldClaims.released`."""


class Turns:
    """Which prepares wait, and for whom.

    Attributes:
        obstacles: Claims that have just been found in another's way, for whoever looks after
            claims that are gone.
        released: Waits until a claim is held no more.
        places: The queues, one per board, channel or whatever else is wanted.
    """

    def __init__(self, released: Released) -> None:
        self.obstacles: asyncio.Queue[ClaimUID] = asyncio.Queue()
        self.released = released
        self.places: Locks[str] = Locks()
        self._waits: dict[ClaimUID, asyncio.Timeout] = {}
        self._unwanted: set[ClaimUID] = set()
        self._is_closing = False

    def turn(self, ref: ClaimRef, deadline: float, tell: Tell) -> "Turn":
        """A claim's place among those that wait for the same places; enter it before waiting."""
        return Turn(self, ref, deadline, tell)

    async def pause(self, ref: ClaimRef, error: DriverError, seconds: float) -> None:
        """Sleep before the next attempt at what failed with `error`.

        Raises:
            DriverError: `error`: nobody wants the claim any more.
        """
        async with self.until(ref, error, asyncio.get_running_loop().time() + seconds + 1):
            await asyncio.sleep(seconds)

    def give_up(self, uid: ClaimUID) -> None:
        """End the waits of a claim that is not wanted any more: they fail with what they met.

        It waits for nothing until `want`.
        """
        self._unwanted.add(uid)
        wait = self._waits.get(uid)
        if wait is not None and not wait.expired():
            wait.reschedule(asyncio.get_running_loop().time())

    def want(self, uid: ClaimUID) -> None:
        """Let the claim wait again: what it was not wanted for has been carried out."""
        self._unwanted.discard(uid)

    def close(self) -> None:
        """End every wait, now and from now on: the process is stopping."""
        self._is_closing = True
        for uid in tuple(self._waits):
            self.give_up(uid)

    @asynccontextmanager
    async def until(
        self, ref: ClaimRef, error: DriverError, deadline: float
    ) -> AsyncGenerator[None]:
        """A wait that `deadline`, `give_up` and `close` end with `error`."""
        is_over = self._is_closing or ref.uid in self._unwanted
        try:
            async with asyncio.timeout_at(0 if is_over else deadline) as wait:
                self._waits[ref.uid] = wait
                try:
                    yield
                finally:
                    del self._waits[ref.uid]
        except TimeoutError:
            raise error from None


class Turn:
    """One claim that waits for devices; made by `Turns.turn`.

    First come, first served among those that wait. A claim whose devices are free is not held up by
    them: it never gets here.
    """

    def __init__(self, turns: Turns, ref: ClaimRef, deadline: float, tell: Tell) -> None:
        self.ref = ref
        self.deadline = deadline
        self._turns = turns
        self._tell: Tell | None = tell
        self._place = AsyncExitStack()
        self._is_placed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._place.aclose()

    async def come(self, refusal: DeviceInUseError) -> None:
        """Return once it is worth another try: the claim that `refusal` names is held no more.

        Raises:
            DeviceInUseError: `refusal`: the time is up, or nobody wants our claim any more.
        """
        holder = refusal.holder.uid
        self._turns.obstacles.put_nowait(holder)
        telling = asyncio.get_running_loop().call_later(TELL_S, self._tell_once, refusal)
        try:
            async with self._turns.until(self.ref, refusal, self.deadline):
                await self._take_place(refusal)
                await self._turns.released(holder)
        finally:
            telling.cancel()

    async def _take_place(self, refusal: DeviceInUseError) -> None:
        if not self._is_placed:
            places, late = refusal.places, self.deadline + 1
            behind = self._turns.places.hold(places, holder=str(self.ref), deadline=late)
            await self._place.enter_async_context(behind)
            self._is_placed = True

    def _tell_once(self, refusal: DeviceInUseError) -> None:
        if self._tell is not None:
            self._tell(refusal)
            self._tell = None
