# SPDX-License-Identifier: Apache-2.0
"""The peers in a clique's entries: their indexes and addresses, and which entries are not usable.

A bad entry affects no other entry. Source: docs/reference/imex.md, "DNS names";
docs/reference/compute-domain.md, "Races and correctness" (KW-24, 25).
"""

import ipaddress
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from nvdra_api.ids import NodeName
from nvdra_api.v1beta1.compute_domain import Readiness

from nvdra_imex_daemon.configuration.dns_names import DnsNames
from nvdra_imex_daemon.membership import entries
from nvdra_imex_daemon.membership.entries import Entry, MemberIdentity, NodeField


@dataclass(frozen=True, slots=True)
class Peer:
    """One daemon of the clique, including ourselves.

    Attributes:
        index: The daemon's index, from which its DNS name is made (`dns_names`).
        node: The daemon's node.
        ip: IP of the daemon's pod, in canonical form.
        is_ready: Whether the daemon says that it is ready.
    """

    index: int
    node: NodeName
    ip: str
    is_ready: bool


class PeerList(NamedTuple):
    """The peers by index, and a message for each entry that is not usable."""

    peers: tuple[Peer, ...]
    problems: tuple[str, ...]


def hosts(peer: Peer, names: DnsNames) -> tuple[str, str]:
    """What IMEX's node list has for the peer: its name or its address."""
    return names.name(peer.index), peer.ip


def from_entries(
    member_entries: Iterable[Entry],
    member: MemberIdentity,
    node_field: NodeField = NodeField.CLIQUE,
) -> PeerList:
    """The peers of our clique. The result does not depend on the order of the entries.

    An entry is ignored, with a message, if its index is out of range, its address is not an IP
    address, or it has the index or address of another entry: it is not known which of the two is
    right, and a wrong peer is worse than a missing one. Our own entry is never ignored because of
    another one.
    """
    problems: list[str] = []
    usable: list[Peer] = []
    for entry in member_entries:
        if entry.get("cliqueID") == member.clique:
            peer = _parse_entry(entry, member, node_field, problems)
            if peer is not None:
                usable.append(peer)
    indexes = Counter(peer.index for peer in usable)
    addresses = Counter(peer.ip for peer in usable)
    peers: list[Peer] = []
    for peer in usable:
        is_own = peer.node == member.node
        if is_own or (indexes[peer.index] == 1 and addresses[peer.ip] == 1):
            peers.append(peer)
        else:
            problems += _describe_conflicts(peer, usable)
    return PeerList(tuple(sorted(peers, key=lambda each: each.index)), tuple(sorted(problems)))


def reachable(
    known: Mapping[int, str], clique_peers: Iterable[Peer], own_index: int
) -> Mapping[int, str]:
    """The addresses at which other peers' IMEX can be reached, by their indexes.

    A peer listens once it is ready. One that is not ready any more, at an address at which it was,
    is expected back there.

    Args:
        known: The result for the peers before.
        clique_peers: The peers now.
        own_index: Our own index.
    """
    return {
        peer.index: peer.ip
        for peer in clique_peers
        if peer.index != own_index and (peer.is_ready or known.get(peer.index) == peer.ip)
    }


def _parse_entry(
    entry: Entry, member: MemberIdentity, node_field: NodeField, problems: list[str]
) -> Peer | None:
    node, index = entry.get(node_field), entries.index_of(entry)
    if index is None or not 0 <= index < member.max_nodes:
        problems.append(
            f"the entry of node {node} has index {entry.get('index')}, allowed are 0 to "
            f"{member.max_nodes - 1}: it is ignored until it has a valid index"
        )
        return None
    try:
        address = ipaddress.ip_address(str(entry.get("ipAddress", "")))
    except ValueError:
        problems.append(f"the entry of node {node} has no IP address: {entry.get('ipAddress')!r}")
        return None
    return Peer(index, NodeName(str(node)), str(address), entry.get("status") == Readiness.READY)


def _describe_conflicts(peer: Peer, usable: Iterable[Peer]) -> Iterator[str]:
    for other in usable:
        if other.node != peer.node and other.index == peer.index:
            yield f"nodes {peer.node} and {other.node} have the same index {peer.index}"
        if other.node != peer.node and other.ip == peer.ip:
            yield (
                f"nodes {peer.node} and {other.node} have the same address {peer.ip}: one of the "
                "two entries is stale"
            )


def addresses(
    member_entries: Iterable[Entry], peer_list: PeerList, node_field: NodeField = NodeField.CLIQUE
) -> list[str]:
    """The addresses of the peers, in the order of the entries."""
    by_node = {peer.node: peer.ip for peer in peer_list.peers}
    return [by_node[node] for entry in member_entries if (node := entry.get(node_field)) in by_node]
