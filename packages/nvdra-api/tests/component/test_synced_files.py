# SPDX-License-Identifier: Apache-2.0
"""What is told to be on the disk was synced before: the kernel is asked, not the page cache.

A kill leaves the page cache in place, so only the calls themselves tell a file that survives a
power failure from one that does not.
"""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from nvdra_testing.crash_campaigns import points
from nvdra_testing.crash_campaigns.points import TraceNames
from nvdra_testing.faults import strace

CALLS = (
    *("write", "pwrite64", "fsync", "fdatasync", "ftruncate"),
    *("rename", "link", "unlink", "unlinkat", "renameat", "linkat"),
)

OPEN = """
import sys
from datetime import UTC, datetime
from pathlib import Path
from nvdra_api.ids import ClaimUID
from nvdra_api.resource.claims import ClaimRef
from nvdra_runtime.node import record_database
from nvdra_runtime.node.record_database import StoredRecord

path, now = Path("state.sqlite").absolute(), datetime(2026, 8, 1, tzinfo=UTC)
opened = record_database.open_or_replace_corrupt(path, "boot", now)
"""
COMMIT = """
record = StoredRecord(ClaimRef("ns", "a", ClaimUID("u")), "prepared", "boot", now, now, "{}")
statements = record_database.put_record(record, has_started=False)
record_database.commit(opened.connection, path, opened.file_identity, statements)
print("done", flush=True)
"""
WRITE_ATOMIC = """
from pathlib import Path
from nvdra_runtime.node import files
files.write_atomic(Path("index").absolute(), b"7")
print("done", flush=True)
"""
SPEC = """
from pathlib import Path
from nvdra_cdi import files
from nvdra_cdi.model import ContainerEdits, Device, Spec
edits = ContainerEdits(env=("A=1",))
path = Path("specs/vendor.com-gpu.yaml").absolute()
files.write(Spec("vendor.com/gpu", (Device("gpu-0", edits),)), path)
print("done", flush=True)
files.remove(path)
print("done", flush=True)
"""
REWRITE = """
from pathlib import Path
from nvdra_cdi import files
path = Path("vendor.com-gpu.yaml").absolute()
files.rewrite(path, b"{}")
print("done", flush=True)
"""


def calls(directory: Path, program: str) -> list[str]:
    """What a program does to the files of a directory, and when it says that it is done."""
    log = directory.with_name("strace")
    argv = [*strace.launch_command(log, CALLS), sys.executable, "-c", program]
    subprocess.run(argv, cwd=directory, check=True, capture_output=True)
    names = TraceNames(str(directory), 0)
    found = []
    for call in strace.parse(log.read_text(), {}):
        if call.name == "write" and '"done' in call.arguments:
            found.append("done")
        elif str(directory) in call.arguments and "= -1 " not in call.arguments:
            target = points.target(call, names).name
            found.append(f"{call.name} {'.' if target == str(directory) else target}")
    return found


def lost_by_a_power_failure(made: Sequence[str]) -> list[set[str]]:
    """What a power failure could lose, each time that the program says that it is done.

    These are files whose content is not synced, and directories whose names are not. A file must
    not get its name before its content is synced.
    """
    unsynced: set[str] = set()
    found = []
    for call in made:
        verb, _, target = call.partition(" ")
        if call == "done":
            found.append(set(unsynced))
        elif target.endswith("-shm"):  # SQLite makes it anew
            continue
        elif verb in ("write", "pwrite64", "ftruncate"):
            unsynced.add(target)
        elif verb in ("fsync", "fdatasync"):
            unsynced.discard(target)
        elif verb == "rename":
            before, _, after = target.partition(" to ")
            assert before not in unsynced, f"{before} gets the name {after} and is not synced"
            unsynced.add(str(Path(after).parent))
        elif verb == "unlink":
            unsynced.discard(target)
            unsynced.add(str(Path(target).parent))
    return found


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    made = tmp_path / "directory"
    made.mkdir()
    return made


def test_a_record_is_synced_when_its_change_is_committed(directory: Path) -> None:
    first = calls(directory, OPEN + COMMIT)
    named = first.index("rename state.sqlite.new to state.sqlite")
    assert first[named + 1] == "fsync ."
    assert lost_by_a_power_failure(first) == [set()]
    again = calls(directory, OPEN + COMMIT)
    assert lost_by_a_power_failure(again) == [set()]
    done = again.index("done")
    assert again[done - 2 : done] == ["pwrite64 state.sqlite-wal", "fdatasync state.sqlite-wal"]


def test_that_records_are_missing_is_synced_before_their_file_is_moved(directory: Path) -> None:
    (directory / "state.sqlite").write_text("this is no database")
    made = calls(directory, OPEN + COMMIT)
    moved = made.index("rename state.sqlite to state.sqlite.corrupt-20260801T000000Z")
    marked = [call.partition(" ")[0] for call in made[:moved]]
    assert marked == ["write", "fsync", "rename", "fsync"]
    assert made[moved - 2].endswith(" to state.sqlite.in-doubt")
    assert made[moved - 1] == "fsync ."
    assert lost_by_a_power_failure(made) == [set()]


def test_a_file_that_is_replaced_is_synced_with_its_name(directory: Path) -> None:
    made = calls(directory, WRITE_ATOMIC)
    assert [call.partition(" ")[0] for call in made] == [
        "write",
        "fsync",
        "rename",
        "fsync",
        "done",
    ]
    assert lost_by_a_power_failure(made) == [set()]


def test_a_cdi_spec_is_synced_when_it_is_written_and_when_it_is_removed(directory: Path) -> None:
    temporary, spec = "specs/spec.vendor.com-gpu.<random>", "specs/vendor.com-gpu.yaml"
    assert calls(directory, SPEC) == [
        f"write {temporary}",
        f"fsync {temporary}",
        f"rename {temporary} to {spec}",
        "fsync specs",
        "done",
        f"unlink {spec}",
        "fsync specs",
        "done",
    ]


def test_a_cdi_spec_that_is_rewritten_is_synced(directory: Path) -> None:
    (directory / "vendor.com-gpu.yaml").touch()
    made = calls(directory, REWRITE)
    assert [call.partition(" ")[0] for call in made] == [
        "write",
        "fsync",
        "rename",
        "fsync",
        "done",
    ]
    assert lost_by_a_power_failure(made) == [set()]
