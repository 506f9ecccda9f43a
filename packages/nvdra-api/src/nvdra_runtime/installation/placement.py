# SPDX-License-Identifier: Apache-2.0
"""Nodes that a plugin is for and whose taints keep its pods away.

Which nodes have the labels, the API server decides: here is how it is asked. Taints of Kubernetes
itself are not reported, because they say how a node is at the moment, and no value should tolerate
them.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Final, NamedTuple

from nvdra_api.meta import JsonObject
from pydantic import BaseModel, ConfigDict, Field

_KEEPS_AWAY: Final = ("NoSchedule", "NoExecute")
_OF_KUBERNETES: Final = ("node.kubernetes.io/", "node.cloudprovider.kubernetes.io/")
_SIGNS: Final = {
    "In": "{key} in ({values})",
    "NotIn": "{key} notin ({values})",
    "Exists": "{key}",
    "DoesNotExist": "!{key}",
    "Gt": "{key}>{values}",
    "Lt": "{key}<{values}",
}
"""A requirement of a node selector, by its operator, as label selectors have it."""
_NAMES: Final = {"In": "{key}={values}", "NotIn": "{key}!={values}"}
"""The same of fields."""


class Placement(BaseModel):
    """Where the pods of a plugin may run, by the values of its chart.

    Attributes:
        node_selector: Labels that a node must have.
        terms: Terms of the required node affinity, of which a node must meet one; empty for none.
        tolerations: Those of the pods.
        setting: The value that sets the tolerations.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    node_selector: Mapping[str, str] = Field(default={}, alias="nodeSelector")
    terms: tuple[JsonObject, ...] = ()
    tolerations: tuple[JsonObject, ...] = ()
    setting: str = ""


class TaintedNode(NamedTuple):
    """What is kept of a listed node."""

    name: str
    taints: tuple[JsonObject, ...]


class Unreached(NamedTuple):
    """Nodes on which a plugin does not run, and the taints that all of them have."""

    taints: list[JsonObject]
    nodes: list[str]


def queries(placement: Placement) -> list[dict[str, str]]:
    """Parameters of the lists of nodes that together have every node of the plugin.

    Source: Kubernetes, "Labels and Selectors", "API". The `matchFields` of a node selector can name
    only `metadata.name`, with one value.
    """
    own = [f"{key}={value}" for key, value in sorted(placement.node_selector.items())]
    if not placement.terms:
        return [{"labelSelector": ",".join(own)}]
    found = []
    for term in placement.terms:
        expressions, fields = term.get("matchExpressions") or (), term.get("matchFields") or ()
        labels = [
            _SIGNS[expression["operator"]].format(**_words(expression))
            for expression in expressions
        ]
        names = [_NAMES[field["operator"]].format(**_words(field)) for field in fields]
        if labels or names:  # a term without any selects no node
            selectors = {"labelSelector": [*own, *labels], "fieldSelector": names}
            found.append({key: ",".join(each) for key, each in selectors.items() if each})
    return found


def of_node(node: JsonObject) -> TaintedNode:
    """What is needed of a node."""
    return TaintedNode(node["metadata"]["name"], tuple(node["spec"].get("taints") or ()))


def unreached(
    placement: Placement, nodes: Iterable[TaintedNode], occupied: Collection[str]
) -> list[Unreached]:
    """Nodes without a pod of the plugin that have taints which it does not tolerate.

    Args:
        placement: That of the plugin.
        nodes: The nodes that it is for.
        occupied: Those on which it has a pod.
    """
    by_taints: dict[str, Unreached] = {}
    for node in sorted(nodes, key=lambda each: each.name):
        taints = [taint for taint in node.taints if _keeps_away(placement, taint)]
        if taints and node.name not in occupied:
            text = ", ".join(text_of(taint) for taint in taints)
            by_taints.setdefault(text, Unreached(taints, [])).nodes.append(node.name)
    return list(by_taints.values())


def toleration(taint: JsonObject) -> JsonObject:
    """A toleration of this taint and no other one."""
    if not taint.get("value"):
        return {"key": taint["key"], "operator": "Exists", "effect": taint["effect"]}
    return {key: taint[key] for key in ("key", "value", "effect")}


def text_of(taint: JsonObject) -> str:
    """A taint as `kubectl taint` takes it."""
    value = f"={taint['value']}" if taint.get("value") else ""
    return f"{taint['key']}{value}:{taint['effect']}"


def _keeps_away(placement: Placement, taint: JsonObject) -> bool:
    return (
        taint["effect"] in _KEEPS_AWAY
        and not taint["key"].startswith(_OF_KUBERNETES)
        and not any(_tolerates(each, taint) for each in placement.tolerations)
    )


def _words(requirement: JsonObject) -> dict[str, str]:
    return {"key": requirement["key"], "values": ",".join(requirement.get("values") or ())}


def _tolerates(given: JsonObject, taint: JsonObject) -> bool:
    """Source: Kubernetes, "Taints and Tolerations", "Concepts"."""
    if given.get("effect") and given["effect"] != taint["effect"]:
        return False
    if given.get("key") and given["key"] != taint["key"]:
        return False
    if given.get("operator", "Equal") != "Equal":
        return True  # Exists, or a comparison of numbers, which the scheduler makes
    return bool(given.get("value", "") == taint.get("value", ""))
