# SPDX-License-Identifier: Apache-2.0
"""Run the checks that need no cluster, two at a time: format, lint, layers, types, unit tests.

    hatch run check

Each check prints its output as a whole when it ends. The tests are type-checked package by package,
because test files of different packages have the same names.
"""

import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
UNIT = [
    "packages/*/tests/unit",
    "e2e/*/tests/unit",
    "testing/tests/unit",
    "tests/unit",
]
TYPED_TESTS = [
    "packages/*/tests", "testing/tests", "e2e/sim/tests", "e2e/cluster/tests", "e2e/demo/tests",
    "e2e/tests", "charts/tests", "tests", "scripts",
]  # fmt: skip


def main() -> int:
    """Run all checks; return 0 if every one passed."""
    chains: list[list[Sequence[str]]] = [
        # Many unit tests wait for a moment: on two cores, three files at a time.
        [["pytest", "-q", "-n", "3", "--dist", "loadfile", *_found(UNIT)]],
        [
            ["ruff", "format", "--check", "."],
            ["ruff", "check", "."],
            ["lint-imports"],
            ["mypy"],
            ["mypy", "-p", "bench"],
            *(_mypy(folder) for folder in _found(TYPED_TESTS)),
        ],
    ]
    with ThreadPoolExecutor(len(chains)) as pool:
        results = list(pool.map(_run_chain, chains))
    return 0 if all(results) else 1


def _found(patterns: Sequence[str]) -> list[str]:
    return [
        str(path.relative_to(REPOSITORY))
        for pattern in patterns
        for path in sorted(REPOSITORY.glob(pattern))
    ]


def _mypy(folder: str) -> Sequence[str]:
    """Type-check one folder from its parent, so that conftest files get different module names.

    Packages' tests import modules beside them by their bare names; those of the root do not.
    """
    path = REPOSITORY / folder
    roots = REPOSITORY if path.parent == REPOSITORY else f"{REPOSITORY}:{path}"
    options = f"--config-file {REPOSITORY}/pyproject.toml --cache-dir {REPOSITORY}/.mypy_cache"
    return [
        "sh",
        "-c",
        f"cd {path.parent} && MYPYPATH={roots} mypy {options} {path.name}",
    ]


def _run_chain(chain: Sequence[Sequence[str]]) -> bool:
    """Run commands one after another, all of them in any case."""
    results = [_run(argv) for argv in chain]
    return all(results)


def _run(argv: Sequence[str]) -> bool:
    started = time.monotonic()
    done = subprocess.run(
        argv,
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    is_passed = done.returncode == 0
    mark = "✓" if is_passed else "✗"
    text = f"{mark} {_label(argv)} ({time.monotonic() - started:.0f} s)"
    if argv[0] == "pytest" or not is_passed:
        text += "\n" + done.stdout.rstrip()
    print(text, flush=True)
    return is_passed


def _label(argv: Sequence[str]) -> str:
    """How a check is called in the output."""
    if argv[0] == "pytest":
        return "pytest: unit tests"
    if argv[0] == "sh":
        folder = argv[-1].split()[1].removeprefix(str(REPOSITORY)).lstrip("/")
        return f"mypy {folder}/{argv[-1].split()[-1]}".replace("mypy /", "mypy ")
    return " ".join(argv)


if __name__ == "__main__":
    sys.exit(main())
