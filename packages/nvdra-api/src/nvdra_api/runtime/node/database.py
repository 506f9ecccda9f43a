"""The SQLite file under `store`: its schema, how it is opened, one transaction. Blocks.

Called on the store's thread only. Times are ISO 8601 texts in UTC, so they sort.
"""

import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from sqlite3 import Connection
from typing import Any, Final, Literal, NamedTuple

from nvdra_api.types.claims import ClaimRef
from nvdra_api.types.errors import PermanentError, Reason
from nvdra_api.types.ids import ClaimUID

__all__ = [
    "Connection",
    "Opened",
    "Record",
    "State",
    "Statement",
    "commit",
    "delete_record",
    "forget_roots",
    "open_or_set_aside",
    "put_record",
    "put_root",
    "refused",
]

SCHEMA_VERSION: Final = 1

_SCHEMA: Final = f"""
BEGIN;
CREATE TABLE records (
    uid TEXT PRIMARY KEY, namespace TEXT NOT NULL, name TEXT NOT NULL, state TEXT NOT NULL,
    boot_id TEXT NOT NULL, created TEXT NOT NULL, updated TEXT NOT NULL, payload TEXT NOT NULL
);
CREATE TABLE roots (uid TEXT PRIMARY KEY, forget TEXT NOT NULL);
PRAGMA user_version = {SCHEMA_VERSION};
COMMIT;
"""

State = Literal["started", "prepared"]

_DAMAGED: Final = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


@dataclass(frozen=True, slots=True)
class Record:
    """One claim that this node has begun to prepare.

    Attributes:
        ref: Namespace, name and UID of the claim.
        state: `started` while steps are under way or were cut off, `prepared` after.
        boot_id: The boot in which it was last written; under another one hardware state is gone.
        created: When it was first written, UTC.
        updated: When it was last written, UTC.
        payload: JSON text of the component's own.
    """

    ref: ClaimRef
    state: State
    boot_id: str
    created: datetime
    updated: datetime
    payload: str

    @property
    def uid(self) -> ClaimUID:
        """The claim's UID, which is the key."""
        return self.ref.uid


class Statement(NamedTuple):
    """One SQL statement with its values."""

    sql: str
    values: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Opened:
    """An open file and all that is in it.

    Attributes:
        connection: For the thread that opened it.
        records: In no order.
        roots: Claims whose root span is written, and until when that matters once the record went.
        set_aside: Where a damaged file was moved to.
    """

    connection: Connection
    records: Sequence[Record]
    roots: Mapping[ClaimUID, datetime]
    set_aside: Path | None


class _DamagedError(Exception):
    """What is in the file is not what we wrote."""


def open_or_set_aside(path: Path, now: datetime) -> Opened:
    """Open and read the file; a damaged one is moved to `<name>.corrupt-<time>` and made anew.

    Raises:
        PermanentError: `StateCorrupt`: a newer release wrote it, or it cannot be opened.
    """
    try:
        try:
            return _open(path, set_aside=None)
        except _DamagedError:
            return _open(path, set_aside=_move_aside(path, now))
    except (sqlite3.Error, OSError, _DamagedError) as error:
        raise refused(path, error) from error


def commit(connection: Connection, statements: Sequence[Statement]) -> None:
    """Everything in one transaction, on disk when it returns; one fsync of the log."""
    try:
        connection.execute("BEGIN IMMEDIATE")
        for statement in statements:
            connection.execute(statement.sql, statement.values)
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def put_record(record: Record) -> Statement:
    """Add or replace a record."""
    ref = record.ref
    return Statement(
        "REPLACE INTO records VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        (
            ref.uid,
            ref.namespace,
            ref.name,
            record.state,
            record.boot_id,
            _text(record.created),
            _text(record.updated),
            record.payload,
        ),
    )


def delete_record(uid: ClaimUID) -> Statement:
    """Remove a record."""
    return Statement("DELETE FROM records WHERE uid = ?", (uid,))


def put_root(uid: ClaimUID, forget: datetime) -> Statement:
    """Note that a claim's root span is written."""
    return Statement("REPLACE INTO roots VALUES (?, ?)", (uid, _text(forget)))


def forget_roots(now: datetime) -> Statement:
    """Remove what is no longer needed of claims that have no record."""
    return Statement(
        "DELETE FROM roots WHERE forget <= ? AND uid NOT IN (SELECT uid FROM records)",
        (_text(now),),
    )


def refused(path: Path, error: BaseException) -> PermanentError:
    """What to tell when the file cannot be read or written."""
    return PermanentError(
        Reason.STATE_CORRUPT,
        f"the state file {path} cannot be used: {error}",
        "see that its disk is writable and has room; while it is not, nothing can be prepared",
        file=str(path),
    )


def _open(path: Path, set_aside: Path | None) -> Opened:
    # Made by us so that nobody else can read it: SQLite would go by the umask.
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        return _read(path, connection, set_aside)
    except (sqlite3.DatabaseError, ValueError) as error:
        connection.close()
        if isinstance(error, ValueError) or error.sqlite_errorcode & 0xFF in _DAMAGED:
            raise _DamagedError(str(error)) from error
        raise
    except BaseException:
        connection.close()
        raise


def _read(path: Path, connection: Connection, set_aside: Path | None) -> Opened:
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    verdict = _one(connection, "PRAGMA quick_check(1)")
    if verdict != "ok":
        raise _DamagedError(verdict)
    version = int(_one(connection, "PRAGMA user_version"))
    if version > SCHEMA_VERSION:
        raise PermanentError(
            Reason.STATE_CORRUPT,
            f"the state file {path} has version {version}, this release reads {SCHEMA_VERSION}",
            "install the newer release again, or drain the node and remove the file",
            file=str(path),
        )
    if version == 0:
        connection.executescript(_SCHEMA)
    roots = connection.execute("SELECT uid, forget FROM roots")
    return Opened(
        connection=connection,
        records=tuple(_records(connection)),
        roots={ClaimUID(uid): datetime.fromisoformat(forget) for uid, forget in roots},
        set_aside=set_aside,
    )


def _records(connection: Connection) -> Iterator[Record]:
    columns = "uid, namespace, name, state, boot_id, created, updated, payload"
    for uid, namespace, name, state, boot_id, created, updated, payload in connection.execute(
        f"SELECT {columns} FROM records"  # noqa: S608 - the names above, nothing from outside
    ):
        if state not in ("started", "prepared"):
            raise _DamagedError(f"claim {uid} has state {state}")
        yield Record(
            ref=ClaimRef(namespace, name, ClaimUID(uid)),
            state=state,
            boot_id=boot_id,
            created=datetime.fromisoformat(created),
            updated=datetime.fromisoformat(updated),
            payload=payload,
        )


def _move_aside(path: Path, now: datetime) -> Path:
    """The log goes with its file: beside a new file SQLite would take it for that one's."""
    aside = path.with_name(f"{path.name}.corrupt-{now.astimezone(UTC):%Y%m%dT%H%M%SZ}")
    path.replace(aside)
    for suffix in ("-wal", "-shm"):
        log = path.with_name(path.name + suffix)
        if log.exists():
            log.replace(aside.with_name(aside.name + suffix))
    return aside


def _one(connection: Connection, sql: str) -> Any:
    with closing(connection.execute(sql)) as cursor:
        return cursor.fetchone()[0]


def _text(time: datetime) -> str:
    return time.astimezone(UTC).isoformat(timespec="microseconds")
