"""Entries of a clique: who joins gets an index, keeps it, and touches nobody else's entry."""

from collections.abc import Sequence

import pytest
from nvdra_api.types.errors import DriverError, Reason
from nvdra_api.types.ids import CliqueID, NodeName, PodUID
from nvdra_imex_daemon import entries
from nvdra_imex_daemon.entries import Entry, Key, Member, Report

CLIQUE = CliqueID("2df84740-d3cb-b5ce-4e7e-98352b5a71b5.2")
READY, FORMING = Report(is_ready=True), Report(is_ready=False, message="nvidia-imex is starting")


def member(node: str, pod: str = "", ip: str = "", places: int = 4) -> Member:
    return Member(CLIQUE, NodeName(node), ip or "10.4.1.7", PodUID(pod or f"pod-{node}"), places)


def entry(node: str, index: object, **more: object) -> Entry:
    known = {"nodeName": node, "ipAddress": f"10.4.9.{index}", "cliqueID": CLIQUE, "index": index}
    return {**known, "status": "Ready", "podUID": f"pod-{node}", **more}


def index_of(found: Sequence[Entry], node: str) -> object:
    return next(each["index"] for each in found if each["nodeName"] == node)


def test_the_first_member_gets_index_zero_and_says_what_it_lacks() -> None:
    assert entries.with_us([], member("a"), FORMING) == [
        {
            "nodeName": "a",
            "ipAddress": "10.4.1.7",
            "cliqueID": CLIQUE,
            "index": 0,
            "status": "NotReady",
            "podUID": "pod-a",
            "message": "nvidia-imex is starting",
        }
    ]


def test_a_member_that_is_ready_has_no_message() -> None:
    joined = entries.with_us([], member("a"), FORMING)
    (now,) = entries.with_us(joined, member("a"), READY)
    assert now["status"] == "Ready"
    assert "message" not in now


def test_a_gap_is_filled_before_the_end() -> None:
    found = [entry("a", 0), entry("c", 2)]
    assert index_of(entries.with_us(found, member("b"), FORMING), "b") == 1


def test_the_index_of_before_is_taken_again_where_it_is_free() -> None:
    assert index_of(entries.with_us([], member("b"), FORMING, preferred=2), "b") == 2
    taken = [entry("a", 2)]
    assert index_of(entries.with_us(taken, member("b"), FORMING, preferred=2), "b") == 0


def test_a_successor_takes_the_entry_over_with_its_index_and_none_of_its_readiness() -> None:
    found = [entry("a", 0), entry("b", 1, vendor="x")]
    after = entries.with_us(found, member("b", pod="pod-new", ip="10.4.7.7"), FORMING)
    assert after[0] is found[0]
    assert after[1]["index"] == 1
    assert after[1]["ipAddress"] == "10.4.7.7"
    assert (after[1]["status"], after[1]["podUID"]) == ("NotReady", "pod-new")
    assert "vendor" not in after[1]


def test_a_field_of_a_newer_version_survives_in_every_entry() -> None:
    found = [entry("a", 0, colour="red"), entry("b", 1, colour="blue")]
    after = entries.with_us(found, member("b"), FORMING)
    assert [each["colour"] for each in after] == ["red", "blue"]


def test_an_entry_of_the_reference_is_known_by_its_address() -> None:
    theirs = entry("a", 0, podUID=None)
    assert entries.is_ours(theirs, member("a", ip=str(theirs["ipAddress"])))
    assert not entries.is_ours(theirs, member("a", ip="10.4.1.7"))


def test_two_members_with_one_index_part() -> None:
    found = [entry("a", 1), entry("b", 1)]
    moved = entries.with_us(found, member("a"), READY)
    assert index_of(moved, "a") == 0
    assert entries.with_us(moved, member("b"), READY) != found
    assert index_of(entries.with_us(moved, member("b"), READY), "b") == 1


@pytest.mark.parametrize("index", [-1, 4, "two", True])
def test_an_own_index_that_cannot_be_is_given_up(index: object) -> None:
    found = [entry("a", index)]
    assert index_of(entries.with_us(found, member("a"), READY), "a") == 0


def test_an_own_entry_of_another_clique_starts_anew() -> None:
    found = [entry("a", 3, cliqueID="other.1"), entry("b", 0)]
    (ours, _) = entries.with_us(found, member("a"), READY)
    assert (ours["cliqueID"], ours["index"]) == (CLIQUE, 1)


def test_other_cliques_in_a_domains_status_take_no_index_of_ours() -> None:
    found = [{"name": "x", "ipAddress": "10.4.9.1", "cliqueID": "other.1", "index": 0}]
    after = entries.with_us(found, member("a"), FORMING, key=Key.STATUS)
    assert after[1] == {
        "name": "a",
        "ipAddress": "10.4.1.7",
        "cliqueID": CLIQUE,
        "index": 0,
        "status": "NotReady",
    }


@pytest.mark.parametrize("places", [0, 2])
def test_a_full_domain_says_so(places: int) -> None:
    found = [entry("a", 0), entry("b", 1)]
    with pytest.raises(DriverError, match=f"room for {places} nodes") as refused:
        entries.with_us(found, member("c", places=places), FORMING)
    assert refused.value.reason is Reason.DOMAIN_FULL


def test_who_leaves_takes_its_own_entry_and_not_its_successors() -> None:
    found = [entry("a", 0), entry("b", 1)]
    assert entries.without_us(found, member("b")) == [found[0]]
    assert entries.without_us(found, member("b", pod="pod-old")) == found


def test_an_old_definition_that_drops_our_fields_is_not_written_to_again_and_again() -> None:
    (wanted,) = entries.with_us([], member("a"), FORMING)
    stored = {key: value for key, value in wanted.items() if key not in ("podUID", "message")}
    assert not entries.is_told(stored, wanted, is_pruned=False)
    assert entries.is_told(stored, wanted, is_pruned=True)
    assert not entries.is_told({**stored, "status": "Ready"}, wanted, is_pruned=True)
