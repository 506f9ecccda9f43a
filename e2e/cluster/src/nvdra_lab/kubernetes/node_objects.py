# SPDX-License-Identifier: Apache-2.0
"""The facts about nodes in the API that a lab needs."""

import dataclasses
from typing import Any


@dataclasses.dataclass(frozen=True)
class NodeFacts:
    """One node in the API; `reason` says what keeps it from taking pods."""

    name: str
    is_ready: bool
    reason: str
    address: str
    kubelet: str


def facts(node_list: dict[str, Any]) -> list[NodeFacts]:
    """The nodes of a `kubectl get nodes -o json`."""
    return [_facts(node) for node in node_list["items"]]


def _facts(node: dict[str, Any]) -> NodeFacts:
    status = node.get("status", {})
    conditions = {condition["type"]: condition for condition in status.get("conditions", [])}
    ready = conditions.get("Ready")
    addresses = {entry["type"]: entry["address"] for entry in status.get("addresses", [])}
    return NodeFacts(
        name=node["metadata"]["name"],
        is_ready=ready is not None and ready["status"] == "True" and not _taints(node),
        reason=_why(ready, _taints(node)),
        address=addresses.get("InternalIP", ""),
        kubelet=status.get("nodeInfo", {}).get("kubeletVersion", ""),
    )


def _taints(node: dict[str, Any]) -> list[str]:
    taints = node.get("spec", {}).get("taints", [])
    return [taint["key"] for taint in taints if taint["effect"] != "PreferNoSchedule"]


def _why(ready: dict[str, Any] | None, taints: list[str]) -> str:
    if ready is None:
        return "it has not reported yet"
    if ready["status"] != "True":
        return str(ready.get("message", "not ready"))
    return f"tainted {', '.join(taints)}" if taints else ""
