"""A clique's entries as IMEX's peers: index → name and address, and what is wrong with the rest.

One bad entry costs itself and nobody else. Source: spec/compute-domain.md §8.5, §14.2 (KW-24, 25).
"""

import ipaddress
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from nvdra_api.types.domains import Readiness
from nvdra_api.types.ids import NodeName

from nvdra_imex_daemon import entries
from nvdra_imex_daemon.entries import Entry, Key, Member

PREFIX: Final = "compute-domain-daemon-"
"""Every peer's DNS name begins so; binding, because reference daemons resolve the same names."""


@dataclass(frozen=True, slots=True)
class Peer:
    """One daemon of the clique, ourselves among them.

    Attributes:
        index: Its place; its DNS name is made from it.
        node: Where it runs.
        ip: Its pod's address, in canonical form.
        is_ready: What it says of itself.
    """

    index: int
    node: NodeName
    ip: str
    is_ready: bool


class Roster(NamedTuple):
    """The peers by index, and a sentence for each entry that cannot be used."""

    peers: tuple[Peer, ...]
    problems: tuple[str, ...]


def name(index: int) -> str:
    """The DNS name of a place: `compute-domain-daemon-0003`."""
    return f"{PREFIX}{index:04d}"


def roster(found: Iterable[Entry], member: Member, key: Key = Key.CLIQUE) -> Roster:
    """The peers of our clique, whatever the order of its entries.

    An entry is left out, and told, when its index is out of range, its address is none, or when it
    shares index or address with another: nobody can tell which of the two is right, and a wrong
    peer is worse than an absent one. Ours is never left out for the sake of another.
    """
    problems: list[str] = []
    usable: list[Peer] = []
    for entry in found:
        if entry.get("cliqueID") == member.clique:
            peer = _peer(entry, member, key, problems)
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
            problems += _clashes(peer, usable)
    return Roster(tuple(sorted(peers, key=lambda each: each.index)), tuple(sorted(problems)))


def _peer(entry: Entry, member: Member, key: Key, problems: list[str]) -> Peer | None:
    node, index = entry.get(key), entries.index_of(entry)
    if index is None or not 0 <= index < member.places:
        problems.append(
            f"the entry of node {node} has index {entry.get('index')}, allowed are 0 to "
            f"{member.places - 1}: it is no peer until it joins anew"
        )
        return None
    try:
        address = ipaddress.ip_address(str(entry.get("ipAddress", "")))
    except ValueError:
        problems.append(f"the entry of node {node} has no IP address: {entry.get('ipAddress')!r}")
        return None
    return Peer(index, NodeName(str(node)), str(address), entry.get("status") == Readiness.READY)


def _clashes(peer: Peer, usable: Iterable[Peer]) -> Iterator[str]:
    for other in usable:
        if other.node != peer.node and other.index == peer.index:
            yield f"nodes {peer.node} and {other.node} have the same index {peer.index}"
        if other.node != peer.node and other.ip == peer.ip:
            yield (
                f"nodes {peer.node} and {other.node} have the same address {peer.ip}: one of the "
                "two entries is stale"
            )


def addresses(found: Iterable[Entry], known: Roster, key: Key = Key.CLIQUE) -> list[str]:
    """The addresses of a roster's peers in the order of the list that it was made from."""
    by_node = {peer.node: peer.ip for peer in known.peers}
    return [by_node[node] for each in found if (node := each.get(key)) in by_node]
