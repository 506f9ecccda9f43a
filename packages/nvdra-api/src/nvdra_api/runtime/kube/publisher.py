"""Keep one pool of ResourceSlices true: the pool that was handed over last.

`publish` hands over and returns. A loop compares with what the API server holds and writes the
difference, also when somebody else edits or deletes our slices: the kubelet does at each of its
starts. What to write is `protocol.pools`' to decide. Slices stay when the process ends.
Source: spec/kubelet-dra-protocol.md §3.8, §5.4.
"""

import asyncio
import functools
import logging
import math
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from typing import Final

from nvdra_api.protocol import apiversions, contents, pools
from nvdra_api.protocol.apiversions import JsonObject
from nvdra_api.protocol.backoff import Backoff
from nvdra_api.runtime.kube.client import Client
from nvdra_api.runtime.kube.errors import DraDisabled, Invalid, NotFound
from nvdra_api.runtime.kube.reflector import Reflector
from nvdra_api.runtime.process import background, waiting
from nvdra_api.types.errors import DriverError
from nvdra_api.types.ids import NodeName
from nvdra_api.types.slices import Pool

_log = logging.getLogger(__name__)

_CALL_S: Final = 10.0
_REPAIR: Final = Backoff(first_s=1, ceiling_s=30)
"""Before other people's edits are undone: long enough to see the whole of a wipe, and growing, so
that two that disagree about a slice do not fight at full speed. A calm minute starts it anew."""

_FAILED: Final = Backoff(first_s=0.5, ceiling_s=60)
_REJECTED_S: Final = 300.0
"""What the server calls invalid stays so until we publish something else or it is upgraded."""

_CALM_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class PublisherState:
    """How publication stands, for readiness and status.

    Attributes:
        is_published: The API server holds the pool that was handed over last.
        error: Why not; empty while there is nothing to report.
        dropped: Feature gates that the server seems to lack: it kept less than we sent.
        slices: Slices of the pool.
        generation: Of the pool.
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


def _unobserved(_: object) -> None:
    pass


class Publisher:
    """Publishes the devices of one driver on one node."""

    def __init__(
        self,
        api: Client,
        driver: str,
        node: NodeName,
        observe_write: Callable[[Write], None] = _unobserved,
        observe_restart: Callable[[str], None] = _unobserved,
        observe_trouble: Callable[[DriverError], None] = _unobserved,
    ) -> None:
        """Prepare to publish; `running` does it.

        Args:
            api: The API server.
            driver: Whose devices.
            node: On which node.
            observe_write: Told of every attempt to write a slice.
            observe_restart: As a `Reflector`'s, for the watch of the slices.
            observe_trouble: Told of what keeps the slices from being published and will not go
                away by itself: they are invalid, or there is no API for them.
        """
        self._api = api
        self._driver = driver
        self._node = node
        self._observe_write = observe_write
        self._observe_trouble = observe_trouble
        self._version = ""
        self._owner = ""
        self._pool: Pool | None = None
        self._wish: pools.Wish | None = None
        self._wished = asyncio.Event()
        self._stirred = asyncio.Event()
        self._failures = 0
        self._repairs = 0
        self._repaired_at = -math.inf
        self._state = PublisherState()
        selector = f"spec.driver={driver},spec.nodeName={node}"
        self._reflector = Reflector(api, self._locate, {"fieldSelector": selector}, observe_restart)

    @property
    def state(self) -> PublisherState:
        """How publication stands."""
        return replace(self._state, error=self._state.error or self._reflector.error)

    def publish(self, pool: Pool) -> None:
        """Hand over the pool that shall be; an equal one changes nothing."""
        if pool == self._pool:
            return
        self._pool = pool
        found = pools.problems(pool)
        self._wish = None if found else pools.wish(pool)
        self._state = PublisherState(slices=len(pool.slices), error="; ".join(found))
        if found:
            _log.error("the pool contradicts itself and is not published error=%s", found)
        self._wished.set()
        self._stirred.set()

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Publisher"]:
        """Keep the published pool true until the block is left."""
        async with (
            self._reflector.running(),
            background.tasks(slices_changed=self._notice(), publisher=self._keep()),
        ):
            yield self

    async def _locate(self, deadline: float, is_lost: bool) -> str:
        """Path of the slices in the version that the server speaks now."""
        stale = self._version if is_lost else ""
        try:
            self._version = await self._api.resource_version(deadline, stale=stale)
        except DraDisabled as error:
            self._observe_trouble(error)
            raise
        return apiversions.slices_path(self._version)

    async def _notice(self) -> None:
        serial = 0
        while True:
            serial = await self._reflector.changed_since(serial)
            self._stirred.set()

    async def _keep(self) -> None:
        """Look whenever something stirs; after a failure when it is time, or for a new pool."""
        retry_s: float | None = None
        while True:
            stir = self._stirred if retry_s is None else self._wished
            await waiting.within(stir, retry_s)
            self._stirred.clear()
            is_new = self._wished.is_set()
            self._wished.clear()
            retry_s = await self._look(is_new)

    async def _look(self, is_new: bool) -> float | None:
        """Compare, and write what differs; seconds until the next attempt if this one failed."""
        if self._wish is None or not self._reflector.is_synced:
            return None
        try:
            if not self._owner and self._reflector.snapshot():
                self._owner = await self._node_uid()
            if not self._writes():
                self._settle()
                return None
            if not is_new and self._state.is_published:
                await self._hold_back()
            await self._write(self._writes())
        except DriverError as error:
            return self._failed(error)
        if self._writes():
            return _FAILED.first_s
        self._settle()
        return None

    def _writes(self) -> pools.Writes:
        if self._wish is None:
            return pools.Writes()
        return pools.reconcile(self._wish, self._observed(), self._driver, self._node, self._owner)

    def _observed(self) -> list[JsonObject]:
        stored = self._reflector.snapshot().values()
        return [apiversions.slice_from(self._version, each) for each in stored]

    def _settle(self) -> None:
        """Nothing is left to write, as far as we can see; say so once."""
        if self._wish is None or not self._reflector.is_synced:
            return
        self._failures = 0
        if not self._state.is_published:
            generation = max(map(pools.generation, self._observed()), default=0)
            self._state = replace(self._state, is_published=True, error="", generation=generation)
            _log.info(
                "the pool is published pool=%s slices=%d generation=%d",
                self._wish.pool,
                len(self._wish.contents),
                generation,
            )

    async def _hold_back(self) -> None:
        """Somebody else changed our slices: let them finish, unless a new pool comes."""
        now = asyncio.get_running_loop().time()
        self._repairs = 1 if now - self._repaired_at > _CALM_S else self._repairs + 1
        self._repaired_at = now
        delay = _REPAIR.delay(self._repairs, random.random())  # noqa: S311 - spreads load
        _log.warning("slices were changed by others and will be repaired delay_s=%.1f", delay)
        await waiting.within(self._wished, delay)

    async def _write(self, writes: pools.Writes) -> None:
        for each in writes.deletes:
            await self._delete(each)
        for each in writes.replaces:
            path = apiversions.slices_path(self._version, each["metadata"]["name"])
            await self._store("replace", each, functools.partial(self._api.replace, path))
        if writes.creates:
            self._owner = await self._node_uid()
            collection = apiversions.slices_path(self._version)
            for each in writes.creates:
                made = pools.owned(each, self._node, self._owner)
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
                _log.debug("the slice is gone already slice=%s", metadata["name"])
        self._reflector.deleted(obj)
        _log.info("slice deleted slice=%s", metadata["name"])

    async def _store(
        self, verb: str, obj: JsonObject, call: Callable[[JsonObject, float], Awaitable[JsonObject]]
    ) -> None:
        """Create or replace one slice, and compare what the server kept with what we sent."""
        with self._observed_write(verb):
            stored = await call(apiversions.slice_to(self._version, obj), _deadline())
        self._reflector.wrote(stored)
        kept = apiversions.slice_from(self._version, stored)
        name = kept["metadata"]["name"]
        _log.info("slice %sd slice=%s generation=%d", verb, name, pools.generation(kept))
        lost = contents.dropped(obj["spec"], kept["spec"])
        if lost and self._wish is not None:
            self._adopt(kept, lost, self._wish)

    def _adopt(self, kept: JsonObject, lost: tuple[str, ...], wish: pools.Wish) -> None:
        """Live with what the server kept, and say what is missing."""
        index = pools.index_of(kept, len(wish.contents))
        if index is not None:
            self._wish = pools.adopt(wish, index, kept["spec"])
        self._state = replace(self._state, dropped=tuple(sorted({*self._state.dropped, *lost})))
        _log.error(
            "the API server kept less than we published slice=%s missing=%s; "
            "see whether these feature gates are on",
            kept["metadata"]["name"],
            ",".join(lost),
        )

    async def _node_uid(self) -> str:
        """Read for each creation: a node that was deleted and made again has another UID."""
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

    def _failed(self, error: DriverError) -> float:
        """Remember and log the failure; seconds until the next attempt."""
        self._failures += 1
        if isinstance(error, Invalid):
            delay, text = _REJECTED_S, f"the API server rejects a slice: {error.server_text}"
            self._observe_trouble(error)
        else:
            chance = random.random()  # noqa: S311 - spreads load
            delay, text = _FAILED.delay(self._failures, chance), str(error)
        self._state = replace(self._state, is_published=False, error=text)
        _log.error("slices are not published retry_s=%.1f error=%s", delay, text)
        return delay


def _deadline() -> float:
    return asyncio.get_running_loop().time() + _CALL_S
