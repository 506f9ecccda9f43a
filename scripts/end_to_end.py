# SPDX-License-Identifier: Apache-2.0
"""Run the end-to-end tests: the groups side by side, each on a lab of its own.

    python scripts/end_to_end.py [--group NAME]... [PYTEST ARGUMENT]...

The groups are the directories of e2e/tests: `gpus`, `sharing` and `kubelet` (GPUs and MIG devices,
pods that share them, and the kubelet's protocol, on two DGX H100), `domains` and `members`
(ComputeDomains, and what happens to their members, on two trays of an NVL72 rack), `installation`
(helm install, test and uninstall, the webhook, and which rights were used), `platforms` (labs that
are like GKE and others, in a soak) and `lab` (the life of a lab itself). The tests of a group
follow one another. Groups wait more than they work, so four of those with a cluster run at the same
time; `lab` runs after them, because it looks for anything that a lab leaves on the machine. Each
line of output begins with its group, and what failed is told once more at the end.
"""

import argparse
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

TESTS = Path(__file__).resolve().parent.parent / "e2e" / "tests"
CLUSTERS_AT_ONCE = 4
STAGES = (
    ("gpus", "members", "domains", "kubelet", "installation", "sharing"),
    ("platforms", "lab"),
)
"""Stages follow one another. Of a stage's groups, those that take longest begin first."""
NO_TESTS = 5
"""Exit status of pytest when no test of the group was selected."""
FAILURE_TITLE = re.compile(r"_+ (?!_).+ _+$")
MESSAGE_LINES = 6
"""How much of a failure's message is repeated at the end."""


class Outcome(NamedTuple):
    """How a group ended.

    Attributes:
        status: Exit status of pytest.
        failures: The titles of its failures, and the first lines of their messages.
    """

    status: int
    failures: list[str]


def main() -> int:
    """Run the groups and return 0 if every selected test passed."""
    parser = argparse.ArgumentParser(description="Run the end-to-end tests, groups side by side.")
    known = [group for stage in STAGES for group in stage]
    parser.add_argument("--group", action="append", choices=known, help="default: all")
    arguments, for_pytest = parser.parse_known_args()
    wanted = arguments.group or known
    started = time.monotonic()
    outcomes: dict[str, Outcome] = {}
    for stage in STAGES:
        outcomes |= _run_side_by_side([group for group in stage if group in wanted], for_pytest)
    failed = [group for group, each in outcomes.items() if each.status not in (0, NO_TESTS)]
    if all(each.status == NO_TESTS for each in outcomes.values()):
        print("error: no end-to-end test has these words in its name", file=sys.stderr)
        return NO_TESTS
    minutes, seconds = divmod(round(time.monotonic() - started), 60)
    print(f"end to end: {', '.join(outcomes)} in {minutes}:{seconds:02d} min", flush=True)
    if failed:
        # The groups' own reports are far above by now, between the lines of other groups.
        for group in failed:
            for line in outcomes[group].failures:
                print(f"[{group}] {line}", file=sys.stderr)
        print(f"error: tests failed in: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def _run_side_by_side(groups: list[str], for_pytest: list[str]) -> dict[str, Outcome]:
    """Run groups, `CLUSTERS_AT_ONCE` at the same time."""
    executor = ThreadPoolExecutor(max_workers=CLUSTERS_AT_ONCE)
    try:
        outcomes = executor.map(lambda group: _run(group, for_pytest), groups)
        return dict(zip(groups, outcomes, strict=True))
    finally:  # a terminal interrupts the groups, too: they clean up, and no other one begins
        executor.shutdown(cancel_futures=True)


def _run(group: str, for_pytest: list[str]) -> Outcome:
    argv = [
        sys.executable,
        "-m",
        "pytest",
        "-v",
        "--durations=12",
        "--color=no",
        f"--lab=e2e-{group}",
        str(TESTS / group),
    ]
    with subprocess.Popen(
        [*argv, *for_pytest], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as run:
        assert run.stdout is not None
        failures, room = [], 0
        for line in run.stdout:
            print(f"[{group}] {line}", end="", flush=True)
            if FAILURE_TITLE.match(line):
                room = MESSAGE_LINES + 1
            elif not line.startswith("E  "):
                continue
            if room:
                room -= 1
                failures.append(line.rstrip())
    return Outcome(run.returncode, failures)


if __name__ == "__main__":
    sys.exit(main())
