"""What is held although no record says so: taken over from the kubelet's checkpoint, at the start.

Records get lost with a damaged disk, and one that cannot be read tells nothing. The kubelet still
has what it was answered, and for whom. Until that has been looked at no device is given to a new
claim; where it cannot be, nobody can tell what is free. Source: design.md, "Settled", a corrupt
state file.
"""

import asyncio
import itertools
import random
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Generic

from nvdra_api.protocol.backoff import Backoff
from nvdra_api.runtime.kube.events import Events, node_subject
from nvdra_api.runtime.node.store import Store
from nvdra_api.runtime.plugin.evidence import Evidence, KnownClaim, NoEvidence
from nvdra_api.runtime.plugin.held import HeldClaims
from nvdra_api.runtime.process.worker import Worker
from nvdra_api.runtime.telemetry import logs
from nvdra_api.types.errors import Reason, RetryableError
from nvdra_api.types.holdings import H
from nvdra_api.types.ids import ClaimUID, NodeName

LOG = logs.logger(__name__)

_AGAIN = Backoff(first_s=1.0, ceiling_s=60.0)
_ATTEMPT_S = 2.0

Adopt = Callable[[Sequence[KnownClaim], float], AsyncGenerator[H, None]]
"""What each of these claims holds, as far as it can be found out by the deadline.

Raises `RetryableError` where it has to be tried again; what it gave before that is recorded.
"""


class Rebuild(Generic[H]):
    """Makes the records say what the kubelet knows; `run` does it.

    Attributes:
        done: Set once everything that can be known is, so that nobody need wait for it.
    """

    def __init__(
        self,
        driver: str,
        node: NodeName,
        store: Store,
        held: HeldClaims[H],
        evidence: Evidence,
        adopt: Adopt[H],
        events: Events,
    ) -> None:
        self.done = asyncio.Event()
        self._driver = driver
        self._node = node
        self._store = store
        self._held = held
        self._evidence = evidence
        self._adopt = adopt
        self._events = events
        self._told = ""
        self._working = asyncio.Lock()
        self._obstacle = RetryableError(
            Reason.DEADLINE_EXCEEDED,
            "what the kubelet holds on this node has not been compared with our records yet",
            "it goes on by itself; if it lasts, see the plugin's log",
        )

    @property
    def is_done(self) -> bool:
        """Whether prepares need not wait for it."""
        return self.done.is_set()

    async def run(self) -> None:
        """Do it, as soon as the API server lets us; where evidence lacks, prepares try again."""
        for failures in itertools.count(1):
            try:
                await self.finish(asyncio.get_running_loop().time() + _ATTEMPT_S)
            except RetryableError as error:
                LOG.v(2, "The records are not complete yet", error=str(error))
                pause_s = _AGAIN.delay(failures, random.random())  # noqa: S311 - spreads load
                await asyncio.sleep(pause_s)
            else:
                return

    async def finish(self, deadline: float) -> None:
        """Look at what the kubelet knows, and take over what the records lack.

        Raises:
            RetryableError: `ApiUnavailable`, `DeadlineExceeded`, `StateUnavailable`: not yet.
        """
        try:
            async with asyncio.timeout_at(deadline):
                await self._working.acquire()
        except TimeoutError:
            raise self._obstacle from None
        try:
            if not self.is_done:
                await self._finish(deadline)
        except RetryableError as error:
            self._obstacle = error
            raise
        finally:
            self._working.release()

    async def _finish(self, deadline: float) -> None:
        try:
            async with Worker("evidence") as worker:
                known = await worker.run(self._evidence.claims)
        except NoEvidence as error:
            self._do_without(error)
            return
        await self._take_over(known, deadline)
        await self._forget_unreadable(known)
        await self._settle()

    def _do_without(self, why: NoEvidence) -> None:
        doubt = self._store.doubt
        if doubt is not None and not doubt.marker.exists():
            doubt = self._store.doubt = None  # somebody has vouched for it
        if doubt is None:
            self._held.doubt = ""
            if not self._held.unreadable:
                self.done.set()
            return
        self._held.doubt = (
            f"the state file was damaged and is set aside as {doubt.set_aside}, and what it said "
            f"cannot be taken from the kubelet either ({why})"
        )
        self._say(
            f"no device is given to new claims: {self._held.doubt}; make the kubelet's file "
            f"readable, or drain the node and remove {doubt.marker}"
        )

    async def _take_over(self, known: Mapping[ClaimUID, KnownClaim], deadline: float) -> None:
        """Write the records that are missing."""
        missing = [
            claim
            for uid, claim in known.items()
            if uid not in self._held and claim.devices(self._driver)
        ]
        if not missing:
            return
        async with aclosing(self._adopt(missing, deadline)) as adopted:
            async for holding in adopted:
                await self._held.take(holding.ref, holding)
                LOG.warning(
                    "Took over a claim that the kubelet holds and no record told of",
                    claim=str(holding.ref),
                    devices=[device.device for device in holding.devices],
                )

    async def _forget_unreadable(self, known: Mapping[ClaimUID, KnownClaim]) -> None:
        """A record that nobody can read, of a claim that the kubelet does not hold, holds nothing.

        A claim that the kubelet is still preparing is prepared anew by its next call.
        """
        for uid, ref in tuple(self._held.unreadable.items()):
            await self._held.release(uid)
            LOG.warning(
                "Dropped a record that cannot be read: the kubelet was given nothing for it",
                claim=str(ref),
                is_known=uid in known,
            )

    async def _settle(self) -> None:
        doubt = self._store.doubt
        if doubt is not None:
            await self._store.settle()
            self._say(
                f"the state file was damaged and is set aside as {doubt.set_aside}; what is held "
                f"was taken from the kubelet's record: {len(self._held)} claims"
            )
        self._held.doubt = ""
        self.done.set()

    def _say(self, text: str) -> None:
        """Tell the node's administrator something about the state file, once."""
        if text != self._told:
            self._told = text
            LOG.error("The state file was damaged", node=self._node, error=text)
            self._events.emit((node_subject(self._node),), "Warning", Reason.STATE_CORRUPT, text)
