"""The block of a hosts file that names our peers; everything else in the file stays as it is.

Source: spec/compute-domain.md §8.5, §13.6, §14.2 (KW-41).
"""

from collections.abc import Iterable
from typing import Final

from nvdra_imex_daemon import peers
from nvdra_imex_daemon.peers import Peer

HEAD: Final = "# Compute Domain Daemon mappings"
"""Also what the reference writes above its lines."""
FOOT: Final = "# End of Compute Domain Daemon mappings"


def with_peers(text: str, found: Iterable[Peer]) -> str:
    """The file with one block that lists these peers, in the order of their indexes.

    The block stands at the end, so that a change leaves the bytes before it alone. Lines of former
    blocks go, also those that the reference wrote, wherever they stand.
    """
    kept = [line for line in text.splitlines(keepends=True) if not _is_ours(line)]
    if kept and not kept[-1].endswith("\n"):
        kept[-1] += "\n"
    lines = (f"{peer.ip}\t{peers.name(peer.index)}\n" for peer in found)
    return "".join([*kept, f"{HEAD}\n", *lines, f"{FOOT}\n"])


def _is_ours(line: str) -> bool:
    return line.strip() in (HEAD, FOOT) or peers.PREFIX in line
