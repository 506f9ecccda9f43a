# SPDX-License-Identifier: Apache-2.0
"""Keeps a pool of ResourceSlices up to date.

`publish` sets the desired pool and returns. A loop compares it with the API server's slices, writes
what differs, and repairs slices that others edit or delete; the kubelet deletes them whenever it
starts. `pool_diff` decides what to write. Slices stay when the process ends.
Source: docs/reference/resource-slices.md, "Reconciliation of a pool"; docs/reference/api-server.md,
"API version detection".
"""

import asyncio
import functools
import math
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from typing import Final

from nvdra_api.errors import DriverError
from nvdra_api.ids import NodeName
from nvdra_api.meta import JsonObject
from nvdra_api.resource.slices import CounterSet, Device

from nvdra_runtime.kube import apiversions
from nvdra_runtime.kube.client import Client
from nvdra_runtime.kube.errors import DraDisabled, Invalid, NotFound
from nvdra_runtime.kube.informer import Informer
from nvdra_runtime.process import background_tasks, log_records, timeouts
from nvdra_runtime.process.backoff import Backoff
from nvdra_runtime.resourceslices import pool_diff, slice_spec
from nvdra_runtime.resourceslices.pool import Pool, Slice

LOG = log_records.logger(__name__)

_CALL_TIMEOUT_S: Final = 10.0
_REPAIR_BACKOFF: Final = Backoff(first_s=1, ceiling_s=30)
"""Before changes by others are repaired. It is long enough for all slices to be deleted, and it
grows, so that two writers that disagree do not overwrite each other at full speed. A minute without
repairs resets it."""

_RETRY_BACKOFF: Final = Backoff(first_s=0.5, ceiling_s=60)
_INVALID_RETRY_S: Final = 300.0
"""An invalid slice stays invalid until another pool is published or the API server is upgraded."""

_REPAIR_RESET_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class PublisherState:
    """The state of the publication, for readiness and status.

    Attributes:
        is_published: Whether the API server has the desired pool.
        error: Why not; empty if there is nothing to report.
        dropped: Fields that the API server dropped, or the feature gates that it lacks.
        slices: Number of slices.
        generation: Generation of the pool.
    """

    is_published: bool = False
    error: str = ""
    dropped: tuple[str, ...] = ()
    slices: int = 0
    generation: int = 0


@dataclass(frozen=True, slots=True)
class Write:
    """One attempt to write a slice, for metrics: verb and `success` or the kind of failure."""

    verb: str
    outcome: str


def _ignore(_: object) -> None:
    pass


class Publisher:
    """Publishes the devices of one driver on one node."""

    def __init__(
        self,
        api: Client,
        driver: str,
        node: NodeName,
        observe_write: Callable[[Write], None] = _ignore,
        observe_restart: Callable[[str], None] = _ignore,
        observe_problem: Callable[[DriverError], None] = _ignore,
        observe_dropped: Callable[[tuple[str, ...]], None] = _ignore,
    ) -> None:
        """Create a publisher; `running` starts it.

        Args:
            api: The client of the API server.
            driver: The driver's name.
            node: The node's name.
            observe_write: Called after every attempt to write a slice.
            observe_restart: As a `Informer`'s, for the watch of the slices.
            observe_problem: Called with problems that do not disappear by themselves: the slices
                are invalid, or the API server does not serve them.
            observe_dropped: Called with fields that the API server has dropped from a slice, or
                the feature gates that it lacks.
        """
        self._api = api
        self._driver = driver
        self._node = node
        self._observe_write = observe_write
        self._observe_problem = observe_problem
        self._observe_dropped = observe_dropped
        self._version = ""
        self._owner = ""
        self._pool: Pool | None = None
        self._desired: pool_diff.DesiredPool | None = None
        self._pool_changed = asyncio.Event()
        self._woken = asyncio.Event()
        self._failures = 0
        self._repairs = 0
        self._repaired_at = -math.inf
        self._state = PublisherState()
        selector = f"spec.driver={driver},spec.nodeName={node}"
        self._informer = Informer(
            api, self._find_path, {"fieldSelector": selector}, observe_restart
        )

    @property
    def state(self) -> PublisherState:
        """The state of the publication."""
        return replace(self._state, error=self._state.error or self._informer.error)

    async def stored_content(self) -> Slice:
        """The devices and counter sets of all of the driver's slices of this node, once each.

        Returns after they were listed.
        """
        await self._informer.wait_for_sync()
        specs = [each["spec"] for each in self._stored_slices()]
        devices = [each for spec in specs for each in spec.get("devices") or ()]
        sets = [each for spec in specs for each in spec.get("sharedCounters") or ()]
        return Slice(
            tuple({each.name: each for each in map(Device.model_validate, devices)}.values()),
            tuple({each.name: each for each in map(CounterSet.model_validate, sets)}.values()),
        )

    def publish(self, pool: Pool) -> None:
        """Set the desired pool. An equal pool changes nothing."""
        if pool == self._pool:
            return
        self._pool = pool
        problems = pool_diff.problems(pool)
        self._desired = None if problems else pool_diff.desired(pool)
        self._state = PublisherState(slices=len(pool.slices), error="; ".join(problems))
        if problems:
            LOG.error("The pool is inconsistent and is not published", error=self._state.error)
        self._pool_changed.set()
        self._woken.set()

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Publisher"]:
        """Keep the pool up to date until the block is left."""
        async with (
            self._informer.running(),
            background_tasks.running(slices_changed=self._watch_slices, publisher=self._run),
        ):
            yield self

    async def _find_path(self, deadline: float, is_lost: bool) -> str:
        """Path of the ResourceSlices in the version that the API server serves."""
        stale = self._version if is_lost else ""
        try:
            self._version = await self._api.dra_api_version(deadline, stale=stale)
        except DraDisabled as error:
            self._observe_problem(error)
            raise
        return apiversions.slices_path(self._version)

    async def _watch_slices(self) -> None:
        serial = 0
        while True:
            serial = await self._informer.wait_for_change(serial)
            self._woken.set()

    async def _run(self) -> None:
        """Synchronize when slices or the pool change, and again after a failure."""
        retry_s: float | None = None
        while True:
            trigger = self._woken if retry_s is None else self._pool_changed
            await timeouts.wait_for_event(trigger, retry_s)
            self._woken.clear()
            is_new = self._pool_changed.is_set()
            self._pool_changed.clear()
            retry_s = await self._sync(is_new)

    async def _sync(self, is_new: bool) -> float | None:
        """Write what differs. Returns seconds until the next attempt, None if none is needed."""
        if self._desired is None or not self._informer.has_synced:
            return None
        try:
            if not self._owner and self._informer.snapshot():
                self._owner = await self._node_uid()
            if not self._writes():
                self._mark_published()
                return None
            if not is_new and self._state.is_published:
                await self._delay_repair()
            await self._write(self._writes())
        except DriverError as error:
            return self._record_failure(error)
        if self._writes():
            return _RETRY_BACKOFF.first_s
        self._mark_published()
        return None

    def _writes(self) -> pool_diff.Writes:
        if self._desired is None:
            return pool_diff.Writes()
        return pool_diff.reconcile(
            self._desired, self._stored_slices(), self._driver, self._node, self._owner
        )

    def _stored_slices(self) -> list[JsonObject]:
        stored = self._informer.snapshot().values()
        return [apiversions.slice_from_version(self._version, each) for each in stored]

    def _mark_published(self) -> None:
        """Mark the pool as published, and log this once."""
        if self._desired is None or not self._informer.has_synced:
            return
        self._failures = 0
        if not self._state.is_published:
            generation = max(map(pool_diff.generation, self._stored_slices()), default=0)
            self._state = replace(self._state, is_published=True, error="", generation=generation)
            LOG.info(
                "The pool is published",
                pool=self._desired.pool,
                slices=len(self._desired.contents),
                generation=generation,
            )

    async def _delay_repair(self) -> None:
        """Wait until others have finished changing the slices, unless a new pool is published."""
        now = asyncio.get_running_loop().time()
        self._repairs = 1 if now - self._repaired_at > _REPAIR_RESET_S else self._repairs + 1
        self._repaired_at = now
        delay = _REPAIR_BACKOFF.delay(self._repairs, random.random())  # noqa: S311 - spreads load
        LOG.warning("Slices were changed by others and will be repaired", delay_s=round(delay, 1))
        await timeouts.wait_for_event(self._pool_changed, delay)

    async def _write(self, writes: pool_diff.Writes) -> None:
        for delete in writes.deletes:
            await self._delete(delete)
        for each in writes.replaces:
            path = apiversions.slices_path(self._version, each["metadata"]["name"])
            await self._store("replace", each, functools.partial(self._api.replace, path))
        if writes.creates:
            self._owner = await self._node_uid()
            collection = apiversions.slices_path(self._version)
            for create in writes.creates:
                made = pool_diff.with_node_owner(create, self._node, self._owner)
                await self._store("create", made, functools.partial(self._api.create, collection))

    async def _delete(self, obj: JsonObject) -> None:
        metadata = obj["metadata"]
        path = apiversions.slices_path(self._version, metadata["name"])
        with self._observed_write("delete"):
            try:
                await self._api.delete(
                    path,
                    _deadline(),
                    uid=metadata["uid"],
                    resource_version=metadata["resourceVersion"],
                )
            except NotFound:
                LOG.v(6, "The slice is gone already", slice=metadata["name"])
        self._informer.record_delete(obj)
        LOG.info("Slice deleted", slice=metadata["name"])

    async def _store(
        self, verb: str, obj: JsonObject, call: Callable[[JsonObject, float], Awaitable[JsonObject]]
    ) -> None:
        """Create or replace a slice, and compare what the API server stored with what was sent."""
        with self._observed_write(verb):
            stored = await call(apiversions.slice_to_version(self._version, obj), _deadline())
        self._informer.record_write(stored)
        kept = apiversions.slice_from_version(self._version, stored)
        name = kept["metadata"]["name"]
        done = {"create": "Slice created", "replace": "Slice replaced"}[verb]
        LOG.info(done, slice=name, generation=pool_diff.generation(kept))
        lost = slice_spec.dropped_fields(obj["spec"], kept["spec"])
        if lost and self._desired is not None:
            self._accept_stored(kept, lost, self._desired)

    def _accept_stored(
        self, kept: JsonObject, lost: tuple[str, ...], desired: pool_diff.DesiredPool
    ) -> None:
        """Accept what the API server stored, and log what is missing."""
        index = pool_diff.index_of(kept, len(desired.contents))
        if index is not None:
            self._desired = pool_diff.accept_stored(desired, index, kept["spec"])
        self._state = replace(self._state, dropped=tuple(sorted({*self._state.dropped, *lost})))
        LOG.error(
            "The API server dropped fields of a slice; see whether these feature gates are enabled",
            slice=kept["metadata"]["name"],
            missing=lost,
        )
        self._observe_dropped(lost)

    async def _node_uid(self) -> str:
        """Read for each creation, because a Node that was created again has another UID."""
        node = await self._api.get(f"/api/v1/nodes/{self._node}", _deadline())
        return str(node["metadata"]["uid"])

    @contextmanager
    def _observed_write(self, verb: str) -> Iterator[None]:
        try:
            yield
        except DriverError as error:
            self._observe_write(Write(verb, type(error).__name__))
            raise
        self._observe_write(Write(verb, "success"))

    def _record_failure(self, error: DriverError) -> float:
        """Record and log the failure. Returns seconds until the next attempt."""
        self._failures += 1
        if isinstance(error, Invalid):
            delay, text = _INVALID_RETRY_S, f"the API server rejects a slice: {error.server_text}"
            self._observe_problem(error)
        else:
            chance = random.random()  # noqa: S311 - spreads load
            delay, text = _RETRY_BACKOFF.delay(self._failures, chance), str(error)
        self._state = replace(self._state, is_published=False, error=text)
        LOG.error("Slices are not published", retry_s=round(delay, 1), error=text)
        return delay


def _deadline() -> float:
    return asyncio.get_running_loop().time() + _CALL_TIMEOUT_S
