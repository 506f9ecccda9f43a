# SPDX-License-Identifier: Apache-2.0
"""What an instance that stands by knows of the node, and what its readiness checks say of it.

There is no clock here: times are arguments in monotonic seconds.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, NamedTuple

from nvdra_runtime.http.probes import PassingRemark
from nvdra_runtime.kubeletplugin import registration
from nvdra_runtime.kubeletplugin.registration import SocketPaths
from nvdra_runtime.node import instance_lock

_REPLACED_LOCK_PAUSE_S: Final = 15.0
"""How long a lock file that was removed or replaced is left to the active instance, which acquires
the new one within `file_restorer`'s interval of 5 s."""

_STARTING_S: Final = 60.0
"""How long an instance that takes over may take before it is no longer ready."""


class LockFile(NamedTuple):
    """One look at the lock.

    Attributes:
        identity: Device and inode of the file; None if it is missing.
        is_acquired: Whether this instance holds it now.
        holder: Who holds it otherwise.
        is_served: Whether the DRA socket of the holder exists.
    """

    identity: tuple[int, int] | None
    is_acquired: bool
    holder: Mapping[str, str]
    is_served: bool


@dataclass(frozen=True, slots=True)
class StandbyState:
    """What is known now.

    Attributes:
        began: When this instance began to stand by; None if it never has.
        identity: The lock's file at the last look, as in `LockFile`.
        free_at: When this file may be locked.
        holder: Who holds the lock, or held it before.
        acquired_at: When this instance acquired the lock; None while it stands by.
        unserved_since: Since when the holder's socket is missing; None if it is there.
        lock_problem: Why the lock cannot be read; empty if it can be.
        state_problem: Why this release cannot read the state file; empty if it can.
        version_problem: Why the kubelet's version is not known; empty if it is.
        paths: The sockets to register; None if the kubelet registers one instance, or may do so.
        has_slices: Whether the API server has slices of this node.
    """

    began: float | None = None
    identity: tuple[int, int] | None = None
    free_at: float = 0.0
    holder: Mapping[str, str] = field(default_factory=dict)
    acquired_at: float | None = None
    unserved_since: float | None = None
    lock_problem: str = ""
    state_problem: str = "it has not been read yet"
    version_problem: str = "it has not been read yet"
    paths: SocketPaths | None = None
    has_slices: bool = False

    @property
    def holder_text(self) -> str:
        """The holder, for people."""
        return instance_lock.describe_holder(self.holder)

    def active_socket(self, plugin_dir: Path) -> Path:
        """The DRA socket of the active instance, which earlier releases do not name."""
        return Path(self.holder.get(instance_lock.SOCKET) or plugin_dir / registration.DRA_SOCKET)

    def lockable(self, now: float) -> tuple[int, int] | None:
        """The file that may be locked now."""
        return self.identity if now >= self.free_at else None


def looked(state: StandbyState, found: LockFile, now: float) -> StandbyState:
    """The state after a look at the lock."""
    is_same = found.identity == state.identity
    unserved_since = now if state.unserved_since is None else state.unserved_since
    return replace(
        state,
        identity=found.identity,
        free_at=state.free_at if is_same else now + _REPLACED_LOCK_PAUSE_S,
        holder=state.holder if found.is_acquired else found.holder or state.holder,
        acquired_at=now if found.is_acquired else None,
        unserved_since=None if found.is_served else unserved_since,
        lock_problem="",
    )


def instance_problem(state: StandbyState, now: float) -> str | None:
    """Whether the lock can be acquired, or the takeover takes too long."""
    if state.lock_problem:
        return state.lock_problem
    if state.acquired_at is None:
        return PassingRemark(
            f"standing by for another instance of this driver ({state.holder_text}); it takes "
            "over when that one ends"
        )
    text = "taking over: its parts are being started"
    return PassingRemark(text) if now - state.acquired_at < _STARTING_S else text


def slices_problem(state: StandbyState) -> str | None:
    """Whether the API server has the slices that a registered instance answers for."""
    if state.has_slices or state.paths is None:
        return None
    return "the API server has no slice of this node and driver yet"


def kubelet_problem(state: StandbyState) -> str | None:
    """Why this instance is not registered with the kubelet."""
    if state.version_problem:
        # However long: a release that does not reach the API server must not replace one that does.
        return f"the kubelet's version is not known: {state.version_problem}"
    if state.paths is not None:
        return "the sockets are being created"
    return PassingRemark(
        "not registered before it takes over: kubelets before 1.33 register one instance"
    )
