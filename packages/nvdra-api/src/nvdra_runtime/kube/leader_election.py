# SPDX-License-Identifier: Apache-2.0
"""Leader election: of several processes one leads, the others wait for its Lease.

`lease_record` interprets the Lease. A process that stops ends its work before it releases the
lease, so that two never work at the same time. Source: docs/reference/compute-domain.md, "Leader
election", "Races and correctness" (KW-40).
"""

import asyncio
import random
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from nvdra_api.errors import DriverError

from nvdra_runtime.kube import lease_record
from nvdra_runtime.kube.client import Client
from nvdra_runtime.kube.errors import Conflict, NotFound, Overloaded
from nvdra_runtime.kube.lease_record import ObservedLease
from nvdra_runtime.process import background_tasks, log_records, timeouts

LOG = log_records.logger(__name__)

_RELEASE_TIMEOUT_S: Final = 3.0
_JITTER_FACTOR: Final = 1.2
"""A wait is extended by up to this share of the retry period, as in client-go."""

_UNAVAILABLE_RETRY_S: Final = 1.0
"""Between two attempts while requests fail: perhaps no process leads until one succeeds."""


@dataclass(frozen=True, slots=True)
class LeaderElectionSettings:
    """Which lease to use, and the times of client-go's leader election.

    Attributes:
        namespace: Namespace of the lease.
        name: Name of the lease.
        duration_s: How long others wait for a holder that does not renew.
        renew_deadline_s: How long the leader retries to renew before it stops leading.
        retry_period_s: Time between two attempts.
    """

    namespace: str
    name: str
    duration_s: float = 15.0
    renew_deadline_s: float = 10.0
    retry_period_s: float = 2.0


class LeaderElector:
    """Acquires, renews and releases the lease for this process.

    Attributes:
        identity: `<name>-<pod UID>-<random UUID>`. A process takes the lease from another one of
            its pod at once: that one has ended, or ends when it sees this holder.
        is_leader: Whether this process holds the lease.
        lost: Set when this process has lost the lease and another one may lead.
        problem: Why the last attempt to acquire the lease has failed; empty if it has not.
    """

    def __init__(
        self,
        api: Client,
        settings: LeaderElectionSettings,
        name: str,
        now: Callable[[], datetime],
        pod_uid: str = "",
    ) -> None:
        """Create it without asking anything.

        Args:
            api: The client.
            settings: The lease.
            name: Name of this pod.
            now: The time of day.
            pod_uid: UID of this pod; empty outside a pod.
        """
        self._predecessors = f"{name}-{pod_uid}-" if pod_uid else ""
        self.identity = f"{self._predecessors or f'{name}-'}{uuid.uuid4()}"
        self.is_leader = False
        self.lost = asyncio.Event()
        self.problem = "the lease has not been read yet"
        self._api = api
        self._settings = settings
        self._now = now
        self._observed = ObservedLease()
        self._collection = f"/apis/coordination.k8s.io/v1/namespaces/{settings.namespace}/leases"
        self._path = f"{self._collection}/{settings.name}"

    @property
    def holder(self) -> str:
        """Identity of the last observed holder; empty if there is none."""
        return self._observed.holder

    async def acquire(self, stop: asyncio.Event) -> bool:
        """Wait until this process leads. Returns False if `stop` is set first."""
        while not stop.is_set():
            retry_s = self._settings.retry_period_s
            try:
                is_acquired = await self._try_acquire_or_renew()
                self.problem = ""
                if is_acquired:
                    self.is_leader = True
                    LOG.info("Acquired the lease", lease=self._path, identity=self.identity)
                    return True
            except DriverError as error:
                self.problem = f"the lease cannot be acquired: {error}"
                LOG.warning("Cannot acquire the lease", lease=self._path, error=str(error))
                if not isinstance(error, Overloaded):
                    retry_s = min(retry_s, _UNAVAILABLE_RETRY_S)
            spread = 1 + _JITTER_FACTOR * random.random()  # noqa: S311 - spreads load
            await timeouts.wait_for_event(stop, retry_s * spread)
        return False

    async def renew(self) -> None:
        """Renew the lease until that fails for the renew deadline; then set `lost`.

        It is also set as soon as another process holds the lease.
        """
        clock = asyncio.get_running_loop().time
        renewed_at = clock()
        while True:
            await asyncio.sleep(self._settings.retry_period_s)
            deadline = renewed_at + self._settings.renew_deadline_s
            is_renewed = await self._try_renew(deadline)
            if not is_renewed and self.holder == self.identity and clock() < deadline:
                continue
            if not is_renewed:
                self.is_leader = False
                self.lost.set()
                LOG.error("Lost the lease", lease=self._path, holder=self.holder)
                return
            renewed_at = clock()

    async def _try_renew(self, deadline: float) -> bool:
        """Try to renew once. Returns whether that succeeded; `holder` is who holds the lease.

        After a conflict it is tried once more: another field alone may have changed.
        """
        try:
            return await self._try_acquire_or_renew(deadline) or (
                self.holder == self.identity and await self._try_acquire_or_renew(deadline)
            )
        except DriverError as error:
            LOG.warning("Cannot renew the lease", lease=self._path, error=str(error))
            return False

    async def release(self) -> None:
        """Release the lease, so that the next leader need not wait until it expires."""
        if not self.is_leader:
            return
        self.is_leader = False
        try:
            deadline = asyncio.get_running_loop().time() + _RELEASE_TIMEOUT_S
            await self._read_lease(deadline)
            if self.holder != self.identity:
                return
            settings = self._settings
            lease = lease_record.released_lease(
                self._observed, self._now(), settings.namespace, settings.name
            )
            await self._api.replace(self._path, lease, deadline)
            LOG.info("Released the lease", lease=self._path)
        except DriverError as error:
            LOG.warning("Cannot release the lease", lease=self._path, error=str(error))

    async def _try_acquire_or_renew(self, deadline: float | None = None) -> bool:
        """Read the lease, and acquire or renew it if possible. Returns whether we hold it."""
        clock = asyncio.get_running_loop().time
        limit = clock() + self._settings.renew_deadline_s if deadline is None else deadline
        before = self.holder
        await self._read_lease(limit)
        # Only to begin: a leader that finds another process of its pod has lost the lease.
        predecessors = "" if self.is_leader else self._predecessors
        if not lease_record.can_acquire(self._observed, self.identity, clock(), predecessors):
            if self.holder != before:
                LOG.info("Another process leads", lease=self._path, holder=self.holder)
            return False
        settings = self._settings
        lease = lease_record.acquired_lease(
            self._observed,
            self.identity,
            settings.duration_s,
            self._now(),
            settings.namespace,
            settings.name,
        )
        try:
            if self._observed.lease is None:
                stored = await self._api.create(self._collection, lease, limit)
            else:
                stored = await self._api.replace(self._path, lease, limit)
        except Conflict:
            return False  # another process was faster
        self._observed = lease_record.observe(self._observed, stored, clock())
        return True

    async def _read_lease(self, deadline: float) -> None:
        try:
            stored = await self._api.get(self._path, deadline)
        except NotFound:
            stored = None
        self._observed = lease_record.observe(
            self._observed, stored, asyncio.get_running_loop().time()
        )


@asynccontextmanager
async def hold(elector: LeaderElector) -> AsyncIterator[LeaderElector]:
    """Renew an acquired lease while the block runs, and release it afterwards."""
    try:
        async with background_tasks.running(lease=elector.renew):
            yield elector
    finally:
        await elector.release()
