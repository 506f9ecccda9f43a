# SPDX-License-Identifier: Apache-2.0
"""The SQLite file of `record_store`: its schema, opening it, its transactions.

The functions block; the store's thread calls them. Times are ISO 8601 texts in UTC, so they sort.
"""

import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from sqlite3 import Connection
from typing import Any, Final, Literal, NamedTuple
from urllib.parse import quote

from nvdra_api.errors import DriverError, PermanentError, Reason, RetryableError
from nvdra_api.ids import ClaimUID
from nvdra_api.resource.claims import ClaimRef

from nvdra_runtime.node import corrupt_files, files
from nvdra_runtime.node.corrupt_files import RecoveryMarker

SCHEMA_VERSION: Final = 1

FILE_NAME: Final = "state.sqlite"
"""The file's name in the plugin's directory."""

_COLUMNS: Final = (
    "uid TEXT PRIMARY KEY, namespace TEXT NOT NULL, name TEXT NOT NULL, state TEXT NOT NULL, "
    "boot_id TEXT NOT NULL, created TEXT NOT NULL, updated TEXT NOT NULL, payload TEXT NOT NULL"
)

_SCHEMA: Final = f"""
BEGIN;
CREATE TABLE records ({_COLUMNS});
CREATE TABLE roots (uid TEXT PRIMARY KEY, forget TEXT NOT NULL);
PRAGMA user_version = {SCHEMA_VERSION};
COMMIT;
"""

_STARTED: Final = "started_records"
"""The table of records in the state `started`, made with the first one. Release 0.1.0 takes every
record of the table `records` for a prepared claim's, and answers the kubelet with it. It leaves
this table alone, so that its successor finds what is to be undone."""

RecordState = Literal["started", "prepared"]

_DAMAGED: Final = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


@dataclass(frozen=True, slots=True)
class StoredRecord:
    """The record of a claim that this node has prepared or started to prepare.

    Attributes:
        ref: Namespace, name and UID of the claim.
        state: `prepared` while all of the claim's steps are done; `started` while they are being
            done or undone, so that some may be done and others not.
        boot_id: The boot in which it was last written. Hardware state of an earlier boot is gone.
        created: When it was first written, UTC.
        updated: When it was last written, UTC.
        payload: JSON text of the component.
    """

    ref: ClaimRef
    state: RecordState
    boot_id: str
    created: datetime
    updated: datetime
    payload: str

    @property
    def uid(self) -> ClaimUID:
        """The claim's UID, which is the primary key."""
        return self.ref.uid


class Statement(NamedTuple):
    """One SQL statement with its values."""

    sql: str
    values: tuple[str, ...]


_MAKE_STARTED: Final = Statement(f"CREATE TABLE IF NOT EXISTS {_STARTED} ({_COLUMNS})", ())


@dataclass(frozen=True, slots=True)
class OpenedDatabase:
    """An open file and its content.

    Attributes:
        connection: For the thread that opened it.
        file_identity: Device and inode of the file.
        records: In no particular order.
        root_spans: UIDs of the objects whose root span is written, and when each entry expires once
            the object has no record.
        recovery_marker: Not None if records may be missing.
    """

    connection: Connection
    file_identity: tuple[int, int]
    records: Sequence[StoredRecord]
    root_spans: Mapping[str, datetime]
    recovery_marker: RecoveryMarker | None = None


class CorruptDatabaseError(Exception):
    """The file is corrupt or gone."""


def open_or_replace_corrupt(path: Path, boot_id: str, now: datetime) -> OpenedDatabase:
    """Open and read the file. A corrupt one is renamed to `<name>.corrupt-<time>` and replaced.

    Raises:
        PermanentError: `StateCorrupt`: A newer release wrote the file.
        RetryableError: `StateUnavailable`: The disk cannot be read or written.
    """
    try:
        try:
            opened = _open(path)
        except CorruptDatabaseError:
            corrupt_files.move_aside(path, boot_id, now)
            opened = _open(path)
        return replace(opened, recovery_marker=corrupt_files.read_marker(path, boot_id))
    except (sqlite3.Error, OSError, CorruptDatabaseError) as error:
        raise unavailable_error(path, error) from error


def check_readable(path: Path) -> None:
    """Check that this release reads the file, which another instance has open. Nothing is written.

    A missing file is no obstacle: it would be created.

    Raises:
        PermanentError: `StateCorrupt`: A newer release wrote the file.
        RetryableError: `StateUnavailable`: It cannot be read.
    """
    if not path.exists():
        return
    try:
        # Quoted, because a path may contain what has a meaning in URIs.
        connection = sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True)
        with closing(connection):
            _check_version(path, connection)
            for _ in _records(connection):
                pass
    except (sqlite3.Error, OSError, CorruptDatabaseError, ValueError) as error:
        raise unavailable_error(path, error) from error


def rebuild(
    path: Path,
    statements: Sequence[Statement],
    recovery_marker: RecoveryMarker | None,
    boot_id: str,
    now: datetime,
) -> OpenedDatabase:
    """Write a new file in place of one that is corrupt or gone.

    Args:
        path: Path of the file.
        statements: The statements that write all known content.
        recovery_marker: The existing marker, if earlier records are still missing.
        boot_id: The current boot.
        now: For the name of the corrupt file.

    Raises:
        RetryableError: `StateUnavailable`: The disk cannot be written.
    """
    try:
        path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
        corrupt_files.move_aside(path, boot_id, now)
        _create(path, statements)
        opened = _open(path)
        if recovery_marker is None:
            corrupt_files.marker_path(path).unlink(missing_ok=True)
    except (sqlite3.Error, OSError, CorruptDatabaseError) as error:
        raise unavailable_error(path, error) from error
    return opened


def commit(
    connection: Connection,
    path: Path,
    file_identity: tuple[int, int],
    statements: Sequence[Statement],
) -> None:
    """Execute the statements in one transaction, with one fsync of the log.

    Raises:
        CorruptDatabaseError: Nothing is written, because the file is corrupt, gone or replaced.
        sqlite3.Error: Nothing is written, because the disk cannot be written.
    """
    # SQLite would continue to write into a file that was removed.
    if _file_identity(path) != file_identity:
        raise CorruptDatabaseError("the file is gone or was replaced")
    try:
        _write(connection, statements)
    except sqlite3.DatabaseError as error:
        if _is_corruption(error):
            raise CorruptDatabaseError(str(error)) from error
        raise


def put_record(record: StoredRecord, *, has_started: bool) -> list[Statement]:
    """The statements that add a record, or replace the claim's former one in either state.

    Args:
        record: The record.
        has_started: Whether any record may be `started`. Without, the usual claim needs one
            statement.
    """
    if record.state == "started":
        return [_MAKE_STARTED, _delete_from("records", record.uid), _put_into(_STARTED, record)]
    put = _put_into("records", record)
    return [_MAKE_STARTED, _delete_from(_STARTED, record.uid), put] if has_started else [put]


def delete_record(uid: ClaimUID, *, has_started: bool) -> list[Statement]:
    """The statements that delete a record in either state; `has_started` as for `put_record`."""
    deleted = _delete_from("records", uid)
    return [_MAKE_STARTED, _delete_from(_STARTED, uid), deleted] if has_started else [deleted]


def _put_into(table: str, record: StoredRecord) -> Statement:
    ref, times = record.ref, (_timestamp(record.created), _timestamp(record.updated))
    values = (
        ref.uid,
        ref.namespace,
        ref.name,
        record.state,
        record.boot_id,
        *times,
        record.payload,
    )
    sql = f"REPLACE INTO {table} VALUES (?, ?, ?, ?, ?, ?, ?, ?)"  # noqa: S608 - one of ours
    return Statement(sql, values)


def _delete_from(table: str, uid: ClaimUID) -> Statement:
    return Statement(f"DELETE FROM {table} WHERE uid = ?", (uid,))  # noqa: S608 - one of ours


def put_root_span(uid: str, forget: datetime) -> Statement:
    """The statement that notes that an object's root span is written."""
    return Statement("REPLACE INTO roots VALUES (?, ?)", (uid, _timestamp(forget)))


def delete_expired_root_spans(now: datetime) -> Statement:
    """The statement that deletes the expired root spans of claims without a record."""
    return Statement(
        "DELETE FROM roots WHERE forget <= ? AND uid NOT IN (SELECT uid FROM records)",
        (_timestamp(now),),
    )


def unavailable_error(path: Path, error: BaseException) -> DriverError:
    """The error for a file that cannot be read or written."""
    if isinstance(error, DriverError):
        return error
    why = (error.strerror if isinstance(error, OSError) else None) or str(error)
    return RetryableError(
        Reason.STATE_UNAVAILABLE,
        f"the state file {path} cannot be written: {why}",
        "check that its disk is writable and has free space; the driver then continues, and "
        "prepared claims stay prepared meanwhile",
        file=str(path),
    )


def _open(path: Path) -> OpenedDatabase:
    if not path.exists():
        _create(path, ())
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        return _read(path, connection)
    except BaseException as error:
        connection.close()
        if isinstance(error, ValueError) or _is_corruption(error):
            raise CorruptDatabaseError(str(error)) from error
        raise


def _create(path: Path, statements: Sequence[Statement]) -> None:
    """Create the file under another name first, so that an empty file is always a corrupt one."""
    new = path.with_name(f"{path.name}.new")
    new.unlink(missing_ok=True)
    # Those of a removed file: SQLite would replay them into the new one.
    for log in corrupt_files.log_files(path):
        log.unlink(missing_ok=True)
    # Created here so that only we can read it: SQLite would use the umask.
    os.close(os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    with closing(sqlite3.connect(new, isolation_level=None)) as connection:
        connection.execute("PRAGMA synchronous = FULL")
        connection.executescript(_SCHEMA)
        _write(connection, statements)
    new.replace(path)
    files.fsync_directory(path.parent)


def _read(path: Path, connection: Connection) -> OpenedDatabase:
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    verdict = _fetch_one(connection, "PRAGMA quick_check(1)")
    if verdict != "ok":
        raise CorruptDatabaseError(str(verdict))
    _check_version(path, connection)
    rows = _texts(connection, "SELECT uid, forget FROM roots")
    roots = {uid: datetime.fromisoformat(forget) for uid, forget in rows}
    return OpenedDatabase(connection, _file_identity(path), tuple(_records(connection)), roots)


def _check_version(path: Path, connection: Connection) -> None:
    version = int(_fetch_one(connection, "PRAGMA user_version"))
    if version > SCHEMA_VERSION:
        raise PermanentError(
            Reason.STATE_CORRUPT,
            f"the state file {path} has version {version}, this release reads {SCHEMA_VERSION}",
            "install the newer release again, or drain the node and remove the file",
            file=str(path),
        )
    if version == 0:
        raise CorruptDatabaseError("it is empty")


def _records(connection: Connection) -> Iterator[StoredRecord]:
    """All records. One that an older release has prepared since it was started comes last."""
    tables = connection.execute("SELECT name FROM sqlite_schema WHERE name = ?", (_STARTED,))
    if tables.fetchone() is not None:
        yield from _records_of(_STARTED, connection)
    yield from _records_of("records", connection)


def _records_of(table: str, connection: Connection) -> Iterator[StoredRecord]:
    columns = "uid, namespace, name, state, boot_id, created, updated, payload"
    rows = _texts(connection, f"SELECT {columns} FROM {table}")  # noqa: S608 - the names above
    for uid, namespace, name, state, boot_id, created, updated, payload in rows:
        if state not in ("started", "prepared"):
            raise CorruptDatabaseError(f"claim {uid} has state {state}")
        ref = ClaimRef(namespace, name, ClaimUID(uid))
        first, last = datetime.fromisoformat(created), datetime.fromisoformat(updated)
        yield StoredRecord(ref, state, boot_id, first, last, payload)


def _texts(connection: Connection, sql: str) -> Iterator[tuple[Any, ...]]:
    """Rows whose values are all texts, as we write them. SQLite's own check accepts others.

    Raises:
        CorruptDatabaseError: A value is another one, or a table or a column is missing.
    """
    try:
        for row in connection.execute(sql):
            if not all(isinstance(value, str) for value in row):
                raise CorruptDatabaseError(f"{sql}: a value is not a text")
            yield row
    except sqlite3.OperationalError as error:
        # Python's own error, for a text that is not UTF-8, has no code of SQLite.
        if getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) == sqlite3.SQLITE_ERROR:
            raise CorruptDatabaseError(str(error)) from error
        raise


def _write(connection: Connection, statements: Sequence[Statement]) -> None:
    try:
        connection.execute("BEGIN IMMEDIATE")
        for statement in statements:
            connection.execute(statement.sql, statement.values)
        connection.execute("COMMIT")
    except BaseException:
        with suppress(sqlite3.Error):  # the first error is raised, not this one
            if connection.in_transaction:
                connection.execute("ROLLBACK")
        raise


def _file_identity(path: Path) -> tuple[int, int]:
    try:
        status = os.stat(path)  # noqa: PTH116 - for every commit; twice as fast as Path.stat
    except FileNotFoundError:
        return (0, 0)
    return (status.st_dev, status.st_ino)


def _is_corruption(error: BaseException) -> bool:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in _DAMAGED


def _fetch_one(connection: Connection, sql: str) -> Any:
    with closing(connection.execute(sql)) as cursor:
        return cursor.fetchone()[0]


def _timestamp(time: datetime) -> str:
    return time.astimezone(UTC).isoformat(timespec="microseconds")
