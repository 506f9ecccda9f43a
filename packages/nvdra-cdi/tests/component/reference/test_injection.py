# SPDX-License-Identifier: Apache-2.0
"""The same directories serve the same devices, and these change a container in the same way."""

import pytest
from cdi_corpus.differences import CACHE
from cdi_corpus.tally import Tally

pytestmark = pytest.mark.timeout(300)  # the first test builds the oracle and asks for it all


def test_caches_and_containers_are_those_of_the_reference(injected: Tally) -> None:
    assert injected.unexplained == []


def test_each_difference_of_caches_is_met(injected: Tally) -> None:
    assert set(injected.explained) == {difference.name for difference in CACHE}


def test_injections_end_in_every_way(injected: Tally) -> None:
    endings = [injected.asked[f"injections {how}"] for how in ("done", "refused", "unresolved")]
    assert min(endings) >= 30
