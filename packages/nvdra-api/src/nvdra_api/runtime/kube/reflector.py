"""Keep a copy of a collection true: list once, watch, resume; list again only when that must be.

Who reads takes `snapshot()` or `get(key)`; who waits takes `changed_since(serial)`; who keeps an
index is told the keys that moved. What the answers mean is `protocol.watching`'s to decide.
Source: spec/kubelet-dra-protocol.md §8.8.
"""

import asyncio
import contextlib
import logging
import math
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager

from nvdra_api.protocol import watching
from nvdra_api.protocol.apiversions import JsonObject
from nvdra_api.protocol.backoff import Backoff
from nvdra_api.protocol.watching import Outcome
from nvdra_api.runtime.kube.client import Client
from nvdra_api.runtime.kube.errors import DraDisabled, Gone, NotFound
from nvdra_api.runtime.process import background
from nvdra_api.types.errors import DriverError

_log = logging.getLogger(__name__)

_LIST_S = 30.0
_WATCH_S = 300
_WATCH_SPREAD_S = 60
_SHORTEST_WATCH_S = 1.0
_PATIENCE_S = 30.0
"""How much longer than it was asked to a server may keep a watch open before we close it."""

_FAILED = Backoff(first_s=0.5, ceiling_s=30)
_CALM_S = 60.0
"""After so long without a failure the back-off starts anew."""

_NO_SUCH_API_S = 30.0
"""Between two questions for an API that the cluster does not serve; a small answer."""


def _unheard(_: frozenset[str]) -> None:
    """For who keeps no index."""


class Reflector:
    """One collection, as it is now as far as anyone can tell."""

    def __init__(
        self,
        api: Client,
        locate: Callable[[float, bool], Awaitable[str]],
        params: Mapping[str, str],
        observe_restart: Callable[[str], None],
        *,
        observe_change: Callable[[frozenset[str]], None] = _unheard,
        trim: Callable[[JsonObject], JsonObject] = watching.whole,
    ) -> None:
        """Prepare to reflect; `running` does it.

        Args:
            api: The API server.
            locate: The collection's path, found by the deadline; asked before each list, because
                the version to speak may change with the control plane. True says that the last
                path answered 404.
            params: Selectors.
            observe_restart: Told the collection's name, `resourceslices`, whenever a watch begins
                in place of one that ended.
            observe_change: Told the keys of what came, changed or went, our own writes included,
                at once and before anybody who waits.
            trim: What to keep of each object; at least name, namespace, UID and resourceVersion.
        """
        self._api = api
        self._locate = locate
        self._params = params
        self._observe_restart = observe_restart
        self._observe_change = observe_change
        self._has_watched = False
        self._collection = watching.Collection(trim)
        self._moved = asyncio.Condition()
        self._is_lost = False
        self.serial = 0
        """Grows with every change."""
        self.error = ""
        """Why the copy may be old; empty while all is well."""

    @property
    def is_synced(self) -> bool:
        """Has the collection been listed?"""
        return self._collection.is_listed

    def snapshot(self) -> Mapping[str, JsonObject]:
        """The objects by key, in the API version that `locate` names; our own writes included."""
        return self._collection.objects()

    def get(self, key: str) -> JsonObject | None:
        """One object by its key, `<namespace>/<name>` or the bare name; our own writes included."""
        return self._collection.get(key)

    async def synced(self) -> None:
        """Wait until the collection has been listed."""
        async with self._moved:
            await self._moved.wait_for(lambda: self.is_synced)

    async def changed_since(self, serial: int) -> int:
        """Wait until something changed that a reader at `serial` has not seen; the new serial."""
        async with self._moved:
            await self._moved.wait_for(lambda: self.serial > serial)
            return self.serial

    def wrote(self, obj: JsonObject) -> None:
        """Count our own create or replace before the watch tells of it."""
        self._collection.wrote(obj)
        self._tell()

    def deleted(self, obj: JsonObject) -> None:
        """Count our own delete before the watch tells of it."""
        self._collection.deleted(obj)
        self._tell()

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Reflector"]:
        """Reflect until the block is left."""
        async with background.tasks(reflector=self._reflect()):
            yield self

    async def _reflect(self) -> None:
        clock = asyncio.get_running_loop().time
        failures, failed_at = 0, -math.inf
        while True:
            try:
                await self._follow(await self._list())
            except DriverError as error:
                failures = 1 if clock() - failed_at > _CALM_S else failures + 1
                failed_at = clock()
                self._is_lost = isinstance(error, NotFound)
                delay = self._failed(error, failures)
                await self._note(str(error))
                await asyncio.sleep(delay)

    async def _list(self) -> str:
        deadline = asyncio.get_running_loop().time() + _LIST_S
        path = await self._locate(deadline, self._is_lost)
        self._is_lost = False
        is_changed = self._collection.listed(await self._api.get(path, deadline, self._params))
        self._tell()
        _log.log(logging.INFO - 2, "listed path=%s", path)
        if is_changed or self.error or self.serial == 0:
            await self._note("")
        return path

    async def _follow(self, path: str) -> None:
        """Watch, and resume where each watch ended, until only a list can help.

        Something in between may end watches as soon as they begin, or the server take every version
        for too old: neither makes us ask faster than once a second.
        """
        clock = asyncio.get_running_loop().time
        outcome = Outcome.NOTHING
        while outcome is not Outcome.LIST_AGAIN:
            began = clock()
            outcome = await self._resumable(path)
            await asyncio.sleep(max(0.0, began + _SHORTEST_WATCH_S - clock()))

    async def _resumable(self, path: str) -> Outcome:
        """One watch; a connection that broke after it told us something is a watch that ended."""
        before = self._collection.resource_version
        try:
            return await self._watch(path)
        except Gone:
            return Outcome.LIST_AGAIN
        except NotFound:
            raise
        except DriverError as error:
            if self._collection.resource_version == before:
                raise
            _log.debug("a watch broke and is resumed path=%s error=%s", path, error)
            return Outcome.NOTHING

    async def _watch(self, path: str) -> Outcome:
        if self._has_watched:
            self._observe_restart(path.rpartition("/")[2])
        self._has_watched = True
        timeout_s = _WATCH_S + random.randrange(_WATCH_SPREAD_S)  # noqa: S311 - spreads load
        params = {
            **self._params,
            "resourceVersion": self._collection.resource_version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(timeout_s),
        }
        deadline = asyncio.get_running_loop().time() + timeout_s + _PATIENCE_S
        _log.log(logging.INFO - 3, "watching path=%s timeout_s=%d", path, timeout_s)
        async with contextlib.aclosing(self._api.watch(path, params, deadline)) as lines:
            async for line in lines:
                outcome = self._collection.fed(line)
                if outcome is Outcome.LIST_AGAIN:
                    return outcome
                if outcome is Outcome.CHANGED:
                    self._tell()
                    await self._note("")
        return Outcome.NOTHING

    def _tell(self) -> None:
        if moved := self._collection.touched():
            self._observe_change(moved)

    async def _note(self, error: str) -> None:
        async with self._moved:
            self.error = error
            self.serial += 1
            self._moved.notify_all()

    def _failed(self, error: DriverError, failures: int) -> float:
        """Log what went wrong, louder when it goes on; seconds until the next list."""
        if isinstance(error, DraDisabled):
            _log.warning("no DRA API to watch retry_s=%.0f error=%s", _NO_SUCH_API_S, error)
            return _NO_SUCH_API_S
        delay = _FAILED.delay(failures, random.random())  # noqa: S311 - spreads load
        level = logging.WARNING if failures > 1 else logging.INFO
        _log.log(
            level, "cannot list or watch failures=%d retry_s=%.1f error=%s", failures, delay, error
        )
        return delay
