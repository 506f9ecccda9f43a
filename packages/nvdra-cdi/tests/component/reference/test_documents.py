# SPDX-License-Identifier: Apache-2.0
"""Every document of the corpus, and more, means to us what it means to the reference library.

What differs on purpose is in `cdi_corpus.differences`; anything else that differs fails here.
"""

from collections import defaultdict
from random import Random

import pytest
from cdi_corpus import comparison, corpus, mixtures, text, verdicts
from cdi_corpus.comparison import Compared
from cdi_corpus.differences import READING, WRITING
from cdi_corpus.documents import Case
from cdi_corpus.oracle import Oracle
from cdi_corpus.table import FIELDS, RULES
from cdi_corpus.verdicts import VALID
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st
from nvdra_cdi.encoding.fields import FIELDS as FIELDS_OF

pytestmark = pytest.mark.timeout(300)  # the first test builds the oracle and asks for it all

EXTRA = {rule.name for rule in RULES if rule.is_extra}


def test_both_sides_agree_on_validity_the_broken_rule_and_the_minimum_version(
    compared: list[Compared],
) -> None:
    assert [str(each) for each in compared if each.is_unexplained] == []


def test_a_document_keeps_or_breaks_the_rule_it_is_for_and_no_other(
    compared: list[Compared],
) -> None:
    wrong = [
        str(each)
        for each in compared
        if each.document.kind == "rule" and each.ours.verdict != expected(each)
    ]
    assert wrong == []


def expected(each: Compared) -> str:
    case = case_of(each)
    return VALID if case.is_valid else verdicts.of_rule(case.subject)


def case_of(each: Compared) -> Case:
    """What is known of a document that is for a rule or a field."""
    assert each.document.case is not None
    return each.document.case


def test_a_right_value_of_a_field_is_taken_and_a_wrong_one_is_not(compared: list[Compared]) -> None:
    wrong = [
        str(each)
        for each in compared
        if each.document.kind == "field" and (each.ours.verdict == VALID) != case_of(each).is_valid
    ]
    assert wrong == []


def test_what_breaks_one_of_our_extra_rules_is_read_and_not_written_for_that_alone(
    compared: list[Compared],
) -> None:
    extra = [each for each in compared if each.document.subject in EXTRA]
    kept = [each for each in extra if case_of(each).is_writable]
    broken = [each for each in extra if not case_of(each).is_writable]
    assert [str(each) for each in kept if each.unwritable] == []
    assert [str(each) for each in broken if len(set(each.unwritable.values())) != 1] == []


def test_a_document_that_we_saved_means_the_same_to_the_reference(compared: list[Compared]) -> None:
    assert [str(each) for each in compared if each.changes] == []


def test_each_difference_in_reading_is_met_by_a_document(compared: list[Compared]) -> None:
    met = {name for each in compared for name in each.explained}
    assert met == {difference.name for difference in READING}


def test_each_reason_to_write_less_than_the_reference_is_listed_and_met(
    compared: list[Compared],
) -> None:
    problems = {found: why for each in compared for found, why in each.unwritable.items()}
    assert [found for found, why in problems.items() if not why] == []
    assert {name for why in problems.values() for name in why} == {d.name for d in WRITING}


def test_every_rule_and_field_has_ten_documents(compared: list[Compared]) -> None:
    documents = defaultdict(set)
    for each in compared:
        documents[each.document.subject].add(each.document.data)
    subjects = [*(rule.name for rule in RULES), *(field.name for field in FIELDS)]
    assert [name for name in subjects if len(documents[name]) < 10] == []


def test_every_field_that_we_know_is_in_the_table() -> None:
    known = {(model.__name__, field.key) for model, all_ in FIELDS_OF.items() for field in all_}
    assert known == {(field.owner, field.key) for field in FIELDS}


@settings(derandomize=True, max_examples=100, suppress_health_check=list(HealthCheck))
@given(source=st.randoms(use_true_random=False), style=st.randoms(use_true_random=False))
def test_any_other_document_is_read_and_written_alike_too(
    reference: Oracle, source: Random, style: Random
) -> None:
    data = text.written(mixtures.tree(source), style)
    note(data.decode())
    (found,) = comparison.compare([corpus.Document("mixture", "another", data)], reference)
    assert not found.is_unexplained
    assert not found.changes
    assert all(found.unwritable.values())
