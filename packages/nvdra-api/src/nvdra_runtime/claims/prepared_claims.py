# SPDX-License-Identifier: Apache-2.0
"""The claims that are prepared on this node, in memory and in the state file.

A change is written to the disk before it is made in memory, so that nothing depends on what a crash
would lose. A claim whose preparation changes hardware has a record that is `started` before the
first change and while changes are being undone: it holds its devices, but is no answer.
"""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime

from nvdra_api.ids import ClaimUID
from nvdra_api.resource.claims import ClaimRef
from pydantic import ValidationError

from nvdra_runtime.claims.record_index import RecordIndex, UidIndex
from nvdra_runtime.claims.records import RecordT
from nvdra_runtime.node.record_store import RecordState, RecordStore
from nvdra_runtime.telemetry import logs

LOG = logs.logger(__name__)

ReportCounts = Callable[[Mapping[str, int], Mapping[str, int]], None]
"""Called after each change with the number of claims, and of devices, by kind."""


class PreparedClaims(Mapping[ClaimUID, RecordT]):
    """The records of the claims that hold devices, by UID.

    Attributes:
        unreadable: Claims whose records cannot be read, so that their devices are unknown. They are
            written again when the claim is prepared again, and removed when it is unprepared.
        incomplete_reason: Why records may be missing; empty if none are.
    """

    def __init__(
        self,
        store: RecordStore,
        model: type[RecordT],
        report_counts: ReportCounts,
        index: RecordIndex[RecordT] | None = None,
    ) -> None:
        """Load the records of the store.

        Args:
            store: The state file.
            model: The driver's type of records.
            report_counts: Called after each change.
            index: An empty index that is kept up to date; by default one by UID alone.
        """
        self.unreadable: dict[ClaimUID, ClaimRef] = {}
        self.incomplete_reason = ""
        self._store = store
        self._model = model
        self._report_counts = report_counts
        self._index = UidIndex[RecordT]() if index is None else index
        self._claims: Counter[str] = Counter()
        self._devices: Counter[str] = Counter()
        # The store forgets a record as soon as it is off the disk, a moment before the index does.
        self._has_started = any(record.state == "started" for record in store.records().values())
        self._prepared_at: dict[ClaimUID, datetime] = {}
        self._on_prepared: list[Callable[[ClaimUID], None]] = []
        self._on_removed: list[Callable[[ClaimUID], None]] = []
        self._on_released_change: list[Callable[[], None]] = []
        self._waiters: defaultdict[ClaimUID, list[asyncio.Future[None]]] = defaultdict(list)
        self._load()
        self._report_counts(self._claims, self._devices)

    def __getitem__(self, uid: ClaimUID) -> RecordT:
        return self._index[uid]

    def __iter__(self) -> Iterator[ClaimUID]:
        return iter(self._index)

    def __len__(self) -> int:
        return len(self._index)

    def prepared_at(self, uid: ClaimUID) -> datetime:
        """When the claim was first prepared on this node. It must have a record."""
        return self._prepared_at[uid]

    def held_since(self, uid: ClaimUID) -> datetime | None:
        """Since when the claim keeps its devices from others: it must have a record.

        When it was first prepared on this node. What it has left since it was unprepared, if that
        cannot be undone yet, it holds since then; None if an earlier release has left it.
        """
        record = self.get(uid)
        if record is not None and record.is_released:
            return record.released_at
        return self._prepared_at[uid]

    @property
    def now(self) -> datetime:
        """The present time, in UTC, of the clock that the records have their times of."""
        return self._store.now

    @property
    def boot_id(self) -> str:
        """ID of the current boot."""
        return self._store.boot_id

    @property
    def held(self) -> list[ClaimUID]:
        """The claims that are not unprepared, unreadable ones included. Others left something."""
        known = (uid for uid, record in self.items() if not record.is_released)
        return [*known, *self.unreadable]

    @property
    def released(self) -> list[RecordT]:
        """The records of claims that are unprepared and have left something."""
        return [record for record in self.values() if record.is_released]

    def is_started(self, uid: ClaimUID) -> bool:
        """Whether the claim's record is not an answer: its steps are being done or undone."""
        stored = self._store.records().get(uid)
        return stored is not None and stored.state == "started"

    @property
    def started(self) -> list[RecordT]:
        """The records that are no answers."""
        if not self._has_started:
            return []
        found = [record for uid, record in self.items() if self.is_started(uid)]
        self._has_started = bool(found)
        return found

    def is_of_this_boot(self, uid: ClaimUID) -> bool:
        """Whether the claim's record was written since the node was booted."""
        stored = self._store.records().get(uid)
        return stored is None or stored.boot_id == self._store.boot_id

    async def add(self, ref: ClaimRef, claim_record: RecordT) -> None:
        """Add the record of a prepared claim, or replace it. It is on the disk when this returns.

        Raises:
            RetryableError: `StateUnavailable`.
        """
        await self._put(ref, "prepared", claim_record)

    async def add_started(self, ref: ClaimRef, claim_record: RecordT) -> None:
        """Add or replace a record whose steps are to be done or undone now, as `add`.

        Raises:
            RetryableError: `StateUnavailable`.
        """
        self._has_started = True
        await self._put(ref, "started", claim_record)

    async def _put(self, ref: ClaimRef, state: RecordState, claim_record: RecordT) -> None:
        stored = await self._store.put(ref, state, claim_record.model_dump_json())
        self._uncount(ref.uid)
        was_released = self._is_released(ref.uid)
        self._prepared_at[ref.uid] = stored.created
        self._index_record(claim_record)
        self._report_counts(self._claims, self._devices)
        if state == "prepared":
            for notify in self._on_prepared:
                notify(ref.uid)
        if was_released or claim_record.is_released:
            self._note_released_change()

    def on_prepared(self, notify: Callable[[ClaimUID], None]) -> None:
        """Call `notify` whenever the record of a prepared claim was added or replaced."""
        self._on_prepared.append(notify)

    def on_removed(self, notify: Callable[[ClaimUID], None]) -> None:
        """Call `notify` whenever the record of a claim was removed."""
        self._on_removed.append(notify)

    def on_released_change(self, notify: Callable[[], None]) -> None:
        """Call `notify` whenever `released` has changed."""
        self._on_released_change.append(notify)

    async def remove(self, uid: ClaimUID) -> None:
        """Remove the claim's record. The disk does not have it any more when this returns."""
        await self._store.delete(uid)
        was_released = self._is_released(uid)
        self._unindex(uid)
        self._report_counts(self._claims, self._devices)
        for notify in self._on_removed:
            notify(uid)
        if was_released:
            self._note_released_change()
        for waiter in self._waiters.pop(uid, ()):
            if not waiter.done():
                waiter.set_result(None)

    async def wait_removed(self, uid: ClaimUID) -> None:
        """Wait until the claim has no record. Returns at once if it has none."""
        if uid in self or uid in self.unreadable:
            waiter = asyncio.get_running_loop().create_future()
            self._waiters[uid].append(waiter)
            try:
                await waiter
            finally:
                self._remove_waiter(uid, waiter)

    def _remove_waiter(self, uid: ClaimUID, waiter: asyncio.Future[None]) -> None:
        others = [each for each in self._waiters.pop(uid, ()) if each is not waiter]
        if others:
            self._waiters[uid] = others

    def _is_released(self, uid: ClaimUID) -> bool:
        record = self.get(uid)
        return record is not None and record.is_released

    def _note_released_change(self) -> None:
        for notify in self._on_released_change:
            notify()

    def _index_record(self, record: RecordT) -> None:
        self._index.put(record)
        self._claims[record.kind] += 1
        self._devices.update(device.kind for device in record.devices)

    def _unindex(self, uid: ClaimUID) -> None:
        self._uncount(uid)
        self._index.remove(uid)

    def _uncount(self, uid: ClaimUID) -> None:
        self.unreadable.pop(uid, None)
        self._prepared_at.pop(uid, None)
        record = self.get(uid)
        if record is not None:
            self._claims[record.kind] -= 1
            self._devices.subtract(device.kind for device in record.devices)

    def _load(self) -> None:
        """Load all records. One that cannot be read does not keep the others from being used."""
        for uid, stored in self._store.records().items():
            self._prepared_at[uid] = stored.created
            record = self._parse(stored.payload)
            if not isinstance(record, str):
                self._index_record(record)
                continue
            self.unreadable[uid] = stored.ref
            LOG.error(
                "A record cannot be read: no device is given to another claim until it is known "
                "which devices this claim holds",
                claim=str(stored.ref),
                error=record,
            )

    def _parse(self, payload: str) -> RecordT | str:
        """The record, or why it cannot be read."""
        try:
            return self._model.model_validate_json(payload)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            return f"{'.'.join(map(str, first['loc'])) or 'record'}: {first['msg']}"
