# SPDX-License-Identifier: Apache-2.0
"""What the test of an installation says of the objects that it reads."""

from typing import Any

import pytest
from nvdra_runtime.installation import findings
from nvdra_runtime.installation.findings import Checks, Deployment, Plugin, Webhook
from nvdra_runtime.installation.placement import Placement, TaintedNode

PLUGIN = Plugin(
    program="nvdra-gpu-plugin", driver="gpu.nvidia.com", namespace="nvdra-system", selector="a=b"
)
CONTROLLER = Deployment(name="controller", namespace="nvdra-system")
WEBHOOK = Webhook(
    registration="webhook-config", claimNamespace="default", namespace="nvdra-system", selector="c"
)

Json = dict[str, Any]


def pod(node: str, *, is_ready: bool = True, is_leaving: bool = False) -> Json:
    metadata: Json = {"name": f"plugin-of-{node}"}
    if is_leaving:
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    ready = {"type": "Ready", "status": "True" if is_ready else "False"}
    return {
        "metadata": metadata,
        "spec": {"nodeName": node},
        "status": {"conditions": [ready]},
    }


def resource_slice(node: str, devices: int = 2, generation: int = 1, of: int = 1) -> Json:
    pool = {"name": node, "generation": generation, "resourceSliceCount": of}
    listed = [{"name": f"gpu-{number}"} for number in range(devices)]
    return {"spec": {"nodeName": node, "pool": pool, "devices": listed}}


def test_each_node_of_the_plugin_has_a_line() -> None:
    pods = [pod("b"), pod("a"), pod("c", is_leaving=True)]
    slices = [resource_slice("a", 1), resource_slice("b", 8), resource_slice("elsewhere")]
    assert [str(each) for each in findings.of_plugin(PLUGIN, pods, slices)] == [
        "✓ a: nvdra-gpu-plugin is ready and publishes 1 device",
        "✓ b: nvdra-gpu-plugin is ready and publishes 8 devices",
    ]


@pytest.mark.parametrize(
    ("refused", "remedy"),
    [
        (
            'pods "a-" is forbidden: violates PodSecurity "restricted:latest": privileged',
            "kubectl label --overwrite namespace nvdra-system "
            "pod-security.kubernetes.io/enforce=privileged",
        ),
        ('pods "a-" is forbidden: insufficient quota to match these scopes', "priorityClassName"),
        (
            'pods "a-" is forbidden: maximum memory usage per Container is 256Mi',
            "describe limitrange, and set resources of that component in the values",
        ),
        ("something else", "describe daemonset -l a=b"),
    ],
)
def test_pods_that_are_refused_are_no_matter_of_labels(refused: str, remedy: str) -> None:
    (found,) = findings.of_plugin(PLUGIN, [], [], refused)
    assert found.text == (
        f"nvdra-gpu-plugin runs on no node, because its pods are refused: {refused}"
    )
    assert remedy in found.remedy


SKU: Json = {"key": "sku", "value": "gpu", "effect": "NoSchedule"}
PLACED = PLUGIN.model_copy(
    update={
        "placement": Placement(
            tolerations=({"key": "nvidia.com/gpu", "operator": "Exists"},),
            setting="nvdra-gpu-plugin.kubeletPlugin.tolerations",
        )
    }
)
REMEDY = (
    "if it should, set nvdra-gpu-plugin.kubeletPlugin.tolerations to "
    '[{"key": "nvidia.com/gpu", "operator": "Exists"}, '
    '{"key": "sku", "value": "gpu", "effect": "NoSchedule"}]; '
    "pods that claim devices need the toleration, too"
)


def test_nodes_whose_taints_are_why_the_plugin_runs_nowhere_are_named_with_the_value() -> None:
    nodes = [TaintedNode(name, (SKU,)) for name in "abcde"]
    (found,) = findings.of_plugin(PLACED, [], [], nodes=nodes)
    assert str(found) == (
        "✗ a, b, c and 2 more: nvdra-gpu-plugin does not run there, because it does not tolerate "
        f"sku=gpu:NoSchedule\n    → {REMEDY}"
    )
    assert not found.is_good


def test_a_taint_that_keeps_some_nodes_free_may_be_meant() -> None:
    """It is said, but a test of the installation does not fail for ever by it."""
    nodes = [TaintedNode("a", ()), TaintedNode("b", (SKU,))]
    ready, tainted = findings.of_plugin(PLACED, [pod("a")], [resource_slice("a")], nodes=nodes)
    assert ready.is_good
    assert tainted.is_good
    assert str(tainted) == (
        "! b: nvdra-gpu-plugin does not run there, because it does not tolerate "
        f"sku=gpu:NoSchedule\n    → {REMEDY}"
    )


def test_a_refused_pod_is_the_nearer_cause_than_a_taint() -> None:
    (found,) = findings.of_plugin(PLACED, [], [], "exceeded quota", [TaintedNode("b", (SKU,))])
    assert "its pods are refused" in found.text


def test_a_pool_in_several_slices_is_counted_by_its_newest_generation() -> None:
    slices = [resource_slice("a", 3, 2, 2), resource_slice("a", 4, 2, 2), resource_slice("a", 9, 1)]
    (found,) = findings.of_plugin(PLUGIN, [pod("a")], slices)
    assert found.text.endswith("publishes 7 devices")


@pytest.mark.parametrize(
    ("pods", "slices", "text"),
    [
        ([], [], "nvdra-gpu-plugin runs on no node"),
        ([pod("a", is_ready=False)], [resource_slice("a")], "a: nvdra-gpu-plugin is not ready"),
        ([pod("a")], [resource_slice("b")], "there is no ResourceSlice of gpu.nvidia.com"),
        ([pod("a")], [resource_slice("a", of=3)], "1 of 3 ResourceSlices of gpu.nvidia.com"),
        ([pod("a")], [resource_slice("a", devices=0)], "a: gpu.nvidia.com publishes no device"),
    ],
)
def test_what_is_missing_is_said_with_a_command_that_shows_why(
    pods: list[Json], slices: list[Json], text: str
) -> None:
    (found,) = findings.of_plugin(PLUGIN, pods, slices)
    assert not found.is_good
    assert text in found.text
    assert str(found) == f"✗ {found.text}\n    → {found.remedy}"
    assert "kubectl -n nvdra-system " in found.remedy


def test_a_rollout_that_has_not_ended_is_not_well() -> None:
    """The test looks again for a minute: one that goes on has ended by then."""
    newer = pod("a", is_ready=False)
    newer["metadata"]["name"] = "newer"
    (found,) = findings.of_plugin(PLUGIN, [pod("a"), newer], [resource_slice("a")])
    assert "not newer, which is to replace it" in found.text
    assert "exec newer -- nvdra-gpu-plugin status" in found.remedy


@pytest.mark.parametrize(
    ("status", "is_good"),
    [({"readyReplicas": 2}, True), ({"readyReplicas": 1}, False), ({}, False)],
)
def test_a_deployment_needs_all_its_replicas(status: Json, is_good: bool) -> None:
    found = findings.of_deployment(CONTROLLER, {"spec": {"replicas": 2}, "status": status})
    assert found.is_good == is_good
    assert found.text == f"{status.get('readyReplicas', 0)} of 2 replicas of controller are ready"


def test_a_deployment_whose_pods_are_refused_says_why_and_what_to_do() -> None:
    message = 'pods "nvdra-x" is forbidden: insufficient quota to match these scopes: [{a}]'
    failed = {"type": "ReplicaFailure", "status": "True", "message": message}
    status = {"conditions": [{"type": "Available", "status": "False"}, failed]}
    found = findings.of_deployment(CONTROLLER, {"spec": {"replicas": 1}, "status": status})
    assert found.text.endswith(
        "because its pods are refused: pods is forbidden: insufficient quota "
        "to match these scopes: [{a}]"
    )
    assert "ResourceQuota with a scopeSelector" in found.remedy
    over = {"conditions": [{**failed, "status": "False"}]}
    now = findings.of_deployment(CONTROLLER, {"spec": {"replicas": 1}, "status": over})
    assert "refused" not in now.text


def test_a_deployment_that_was_scaled_to_zero_does_not_serve() -> None:
    assert not findings.of_deployment(CONTROLLER, {"spec": {"replicas": 0}, "status": {}}).is_good


def test_only_a_refusal_by_the_webhook_itself_is_good() -> None:
    denied = 'admission webhook "gpu.nvidia.com" denied the request: 1 configs failed to validate'
    assert findings.of_refusal(WEBHOOK, denied).is_good
    unreachable = findings.of_refusal(WEBHOOK, 'failed calling webhook "gpu.nvidia.com": refused')
    assert "the API server cannot ask the webhook" in unreachable.text
    assert "get pods -l c" in unreachable.remedy
    let_in = findings.of_refusal(WEBHOOK, None)
    assert "a claim with a wrong config was let in" in let_in.text
    assert "webhook-config" in let_in.remedy


def test_unknown_checks_are_refused_so_that_none_is_left_out_in_silence() -> None:
    with pytest.raises(ValueError, match="plugin"):
        Checks.model_validate_json('{"plugin": []}')
