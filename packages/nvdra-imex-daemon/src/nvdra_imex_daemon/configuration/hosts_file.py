# SPDX-License-Identifier: Apache-2.0
"""The block of a hosts file that names our peers. All other lines stay as they are.

Every name that IMEX may ask for is in it, with an address of each IP version, so that no lookup
leaves the node: IMEX asks for an unknown name every few seconds, for ever.
Source: docs/reference/imex.md, "DNS names", "Files in the daemon container";
docs/reference/compute-domain.md, "Races and correctness" (KW-41).
"""

import ipaddress
from collections.abc import Iterable, Iterator
from typing import Final

from nvdra_imex_daemon.configuration import dns_names
from nvdra_imex_daemon.configuration.dns_names import DnsNames
from nvdra_imex_daemon.configuration.peers import Peer

BLOCK_START: Final = "# Compute Domain Daemon mappings"
"""The reference driver writes this line, too."""
BLOCK_END: Final = "# End of Compute Domain Daemon mappings"
NOWHERE: Final = "127.255.255.255"
"""The address of a name without a peer: the broadcast address of the loopback interface.

Connecting to it fails at once, without a packet. Connecting to any other loopback address, like
127.0.0.2 of the reference driver, would reach an IMEX that listens at all addresses: our own, which
would take itself for a peer with another node list, and block it for good.
"""
_MAPPED: Final = "::ffff:"
"""Makes an address of IP version 6 from one of version 4, for lookups with AF_INET6 alone."""


def with_peers(text: str, clique_peers: Iterable[Peer], names: DnsNames, name_count: int) -> str:
    """The file with one block that has all names, in the order of their indexes.

    The block is at the end, so that a change does not move other lines. Lines of earlier blocks are
    removed, including those that the reference driver wrote, wherever they are.

    Args:
        text: The file as it is.
        clique_peers: The peers that have addresses.
        names: The names of the domain's daemons.
        name_count: Number of possible peers. Names without a peer get the address `NOWHERE`.
    """
    kept = [line for line in text.splitlines(keepends=True) if not _is_in_block(line)]
    if kept and not kept[-1].endswith("\n"):
        kept[-1] += "\n"
    ips = {peer.index: peer.ip for peer in clique_peers}
    lines = (
        f"{address}\t{name}\n"
        for index, name in enumerate(names.all(name_count))
        for address in _addresses(ips.get(index, NOWHERE))
    )
    return "".join([*kept, f"{BLOCK_START}\n", *lines, f"{BLOCK_END}\n"])


def _addresses(ip: str) -> Iterator[str]:
    """An address of each IP version, the real one first."""
    yield ip
    yield f"{_MAPPED}{ip}" if ipaddress.ip_address(ip).version == 4 else NOWHERE


def _is_in_block(line: str) -> bool:
    return line.strip() in (BLOCK_START, BLOCK_END) or dns_names.PREFIX in line
