"""A domain's DaemonSet and its Events → why it has made no pod for a node.

Pure; `daemon_lookup` asks for them. The DaemonSet controller tells a failed creation in an Event of
the DaemonSet and nowhere else: a quota, an admission webhook, the pod security of the namespace.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from nvdra_api.protocol.apiversions import JsonObject

FAILED: Final = "FailedCreate"
"""Reason of the Event that tells of a pod that could not be made."""
_LONGEST: Final = 300


def why_none(found: Mapping[str, JsonObject], events: Iterable[JsonObject], wanted: str) -> str:
    """Why there is no pod for the node; one that comes in a moment says no more than that.

    Args:
        found: The domain's DaemonSet by its namespace; empty where there is none.
        events: Those of the DaemonSet that tell of failed creations, in any order.
        wanted: `<namespace>/<name>` where the controller would make it.
    """
    if not found:
        return f"there is no DaemonSet {wanted}, which the controller of the domains makes"
    (namespace, stored), *_ = found.items()
    name = f"DaemonSet {namespace}/{stored['metadata']['name']}"
    if stored["metadata"].get("deletionTimestamp"):
        return f"{name} is being deleted"
    latest = max(events, key=_at, default=None)
    if latest is not None:
        return f"{name} could not make its pod{_when(latest)}: {_said(latest)}"
    return f"{name} has made no pod for this node"


def _at(event: JsonObject) -> str:
    """When it was last seen, as the API server writes it: such texts sort by time."""
    series = event.get("series") or {}
    told = series.get("lastObservedTime") or event.get("lastTimestamp") or event.get("eventTime")
    return str(told or "")


def _when(event: JsonObject) -> str:
    return f", last at {at}" if (at := _at(event)) else ""


def _said(event: JsonObject) -> str:
    text = " ".join(str(event.get("message") or "").split())
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
