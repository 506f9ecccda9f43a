"""The block of a hosts file that names our peers. All other lines stay as they are.

Source: docs/reference/imex.md, "DNS names", "Files in the daemon container";
docs/reference/compute-domain.md, "Races and correctness" (KW-41).
"""

from collections.abc import Iterable
from typing import Final

from nvdra_imex_daemon.configuration import peers
from nvdra_imex_daemon.configuration.peers import Peer

BLOCK_START: Final = "# Compute Domain Daemon mappings"
"""The reference driver writes this line, too."""
BLOCK_END: Final = "# End of Compute Domain Daemon mappings"


def with_peers(text: str, clique_peers: Iterable[Peer]) -> str:
    """The file with one block that lists these peers, in the order of their indexes.

    The block is at the end, so that a change does not move other lines. Lines of earlier blocks are
    removed, including those that the reference driver wrote, wherever they are.
    """
    kept = [line for line in text.splitlines(keepends=True) if not _is_in_block(line)]
    if kept and not kept[-1].endswith("\n"):
        kept[-1] += "\n"
    lines = (f"{peer.ip}\t{peers.dns_name(peer.index)}\n" for peer in clique_peers)
    return "".join([*kept, f"{BLOCK_START}\n", *lines, f"{BLOCK_END}\n"])


def _is_in_block(line: str) -> bool:
    return line.strip() in (BLOCK_START, BLOCK_END) or peers.DNS_NAME_PREFIX in line
