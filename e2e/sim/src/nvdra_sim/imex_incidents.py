# SPDX-License-Identifier: Apache-2.0
"""Disturb `nvidia-imex` on a node (docs/reference/nvml-simulator.md §16.1).

Each function is one transaction on the state file. It affects a running daemon at once.
"""

from __future__ import annotations

from collections.abc import Collection

from nvdra_sim.state_file import layout
from nvdra_sim.state_file.state import State, StateError

ALL_NODES = frozenset(range(layout.MAX_IMEX_NODES))


def disturb(
    state: State,
    *,
    slow_start_ms: int | None = None,
    crash_after_ms: int | None = None,
    never_ready: bool | None = None,
    status: str | None = None,
    hang: bool | None = None,
    nodes_hang: bool | None = None,
    dns_stale: bool | None = None,
    version: str | None = None,
    refused: Collection[int] | None = None,
) -> None:
    """Changes the disturbances of the daemon. None means no change.

    Args:
        state: The state of the node.
        slow_start_ms: How long the daemon is INITIALIZING after its start.
        crash_after_ms: How long after each start it is killed; 0 means never.
        never_ready: It reports INIT_GPU instead of READY.
        status: The word that it reports whatever its state is; empty for its own.
        hang: It does nothing and does not respond.
        nodes_hang: It gives no answer to `nvidia-imex-ctl -N`, and otherwise works.
        dns_stale: It keeps the first address of each name and ignores SIGUSR1.
        version: The version that it sends to its peers; empty for that of the driver.
        refused: The indices in the node list of the peers that it does not connect to.

    Raises:
        StateError: An index is too large, the version is too long, or the status is no word of
            nvidia-imex.
    """
    if refused is not None and not ALL_NODES.issuperset(refused):
        raise StateError(f"nodes have indices from 0 to {layout.MAX_IMEX_NODES - 1}")
    if version is not None and len(version.encode()) >= layout.Imex.version.size:
        raise StateError(f"a version must be shorter than {layout.Imex.version.size} bytes")
    if status and status not in layout.IMEX_STATUSES:
        raise StateError(f"the status must be one of: {', '.join(layout.IMEX_STATUSES)}")
    changes = {
        "slow_start_ms": slow_start_ms,
        "crash_after_ms": crash_after_ms,
        "never_ready": never_ready,
        "status": None if status is None else status_number(status),
        "hang": hang,
        "nodes_hang": nodes_hang,
        "dns_stale": dns_stale,
        "version": None if version is None else version.encode(),
    }
    with state.transaction() as now:
        for name, value in changes.items():
            if value is not None:
                setattr(now.imex, name, value)
        if refused is not None:
            for number in ALL_NODES:
                now.imex.refused[number] = number in refused


def status_number(status: str) -> int:
    """The number of a word of nvidia-imex in the state file; 0 for none."""
    return layout.IMEX_STATUSES.index(status) + 1 if status else 0


def crash(state: State) -> None:
    """Kills the running daemon."""
    with state.transaction() as now:
        now.imex.crashes += 1


def clear(state: State) -> None:
    """Ends all disturbances."""
    with state.transaction() as now:
        crashes = now.imex.crashes
        now.imex = layout.Imex(crashes=crashes)
