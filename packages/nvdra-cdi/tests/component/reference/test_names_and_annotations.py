# SPDX-License-Identifier: Apache-2.0
"""Qualified names and container annotations are parsed and made as the reference library does."""

import pytest
from cdi_corpus.differences import ANNOTATIONS
from cdi_corpus.tally import Tally

pytestmark = pytest.mark.timeout(300)  # the first test builds the oracle and asks for it all


def test_names_are_split_and_checked_and_annotations_made_and_parsed_alike(named: Tally) -> None:
    assert named.unexplained == []


def test_each_difference_of_annotations_is_met(named: Tally) -> None:
    assert set(named.explained) == {difference.name for difference in ANNOTATIONS}
