# SPDX-License-Identifier: Apache-2.0
"""Peers from entries: entries that are not usable are ignored with a message."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nvdra_api.ids import CliqueID, NodeName, PodUID
from nvdra_imex_daemon.configuration import peers
from nvdra_imex_daemon.configuration.dns_names import SHARED
from nvdra_imex_daemon.configuration.peers import Peer
from nvdra_imex_daemon.membership.entries import Entry, MemberIdentity, NodeField

CLIQUE = CliqueID("2df84740-d3cb-b5ce-4e7e-98352b5a71b5.2")
US = MemberIdentity(CLIQUE, NodeName("us"), "10.4.0.9", PodUID("pod-us"), 4)


def entry(node: str, index: Any, ip: str = "", **more: object) -> Entry:
    known = {"nodeName": node, "index": index, "ipAddress": ip or f"10.4.0.{len(node)}"}
    return {**known, "cliqueID": CLIQUE, "status": "Ready", **more}


OURS = entry("us", 1, "10.4.0.9", status="NotReady")


def test_peers_are_listed_by_index_including_ourselves() -> None:
    roster = peers.from_entries([OURS, entry("other", 0)], US)
    assert roster.peers == (
        Peer(0, NodeName("other"), "10.4.0.5", is_ready=True),
        Peer(1, NodeName("us"), "10.4.0.9", is_ready=False),
    )
    assert roster.problems == ()


def test_the_hosts_of_a_peer_are_its_name_and_its_address() -> None:
    (peer,) = peers.from_entries([OURS], US).peers
    assert peers.hosts(peer, SHARED) == ("compute-domain-daemon-0001", "10.4.0.9")


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (entry("far", 4), "index 4, allowed are 0 to 3"),
        (entry("far", -1), "index -1"),
        (entry("far", "0"), "allowed are"),
        (entry("odd", 0, "10.4.0.3\n6.6.6.6 evil"), "has no IP address"),
        (entry("odd", 0, "somewhere.example"), "has no IP address"),
    ],
)
def test_an_invalid_entry_is_ignored_with_a_message(bad: Entry, says: str) -> None:
    roster = peers.from_entries([bad, OURS], US)
    assert [peer.node for peer in roster.peers] == ["us"]
    (problem,) = roster.problems
    assert says in problem


def test_two_entries_with_the_same_index_are_both_ignored() -> None:
    roster = peers.from_entries([entry("a", 0, "10.4.0.1"), entry("b", 0, "10.4.0.2"), OURS], US)
    assert [peer.node for peer in roster.peers] == ["us"]
    assert "nodes a and b have the same index 0" in roster.problems


def test_two_entries_with_the_same_address_are_both_ignored() -> None:
    roster = peers.from_entries([entry("a", 0, "10.4.0.1"), entry("b", 2, "10.4.0.1"), OURS], US)
    assert [peer.node for peer in roster.peers] == ["us"]
    assert any("same address 10.4.0.1" in problem for problem in roster.problems)


def test_a_stale_entry_with_our_address_or_index_does_not_remove_us() -> None:
    for stale in (entry("dead", 0, "10.4.0.9"), entry("dead", 1, "10.4.0.1")):
        roster = peers.from_entries([stale, OURS], US)
        assert [peer.node for peer in roster.peers] == ["us"]
        assert roster.problems


def test_entries_of_other_cliques_are_ignored_without_a_message() -> None:
    other = {"name": "x", "ipAddress": "?", "cliqueID": "other.1", "index": 99}
    alone = {"name": "cpu", "ipAddress": "10.4.0.3", "cliqueID": "", "index": -1}
    ours = {"name": "us", "ipAddress": "10.4.0.9", "cliqueID": CLIQUE, "index": 0}
    roster = peers.from_entries([other, alone, ours], US, NodeField.STATUS)
    assert [peer.node for peer in roster.peers] == ["us"]
    assert roster.problems == ()


def test_addresses_are_in_the_order_of_the_entries() -> None:
    found = [entry("a", 3, "10.4.0.1"), entry("bad", 9), OURS, entry("b", 0, "10.4.0.2")]
    roster = peers.from_entries(found, US)
    assert peers.addresses(found, roster) == ["10.4.0.1", "10.4.0.9", "10.4.0.2"]


@st.composite
def cliques(draw: st.DrawFn) -> list[Entry]:
    nodes = draw(st.lists(st.sampled_from("abcdefgh"), unique=True, max_size=6))
    index = st.one_of(st.integers(min_value=-1, max_value=5), st.none())
    ip = st.sampled_from(["10.4.0.1", "10.4.0.2", "10.4.0.9", "::1", "nonsense", ""])
    ready = st.sampled_from(["Ready", "NotReady", ""])
    found = [entry(node, draw(index), draw(ip), status=draw(ready)) for node in nodes]
    return [*found, OURS]


@given(cliques(), st.randoms(use_true_random=False))
def test_the_peer_list_does_not_depend_on_the_order_and_always_contains_us(
    found: list[Entry], order: Any
) -> None:
    roster = peers.from_entries(found, US)
    order.shuffle(found)
    assert peers.from_entries(found, US) == roster
    assert "us" in {peer.node for peer in roster.peers}
    indexes = [peer.index for peer in roster.peers]
    assert indexes == sorted(set(indexes))
    addresses = [peer.ip for peer in roster.peers]
    assert len(set(addresses)) == len(addresses)
    assert len(roster.peers) == len(found) or roster.problems


def listening(*states: tuple[int, str, bool]) -> list[Peer]:
    return [Peer(at, NodeName(f"node-{at}"), ip, is_ready) for at, ip, is_ready in states]


@pytest.mark.parametrize(
    ("known", "now", "expected"),
    [
        ({}, [(0, "10.4.0.1", True), (1, "10.4.0.2", False)], {}),
        ({}, [(0, "10.4.0.1", True), (1, "10.4.0.2", True)], {1: "10.4.0.2"}),
        ({1: "10.4.0.2"}, [(1, "10.4.0.2", False)], {1: "10.4.0.2"}),
        ({1: "10.4.0.2"}, [(1, "10.4.0.9", False)], {}),
        ({1: "10.4.0.2"}, [(1, "10.4.0.9", True)], {1: "10.4.0.9"}),
        ({1: "10.4.0.2"}, [], {}),
    ],
    ids=["starts", "is ready", "crashed", "was replaced", "its successor is ready", "left"],
)
def test_a_peer_is_reachable_once_it_was_ready_at_its_address(
    known: dict[int, str], now: list[tuple[int, str, bool]], expected: dict[int, str]
) -> None:
    assert peers.reachable(known, listening(*now), own_index=0) == expected
