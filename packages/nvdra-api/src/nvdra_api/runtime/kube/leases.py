"""Holding a Lease: one of several processes works, the others wait for their turn.

What the lease's fields mean is `protocol.election`'s. A process that is told to stop ends its work
first and gives the lease back then, so that never two work at a time.
Source: spec/compute-domain.md §6.3, §14.2 (KW-40).
"""

import asyncio
import logging
import random
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from nvdra_api.protocol import election
from nvdra_api.protocol.election import Seen
from nvdra_api.runtime.kube.client import Client
from nvdra_api.runtime.kube.errors import Conflict, NotFound
from nvdra_api.runtime.process import waiting
from nvdra_api.types.errors import DriverError

_log = logging.getLogger(__name__)

_RELEASE_S: Final = 3.0
_JITTER: Final = 1.2
"""Up to so much of the retry period is added to it while waiting, as client-go does."""


@dataclass(frozen=True, slots=True)
class LeaseSettings:
    """Which lease, and how patient one is about it.

    Attributes:
        namespace: Of the lease.
        name: Of the lease.
        duration_s: How long others wait for a holder that says nothing.
        renew_deadline_s: How long the holder tries to renew before it takes itself for replaced.
        retry_period_s: Between two looks.
    """

    namespace: str
    name: str
    duration_s: float = 15.0
    renew_deadline_s: float = 10.0
    retry_period_s: float = 2.0


class Lease:
    """One lease from the side of one process; made by `contending`.

    Attributes:
        identity: `<who>-<random UUID>`: a process that starts again never holds its predecessor's.
        holder: Who holds it, as last seen; empty where nobody does.
        is_held: By us.
        lost: Set when we held it and somebody else may work now.
    """

    def __init__(
        self, api: Client, settings: LeaseSettings, who: str, now: Callable[[], datetime]
    ) -> None:
        self.identity = f"{who}-{uuid.uuid4()}"
        self.is_held = False
        self.lost = asyncio.Event()
        self._api = api
        self._settings = settings
        self._now = now
        self._seen = Seen()
        self._collection = f"/apis/coordination.k8s.io/v1/namespaces/{settings.namespace}/leases"
        self._path = f"{self._collection}/{settings.name}"

    @property
    def holder(self) -> str:
        """Who holds it, as last seen."""
        return self._seen.holder

    async def acquired(self, stop: asyncio.Event) -> bool:
        """Wait until we hold it; False when `stop` was set first."""
        while not stop.is_set():
            try:
                if await self._tried():
                    self.is_held = True
                    _log.info("the lease is ours lease=%s identity=%s", self._path, self.identity)
                    return True
            except DriverError as error:
                _log.warning("cannot take the lease lease=%s error=%s", self._path, error)
            spread = 1 + _JITTER * random.random()  # noqa: S311 - spreads load
            await waiting.within(stop, self._settings.retry_period_s * spread)
        return False

    async def keep(self) -> None:
        """Renew again and again; when that has not worked for the renew deadline, it is `lost`."""
        clock = asyncio.get_running_loop().time
        renewed_at = clock()
        while True:
            await asyncio.sleep(self._settings.retry_period_s)
            try:
                kept = await self._tried(renewed_at + self._settings.renew_deadline_s)
            except DriverError as error:
                _log.warning("cannot renew the lease lease=%s error=%s", self._path, error)
                if clock() - renewed_at < self._settings.renew_deadline_s:
                    continue
                kept = False
            if not kept:
                self.is_held = False
                self.lost.set()
                _log.error("the lease is lost lease=%s holder=%s", self._path, self.holder)
                return
            renewed_at = clock()

    async def release(self) -> None:
        """Give it back, so that the next one need not wait until it runs out."""
        if not self.is_held:
            return
        self.is_held = False
        try:
            deadline = asyncio.get_running_loop().time() + _RELEASE_S
            await self._look(deadline)
            if self.holder != self.identity:
                return
            settings = self._settings
            lease = election.released(self._seen, self._now(), settings.namespace, settings.name)
            await self._api.replace(self._path, lease, deadline)
            _log.info("the lease is given back lease=%s", self._path)
        except DriverError as error:
            _log.warning("the lease was not given back lease=%s error=%s", self._path, error)

    async def _tried(self, deadline: float | None = None) -> bool:
        """Look, and take it or renew it if we may; whether it is ours now."""
        clock = asyncio.get_running_loop().time
        limit = clock() + self._settings.renew_deadline_s if deadline is None else deadline
        before = self.holder
        await self._look(limit)
        if not election.may_take(self._seen, self.identity, clock()):
            if self.holder != before:
                _log.info("another process leads lease=%s holder=%s", self._path, self.holder)
            return False
        settings = self._settings
        lease = election.taken(
            self._seen,
            self.identity,
            settings.duration_s,
            self._now(),
            settings.namespace,
            settings.name,
        )
        try:
            if self._seen.lease is None:
                stored = await self._api.create(self._collection, lease, limit)
            else:
                stored = await self._api.replace(self._path, lease, limit)
        except Conflict:
            return False  # somebody else was faster
        self._seen = election.looked(self._seen, stored, clock())
        return True

    async def _look(self, deadline: float) -> None:
        try:
            stored = await self._api.get(self._path, deadline)
        except NotFound:
            stored = None
        self._seen = election.looked(self._seen, stored, asyncio.get_running_loop().time())


@asynccontextmanager
async def kept(lease: Lease) -> AsyncIterator[Lease]:
    """Renew a lease that is ours for the block, and give it back once the block has ended."""
    async with asyncio.TaskGroup() as group:
        keeper = group.create_task(lease.keep(), name="lease")
        try:
            yield lease
        finally:
            keeper.cancel()
            await lease.release()
