# SPDX-License-Identifier: Apache-2.0
"""Stores the records of the claims that are prepared on this node, in one SQLite file.

Reads are from memory. Changes are transactions on a worker thread: changes that are queued during
an fsync share the next one, so the cost of a change depends neither on the number of records nor on
the number of concurrent calls. The component defines the payload. Source: docs/design.md, "State in
SQLite"; docs/reference/tracing.md, "Trace identity" for root spans.
"""

import asyncio
import sqlite3
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from itertools import chain
from operator import itemgetter
from pathlib import Path
from sqlite3 import Connection
from types import MappingProxyType
from typing import Final

from nvdra_api.errors import DriverError
from nvdra_api.ids import ClaimUID
from nvdra_api.resource.claims import ClaimRef

from nvdra_runtime.node import record_database
from nvdra_runtime.node.record_database import RecordState, Statement, StoredRecord
from nvdra_runtime.process import log_records
from nvdra_runtime.process.clock import Clock
from nvdra_runtime.process.worker import SHUTDOWN_TIMEOUT_S, Worker

LOG = log_records.logger(__name__)

__all__ = ["RecordState", "RecordStore", "StoredRecord"]

ROOT_SPAN_RETENTION: Final = timedelta(hours=1)
"""How long the store remembers a claim's root span after its record is deleted."""

MAX_ROOT_SPANS: Final = 4096
"""With more than these the oldest is forgotten earlier, so that memory does not grow with load."""

MARK_DELAY_S: Final = 0.2
"""How long the mark of a root span waits for the change of a record to share its commit."""


@dataclass(frozen=True, slots=True)
class _Change:
    statements: Sequence[Statement]
    apply: Callable[[], None]
    written: asyncio.Future[None] | None = None
    """Set when the change is written; None for marks, which are not waited for."""


class _Batch:
    """Changes that are committed together, and the `ResultReceiver` of their commit."""

    def __init__(
        self,
        changes: Sequence[_Change],
        end: Callable[["_Batch", BaseException | None], None],
    ) -> None:
        self.changes = changes
        self._end = end

    def cancelled(self) -> bool:
        """False: a queued change is written even if its caller is gone."""
        return False

    def set_result(self, result: None, /) -> None:
        """The batch is on the disk."""
        self._end(self, result)

    def set_exception(self, exception: BaseException, /) -> None:
        """The batch is not written."""
        self._end(self, exception)

    def resolve(self, failure: DriverError | None) -> None:
        """Set the result of every caller that waits."""
        for change in self.changes:
            if change.written is None or change.written.done():
                continue
            if failure is None:
                change.written.set_result(None)
            else:
                change.written.set_exception(failure)


class RecordStore:
    """The records of this node, and which objects have their root span written.

    Attributes:
        boot_id: ID of the current boot, which every record gets.
        recovery_marker: Not None if a corrupt file was replaced and its records have not been
            recovered yet. The owner recovers them and calls `finish_recovery`.
        problem: Why the last change could not be written; empty if it was written.
    """

    def __init__(
        self,
        path: Path,
        boot_id: str,
        clock: Clock,
        worker: Worker,
        opened: record_database.OpenedDatabase,
    ) -> None:
        """Use `open` instead."""
        self.boot_id = boot_id
        self.recovery_marker = opened.recovery_marker
        self.problem = ""
        self._path = path
        self._clock = clock
        self._worker = worker
        self._connection: Connection = opened.connection
        self._file_identity = opened.file_identity
        self._records = {record.uid: record for record in opened.records}
        started = {record.uid for record in opened.records if record.state == "started"}
        # Also true if a started record is only queued: changes are written in their order.
        self._has_started = bool(started)
        # An earlier release has prepared them since: what was started stays, to be undone later.
        self._hidden = {uid for uid in started if self._records[uid].state != "started"}
        # In the order in which they are forgotten.
        self._root_spans = dict(sorted(opened.root_spans.items(), key=itemgetter(1)))
        self._queued_changes: list[_Change] = []
        self._is_idle = asyncio.Event()
        self._is_idle.set()
        self._flush_timer: asyncio.TimerHandle | None = None

    @classmethod
    @asynccontextmanager
    async def open(
        cls, path: Path, boot_id: str, clock: Clock
    ) -> AsyncGenerator["RecordStore", None]:
        """Open the file and read it. Leaving the block waits for every write.

        A missing file is created. A corrupt file gets a name with the time and is replaced by an
        empty one: see `recovery_marker`. If the file becomes corrupt or is removed later, it is
        written again from memory, without any loss.

        Args:
            path: The file, in an existing directory. SQLite creates `-wal` and `-shm` beside it.
            boot_id: `Host.boot_id()`.
            clock: For the times in records.

        Raises:
            PermanentError: `StateCorrupt`: A newer release wrote the file.
            RetryableError: `StateUnavailable`: The disk cannot be read or written.
        """
        async with Worker("store") as worker:
            opened = await worker.run(
                record_database.open_or_replace_corrupt, path, boot_id, clock.now()
            )
            store = cls(path, boot_id, clock, worker, opened)
            try:
                yield store
            finally:
                with suppress(TimeoutError):  # the disk hangs; confirmed changes are on it
                    async with asyncio.timeout(SHUTDOWN_TIMEOUT_S):
                        await store._wait_until_written()
                        await worker.run(store._connection.close)

    @property
    def now(self) -> datetime:
        """The present time, in UTC, as new records get it."""
        return self._clock.now()

    def records(self) -> Mapping[ClaimUID, StoredRecord]:
        """Every record on the disk, as a live view: do not keep an iterator across an await."""
        return MappingProxyType(self._records)

    async def put(self, ref: ClaimRef, state: RecordState, payload: str) -> StoredRecord:
        """Add or replace the record of a claim. Returns when it is on the disk.

        Raises:
            RetryableError: `StateUnavailable`: The disk cannot be written; nothing has changed.
        """
        now = self._clock.now()
        before = self._records.get(ref.uid)
        record = StoredRecord(
            ref=ref,
            state=state,
            boot_id=self.boot_id,
            created=before.created if before else now,
            updated=now,
            payload=payload,
        )

        def remember() -> None:
            self._records[record.uid] = record

        await self._write(self._put_statements(record), remember)
        return record

    def _put_statements(self, record: StoredRecord) -> list[Statement]:
        self._has_started |= record.state == "started"
        has_started = self._may_be_started(record.uid)
        return record_database.put_record(record, has_started=has_started)

    def _may_be_started(self, uid: ClaimUID) -> bool:
        """Whether a started record of the claim is to go when its record is changed."""
        return self._has_started and uid not in self._hidden

    async def delete(self, uid: ClaimUID) -> None:
        """Delete the record of a claim, if it exists. Returns when it is gone from the disk.

        Raises:
            RetryableError: `StateUnavailable`: The disk cannot be written; nothing has changed.
        """
        has_started = self._may_be_started(uid)
        statements = record_database.delete_record(uid, has_started=has_started)
        if uid in self._root_spans:
            statements += self._remember_root_span(uid)

        def remember() -> None:
            self._records.pop(uid, None)

        await self._write(statements, remember)

    async def finish_recovery(self) -> None:
        """Note that the records of a corrupt file are recovered.

        Raises:
            RetryableError: `StateUnavailable`: The marker cannot be removed.
        """
        marker = self.recovery_marker
        if marker is not None:
            try:
                await self._worker.run(partial(marker.path.unlink, missing_ok=True))
            except OSError as error:
                raise record_database.unavailable_error(marker.path, error) from error
            self.recovery_marker = None

    def is_root_span_written(self, uid: str) -> bool:
        """Whether the root span of an object is written.

        The store remembers it for an hour after the claim's record is deleted, unless
        `MAX_ROOT_SPANS` others followed. For other objects it is an hour after the last
        `mark_root_span_written`.
        """
        return uid in self._root_spans

    def mark_root_span_written(self, uid: str) -> None:
        """Note that the root span of an object is written.

        The note is effective at once. It is written to the disk with the next change of a record,
        or soon after, so that it needs no commit of its own. A process that is killed in between
        loses it.
        """
        self._queued_changes.append(_Change(self._remember_root_span(uid), lambda: None))
        if self._is_idle.is_set() and self._flush_timer is None:
            loop = asyncio.get_running_loop()
            self._flush_timer = loop.call_later(MARK_DELAY_S, self._start_batch)

    def _remember_root_span(self, uid: str) -> list[Statement]:
        """Remember a root span for an hour, and forget others."""
        now = self._clock.now()
        self._move_to_end(uid, now)
        statements = [record_database.put_root_span(uid, self._root_spans[uid])]
        last = self._forget_root_spans(now)
        if last is not None:
            statements.append(record_database.delete_expired_root_spans(last))
        return statements

    def _forget_root_spans(self, now: datetime) -> datetime | None:
        """Forget the expired ones, and one of too many. Returns when the last was to expire."""
        last = None
        while self._root_spans:
            uid, forget = next(iter(self._root_spans.items()))
            is_one_too_many = len(self._root_spans) > MAX_ROOT_SPANS and last is None
            if forget > now and not is_one_too_many:
                break
            if uid in self._records:  # its deletion starts another hour
                self._move_to_end(uid, now)
                if is_one_too_many:
                    break
            else:
                del self._root_spans[uid]
                last = forget
        return last

    def _move_to_end(self, uid: str, now: datetime) -> None:
        self._root_spans.pop(uid, None)
        self._root_spans[uid] = now + ROOT_SPAN_RETENTION

    async def _write(self, statements: Sequence[Statement], remember: Callable[[], None]) -> None:
        """Queue a change and wait for its commit. A cancelled caller does not stop the commit."""
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queued_changes.append(_Change(statements, remember, written))
        if self._is_idle.is_set():
            self._start_batch()
        await written

    def _start_batch(self) -> None:
        """Write all queued changes in one transaction."""
        if self._flush_timer is not None:
            self._flush_timer.cancel()
            self._flush_timer = None
        batch, self._queued_changes = _Batch(self._queued_changes, self._end_batch), []
        statements = [statement for change in batch.changes for statement in change.statements]
        self._is_idle.clear()
        self._worker.submit_for(
            batch,
            record_database.commit,
            self._connection,
            self._path,
            self._file_identity,
            statements,
        )

    def _end_batch(self, batch: _Batch, error: BaseException | None) -> None:
        if isinstance(error, record_database.CorruptDatabaseError):
            self._rebuild(batch, error)
            return
        if error is None:
            self.problem = ""
            for change in batch.changes:
                change.apply()
            batch.resolve(None)
        else:
            failure = record_database.unavailable_error(self._path, error)
            self.problem = str(failure)
            batch.resolve(failure)
        if self._queued_changes:
            self._start_batch()
        else:
            self._is_idle.set()

    def _rebuild(self, batch: _Batch, error: record_database.CorruptDatabaseError) -> None:
        """Write the file again from memory, which has every confirmed change, and from `batch`."""
        LOG.error(
            "The state file is corrupt and is written again from memory",
            file=str(self._path),
            error=str(error),
        )
        statements = [
            *chain.from_iterable(map(self._put_statements, self._records.values())),
            *(
                record_database.put_root_span(uid, forget)
                for uid, forget in self._root_spans.items()
            ),
            *(statement for change in batch.changes for statement in change.statements),
        ]
        self._worker.submit_for(batch, self._rebuild_database, statements, self._clock.now())

    def _rebuild_database(self, statements: Sequence[Statement], now: datetime) -> None:
        """Runs on the worker thread, so nothing else is read or written meanwhile."""
        opened = record_database.rebuild(
            self._path, statements, self.recovery_marker, self.boot_id, now
        )
        before, self._connection = self._connection, opened.connection
        self._file_identity = opened.file_identity
        with suppress(sqlite3.Error):  # the connection is no longer used
            before.close()

    async def _wait_until_written(self) -> None:
        """Wait until every change is written. A failed batch does not raise here."""
        if self._queued_changes and self._is_idle.is_set():
            self._start_batch()
        await self._is_idle.wait()
