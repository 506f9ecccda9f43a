"""What is prepared on this node, in one SQLite file; the only writer of it.

Reads are from memory. Changes are transactions on a thread of its own: those that queue while one
is being synced share the next sync, so the cost of a change grows neither with the claims held nor
with the calls at once. The payload's schema belongs to the component. Source: design.md, "State in
SQLite"; spec/tracing.md §1 for roots.
"""

import asyncio
import logging
import sqlite3
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from sqlite3 import Connection
from types import MappingProxyType
from typing import Final

from nvdra_api.runtime.node import database
from nvdra_api.runtime.node.database import Record, State, Statement
from nvdra_api.runtime.process.clock import Clock
from nvdra_api.runtime.process.worker import SHUTDOWN_S, Worker
from nvdra_api.types.claims import ClaimRef
from nvdra_api.types.errors import DriverError
from nvdra_api.types.ids import ClaimUID

_log = logging.getLogger(__name__)

__all__ = ["Record", "State", "Store"]

ROOT_MEMORY: Final = timedelta(hours=1)
"""How long a claim's root span counts as written after its record has gone."""

MARK_S: Final = 0.2
"""How long a root's mark waits for a change of a record to share its commit."""


@dataclass(frozen=True, slots=True)
class _Change:
    statements: Sequence[Statement]
    remember: Callable[[], None]
    written: asyncio.Future[None] | None = None
    """For who waits; marks are waited for by nobody."""


class _Batch:
    """Changes that are being committed together; the `Receiver` of their commit."""

    def __init__(
        self,
        changes: Sequence[_Change],
        end: Callable[["_Batch", BaseException | None], None],
    ) -> None:
        self.changes = changes
        self._end = end

    def cancelled(self) -> bool:
        """Never: what is queued is written, whoever waits."""
        return False

    def set_result(self, result: None, /) -> None:
        """It is on the disk."""
        self._end(self, result)

    def set_exception(self, exception: BaseException, /) -> None:
        """It is not."""
        self._end(self, exception)

    def tell(self, refusal: DriverError | None) -> None:
        """Answer everyone who waits."""
        for change in self.changes:
            if change.written is None or change.written.done():
                continue
            if refusal is None:
                change.written.set_result(None)
            else:
                change.written.set_exception(refusal)


class Store:
    """The records of this node and which claims have their root span.

    Attributes:
        boot_id: The kernel's current boot; what is written is stamped with it.
        doubt: A file that could not be read was set aside, in this process or before, and nobody
            has found out yet what was in it: the owner does, and says so by `settle`.
        problem: Why the last change could not be written; empty when it could.
    """

    def __init__(
        self, path: Path, boot_id: str, clock: Clock, worker: Worker, opened: database.Opened
    ) -> None:
        """Use `opened`."""
        self.boot_id = boot_id
        self.doubt = opened.doubt
        self.problem = ""
        self._path = path
        self._clock = clock
        self._worker = worker
        self._connection: Connection = opened.connection
        self._identity = opened.identity
        self._records = {record.uid: record for record in opened.records}
        self._roots: dict[str, datetime] = dict(opened.roots)
        self._ageing = deque(sorted((forget, uid) for uid, forget in self._roots.items()))
        self._queued: list[_Change] = []
        self._is_idle = asyncio.Event()
        self._is_idle.set()
        self._due: asyncio.TimerHandle | None = None

    @classmethod
    @asynccontextmanager
    async def opened(cls, path: Path, boot_id: str, clock: Clock) -> AsyncGenerator["Store", None]:
        """Open the file, making it if need be, and read it once; leaving waits for every write.

        A file that is damaged is moved beside itself, with the time in its name, and an empty one
        takes its place: see `doubt`. One that is damaged or removed later is written anew from
        memory, and nothing is lost.

        Args:
            path: The file; its directory exists. SQLite keeps `-wal` and `-shm` beside it.
            boot_id: `Host.boot_id()`.
            clock: For the times in records.

        Raises:
            PermanentError: `StateCorrupt`: a newer release has written it.
            RetryableError: `StateUnavailable`: the disk refuses.
        """
        async with Worker("store") as worker:
            opened = await worker.run(database.open_or_set_aside, path, boot_id, clock.now())
            store = cls(path, boot_id, clock, worker, opened)
            try:
                yield store
            finally:
                with suppress(TimeoutError):  # a disk that hangs; what was promised is on it
                    async with asyncio.timeout(SHUTDOWN_S):
                        await store._settled()
                        await worker.run(store._connection.close)

    def records(self) -> Mapping[ClaimUID, Record]:
        """Every record, as it is on disk. A live view: do not keep an iterator over an await."""
        return MappingProxyType(self._records)

    async def put(self, ref: ClaimRef, state: State, payload: str) -> Record:
        """Write the record of a claim, new or not; returns once it is on disk.

        Raises:
            RetryableError: `StateUnavailable`: the disk refuses; nothing has changed.
        """
        now = self._clock.now()
        before = self._records.get(ref.uid)
        record = Record(
            ref=ref,
            state=state,
            boot_id=self.boot_id,
            created=before.created if before else now,
            updated=now,
            payload=payload,
        )

        def remember() -> None:
            self._records[record.uid] = record

        await self._write((database.put_record(record),), remember)
        return record

    async def delete(self, uid: ClaimUID) -> None:
        """Forget the record of a claim; none there is fine. Returns once it is on disk.

        Raises:
            RetryableError: `StateUnavailable`: the disk refuses; nothing has changed.
        """
        statements = [database.delete_record(uid)]
        if uid in self._roots:
            statements += self._keep_root(uid)

        def remember() -> None:
            self._records.pop(uid, None)

        await self._write(statements, remember)

    async def settle(self) -> None:
        """Note that everything is known again which a damaged file said."""
        if self.doubt is not None:
            await self._worker.run(database.end_doubt, self.doubt)
            self.doubt = None

    def root_written(self, uid: str) -> bool:
        """Whether the claim's root span is out; remembered for an hour after its record.

        Spans of other objects that are written once are remembered by the object's UID, for an
        hour after the last `mark_root`.
        """
        return uid in self._roots

    def mark_root(self, uid: str) -> None:
        """Note that the claim's root span is out.

        Known from the call on; on disk with the next change of a record, or soon after, so that
        it costs no commit of its own. A process that is killed in between forgets it.
        """
        self._queued.append(_Change(self._keep_root(uid), lambda: None))
        if self._is_idle.is_set() and self._due is None:
            loop = asyncio.get_running_loop()
            self._due = loop.call_later(MARK_S, self._start_batch)

    def _keep_root(self, uid: str) -> list[Statement]:
        """Remember a root for an hour from now, and forget those whose hour is over."""
        now = self._clock.now()
        forget = now + ROOT_MEMORY
        self._roots[uid] = forget
        self._ageing.append((forget, uid))
        statements = [database.put_root(uid, forget)]
        if self._forget_roots(now):
            statements.append(database.forget_roots(now))
        return statements

    def _forget_roots(self, now: datetime) -> bool:
        is_any = False
        while self._ageing and self._ageing[0][0] <= now:
            forget, uid = self._ageing.popleft()
            # A record that still exists starts the hour again when it goes.
            if self._roots.get(uid) == forget and uid not in self._records:
                del self._roots[uid]
                is_any = True
        return is_any

    async def _write(self, statements: Sequence[Statement], remember: Callable[[], None]) -> None:
        """Queue a change and wait for its commit, which happens even if we are cancelled."""
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queued.append(_Change(statements, remember, written))
        if self._is_idle.is_set():
            self._start_batch()
        await written

    def _start_batch(self) -> None:
        """Send everything queued so far to the disk, as one transaction."""
        if self._due is not None:
            self._due.cancel()
            self._due = None
        batch, self._queued = _Batch(self._queued, self._end_batch), []
        statements = [statement for change in batch.changes for statement in change.statements]
        self._is_idle.clear()
        self._worker.hand(
            batch, database.commit, self._connection, self._path, self._identity, statements
        )

    def _end_batch(self, batch: _Batch, error: BaseException | None) -> None:
        if isinstance(error, database.DamagedError):
            self._heal(batch, error)
            return
        if error is None:
            self.problem = ""
            for change in batch.changes:
                change.remember()
            batch.tell(None)
        else:
            refusal = database.refused(self._path, error)
            self.problem = str(refusal)
            batch.tell(refusal)
        if self._queued:
            self._start_batch()
        else:
            self._is_idle.set()

    def _heal(self, batch: _Batch, damage: database.DamagedError) -> None:
        """Write the file anew from memory, which has all that was ever promised, and `batch`."""
        _log.error(
            "the state file is damaged and written anew file=%s error=%s", self._path, damage
        )
        statements = [
            *map(database.put_record, self._records.values()),
            *(database.put_root(uid, forget) for uid, forget in self._roots.items()),
            *(statement for change in batch.changes for statement in change.statements),
        ]
        self._worker.hand(batch, self._made_anew, statements, self._clock.now())

    def _made_anew(self, statements: Sequence[Statement], now: datetime) -> None:
        """Runs on the worker, alone: nothing is read or written meanwhile."""
        opened = database.make_anew(self._path, statements, self.doubt, self.boot_id, now)
        before, self._connection = self._connection, opened.connection
        self._identity = opened.identity
        with suppress(sqlite3.Error):  # it is of no use any more
            before.close()

    async def _settled(self) -> None:
        """Wait until everything is written; who waits for a failed batch is told, we are not."""
        if self._queued and self._is_idle.is_set():
            self._start_batch()
        await self._is_idle.wait()
