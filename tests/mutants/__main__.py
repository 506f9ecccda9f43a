# SPDX-License-Identifier: Apache-2.0
"""Run the mutants' tests, print a table, and fail if one lives that is not explained.

python -m tests.mutants                      # all, with unit and component tests
python -m tests.mutants --unit               # with unit tests alone: minutes
python -m tests.mutants lease slices         # those whose names contain one of the words
python -m tests.mutants --json result.json   # the results for other programs, too
"""

import argparse
import json
import os
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tests.mutants import catalog, runner
from tests.mutants.runner import Outcome, Result


def main(argv: Sequence[str]) -> int:
    """Run the command. Returns 0 if every mutant is killed or explained."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("words", nargs="*", help="only mutants whose names contain one of them")
    parser.add_argument("--unit", action="store_true", help="without component tests")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    parser.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 1)))
    given = parser.parse_args(argv)
    words = given.words or [""]
    chosen = [each for each in catalog.MUTANTS if any(word in each.name for word in words)]
    if not chosen:
        parser.error("no mutant has such a name")
    tests = sorted(
        {
            test
            for each in chosen
            if not each.explained
            for test in (each.unit if given.unit else each.tests)
        }
    )
    print(f"▸ {len(chosen)} mutants; first their {len(tests)} tests without a fault", flush=True)
    if tests and (failure := runner.unmutated(tuple(tests))):
        print(f"{failure}\nThe tests fail without a fault, so they show nothing.")
        return 1
    results = []
    for result in runner.run(chosen, given.workers, has_component=not given.unit):
        results.append(result)
        print(_line(result), flush=True)
    print(_summary(results))
    if given.json:
        given.json.parent.mkdir(parents=True, exist_ok=True)
        given.json.write_text(json.dumps([_document(each) for each in results], indent=1) + "\n")
    return 1 if any(each.is_wrong for each in results) else 0


def _line(result: Result) -> str:
    line = f"{result.outcome:<10} {result.seconds:5.1f} s  {result.mutant.name}"
    return f"{line}\n           {result.by}" if result.is_wrong and result.by else line


def _summary(results: Sequence[Result]) -> str:
    counts = Counter(each.outcome for each in results)
    found = ", ".join(f"{counts[each]} {each}" for each in Outcome if counts[each])
    return f"{len(results)} mutants: {found}"


def _document(result: Result) -> dict[str, object]:
    mutant = result.mutant
    return {
        "name": mutant.name,
        "file": mutant.file,
        "harm": mutant.harm,
        "outcome": result.outcome,
        "by": result.by,
        "seconds": round(result.seconds, 1),
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
