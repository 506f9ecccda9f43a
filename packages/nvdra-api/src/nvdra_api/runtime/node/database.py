"""The SQLite file under `store`: its schema, how it is opened, one transaction. Blocks.

Called on the store's thread only. Times are ISO 8601 texts in UTC, so they sort.
"""

import json
import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from sqlite3 import Connection
from typing import Any, Final, Literal, NamedTuple

from nvdra_api.runtime.node import files
from nvdra_api.types.claims import ClaimRef
from nvdra_api.types.errors import DriverError, PermanentError, Reason, RetryableError
from nvdra_api.types.ids import ClaimUID

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
class Doubt:
    """A state file could not be read, and nobody has found out yet what was in it.

    It outlives the process, in a file of its own beside the state file, and ends with the boot.

    Attributes:
        marker: That file; who removes it says that no pod of the node uses a device any more.
        set_aside: Where the damaged file is.
        boot_id: The boot in which it happened.
    """

    marker: Path
    set_aside: Path
    boot_id: str


@dataclass(frozen=True, slots=True)
class Opened:
    """An open file and all that is in it.

    Attributes:
        connection: For the thread that opened it.
        identity: Device and inode of the file.
        records: In no order.
        roots: Objects whose root span is written, and until when that matters once the record went.
        doubt: Something may be missing.
    """

    connection: Connection
    identity: tuple[int, int]
    records: Sequence[Record]
    roots: Mapping[str, datetime]
    doubt: Doubt | None


class DamagedError(Exception):
    """What is in the file is not what we wrote, or the file is not there any more."""


def open_or_set_aside(path: Path, boot_id: str, now: datetime) -> Opened:
    """Open and read the file; a damaged one is moved to `<name>.corrupt-<time>` and made anew.

    Raises:
        PermanentError: `StateCorrupt`: a newer release wrote it.
        RetryableError: `StateUnavailable`: the disk refuses.
    """
    try:
        try:
            opened = _open(path)
        except DamagedError:
            _set_aside(path, boot_id, now)
            opened = _open(path)
        return replace(opened, doubt=_doubt(path, boot_id))
    except (sqlite3.Error, OSError, DamagedError) as error:
        raise refused(path, error) from error


def make_anew(
    path: Path, statements: Sequence[Statement], doubt: Doubt | None, boot_id: str, now: datetime
) -> Opened:
    """Write a new file with everything in it, in place of one that is damaged or gone.

    Args:
        path: Where it belongs.
        statements: Everything that is known.
        doubt: What was not known before and is not now.
        boot_id: The current boot.
        now: For the name of the damaged file.

    Raises:
        RetryableError: `StateUnavailable`: the disk refuses; nothing may be taken for written.
    """
    try:
        path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
        _set_aside(path, boot_id, now)
        _create(path, statements)
        opened = _open(path)
        if doubt is None:
            _marker(path).unlink(missing_ok=True)
    except (sqlite3.Error, OSError, DamagedError) as error:
        raise refused(path, error) from error
    return opened


def end_doubt(doubt: Doubt) -> None:
    """Note that everything which the damaged file said is known again."""
    doubt.marker.unlink(missing_ok=True)


def commit(
    connection: Connection, path: Path, identity: tuple[int, int], statements: Sequence[Statement]
) -> None:
    """Everything in one transaction, on disk when it returns; one fsync of the log.

    Raises:
        DamagedError: Nothing is written: the file is not what it was.
        sqlite3.Error: Nothing is written: the disk refuses.
    """
    # SQLite would go on writing into a file that was removed, and nobody would find it again.
    if _identity(path) != identity:
        raise DamagedError("the file is gone or another one")
    try:
        _write(connection, statements)
    except sqlite3.DatabaseError as error:
        if _is_damage(error):
            raise DamagedError(str(error)) from error
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


def put_root(uid: str, forget: datetime) -> Statement:
    """Note that an object's root span is written."""
    return Statement("REPLACE INTO roots VALUES (?, ?)", (uid, _text(forget)))


def forget_roots(now: datetime) -> Statement:
    """Remove what is no longer needed of claims that have no record."""
    return Statement(
        "DELETE FROM roots WHERE forget <= ? AND uid NOT IN (SELECT uid FROM records)",
        (_text(now),),
    )


def refused(path: Path, error: BaseException) -> DriverError:
    """What to tell when the file cannot be read or written."""
    if isinstance(error, DriverError):
        return error
    why = (error.strerror if isinstance(error, OSError) else None) or str(error)
    return RetryableError(
        Reason.STATE_UNAVAILABLE,
        f"the state file {path} cannot be written: {why}",
        "see that its disk is writable and has room; then it goes on by itself, and what is held "
        "stays held meanwhile",
        file=str(path),
    )


def _open(path: Path) -> Opened:
    if not path.exists():
        _create(path, ())
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        return _read(path, connection)
    except (sqlite3.DatabaseError, ValueError) as error:
        connection.close()
        if isinstance(error, ValueError) or _is_damage(error):
            raise DamagedError(str(error)) from error
        raise
    except BaseException:
        connection.close()
        raise


def _create(path: Path, statements: Sequence[Statement]) -> None:
    """Make the file whole under another name first: an empty one was cut off, never just begun."""
    new = path.with_name(f"{path.name}.new")
    new.unlink(missing_ok=True)
    for log in _logs(path):  # of a file that is gone: beside the new one SQLite would replay it
        log.unlink(missing_ok=True)
    # Made by us so that nobody else can read it: SQLite would go by the umask.
    os.close(os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    with closing(sqlite3.connect(new, isolation_level=None)) as connection:
        connection.execute("PRAGMA synchronous = FULL")
        connection.executescript(_SCHEMA)
        _write(connection, statements)
    new.replace(path)
    files.sync_directory(path.parent)


def _read(path: Path, connection: Connection) -> Opened:
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    verdict = _one(connection, "PRAGMA quick_check(1)")
    if verdict != "ok":
        raise DamagedError(str(verdict))
    version = int(_one(connection, "PRAGMA user_version"))
    if version > SCHEMA_VERSION:
        raise PermanentError(
            Reason.STATE_CORRUPT,
            f"the state file {path} has version {version}, this release reads {SCHEMA_VERSION}",
            "install the newer release again, or drain the node and remove the file",
            file=str(path),
        )
    if version == 0:
        raise DamagedError("it is empty")
    roots = connection.execute("SELECT uid, forget FROM roots")
    return Opened(
        connection=connection,
        identity=_identity(path),
        records=tuple(_records(connection)),
        roots={uid: datetime.fromisoformat(forget) for uid, forget in roots},
        doubt=None,
    )


def _records(connection: Connection) -> Iterator[Record]:
    columns = "uid, namespace, name, state, boot_id, created, updated, payload"
    for uid, namespace, name, state, boot_id, created, updated, payload in connection.execute(
        f"SELECT {columns} FROM records"  # noqa: S608 - the names above, nothing from outside
    ):
        if state not in ("started", "prepared"):
            raise DamagedError(f"claim {uid} has state {state}")
        yield Record(
            ref=ClaimRef(namespace, name, ClaimUID(uid)),
            state=state,
            boot_id=boot_id,
            created=datetime.fromisoformat(created),
            updated=datetime.fromisoformat(updated),
            payload=payload,
        )


def _write(connection: Connection, statements: Sequence[Statement]) -> None:
    try:
        connection.execute("BEGIN IMMEDIATE")
        for statement in statements:
            connection.execute(statement.sql, statement.values)
        connection.execute("COMMIT")
    except BaseException:
        with suppress(sqlite3.Error):  # what failed is told, not what came of it
            if connection.in_transaction:
                connection.execute("ROLLBACK")
        raise


def _set_aside(path: Path, boot_id: str, now: datetime) -> None:
    """Move a damaged file and its logs away; the log belongs to its file."""
    aside = _aside(path, now)
    # Before the move: a process that dies in between must not start from nothing.
    _mark_doubt(path, aside, boot_id)
    if path.exists():
        path.replace(aside)
    for log in _logs(path):
        if log.exists():
            log.replace(log.with_name(log.name.replace(path.name, aside.name, 1)))


def _aside(path: Path, now: datetime) -> Path:
    """A name that nothing has yet, whatever became of the clock."""
    name = f"{path.name}.corrupt-{now.astimezone(UTC):%Y%m%dT%H%M%SZ}"
    aside, number = path.with_name(name), 1
    while aside.exists():
        number += 1
        aside = path.with_name(f"{name}-{number}")
    return aside


def _logs(path: Path) -> tuple[Path, ...]:
    return tuple(path.with_name(f"{path.name}{suffix}") for suffix in ("-wal", "-shm"))


def _marker(path: Path) -> Path:
    return path.with_name(f"{path.name}.in-doubt")


def _mark_doubt(path: Path, aside: Path, boot_id: str) -> None:
    content = {"file": str(aside), "boot_id": boot_id}
    files.write_atomic(_marker(path), json.dumps(content).encode())


def _doubt(path: Path, boot_id: str) -> Doubt | None:
    """What nobody has found out yet; with an earlier boot's pods it does not matter any more."""
    marker = _marker(path)
    try:
        content = json.loads(marker.read_bytes())
        doubt = Doubt(marker, Path(content["file"]), str(content["boot_id"]))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, KeyError):
        return Doubt(marker, path, boot_id)
    if doubt.boot_id != boot_id:
        end_doubt(doubt)
        return None
    return doubt


def _identity(path: Path) -> tuple[int, int]:
    try:
        status = os.stat(path)  # noqa: PTH116 - on the way of every change: half the time of Path's
    except FileNotFoundError:
        return (0, 0)
    return (status.st_dev, status.st_ino)


def _is_damage(error: sqlite3.DatabaseError) -> bool:
    return error.sqlite_errorcode & 0xFF in _DAMAGED


def _one(connection: Connection, sql: str) -> Any:
    with closing(connection.execute(sql)) as cursor:
        return cursor.fetchone()[0]


def _text(time: datetime) -> str:
    return time.astimezone(UTC).isoformat(timespec="microseconds")
