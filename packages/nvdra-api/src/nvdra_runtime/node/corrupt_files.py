# SPDX-License-Identifier: Apache-2.0
"""State files of `record_database` that cannot be read: moved aside, with a marker beside them.

The functions block; the store's thread calls them.
"""

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from nvdra_api import json_text

from nvdra_runtime.node import files


@dataclass(frozen=True, slots=True)
class RecoveryMarker:
    """Marks that a state file could not be read and its records have not been recovered yet.

    The marker is a file beside the state file. It outlives the process, but not the boot.

    Attributes:
        path: The marker's file. An administrator who removes it confirms that no pod of the node
            uses a device any longer.
        corrupt_file: The corrupt state file.
        boot_id: The boot in which it was found.
    """

    path: Path
    corrupt_file: Path
    boot_id: str


def move_aside(path: Path, boot_id: str, now: datetime) -> None:
    """Move a corrupt state file and its logs aside.

    Args:
        path: Path of the file, which may be gone.
        boot_id: The current boot.
        now: For the new name.
    """
    aside = _corrupt_file_path(path, now)
    # Before the move: after a crash in between, the next start must know that records are missing.
    content = {"file": str(aside), "boot_id": boot_id}
    files.write_atomic(marker_path(path), json.dumps(content).encode())
    if path.exists():
        path.replace(aside)
    for log in log_files(path):
        if log.exists():
            log.replace(log.with_name(log.name.replace(path.name, aside.name, 1)))


def _corrupt_file_path(path: Path, now: datetime) -> Path:
    """An unused name for the corrupt file, even if the clock was set back."""
    name = f"{path.name}.corrupt-{now.astimezone(UTC):%Y%m%dT%H%M%SZ}"
    aside, number = path.with_name(name), 1
    while aside.exists():
        number += 1
        aside = path.with_name(f"{name}-{number}")
    return aside


def log_files(path: Path) -> tuple[Path, ...]:
    """The files that SQLite may have beside a state file."""
    return tuple(path.with_name(f"{path.name}{suffix}") for suffix in ("-wal", "-shm"))


def marker_path(path: Path) -> Path:
    """The marker of a state file."""
    return path.with_name(f"{path.name}.in-doubt")


def read_marker(path: Path, boot_id: str) -> RecoveryMarker | None:
    """Read the marker. One of an earlier boot is removed, because that boot's pods are gone."""
    marker = marker_path(path)
    try:
        content = json_text.parse(marker.read_bytes(), json_text.MAX_FILE_BYTES)
        found = RecoveryMarker(marker, Path(content["file"]), str(content["boot_id"]))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, KeyError):
        return RecoveryMarker(marker, path, boot_id)
    if found.boot_id != boot_id:
        marker.unlink(missing_ok=True)
        return None
    return found
