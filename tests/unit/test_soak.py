# SPDX-License-Identifier: Apache-2.0
"""Which parts of a soak are due."""

import dataclasses
import os
from pathlib import Path

import pytest

from tests.soak import __main__ as command
from tests.soak import ledger, parts
from tests.soak.ledger import Result
from tests.soak.parts import Part

PART = Part("bench", "something", ("true",), ("bench",), 30)
PASSED = Result("bench", "c0ffee00beef", "t1", "2026-11-27T10:00:00+00:00", 600, True, 1.5)
ROOT = Path(__file__).resolve().parents[2]


def why(tree: str, *results: Result) -> str:
    (state,) = ledger.states([PART], results, {"bench": tree})
    return state.why


def test_a_part_is_due_until_it_passes_with_what_it_tests() -> None:
    failed = dataclasses.replace(PASSED, passed=False)
    assert why("t1") == "has not run"
    assert why("t1", PASSED) == ""
    assert why("t2", PASSED) == "what it tests has changed"
    assert why("t1", PASSED, failed) == "failed"
    assert why("t2", PASSED, failed) == "failed; what it tests has changed"
    assert why("t2", failed, PASSED) == "what it tests has changed"
    assert why("t1", failed, PASSED) == ""


def test_a_part_that_passed_before_a_change_was_taken_back_is_not_due() -> None:
    assert why("t1", PASSED, dataclasses.replace(PASSED, tree="t2", passed=False)) == ""


def test_changes_that_are_not_committed_have_passed_nothing() -> None:
    assert why(ledger.DIRTY, PASSED).endswith("not committed")
    assert why(ledger.DIRTY, dataclasses.replace(PASSED, tree=ledger.DIRTY)) != ""
    assert why("t1", dataclasses.replace(PASSED, tree=ledger.DIRTY)) == "what it tests has changed"


def test_results_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    ledger.append(PASSED, path)
    ledger.append(dataclasses.replace(PASSED, passed=False), path)
    assert ledger.read(path) == [PASSED, dataclasses.replace(PASSED, passed=False)]


def test_the_table_says_what_is_due() -> None:
    other = dataclasses.replace(PART, name="other")
    found = ledger.states([PART, other], [PASSED], {"bench": "t1", "other": "t1"})
    first, second, last = ledger.text(found).splitlines()[1:]
    assert first.split()[:5] == ["bench", "passed", "2026-11-27", "10:00", "c0ffee00"]
    assert second.split()[:2] == ["other", "due"]
    assert last == "1 of 2 parts are due, about 0.5 h"
    assert [each["due"] for each in ledger.document(found)] == [False, True]


def test_parts_are_found_by_name_and_by_how_they_begin() -> None:
    assert [each.name for each in parts.find(["mutants"])] == ["mutants"]
    assert [each.name for each in parts.find(["release"])] == [
        f"release-{each}" for each in parts.RELEASES
    ]
    with pytest.raises(LookupError, match="no part nothing; there are check"):
        parts.find(["nothing"])
    assert [each.name for each in parts.for_release("1.36")] == ["release-1.36", "rollouts-1.36"]


def test_the_paths_of_parts_exist() -> None:
    names = [each.name for each in parts.PARTS]
    assert sorted(set(names)) == sorted(names)
    missing = {path for each in parts.PARTS for path in each.paths if not (ROOT / path).exists()}
    assert missing == set()


def test_the_tree_of_a_part_is_that_of_its_paths() -> None:
    here, there = (dataclasses.replace(PART, paths=(each,)) for each in ("charts", "images"))
    assert command.tree(here) == command.tree(here)
    if ledger.DIRTY not in (trees := [command.tree(here), command.tree(there)]):
        assert trees[0] != trees[1]


def test_a_part_that_runs_is_recorded() -> None:
    result = command.run(dataclasses.replace(PART, command=("false",)))
    assert result is not None
    assert not result.passed
    assert result.seconds < 60


def test_a_part_that_is_interrupted_is_not_recorded() -> None:
    """What it has started gets the signal, too, and ends."""
    script = f"(sleep 0.5; kill -TERM {os.getpid()}) & sleep 60; true"
    assert command.run(dataclasses.replace(PART, command=("sh", "-c", script))) is None
