# SPDX-License-Identifier: Apache-2.0
"""Run tests again and again beside busy processes, and fail if one is red.

make steady                          # some eight hours; goes on where it was stopped
make steady MINUTES=30               # a slice
make steady STATUS=1                 # what has run and what is left
python -m tests.steady packages/     # only files whose paths contain one of the words
python -m tests.steady --again WORD  # forget the results of such files, and run them again

Listed tests, which end a process or were red, run three to ten times; of every file at least one
round is run; of the rest a sample of what eight hours leave.

Each unit adds a line to tests/steady/results.jsonl, to be committed. It counts until its test file
changes. A test that is red is added to former_failures.txt.
"""

import argparse
import json
import signal
import subprocess
import sys
import time
from collections.abc import Sequence

from tests.steady import plan, process_ends, records, report, runner
from tests.steady.plan import Unit
from tests.steady.records import UnitResult
from tests.steady.runner import Report, Runner

BUSY = 4
LANES = 3
"""Tests wait more than they work; `make component` runs four files at a time on an idle machine."""


def main(argv: Sequence[str]) -> int:
    """Run the command. Returns 0 if nothing is red."""
    parser = argparse.ArgumentParser(prog="python -m tests.steady", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("words", nargs="*", help="only files whose paths contain one of them")
    parser.add_argument("--minutes", type=float, help="end after so many minutes")
    parser.add_argument("--hours", type=float, default=plan.HOURS, help="one after another (8)")
    parser.add_argument("--lanes", type=int, default=LANES, help=f"files at a time ({LANES})")
    parser.add_argument("--busy", type=int, default=BUSY, help=f"busy processes ({BUSY})")
    parser.add_argument("--seed", type=int, default=plan.SEED, help=f"of a sample ({plan.SEED})")
    parser.add_argument("--again", action="append", default=[], metavar="WORD")
    parser.add_argument("--status", action="store_true", help="run nothing")
    parser.add_argument("--json", action="store_true", help="print the state for programs")
    given = parser.parse_args(argv)

    sources = process_ends.read()
    tests = process_ends.tests(sources)
    former = records.former_failures(records.FORMER_FAILURES.read_text().splitlines())
    listed = {*process_ends.find(sources), *former} & set(tests)
    durations = records.read_durations()
    files = {each: records.file_hash(records.ROOT / each) for each in plan.places(tests)}
    began = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime())

    def results() -> list[UnitResult]:
        return records.current(_kept(given.again, began), files)

    done = {(each.path, each.round): each.is_whole for each in results()}
    ran = {where for where, is_whole in done.items() if is_whole or where[1] > plan.OTHER_ROUNDS}
    planned = plan.make(
        tests, listed, durations, seconds=given.hours * 3600, seed=given.seed, ran=ran
    )
    units = [
        each
        for each in plan.due(planned, done)
        if not given.words or any(word in each.path for word in given.words)
    ]
    if not given.status:
        _run(units, given.minutes, given.lanes, given.busy, former)
    found = report.document(planned, results(), listed, given.lanes)
    records.LOGS.mkdir(parents=True, exist_ok=True)
    (records.LOGS / "table.md").write_text(report.text(found))
    (records.LOGS / "table.json").write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found, indent=1) if given.json else report.text(found))
    return 1 if found["red"] else 0


def _kept(again: Sequence[str], began: str) -> list[UnitResult]:
    """All results but those that are to be forgotten: of such files, from before this run."""
    return [
        each
        for each in records.read()
        if each.started >= began or not any(word in each.path for word in again)
    ]


def _run(
    units: Sequence[Unit], minutes: float | None, lanes: int, busy: int, former: dict[str, str]
) -> None:
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"],
        cwd=records.ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    records.LOGS.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + (minutes * 60 if minutes else float("inf"))
    running = Runner(units, commit, deadline=deadline, lanes=lanes)
    left = {(each.path, each.round): each for each in units}
    print(f"▸ {len(units)} units, about {report.hours(plan.expected_s(units, lanes))}", flush=True)

    def record(unit: Unit, result: UnitResult, seen: Report) -> None:
        records.append(result)
        records.write_durations(seen.seconds)
        del left[unit.path, unit.round]
        expected = report.hours(plan.expected_s(left.values(), lanes))
        mark = "✗" if result.red else "✓"
        print(
            f"{mark} {unit.path} round {unit.round}: {result.tests - len(result.red)} passed in "
            f"{result.seconds:.0f} s, load {result.load}; {len(left)} units, {expected} left",
            flush=True,
        )
        for test, message in result.red.items():
            print(f"  ✗ {test}: {message}", flush=True)
            if "::" in test and test not in former:
                former[test] = f"steady, {commit[:8]}, {result.started[:10]}, load {result.load}"
                with records.FORMER_FAILURES.open("a") as file:
                    file.write(f"{test}  # {former[test]}\n")

    def interrupt(*_: object) -> None:
        running.interrupt()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, interrupt)
    with runner.busy_processes(busy):
        running.run(record)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
