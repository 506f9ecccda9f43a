"""Leader election by a Lease: what is stored and seen → what to do next.

Clocks of different machines are never compared: a lease has run out when nobody has changed it for
its duration by our own clock.
Source: spec/compute-domain.md §6.3; client-go's leaderelection, whose leases these are.
"""

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final

from nvdra_api.protocol.apiversions import JsonObject

RELEASED_S: Final = 1
"""`leaseDurationSeconds` of a lease that was given back: the next one need not wait."""


@dataclass(frozen=True, slots=True)
class Seen:
    """The lease as last read.

    Attributes:
        lease: As JSON; None where there is none.
        since: When it first looked like this, by our monotonic clock.
    """

    lease: JsonObject | None = None
    since: float = 0.0

    @property
    def holder(self) -> str:
        """Identity of the holder; empty where nobody holds it."""
        return str((_spec(self.lease).get("holderIdentity")) or "")


def looked(seen: Seen, lease: JsonObject | None, now: float) -> Seen:
    """What is known after the lease was read at `now`; unchanged, it keeps its time."""
    if seen.lease is not None and lease is not None and _version(lease) == _version(seen.lease):
        return replace(seen, lease=lease)
    return Seen(lease, now)


def may_take(seen: Seen, identity: str, now: float) -> bool:
    """May we hold the lease: nobody does, we do, or its holder has been silent for too long?"""
    if seen.lease is None or seen.holder in ("", identity):
        return True
    duration_s = float(_spec(seen.lease).get("leaseDurationSeconds") or 0)
    return now >= seen.since + duration_s


def taken(
    seen: Seen, identity: str, duration_s: float, wall: datetime, namespace: str, name: str
) -> JsonObject:
    """The lease to write so that we hold it, or hold it on."""
    spec = _spec(seen.lease)
    is_ours = seen.holder == identity
    changes = int(spec.get("leaseTransitions") or 0)
    return _lease(
        seen,
        namespace,
        name,
        holderIdentity=identity,
        leaseDurationSeconds=max(1, round(duration_s)),
        acquireTime=spec.get("acquireTime") if is_ours else _moment(wall),
        renewTime=_moment(wall),
        leaseTransitions=changes if is_ours or seen.lease is None else changes + 1,
    )


def released(seen: Seen, wall: datetime, namespace: str, name: str) -> JsonObject:
    """The lease to write so that the next one can have it at once."""
    return _lease(
        seen,
        namespace,
        name,
        holderIdentity="",
        leaseDurationSeconds=RELEASED_S,
        acquireTime=_moment(wall),
        renewTime=_moment(wall),
        leaseTransitions=int(_spec(seen.lease).get("leaseTransitions") or 0),
    )


def _lease(seen: Seen, namespace: str, name: str, **spec: object) -> JsonObject:
    metadata = (seen.lease or {}).get("metadata") or {"namespace": namespace, "name": name}
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": metadata,
        "spec": {**_spec(seen.lease), **spec},
    }


def _spec(lease: JsonObject | None) -> JsonObject:
    return dict((lease or {}).get("spec") or {})


def _version(lease: JsonObject) -> str:
    return str(lease["metadata"].get("resourceVersion", ""))


def _moment(wall: datetime) -> str:
    """A MicroTime, as the API server wants it."""
    return wall.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
