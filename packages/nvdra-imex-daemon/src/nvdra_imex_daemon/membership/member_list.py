# SPDX-License-Identifier: Apache-2.0
"""The list of a domain's daemons: joins it, reports our status in it, leaves it, watches it.

One informer watches one object by its name. Where the controller writes the clique, we announce on
our pod what our entry is to contain, and write it ourselves only if the controller does not. A
write is based on the version of the object that was read, or is a patch of our own entry alone.
After a conflict the object is read again and the change is computed again. Many changes in a row
are not received one by one (`read_pace`).
Source: docs/reference/imex.md, "Joining the clique"; docs/reference/compute-domain.md, "Races and
correctness" (KW-24 to 30), "Scalability and latency" (KW-2).
"""

import asyncio
import math
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

from nvdra_api.errors import DriverError, Reason, RetryableError
from nvdra_api.meta import JsonObject
from nvdra_runtime.computedomain.announcements import Announcement
from nvdra_runtime.kube.client import Client
from nvdra_runtime.kube.errors import Conflict, Invalid, NotFound
from nvdra_runtime.kube.informer import PROMPT_BACKOFF, Informer, fixed_path
from nvdra_runtime.process.backoff import Backoff
from nvdra_runtime.telemetry import logs

from nvdra_imex_daemon.membership import entries, member_store, read_pace
from nvdra_imex_daemon.membership.announcer import Announcer
from nvdra_imex_daemon.membership.entries import Entries, Entry, MemberIdentity, MemberStatus
from nvdra_imex_daemon.membership.member_store import JsonPatch, MemberStore
from nvdra_imex_daemon.membership.read_pace import ReadPace

LOG = logs.logger(__name__)

REPORT_TIMEOUT_S: Final = 15.0
"""Limit of one report, including all conflicts. The daemon retries after that."""
LEAVE_TIMEOUT_S: Final = 10.0
"""Limit of leaving, part of the pod's grace period, as in the reference driver."""

_CONFLICT_BACKOFF: Final = Backoff(first_s=0.1, ceiling_s=3.2, jitter=1.0)
"""Delays after a conflict, fully random because the other daemons wait as well. A read and the
write after it take some hundredths of a second, so that shorter delays meet again."""


class Superseded(RetryableError):
    """A later pod of our node has taken our entry over, so this pod must not write it."""


class NotListedYet(RetryableError):
    """We have announced ourselves, and the controller has not put us into the clique yet."""


class MemberList:
    """The list that our entry is in.

    Attributes:
        has_joined: Whether the list has ever contained an entry of this process.
        recheck_in_s: Seconds until `report` must be called again even if nothing changes.
    """

    def __init__(
        self,
        api: Client,
        store: MemberStore,
        member: MemberIdentity,
        observe_restart: Callable[[str], None],
        preferred_index: int | None = None,
        announcer: Announcer | None = None,
    ) -> None:
        """Create the list; `running` watches it.

        Args:
            api: Client of the API server.
            store: The object that contains the list.
            member: Who we are.
            observe_restart: Called when the watch is restarted.
            preferred_index: The index to take if it is free: our node's last one.
            announcer: Announces us to the controller; None if daemons write the list themselves.
        """
        self._api = api
        self._store = store
        self._member = member
        self._path = f"{store.collection}/{store.name}"
        self._preferred_index = preferred_index
        self._announcer = announcer
        self._drops_unknown_fields = False
        self._read_pace = ReadPace()
        self._known: JsonObject | None = None
        self._received: Entries = ()
        self.has_joined = False
        self.recheck_in_s = math.inf
        self._informer = Informer(
            api,
            fixed_path(store.collection),
            {"fieldSelector": f"metadata.name={store.name}"},
            observe_restart,
            backoff=PROMPT_BACKOFF,
            on_change=self._take_in,
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator["MemberList"]:
        """Watch the object for the block."""
        async with self._informer.running():
            yield self

    @property
    def problem(self) -> str:
        """Why the cache may be out of date; empty if it is current."""
        return self._informer.error

    @property
    def change_count(self) -> int:
        """The serial of the last change, for `changed_since`."""
        return self._informer.change_count

    async def changed_since(self, serial: int) -> int:
        """Wait until the object has changed since `serial`. Returns the new serial."""
        return await self._informer.wait_for_change(serial)

    def entries(self) -> Entries:
        """All entries in the cache, including our own writes."""
        obj = self._cached()
        return self._store.entries(obj) if obj is not None else ()

    def expected_nodes(self) -> int:
        """How many nodes the domain is to have; 0 if the object does not say it."""
        obj = self._cached()
        return self._store.expected_nodes(obj) if obj is not None else 0

    async def report(self, status: MemberStatus) -> int:
        """Write our status, joining if we have no entry. Returns our index.

        Nothing is written if the entry has the status already. Where the controller writes, our
        status is announced, and `recheck_in_s` says when to report again if it stays unwritten.

        Raises:
            Superseded: `DaemonNotReady`: A later pod of our node has taken the entry over.
            NotListedYet: `DaemonNotReady`: The controller has not written our entry yet.
            RetryableError: `DomainFull`, `DomainNotFound`; `ApiUnavailable`.
        """
        deadline = asyncio.get_running_loop().time() + REPORT_TIMEOUT_S
        self.recheck_in_s = math.inf
        if self._announcer is not None:
            index = await self._report_to_controller(self._announcer, status, deadline)
            if index is not None:
                return index
        return await self._write_own_entry(status, deadline)

    async def _write_own_entry(self, status: MemberStatus, deadline: float) -> int:
        """Write our entry if it does not say this already. Returns our index."""
        obj = await self._current(status, deadline)
        failures = 0
        while True:
            self._check_superseded(obj)
            change = self._change(obj, status)
            if change is None:
                assert obj is not None
                self._remember_read(obj)
                return self._record_stored(obj)
            try:
                stored = await self._write(obj, change, deadline)
            except (Conflict, Invalid, NotFound) as error:
                failures += 1
                if isinstance(error, Invalid) and failures > 1:
                    raise
                is_join = self._own_entry_patch(obj, change) is None
                if self._announcer is not None and is_join and isinstance(error, Conflict):
                    self._announcer.take_another_turn()
                    raise self._wait_for_turn(self._announcer) from error
                await asyncio.sleep(_CONFLICT_BACKOFF.delay(failures, random.random()))  # noqa: S311
                obj = await self._read(deadline)
                continue
            self._known = stored
            self._informer.record_write(stored)
            if self._informer.is_paused:  # the answer has all that was not received meanwhile
                self._note_received()
            if self._announcer is not None:
                self._announcer.note_own_write()
            return self._record_stored(stored)

    async def _current(self, status: MemberStatus, deadline: float) -> JsonObject | None:
        """The object to base a write on: read again if ours may be old and its version matters."""
        if not self._informer.has_synced:
            return await self._read(deadline)
        obj = self._cached()
        if not self._informer.is_paused:
            return obj
        change = self._change(obj, status)
        if change is None or self._own_entry_patch(obj, change) is not None:
            return obj
        return await self._read(deadline)

    async def _report_to_controller(
        self, announcer: Announcer, status: MemberStatus, deadline: float
    ) -> int | None:
        """Announce our status. Returns our index; None if we must write our entry ourselves."""
        obj = self._cached()
        self._check_superseded(obj)
        change = self._change(obj, status)  # raises if there is no room for us
        said = Announcement(self._member.ip, status.is_ready, status.message, self._preferred_index)
        try:
            await announcer.announce(said, deadline)
        except DriverError:
            if announcer.patience_left_s > 0.0:
                raise
        if change is None:
            assert obj is not None
            return self._record_stored(obj)
        if announcer.patience_left_s == 0.0:
            return None
        self.recheck_in_s = announcer.patience_left_s
        own = self._own_entry(obj)
        if obj is not None and own is not None and entries.is_written_by(own, self._member):
            return self._record_stored(obj)  # our status is written later
        raise self._wait_for_turn(announcer)

    def _wait_for_turn(self, announcer: Announcer) -> NotListedYet:
        """Why we are not listed; `recheck_in_s` is then the time until we may write ourselves."""
        self.recheck_in_s = announcer.patience_left_s
        return NotListedYet(
            Reason.DAEMON_NOT_READY,
            f"the controller has not put node {self._member.node} into the clique yet",
            "look whether the ComputeDomain controller runs; this daemon writes its entry itself "
            f"in {self.recheck_in_s:.0f} s",
            node=self._member.node,
        )

    def _own_entry(self, obj: JsonObject | None) -> Entry | None:
        """The entry of our node, of any writer."""
        if obj is None:
            return None
        return entries.find_own(self._store.entries(obj), self._member, self._store.node_field)

    def _change(self, obj: JsonObject | None, status: MemberStatus) -> JsonObject | None:
        return member_store.desired(
            self._store,
            obj,
            self._member,
            status,
            preferred_index=self._preferred_index,
            drops_unknown_fields=self._drops_unknown_fields,
        )

    async def leave(self) -> bool:
        """Remove our entry within `LEAVE_TIMEOUT_S`. Returns whether there was one.

        An entry that a later pod of our node has taken over stays.

        Raises:
            DriverError: The API server did not accept the write.
        """
        deadline = asyncio.get_running_loop().time() + LEAVE_TIMEOUT_S
        if self._announcer is not None and not self._announcer.is_controller_away:
            await self._announcer.announce(Announcement(self._member.ip, has_left=True), deadline)
            return self.has_joined
        failures = 0
        while (obj := await self._read(deadline)) is not None:
            before = self._store.entries(obj)
            after = entries.without_own_entry(before, self._member, self._store.node_field)
            if len(after) == len(before):
                return False
            try:
                change = self._store.with_entries(obj, after)
                await self._api.replace(self._path + self._store.subresource, change, deadline)
                return True
            except Conflict:
                failures += 1
                await asyncio.sleep(_CONFLICT_BACKOFF.delay(failures, random.random()))  # noqa: S311
            except NotFound:
                return False
        return False

    def _remember_read(self, obj: JsonObject) -> None:
        """Let `entries` have what was read, although the watch has not reported it yet.

        So it is after a kill, when the entry that we would write is there already.
        """
        if obj != self._cached():
            self._informer.record_write(obj)

    def _cached(self) -> JsonObject | None:
        return next(iter(self._informer.snapshot().values()), None)

    async def _read(self, deadline: float) -> JsonObject | None:
        try:
            return await self._api.get(self._path, deadline)
        except NotFound:
            return None

    async def _write(
        self, obj: JsonObject | None, change: JsonObject, deadline: float
    ) -> JsonObject:
        path = self._path + self._store.subresource
        if obj is None:
            return await self._api.create(self._store.collection, change, deadline)
        operations = self._own_entry_patch(obj, change)
        if operations is None:
            return await self._api.replace(path, change, deadline)
        return await self._api.patch(path, operations, deadline, "application/json-patch+json")

    def _own_entry_patch(self, obj: JsonObject | None, change: JsonObject) -> JsonPatch | None:
        if obj is None:
            return None
        return member_store.own_entry_patch(self._store, obj, change, self._member)

    def _take_in(self, _: frozenset[str]) -> None:
        """Note a change that was received. Our own writes are none, nor is what is known again."""
        stored = self._cached()
        if stored != self._known:
            self._known = stored
            self._note_received()

    def _note_received(self) -> None:
        """Receive nothing more for a while if there have been many changes."""
        now, after = asyncio.get_running_loop().time(), self.entries()
        before = {each.get(self._store.node_field): each for each in self._received}
        changed = sum(before.get(each.get(self._store.node_field)) != each for each in after)
        has_controller = self._announcer is not None and not self._announcer.is_controller_away
        interval_s = read_pace.interval_s(len(after), has_controller=has_controller)
        self._read_pace = self._read_pace.after_change(now, interval_s, changed)
        self._received = after
        self._informer.pause(self._read_pace.pause_s(interval_s))

    def _check_superseded(self, obj: JsonObject | None) -> None:
        """Raise Superseded if another pod wrote our entry after we did."""
        if obj is None or not self.has_joined:
            return
        entry = self._own_entry(obj)
        if entry is not None and not entries.is_written_by(entry, self._member):
            writer = entry.get("podUID") or entry.get("ipAddress")
            raise Superseded(
                Reason.DAEMON_NOT_READY,
                f"another pod ({writer}) is the daemon of node {self._member.node} now; this pod "
                f"({self._member.pod_uid}) is its predecessor",
                "nothing to do if this pod is being deleted; otherwise delete it",
                node=self._member.node,
            )

    def _record_stored(self, obj: JsonObject) -> int:
        """Remember our index, and whether the cluster's CRD drops fields. Returns the index."""
        entry = self._own_entry(obj)
        index = entries.index_of(entry) if entry is not None else None
        if entry is None or index is None:
            raise RetryableError(
                Reason.API_UNAVAILABLE,
                f"{self._path} does not contain the entry that was written for node "
                f"{self._member.node}",
                "look for an admission webhook that changes the object",
            )
        self._drops_unknown_fields = (
            self._store.node_field is entries.NodeField.CLIQUE and not entry.get("podUID")
        )
        if not self.has_joined or index != self._preferred_index:
            LOG.v(1, "Joined", object=self._store.name, index=index, former=self._preferred_index)
        self.has_joined = True
        self._preferred_index = index
        return index
