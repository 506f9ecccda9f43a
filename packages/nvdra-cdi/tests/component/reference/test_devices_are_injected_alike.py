"""The same directories serve the same devices, and these change a container in the same way."""

from cdi_corpus.differences import CACHE


def test_caches_and_containers_are_those_of_the_reference(injected):
    assert injected.unexplained == []


def test_each_difference_of_caches_is_met(injected):
    assert set(injected.explained) == {difference.name for difference in CACHE}


def test_injections_end_in_every_way(injected):
    endings = [injected.asked[f"injections {how}"] for how in ("done", "refused", "unresolved")]
    assert min(endings) >= 30
