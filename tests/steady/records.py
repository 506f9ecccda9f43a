# SPDX-License-Identifier: Apache-2.0
"""What has run: a line of JSON for each unit, in the repository, and the durations of tests."""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
RESULTS = Path(__file__).parent / "results.jsonl"
LOGS = ROOT / "out/steady"
"""The table, and the output of units that are red."""
DURATIONS = Path(__file__).parent / "durations.json"
FORMER_FAILURES = Path(__file__).parent / "former_failures.txt"


@dataclass(frozen=True)
class UnitResult:
    """How one unit ended.

    Attributes:
        path: Its file.
        round: Its round.
        file: The hash of the file as it was; a file that is mended is due again.
        commit: The commit that was checked out.
        started: ISO 8601, UTC.
        seconds: How long it took.
        load: The load of the machine over the last minute, at its end.
        tests: How many tests ran. All parameters of a test count as one.
        red: Failed tests with the last line of their messages; `pytest` for an exit without tests.
        is_whole: Whether all tests of the file or directory ran.
    """

    path: str
    round: int
    file: str
    commit: str
    started: str
    seconds: float
    load: float
    tests: int = 0
    red: Mapping[str, str] = field(default_factory=dict)
    is_whole: bool = True


def read(path: Path = RESULTS) -> list[UnitResult]:
    """All results, oldest first. A line that was cut off by an interruption is left out."""
    if not path.exists():
        return []
    results = []
    for line in path.read_text().splitlines():
        try:
            results.append(UnitResult(**json.loads(line)))
        except ValueError:
            continue
    return results


def append(result: UnitResult, path: Path = RESULTS) -> None:
    """Add a result."""
    with path.open("a") as file:
        file.write(json.dumps(asdict(result)) + "\n")


def current(results: Iterable[UnitResult], files: Mapping[str, str]) -> list[UnitResult]:
    """The last result of each unit whose file is what it was then.

    Args:
        results: Oldest first.
        files: Path → hash of the file as it is.
    """
    last = {(each.path, each.round): each for each in results}
    return [each for each in last.values() if files.get(each.path) == each.file]


def file_hash(path: Path) -> str:
    """The hash of a test file, or of all that are in a directory."""
    files = sorted(path.rglob("*.py")) if path.is_dir() else [path]
    return hashlib.sha256(b"".join(each.read_bytes() for each in files)).hexdigest()[:16]


def read_durations(path: Path = DURATIONS) -> dict[str, float]:
    """Test → seconds, all its parameters together."""
    found: dict[str, float] = json.loads(path.read_text()) if path.exists() else {}
    return found


def write_durations(seen: Mapping[str, float], path: Path = DURATIONS) -> None:
    """Keep the longest of the last two durations of each test, so that a plan fits its hours."""
    known = read_durations(path)
    for test, seconds in seen.items():
        known[test] = round(max(seconds, (known.get(test, 0) + seconds) / 2), 1)
    path.write_text(json.dumps(dict(sorted(known.items())), indent=0) + "\n")


def former_failures(lines: Sequence[str]) -> dict[str, str]:
    """Test → where it was red, from lines `path::name  # where`."""
    found = {}
    for line in lines:
        name, _, where = line.partition("#")
        if name.strip():
            found[name.strip()] = where.strip()
    return found
