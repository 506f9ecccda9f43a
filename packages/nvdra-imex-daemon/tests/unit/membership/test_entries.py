# SPDX-License-Identifier: Apache-2.0
"""Entries of a clique: a daemon gets an index, keeps it, and does not change other entries."""

from collections.abc import Sequence

import pytest
from nvdra_api.errors import DriverError, Reason
from nvdra_api.ids import CliqueID, NodeName, PodUID
from nvdra_imex_daemon.membership import entries
from nvdra_imex_daemon.membership.entries import Entry, MemberIdentity, MemberStatus, NodeField

CLIQUE = CliqueID("2df84740-d3cb-b5ce-4e7e-98352b5a71b5.2")
READY, FORMING = (
    MemberStatus(is_ready=True),
    MemberStatus(is_ready=False, message="nvidia-imex is starting"),
)


def member(node: str, pod: str = "", ip: str = "", places: int = 4) -> MemberIdentity:
    return MemberIdentity(
        CLIQUE, NodeName(node), ip or "10.4.1.7", PodUID(pod or f"pod-{node}"), places
    )


def entry(node: str, index: object, **more: object) -> Entry:
    known = {"nodeName": node, "ipAddress": f"10.4.9.{index}", "cliqueID": CLIQUE, "index": index}
    return {**known, "status": "Ready", "podUID": f"pod-{node}", **more}


def index_of(found: Sequence[Entry], node: str) -> object:
    return next(each["index"] for each in found if each["nodeName"] == node)


def test_the_first_member_gets_index_zero_and_says_why_it_is_not_ready() -> None:
    assert entries.with_own_entry([], member("a"), FORMING) == [
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
    joined = entries.with_own_entry([], member("a"), FORMING)
    (now,) = entries.with_own_entry(joined, member("a"), READY)
    assert now["status"] == "Ready"
    assert "message" not in now


def test_the_lowest_free_index_is_taken() -> None:
    found = [entry("a", 0), entry("c", 2)]
    assert index_of(entries.with_own_entry(found, member("b"), FORMING), "b") == 1


def test_the_preferred_index_is_taken_if_it_is_free() -> None:
    assert index_of(entries.with_own_entry([], member("b"), FORMING, preferred_index=2), "b") == 2
    taken = [entry("a", 2)]
    assert (
        index_of(entries.with_own_entry(taken, member("b"), FORMING, preferred_index=2), "b") == 0
    )


def test_a_successor_takes_over_the_index_but_not_the_readiness() -> None:
    found = [entry("a", 0), entry("b", 1, vendor="x")]
    after = entries.with_own_entry(found, member("b", pod="pod-new", ip="10.4.7.7"), FORMING)
    assert after[0] is found[0]
    assert after[1]["index"] == 1
    assert after[1]["ipAddress"] == "10.4.7.7"
    assert (after[1]["status"], after[1]["podUID"]) == ("NotReady", "pod-new")
    assert "vendor" not in after[1]


def test_fields_of_a_newer_version_are_kept_in_every_entry() -> None:
    found = [entry("a", 0, colour="red"), entry("b", 1, colour="blue")]
    after = entries.with_own_entry(found, member("b"), FORMING)
    assert [each["colour"] for each in after] == ["red", "blue"]


def test_an_entry_of_the_reference_driver_is_recognized_by_its_address() -> None:
    theirs = entry("a", 0, podUID=None)
    assert entries.is_written_by(theirs, member("a", ip=str(theirs["ipAddress"])))
    assert not entries.is_written_by(theirs, member("a", ip="10.4.1.7"))


def test_one_of_two_members_with_the_same_index_takes_another() -> None:
    found = [entry("a", 1), entry("b", 1)]
    moved = entries.with_own_entry(found, member("a"), READY)
    assert index_of(moved, "a") == 0
    assert entries.with_own_entry(moved, member("b"), READY) != found
    assert index_of(entries.with_own_entry(moved, member("b"), READY), "b") == 1


@pytest.mark.parametrize("index", [-1, 4, "two", True])
def test_an_invalid_own_index_is_replaced(index: object) -> None:
    found = [entry("a", index)]
    assert index_of(entries.with_own_entry(found, member("a"), READY), "a") == 0


def test_an_own_entry_of_another_clique_gets_a_new_index() -> None:
    found = [entry("a", 3, cliqueID="other.1"), entry("b", 0)]
    (ours, _) = entries.with_own_entry(found, member("a"), READY)
    assert (ours["cliqueID"], ours["index"]) == (CLIQUE, 1)


def test_indexes_of_other_cliques_in_a_status_are_free_in_ours() -> None:
    found = [{"name": "x", "ipAddress": "10.4.9.1", "cliqueID": "other.1", "index": 0}]
    after = entries.with_own_entry(found, member("a"), FORMING, node_field=NodeField.STATUS)
    assert after[1] == {
        "name": "a",
        "ipAddress": "10.4.1.7",
        "cliqueID": CLIQUE,
        "index": 0,
        "status": "NotReady",
    }


@pytest.mark.parametrize("places", [0, 2])
def test_a_full_clique_is_an_error(places: int) -> None:
    found = [entry("a", 0), entry("b", 1)]
    with pytest.raises(DriverError, match=f"room for {places} nodes") as refused:
        entries.with_own_entry(found, member("c", places=places), FORMING)
    assert refused.value.reason is Reason.DOMAIN_FULL


def test_a_daemon_that_leaves_does_not_remove_its_successors_entry() -> None:
    found = [entry("a", 0), entry("b", 1)]
    assert entries.without_own_entry(found, member("b")) == [found[0]]
    assert entries.without_own_entry(found, member("b", pod="pod-old")) == found


def test_fields_that_an_older_crd_drops_are_not_written_repeatedly() -> None:
    (wanted,) = entries.with_own_entry([], member("a"), FORMING)
    stored = {key: value for key, value in wanted.items() if key not in ("podUID", "message")}
    assert not entries.is_up_to_date(stored, wanted, drops_unknown_fields=False)
    assert entries.is_up_to_date(stored, wanted, drops_unknown_fields=True)
    assert not entries.is_up_to_date(
        {**stored, "status": "Ready"}, wanted, drops_unknown_fields=True
    )


def test_a_node_that_comes_back_keeps_its_index_although_lower_ones_are_free() -> None:
    found = [entry("a", 1), entry("b", 3)]
    successor = member("b", pod="pod-new", ip="10.4.7.7")
    for preferred_index in (None, 2):
        after = entries.with_own_entry(found, successor, FORMING, preferred_index=preferred_index)
        assert [(each["nodeName"], each["index"]) for each in after] == [("a", 1), ("b", 3)]
