"""Why a domain's DaemonSet has made no pod for a node, by the DaemonSet and its Events.

Pure; `pod_lookup` reads the objects. The DaemonSet controller reports a pod that it could not
create (quota, admission webhook, pod security of the namespace) in an Event of the DaemonSet only.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from nvdra_api.meta import JsonObject

FAILED_CREATE: Final = "FailedCreate"
"""The reason of the Event for a pod that could not be created."""
_MAX_LENGTH: Final = 300


def why_no_pod(
    found: Mapping[str, JsonObject], events: Iterable[JsonObject], expected_name: str
) -> str:
    """Why there is no pod for the node.

    A pod that is about to be created cannot be told from one that never comes.

    Args:
        found: The domain's DaemonSet by its namespace; empty if there is none.
        events: The DaemonSet's Events about pods that could not be created, in any order.
        expected_name: `<namespace>/<name>` of the DaemonSet that the controller would make.
    """
    if not found:
        return f"there is no DaemonSet {expected_name}, which the controller of the domains makes"
    (namespace, stored), *_ = found.items()
    name = f"DaemonSet {namespace}/{stored['metadata']['name']}"
    if stored["metadata"].get("deletionTimestamp"):
        return f"{name} is being deleted"
    latest = max(events, key=_last_seen, default=None)
    if latest is not None:
        return f"{name} could not make its pod{_last_seen_text(latest)}: {_message(latest)}"
    return f"{name} has made no pod for this node"


def _last_seen(event: JsonObject) -> str:
    """When it was last seen, as the API server writes it: these texts sort by time."""
    series = event.get("series") or {}
    seen = series.get("lastObservedTime") or event.get("lastTimestamp") or event.get("eventTime")
    return str(seen or "")


def _last_seen_text(event: JsonObject) -> str:
    return f", last at {at}" if (at := _last_seen(event)) else ""


def _message(event: JsonObject) -> str:
    text = " ".join(str(event.get("message") or "").split())
    return text if len(text) <= _MAX_LENGTH else f"{text[:_MAX_LENGTH]}…"
