# SPDX-License-Identifier: Apache-2.0
"""Why a domain's DaemonSet has made no pod for a node, by the DaemonSet and its Events.

Pure; `pod_lookup` reads the objects.
"""

from collections.abc import Iterable, Mapping

from nvdra_api.meta import JsonObject
from nvdra_runtime.computedomain import failed_creates


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
    latest = failed_creates.latest(events)
    if latest is not None:
        cause = failed_creates.cause(latest)
        return f"{name} could not make its pod{_last_seen_text(latest)}: {cause}"
    return f"{name} has made no pod for this node"


def _last_seen_text(event: JsonObject) -> str:
    return f", last at {at}" if (at := failed_creates.last_seen(event)) else ""
