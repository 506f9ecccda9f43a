# SPDX-License-Identifier: Apache-2.0
"""Which nodes a plugin is for, and which taints keep it away from them."""

from typing import Any

import pytest
from nvdra_runtime.installation import placement
from nvdra_runtime.installation.placement import Placement, TaintedNode, Unreached

Json = dict[str, Any]

SYSTEM = {"kubernetes.io/os": "linux"}
GPU = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
SKU: Json = {"key": "sku", "value": "gpu", "effect": "NoSchedule"}


def expression(key: str, operator: str, *values: str) -> Json:
    return {"key": key, "operator": operator, **({"values": list(values)} if values else {})}


def test_without_affinity_the_node_selector_is_asked_for() -> None:
    given = Placement(nodeSelector={"pool": "a", **SYSTEM})
    assert placement.queries(given) == [{"labelSelector": "kubernetes.io/os=linux,pool=a"}]


def test_each_term_is_a_list_of_its_own_as_any_of_them_is_enough() -> None:
    terms: tuple[Json, ...] = (
        {"matchExpressions": [expression("a", "In", "1", "2"), expression("b", "NotIn", "x")]},
        {"matchExpressions": [expression("c", "Exists"), expression("d", "DoesNotExist")]},
        {"matchExpressions": [expression("e", "Gt", "3"), expression("f", "Lt", "4")]},
        {"matchFields": [expression("metadata.name", "In", "node-1")]},
        {"matchFields": [expression("metadata.name", "NotIn", "node-1")]},
        {},
    )
    linux = "kubernetes.io/os=linux"
    assert placement.queries(Placement(nodeSelector=SYSTEM, terms=terms)) == [
        {"labelSelector": f"{linux},a in (1,2),b notin (x)"},
        {"labelSelector": f"{linux},c,!d"},
        {"labelSelector": f"{linux},e>3,f<4"},
        {"labelSelector": linux, "fieldSelector": "metadata.name=node-1"},
        {"labelSelector": linux, "fieldSelector": "metadata.name!=node-1"},
    ]


@pytest.mark.parametrize(
    ("toleration", "is_kept"),
    [
        (None, True),
        (GPU, True),
        ({"operator": "Exists"}, False),
        ({"key": "sku", "operator": "Exists"}, False),
        ({"key": "sku", "operator": "Exists", "effect": "NoSchedule"}, False),
        ({"key": "sku", "operator": "Exists", "effect": "NoExecute"}, True),
        ({"key": "sku", "value": "gpu"}, False),
        ({"key": "sku", "operator": "Equal", "value": "gpu"}, False),
        ({"key": "sku", "operator": "Equal", "value": "other"}, True),
        ({"key": "sku"}, True),
        # A comparison of numbers (Kubernetes 1.35): the scheduler makes it.
        ({"key": "sku", "operator": "Gt", "value": "1"}, False),
    ],
)
def test_a_taint_without_a_matching_toleration_keeps_the_plugin_away(
    toleration: Json | None, is_kept: bool
) -> None:
    given = Placement(tolerations=(toleration,) if toleration else ())
    found = placement.unreached(given, [TaintedNode("a", (SKU,))], ())
    assert found == ([Unreached([SKU], ["a"])] if is_kept else [])


@pytest.mark.parametrize(
    "taint",
    [
        {**SKU, "effect": "PreferNoSchedule"},
        {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"},
        {"key": "node.cloudprovider.kubernetes.io/uninitialized", "effect": "NoSchedule"},
    ],
)
def test_what_keeps_no_pod_away_or_comes_and_goes_is_not_reported(taint: Json) -> None:
    assert placement.unreached(Placement(), [TaintedNode("a", (taint,))], ()) == []


def test_nodes_with_the_same_taints_are_together_and_those_with_a_pod_are_left_out() -> None:
    other = {"key": "team", "effect": "NoExecute"}
    nodes = [
        TaintedNode("c", (SKU,)),
        TaintedNode("b", (SKU, other)),
        TaintedNode("a", (SKU,)),
        TaintedNode("with-a-pod", (SKU,)),
        TaintedNode("free", ()),
    ]
    assert placement.unreached(Placement(), nodes, {"with-a-pod"}) == [
        Unreached([SKU], ["a", "c"]),
        Unreached([SKU, other], ["b"]),
    ]


def test_a_toleration_is_of_that_taint_alone() -> None:
    assert placement.toleration({**SKU, "timeAdded": "2026-01-01T00:00:00Z"}) == SKU
    bare = {"key": "team", "effect": "NoExecute"}
    assert placement.toleration(bare) == {**bare, "operator": "Exists"}
    assert [placement.text_of(each) for each in (SKU, bare)] == [
        "sku=gpu:NoSchedule",
        "team:NoExecute",
    ]


def test_only_name_and_taints_are_kept_of_a_node() -> None:
    node = {"metadata": {"name": "a", "labels": {}}, "spec": {"taints": [SKU]}, "status": {}}
    assert placement.of_node(node) == TaintedNode("a", (SKU,))
    assert placement.of_node({"metadata": {"name": "a"}, "spec": {}}) == TaintedNode("a", ())
