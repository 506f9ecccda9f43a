# SPDX-License-Identifier: Apache-2.0
"""Run what takes hours, part by part, and only what has changed since it passed.

make soak                  # the parts that are due, one after another; Ctrl-C, and it goes on later
make soak STATUS=1         # which parts there are, when they passed, and which are due
make soak-mutants          # one part; `make soak-release` is all of them
make soak KUBE=1.34        # the parts of one release
python -m tests.soak --again mutants   # although nothing has changed
python -m tests.soak --status --json

Each run of a part adds a line to tests/soak/results.jsonl. A part is due if it has not passed with
what it tests as it is now: the files below its paths, committed.
"""

import argparse
import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from tests.soak import ledger, parts
from tests.soak.ledger import DIRTY, Result
from tests.soak.parts import Part

ROOT = Path(__file__).resolve().parent.parent.parent
KEPT = (
    "tests/soak/results.jsonl",
    *(
        f"tests/steady/{name}"
        for name in ("results.jsonl", "durations.json", "former_failures.txt")
    ),
)
"""What soaks write themselves changes nothing that they test."""


def main(argv: Sequence[str]) -> int:
    """Run the command. Returns 0 if every part that ran has passed."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("parts", nargs="*", help="names of parts, or how they begin; default: all")
    parser.add_argument("--kube", help="the parts of this release of Kubernetes")
    parser.add_argument("--again", action="store_true", help="also what has passed")
    parser.add_argument("--status", action="store_true", help="run nothing")
    parser.add_argument("--json", action="store_true", help="the table for programs")
    given = parser.parse_args(argv)
    try:
        chosen = parts.find(given.parts) if given.parts else list(parts.PARTS)
    except LookupError as error:
        parser.error(str(error))
    if given.kube:
        chosen = parts.for_release(given.kube)
    found = ledger.states(chosen, ledger.read(), {each.name: tree(each) for each in chosen})
    if given.status:
        print(json.dumps(ledger.document(found), indent=1) if given.json else ledger.text(found))
        return 0
    due = [each.part for each in found if each.why or given.again]
    failed = []
    for number, part in enumerate(due, 1):
        print(f"▸ soak {number} of {len(due)}: {part.name}, {part.about}", flush=True)
        result = run(part)
        if result is None:
            print(f"✗ {part.name} was interrupted; make soak goes on with it", file=sys.stderr)
            return 130
        ledger.append(result)
        mark = "✓" if result.passed else "✗"
        print(f"{mark} soak: {part.name} in {result.seconds / 60:.0f} min", flush=True)
        if not result.passed:
            failed.append(part.name)
    if failed:
        print(f"error: failed: {', '.join(failed)}", file=sys.stderr)
        return 1
    print("✓ soaked")
    return 0


def run(part: Part) -> Result | None:
    """Run a part. Returns None if it was interrupted."""
    before = tree(part)
    commit = _git("rev-parse", "HEAD").strip()
    started, began = datetime.now(UTC), time.monotonic()
    # In a process group of its own, because make passes no SIGINT on to what it runs.
    process = subprocess.Popen(part.command, cwd=ROOT, start_new_session=True)
    is_interrupted = False

    def interrupt(_: int, __: object) -> None:
        nonlocal is_interrupted
        is_interrupted = True
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGINT)

    former = {each: signal.signal(each, interrupt) for each in (signal.SIGINT, signal.SIGTERM)}
    status = process.wait()
    for number, handler in former.items():
        signal.signal(number, handler)
    if is_interrupted:
        return None
    return Result(
        part.name,
        commit,
        before if before == tree(part) else DIRTY,
        started.isoformat(timespec="seconds"),
        round(time.monotonic() - began),
        status == 0,
        round(os.getloadavg()[2], 1),
    )


def tree(part: Part) -> str:
    """The hash of the committed files that a part tests; `dirty` if they are not as committed."""
    paths = [*part.paths, *(f":(exclude){each}" for each in KEPT)]
    if _git("status", "--porcelain", "--untracked-files=all", "--", *paths):
        return DIRTY
    lines = _git("ls-files", "--stage", "--", *paths)
    return hashlib.sha256(lines.encode()).hexdigest()[:16]


def _git(*arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True
    )
    return done.stdout


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
