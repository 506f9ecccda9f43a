# SPDX-License-Identifier: Apache-2.0
"""Every mutant of `tests/mutants` can be made, and names tests that exist.

`make soak` runs them. When a test here fails because code has changed, give the mutant the text
that its fault has now, or remove it with what it was about.
"""

import ast
from collections import Counter
from pathlib import Path

import pytest

from tests.mutants.catalog import MUTANTS
from tests.mutants.mutant import Mutant

ROOT = Path(__file__).parents[2]
FEWEST = 150
"""So many there are at least."""

PACKAGES = {path.name for path in (ROOT / "packages").iterdir()}


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_old_text_of_a_mutant_occurs_once_and_the_new_one_is_python(mutant: Mutant) -> None:
    text = (ROOT / mutant.file).read_text()
    changed = mutant.applied(text)
    assert changed != text
    ast.parse(changed)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_tests_of_a_mutant_exist(mutant: Mutant) -> None:
    assert bool(mutant.tests) != bool(mutant.explained), "either tests or an explanation"
    for test in mutant.tests:
        path, _, function = test.partition("::")
        source = (ROOT / path).read_text()
        assert f"def {function}" in source
    assert all("/unit/" in test for test in mutant.unit)
    assert all("/component/" in test for test in mutant.component)


def test_no_two_mutants_have_one_name() -> None:
    assert [
        name for name, count in Counter(each.name for each in MUTANTS).items() if count > 1
    ] == []


def test_each_package_has_mutants_and_there_are_enough() -> None:
    assert len(MUTANTS) >= FEWEST
    assert {Path(mutant.file).parts[1] for mutant in MUTANTS} == PACKAGES


def test_a_mutant_whose_text_is_gone_or_is_there_twice_is_not_made() -> None:
    mutant = Mutant("m", "a.py", "x = 1", "x = 2", "nothing")
    assert mutant.applied("x = 1\n") == "x = 2\n"
    for text in ("", "x = 1\nx = 1\n"):
        with pytest.raises(ValueError, match=r"occurs \d times in a.py"):
            mutant.applied(text)
