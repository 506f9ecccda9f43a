# SPDX-License-Identifier: Apache-2.0
"""The command `python -m nvdra_testing.fuzzing`, which `make fuzz` runs."""

import argparse
import logging
import random
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from nvdra_testing.fuzzing import campaign, faults, registry
from nvdra_testing.fuzzing.target import Target
from nvdra_testing.fuzzing.verdict import Judge

DIRECTORY: Final = Path("out/fuzz")
_ABOUT: Final = """\
Hand generated and mutated bytes to every target: whatever reads those of others.

Every case must be answered, with at most 1 s of processor time and 64 MiB of more memory; the
program must live, and another tenant's request must be answered meanwhile. Each fault is kept in
out/fuzz/TARGET-SEED-NUMBER.json with its input. Exits with 1 if there is any.
"""
_EXAMPLES: Final = """\
examples:
  make fuzz                              every target, a minute together, with a new seed
  make fuzz SECONDS=3600 SEED=7          an hour
  make fuzz TARGET="index-file imex-nodes"   some targets
  python -m nvdra_testing.fuzzing --list
  python -m nvdra_testing.fuzzing --case out/fuzz/index-file-7-1.json   try a kept input again

A seed gives the same cases in the same order. How many there are depends on the machine. A target
whose least cases (50) need longer than its time gets a minute more; if they are not tried then, the
report says "too few cases" and not that there are no faults. That alone is no failure.
"""


def main(argv: Sequence[str]) -> int:
    """Run the command. Returns its exit code."""
    given = _parser().parse_args(argv)
    known = {target.name: target for target in registry.TARGETS}
    if given.list:
        print("\n".join(known))
        return 0
    if given.case is not None:
        return _repeat(known, given.case)
    if unknown := set(given.target) - known.keys():
        print(
            f"error: there is no target {', '.join(sorted(unknown))}; see --list", file=sys.stderr
        )
        return 2
    logging.disable()  # of the proxy and the client: what they log is what they are handed
    targets = [target for name, target in known.items() if name in given.target or not given.target]
    seed = given.seed if given.seed is not None else random.randrange(10**6)
    print(f"▸ fuzz: {len(targets)} targets, {given.seconds:.0f} s, seed {seed}", flush=True)
    results = campaign.run(targets, seed, given.seconds, DIRECTORY, _say)
    print("\n".join(campaign.table(results)))
    print(campaign.conclusion(results, DIRECTORY))
    return 1 if campaign.count_faults(results) else 0


def _say(text: str) -> None:
    print(text, flush=True)


def _repeat(known: dict[str, Target], path: Path) -> int:
    """Try the input of a fault again."""
    name, case = faults.read_case(path)
    with ExitStack() as stack, Judge().watching() as judge:
        program = stack.enter_context(known[name].open())
        for sample in known[name].samples:
            judge.judge(program, sample)
        problem = judge.judge(program, case) or judge.judge(program, known[name].samples[0])
    print("✓ answered" if problem is None else f"✗ {problem.kind}\n{problem.text}")
    return 0 if problem is None else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m nvdra_testing.fuzzing",
        description=_ABOUT,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seconds", type=float, default=60, help="for all targets; default 60")
    parser.add_argument("--seed", type=int, help="of the cases; default: a new one")
    parser.add_argument(
        "--target", action="append", default=[], help="only this target; repeatable"
    )
    parser.add_argument("--list", action="store_true", help="list the targets")
    parser.add_argument("--case", type=Path, metavar="FILE", help="try a kept input again")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
