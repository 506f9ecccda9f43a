# SPDX-License-Identifier: Apache-2.0
"""An informer: a local copy of a collection that list and watch keep up to date.

It lists once, then watches and resumes; it lists again only if it must. Read the objects with
`snapshot()` or `get(key)`, wait with `wait_for_change`, or pass `on_change` to be called with the
changed keys. Where changes may come faster than they are of use, `pause` closes the watch for a
while. `informer_cache` interprets the answers. Source: docs/reference/api-server.md,
"List and watch".
"""

import asyncio
import contextlib
import math
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Final

from nvdra_api.errors import DriverError
from nvdra_api.meta import JsonObject

from nvdra_runtime.kube import connection, informer_cache, list_pages
from nvdra_runtime.kube.client import Client
from nvdra_runtime.kube.errors import (
    DraDisabled,
    Gone,
    NotServed,
    invalid_response,
)
from nvdra_runtime.kube.informer_cache import WatchResult
from nvdra_runtime.process import background_tasks, log_records
from nvdra_runtime.process.backoff import Backoff

LOG = log_records.logger(__name__)

_FIND_TIMEOUT_S = 30.0
_WATCH_TIMEOUT_S = 300
_WATCH_TIMEOUT_JITTER_S = 60
_MIN_WATCH_INTERVAL_S = 1.0
_WATCH_GRACE_S = 30.0
"""How much longer than requested a server may keep a watch open before we close it."""

LIST_BACKOFF: Final = Backoff(first_s=0.5, ceiling_s=30)
"""For an informer that each of thousands of nodes has."""
PROMPT_BACKOFF: Final = Backoff(first_s=0.5, ceiling_s=3)
"""For an informer that few processes have, or only for a while, and whose copy is waited for:
after an outage of the API server it is current within seconds."""
_BACKOFF_RESET_CEILINGS = 2.0
_BACKOFF_RESET_S = 10.0
"""A copy that was up to date for so many of the longest delays, and for so long, begins with the
first one again. A watch that hangs before it fails takes less."""

_REPEATED: Final = "listing and watching has failed unexpectedly, and is begun again"

_MISSING_API_RETRY_S = 30.0
"""Time between two discoveries of an API that the cluster does not serve."""


def _ignore_change(_: frozenset[str]) -> None:
    """Do nothing with the changed keys."""


FindPath = Callable[[float, bool], Awaitable[str]]
"""Returns the collection's path by the deadline. True means that the last path was answered with
404."""


def fixed_path(path: str) -> FindPath:
    """The path of a collection whose API has one version."""

    async def find_path(deadline: float, is_lost: bool) -> str:
        del deadline, is_lost
        return path

    return find_path


class Informer:
    """A local copy of one collection."""

    def __init__(
        self,
        api: Client,
        find_path: FindPath,
        params: Mapping[str, str],
        on_watch_restart: Callable[[str], None],
        *,
        on_change: Callable[[frozenset[str]], None] = _ignore_change,
        transform: Callable[[JsonObject], JsonObject] = informer_cache.keep_whole_object,
        backoff: Backoff = LIST_BACKOFF,
        metadata_only: bool = False,
    ) -> None:
        """Create an informer. `running` lists and watches.

        Args:
            api: The API server.
            find_path: Returns the collection's path. It is called before each list, because an
                upgrade of the control plane may change the API version.
            params: Selectors. Without one of fields the collection is one that users fill: it is
                listed in pages of a few MiB, so that the memory needed does not grow with what they
                write into the objects. Pages are more work for the server, which may have to read
                them from etcd: what each of thousands of nodes lists for itself is asked for at
                once, and in pages only if it is too long.
            on_watch_restart: Called with the collection's name, such as `resourceslices`, whenever
                a watch replaces one that ended.
            on_change: Called with the keys of added, changed and deleted objects, including our own
                writes, before `wait_for_change` returns. After a time without the API server it is
                called with all keys, because whatever failed meanwhile can succeed now.
            transform: Returns the part of an object to keep: at least name, namespace, UID and
                resourceVersion. An object of which it fails unexpectedly is skipped and counted.
            backoff: Delays between attempts to list.
            metadata_only: Receive nothing but `metadata`. The objects are of the kind
                PartialObjectMetadata.
        """
        self._api = api
        self._backoff = backoff
        self._find_path = find_path
        self._params = params
        self._on_watch_restart = on_watch_restart
        self._on_change = on_change
        self._paused_until = -math.inf
        self._list_type, self._event_type = (
            (connection.METADATA_LIST, connection.METADATA)
            if metadata_only
            else (connection.JSON, connection.JSON)
        )
        self._has_watched = False
        self._transform = transform
        self._cache = informer_cache.InformerCache(self._part_to_keep)
        self._changed = asyncio.Condition()
        self._is_path_missing = False
        self.change_count = 0
        """Increases with every change."""
        self.error = ""
        """Why the copy may be out of date; empty if it is not."""

    @property
    def has_synced(self) -> bool:
        """Whether the collection has been listed."""
        return self._cache.is_listed

    @property
    def is_paused(self) -> bool:
        """Whether changes are not received at the moment, because there have been many."""
        return self._pause_left_s() > 0.0

    def snapshot(self) -> Mapping[str, JsonObject]:
        """The objects by key, in the API version of `find_path`, including our own writes."""
        return self._cache.objects()

    def get(self, key: str) -> JsonObject | None:
        """One object by its key, `<namespace>/<name>` or `<name>`, including our own writes."""
        return self._cache.get(key)

    async def wait_for_sync(self) -> None:
        """Wait until the collection has been listed."""
        async with self._changed:
            await self._changed.wait_for(lambda: self.has_synced)

    async def wait_for_change(self, seen_count: int) -> int:
        """Wait until `change_count` is above `seen_count`. Returns the new `change_count`."""
        async with self._changed:
            await self._changed.wait_for(lambda: self.change_count > seen_count)
            return self.change_count

    def record_write(self, obj: JsonObject) -> None:
        """Apply our own create or replace before the watch reports it."""
        self._cache.record_write(obj)
        self._notify_changed_keys()

    def record_delete(self, obj: JsonObject) -> None:
        """Apply our own delete before the watch reports it."""
        self._cache.record_delete(obj)
        self._notify_changed_keys()

    def pause(self, seconds: float) -> None:
        """Receive nothing for so long, and list again then. Called from `on_change`, or later.

        So all that has changed meanwhile is received once.
        """
        self._paused_until = asyncio.get_running_loop().time() + seconds

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Informer"]:
        """List and watch while the block runs."""
        async with background_tasks.running(informer=self._list_and_watch):
            yield self

    async def _list_and_watch(self) -> None:
        clock = asyncio.get_running_loop().time
        failures, current_since = 0, math.inf
        reset_s = max(_BACKOFF_RESET_S, _BACKOFF_RESET_CEILINGS * self._backoff.ceiling_s)
        if self.change_count:  # what was not received before is received as after an outage
            await self._wake_waiters(_REPEATED)
        while True:
            try:
                path = await self._list()
                current_since = min(current_since, clock())
                if not self.is_paused:
                    await self._watch_until_relist(path)
                await self._wait_for_end_of_pause()
            except DriverError as error:
                failures = 1 if clock() - current_since >= reset_s else failures + 1
                current_since = math.inf
                self._is_path_missing = isinstance(error, NotServed)
                delay = self._log_failure(error, failures)
                await self._wake_waiters(str(error))
                await asyncio.sleep(delay)

    def _part_to_keep(self, obj: JsonObject) -> JsonObject | None:
        key = informer_cache.object_key(obj)
        with background_tasks.contain("An object cannot be read and is skipped", object=key):
            return self._transform(obj)
        return None

    async def _list(self) -> str:
        deadline = asyncio.get_running_loop().time() + _FIND_TIMEOUT_S
        path = await self._find_path(deadline, self._is_path_missing)
        self._is_path_missing = False
        is_changed = await self._list_pages(path)
        self._notify_changed_keys()
        if self.error:
            self._on_change(frozenset(self._cache.objects()))
        LOG.v(2, "Listed", path=path)
        if is_changed or self.error or self.change_count == 0:
            await self._wake_waiters("")
        return path

    async def _list_pages(self, path: str) -> bool:
        """List page by page, so that the whole objects are never there at once."""
        pages = list_pages.pages(
            self._api,
            path,
            math.inf,
            self._params,
            self._list_type,
            is_whole_first="fieldSelector" in self._params,
        )
        kept: dict[str, JsonObject] = {}
        last: JsonObject = {}
        async with contextlib.aclosing(pages):
            async for page in pages:
                with invalid_response("GET", path):
                    kept |= self._cache.kept(page)
                last = {**page, "items": ()}
                del page
        return self._cache.replace(last, kept)

    async def _watch_until_relist(self, path: str) -> None:
        """Watch, and resume where each watch ended, until a list is necessary.

        A watch starts at most once a second, even if a proxy ends each watch at once or the server
        rejects every resourceVersion as too old.
        """
        clock = asyncio.get_running_loop().time
        outcome = WatchResult.UNCHANGED
        while outcome is not WatchResult.RELIST:
            started = clock()
            outcome = await self._watch_once(path)
            await asyncio.sleep(max(0.0, started + _MIN_WATCH_INTERVAL_S - clock()))

    async def _watch_once(self, path: str) -> WatchResult:
        """Run one watch. A connection that breaks after an event counts as the end of a watch."""
        before = self._cache.resource_version
        try:
            return await self._read_watch(path)
        except Gone:
            return WatchResult.RELIST
        except NotServed:
            raise
        except DriverError as error:
            if self._cache.resource_version == before:
                raise
            LOG.v(6, "Resuming a broken watch", path=path, error=str(error))
            return WatchResult.UNCHANGED

    async def _read_watch(self, path: str) -> WatchResult:
        if self._has_watched:
            self._on_watch_restart(path.rpartition("/")[2])
        self._has_watched = True
        timeout_s = _WATCH_TIMEOUT_S + random.randrange(_WATCH_TIMEOUT_JITTER_S)  # noqa: S311 - spreads load
        params = {
            **self._params,
            "resourceVersion": self._cache.resource_version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(timeout_s),
        }
        deadline = asyncio.get_running_loop().time() + timeout_s + _WATCH_GRACE_S
        LOG.v(3, "Watching", path=path, timeout_s=int(timeout_s))
        events = self._api.watch(path, params, deadline, self._event_type)
        async with contextlib.aclosing(events) as lines:
            async for line in lines:
                outcome = self._cache.apply_watch_line(line)
                if outcome is WatchResult.RELIST:
                    return outcome
                if outcome is WatchResult.CHANGED:
                    self._notify_changed_keys()
                    await self._wake_waiters("")
                    if self.is_paused:
                        return WatchResult.RELIST
        return WatchResult.UNCHANGED

    def _pause_left_s(self) -> float:
        return self._paused_until - asyncio.get_running_loop().time()

    async def _wait_for_end_of_pause(self) -> None:
        while self.is_paused:  # noqa: ASYNC110 - our own writes make it longer
            await asyncio.sleep(self._pause_left_s())

    def _notify_changed_keys(self) -> None:
        if changed := self._cache.take_changed_keys():
            self._on_change(changed)

    async def _wake_waiters(self, error: str) -> None:
        async with self._changed:
            self.error = error
            self.change_count += 1
            self._changed.notify_all()

    def _log_failure(self, error: DriverError, failures: int) -> float:
        """Log a failure; repeated ones as warnings. Returns the seconds until the next list."""
        if isinstance(error, DraDisabled):
            LOG.warning(
                "The API server serves no DRA API", retry_s=_MISSING_API_RETRY_S, error=str(error)
            )
            return _MISSING_API_RETRY_S
        delay = self._backoff.delay(failures, random.random())  # noqa: S311 - spreads load
        log = LOG.warning if failures > 1 else LOG.info
        log("Cannot list or watch", failures=failures, retry_s=round(delay, 1), error=str(error))
        return delay
