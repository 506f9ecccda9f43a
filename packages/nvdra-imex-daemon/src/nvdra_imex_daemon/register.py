"""Our entry among the daemons of the domain: join, report, leave, and see who else is there.

One filtered watch of one object, by its name. Writes carry the version that they were thought out
for, or are patches of our own entry alone; who was faster is read, and the change thought out anew.
Source: spec/compute-domain.md §8.4, §14.2 (KW-24 to 30); §14.1 (KW-2).
"""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

from nvdra_api.protocol.apiversions import JsonObject
from nvdra_api.protocol.backoff import Backoff
from nvdra_api.runtime.kube.client import Client
from nvdra_api.runtime.kube.errors import Conflict, Invalid, NotFound
from nvdra_api.runtime.kube.reflector import Reflector
from nvdra_api.runtime.telemetry import logs
from nvdra_api.types.errors import Reason, RetryableError

from nvdra_imex_daemon import entries, shapes
from nvdra_imex_daemon.entries import Entries, Member, Report
from nvdra_imex_daemon.shapes import Shape

LOG = logs.logger(__name__)

TELL_S: Final = 15.0
"""For one change, however often somebody else is faster; then the loop above begins anew."""
LEAVE_S: Final = 10.0
"""Of the pod's grace period, as in the reference."""

_AGAIN: Final = Backoff(first_s=0.02, ceiling_s=0.5, jitter=1.0)
"""After a conflict: all of it chance, because the others wait as well."""


class Superseded(RetryableError):
    """A later pod on our node speaks for it: we are the past, and must not fight it."""


class Register:
    """The list that our entry is in; which of the two it is, the shape knows.

    Attributes:
        has_joined: Whether our entry was ever written by this process.
    """

    def __init__(
        self,
        api: Client,
        shape: Shape,
        member: Member,
        observe_restart: Callable[[str], None],
        preferred: int | None = None,
    ) -> None:
        """Prepare; `running` watches.

        Args:
            api: The API server.
            shape: Where the list is.
            member: Who we are.
            observe_restart: Told when the watch begins anew.
            preferred: The index to take if it is free: our node's last one.
        """
        self._api = api
        self._shape = shape
        self._member = member
        self._path = f"{shape.collection}/{shape.name}"
        self._preferred = preferred
        self._is_pruned = False
        self.has_joined = False
        self._reflector = Reflector(
            api, self._locate, {"fieldSelector": f"metadata.name={shape.name}"}, observe_restart
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Register"]:
        """Watch until the block is left."""
        async with self._reflector.running():
            yield self

    @property
    def serial(self) -> int:
        """Grows with every change of the object, and of what we know of it."""
        return self._reflector.serial

    @property
    def problem(self) -> str:
        """Why what we know may be old; empty while all is well."""
        return self._reflector.error

    async def changed_since(self, serial: int) -> int:
        """Wait for a change that a reader at `serial` has not seen; the new serial."""
        return await self._reflector.changed_since(serial)

    def entries(self) -> Entries:
        """Everybody's entries, as last seen, our own writes included."""
        obj = self._seen()
        return self._shape.entries(obj) if obj is not None else ()

    def expected(self) -> int:
        """How many nodes the domain is to have, where that is known."""
        obj = self._seen()
        return self._shape.expected(obj) if obj is not None else 0

    async def tell(self, report: Report) -> int:
        """Make our entry say this, joining where it is missing; our index.

        Writes nothing where nothing changes.

        Raises:
            Superseded: `DaemonNotReady`: a successor on our node has the entry.
            RetryableError: `DomainFull`, `DomainNotFound`; `ApiUnavailable`.
        """
        deadline = asyncio.get_running_loop().time() + TELL_S
        obj = self._seen() if self._reflector.is_synced else await self._read(deadline)
        failures = 0
        while True:
            self._check_succession(obj)
            change = shapes.wanted(
                self._shape,
                obj,
                self._member,
                report,
                preferred=self._preferred,
                is_pruned=self._is_pruned,
            )
            if change is None:
                assert obj is not None
                return self._note(obj)
            try:
                stored = await self._write(obj, change, deadline)
            except (Conflict, Invalid, NotFound) as error:
                failures += 1
                if isinstance(error, Invalid) and failures > 1:
                    raise
                await asyncio.sleep(_AGAIN.delay(failures, random.random()))  # noqa: S311
                obj = await self._read(deadline)
                continue
            self._reflector.wrote(stored)
            return self._note(stored)

    async def leave(self) -> bool:
        """Take our entry out, however often somebody else is faster; was there one?

        A successor's stays. Gives up after `LEAVE_S`.

        Raises:
            DriverError: the API server did not let us.
        """
        deadline = asyncio.get_running_loop().time() + LEAVE_S
        failures = 0
        while (obj := await self._read(deadline)) is not None:
            before = self._shape.entries(obj)
            after = entries.without_us(before, self._member, self._shape.key)
            if len(after) == len(before):
                return False
            try:
                change = self._shape.shrunk(obj, after)
                await self._api.replace(self._path + self._shape.subresource, change, deadline)
                return True
            except Conflict:
                failures += 1
                await asyncio.sleep(_AGAIN.delay(failures, random.random()))  # noqa: S311
            except NotFound:
                return False
        return False

    async def _locate(self, deadline: float, is_lost: bool) -> str:
        del deadline, is_lost  # there is one version of our own API
        return self._shape.collection

    def _seen(self) -> JsonObject | None:
        return next(iter(self._reflector.snapshot().values()), None)

    async def _read(self, deadline: float) -> JsonObject | None:
        try:
            return await self._api.get(self._path, deadline)
        except NotFound:
            return None

    async def _write(
        self, obj: JsonObject | None, change: JsonObject, deadline: float
    ) -> JsonObject:
        path = self._path + self._shape.subresource
        if obj is None:
            return await self._api.create(self._shape.collection, change, deadline)
        operations = shapes.patch(self._shape, obj, change, self._member)
        if operations is None:
            return await self._api.replace(path, change, deadline)
        return await self._api.patch(path, operations, deadline, "application/json-patch+json")

    def _check_succession(self, obj: JsonObject | None) -> None:
        """Only an entry that we had can have been taken over; before, it is ours to take."""
        if obj is None or not self.has_joined:
            return
        entry = entries.own(self._shape.entries(obj), self._member, self._shape.key)
        if entry is not None and not entries.is_ours(entry, self._member):
            who = entry.get("podUID") or entry.get("ipAddress")
            raise Superseded(
                Reason.DAEMON_NOT_READY,
                f"another pod ({who}) speaks for node {self._member.node} now; this one "
                f"({self._member.pod_uid}) is its predecessor",
                "nothing to do if this pod is being deleted; otherwise delete it",
                node=self._member.node,
            )

    def _note(self, obj: JsonObject) -> int:
        """Remember our place; see whether the cluster's CRD keeps what we add."""
        entry = entries.own(self._shape.entries(obj), self._member, self._shape.key)
        index = entries.index_of(entry) if entry is not None else None
        if entry is None or index is None:
            raise RetryableError(
                Reason.API_UNAVAILABLE,
                f"{self._path} does not hold the entry that was written for node "
                f"{self._member.node}",
                "see what changes objects on their way into the API server",
            )
        self._is_pruned = self._shape.key is entries.Key.CLIQUE and not entry.get("podUID")
        if not self.has_joined or index != self._preferred:
            LOG.v(1, "Joined", object=self._shape.name, index=index, former=self._preferred)
        self.has_joined = True
        self._preferred = index
        return index
