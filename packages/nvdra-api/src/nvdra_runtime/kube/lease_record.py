# SPDX-License-Identifier: Apache-2.0
"""The Lease of leader election: whether it can be acquired, and what to write.

Clocks of different machines are never compared: a lease has expired if it has not changed for its
duration by our own clock. The leases are compatible with client-go's leaderelection.
Source: docs/reference/compute-domain.md, "Leader election".
"""

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final

from nvdra_api.meta import JsonObject

RELEASED_LEASE_DURATION_S: Final = 1
"""`leaseDurationSeconds` of a released lease, so that the next leader need not wait."""


@dataclass(frozen=True, slots=True)
class ObservedLease:
    """The lease as last read.

    Attributes:
        lease: As JSON; None if it does not exist.
        observed_at: When this state was first observed, by our monotonic clock.
    """

    lease: JsonObject | None = None
    observed_at: float = 0.0

    @property
    def holder(self) -> str:
        """Identity of the holder; empty if there is none."""
        return str((_spec(self.lease).get("holderIdentity")) or "")


def observe(observed: ObservedLease, lease: JsonObject | None, now: float) -> ObservedLease:
    """Update the observation after a read at `now`. An unchanged lease keeps its `observed_at`."""
    if (
        observed.lease is not None
        and lease is not None
        and _resource_version(lease) == _resource_version(observed.lease)
    ):
        return replace(observed, lease=lease)
    return ObservedLease(lease, now)


def can_acquire(observed: ObservedLease, identity: str, now: float, predecessors: str = "") -> bool:
    """Whether we can acquire the lease.

    It has no holder, or we hold it, or its holder's identity begins with `predecessors` (which have
    ended), or it has expired.
    """
    if observed.lease is None or observed.holder in ("", identity):
        return True
    if predecessors and observed.holder.startswith(predecessors):
        return True
    duration_s = float(_spec(observed.lease).get("leaseDurationSeconds") or 0)
    return now >= observed.observed_at + duration_s


def acquired_lease(
    observed: ObservedLease,
    identity: str,
    duration_s: float,
    wall: datetime,
    namespace: str,
    name: str,
) -> JsonObject:
    """The lease to write to acquire or renew it."""
    spec = _spec(observed.lease)
    is_ours = observed.holder == identity
    changes = int(spec.get("leaseTransitions") or 0)
    return _lease(
        observed,
        namespace,
        name,
        holderIdentity=identity,
        leaseDurationSeconds=max(1, round(duration_s)),
        acquireTime=spec.get("acquireTime") if is_ours else _micro_time(wall),
        renewTime=_micro_time(wall),
        leaseTransitions=changes if is_ours or observed.lease is None else changes + 1,
    )


def released_lease(
    observed: ObservedLease, wall: datetime, namespace: str, name: str
) -> JsonObject:
    """The lease to write to release it, so that another process can acquire it at once."""
    return _lease(
        observed,
        namespace,
        name,
        holderIdentity="",
        leaseDurationSeconds=RELEASED_LEASE_DURATION_S,
        acquireTime=_micro_time(wall),
        renewTime=_micro_time(wall),
        leaseTransitions=int(_spec(observed.lease).get("leaseTransitions") or 0),
    )


def _lease(observed: ObservedLease, namespace: str, name: str, **spec: object) -> JsonObject:
    metadata = (observed.lease or {}).get("metadata") or {"namespace": namespace, "name": name}
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": metadata,
        "spec": {**_spec(observed.lease), **spec},
    }


def _spec(lease: JsonObject | None) -> JsonObject:
    return dict((lease or {}).get("spec") or {})


def _resource_version(lease: JsonObject) -> str:
    return str(lease["metadata"].get("resourceVersion", ""))


def _micro_time(wall: datetime) -> str:
    """Format a MicroTime."""
    return wall.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
