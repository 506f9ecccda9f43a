"""What disturbs `nvidia-imex` on a node (spec/nvml-simulator.md §16.1).

Each function is one transaction on the state file, which a running daemon follows at once.
"""

from __future__ import annotations

from collections.abc import Collection

from nvdra_sim import layout
from nvdra_sim.state import State, StateError

EVERYBODY = frozenset(range(layout.MAX_IMEX_NODES))


def disturb(
    state: State,
    *,
    slow_start_ms: int | None = None,
    crash_after_ms: int | None = None,
    never_ready: bool | None = None,
    hang: bool | None = None,
    dns_stale: bool | None = None,
    version: str | None = None,
    refused: Collection[int] | None = None,
) -> None:
    """Changes what disturbs the daemon; what is None stays.

    Args:
        state: The node.
        slow_start_ms: How long it is INITIALIZING after its start.
        crash_after_ms: When after its start it is killed, every time; 0: not at all.
        never_ready: It says NOT_READY where it would say READY.
        hang: It does nothing, and answers nobody.
        dns_stale: It keeps the first address of each name and ignores SIGUSR1.
        version: What it tells the others; empty for the driver's.
        refused: Numbers of the node list that it neither calls nor lets in.

    Raises:
        StateError: A number or the version is more than the state file holds.
    """
    if refused is not None and not EVERYBODY.issuperset(refused):
        raise StateError(f"nodes have numbers from 0 to {layout.MAX_IMEX_NODES - 1}")
    if version is not None and len(version.encode()) >= layout.Imex.version.size:
        raise StateError(f"a version has less than {layout.Imex.version.size} bytes")
    changes = {
        "slow_start_ms": slow_start_ms,
        "crash_after_ms": crash_after_ms,
        "never_ready": never_ready,
        "hang": hang,
        "dns_stale": dns_stale,
        "version": None if version is None else version.encode(),
    }
    with state.transaction() as now:
        for name, value in changes.items():
            if value is not None:
                setattr(now.imex, name, value)
        if refused is not None:
            for number in EVERYBODY:
                now.imex.refused[number] = number in refused


def crash(state: State) -> None:
    """The daemon that runs now is killed."""
    with state.transaction() as now:
        now.imex.crashes += 1


def calm(state: State) -> None:
    """Nothing disturbs the daemon any more."""
    with state.transaction() as now:
        crashes = now.imex.crashes
        now.imex = layout.Imex(crashes=crashes)
