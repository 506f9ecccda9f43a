# SPDX-License-Identifier: Apache-2.0
"""The GPU plugin's service account: its name, its permissions, and its admission policy."""

from collections.abc import Callable
from typing import Any

import pytest

Render = Callable[..., dict[str, dict[str, Any]]]

NAMINGS = [
    ({}, "nvdra"),
    ({}, "nvdra-gpu-plugin"),
    ({}, "r" * 53),
    ({"nameOverride": "agent"}, "nvdra"),
    ({"fullnameOverride": "agent"}, "nvdra"),
    ({"fullnameOverride": "x" * 70}, "nvdra"),
    ({"namespaceOverride": "gpus"}, "nvdra"),
    ({"serviceAccount": {"name": "mine"}}, "nvdra"),
    ({"serviceAccount": {"create": False, "name": "mine"}}, "nvdra"),
]


def account_of_the_pods(objects: dict[str, dict[str, Any]]) -> tuple[str, str]:
    (daemonset,) = objects["DaemonSet"].values()
    return (
        daemonset["metadata"]["namespace"],
        daemonset["spec"]["template"]["spec"]["serviceAccountName"],
    )


@pytest.mark.parametrize("umbrella", [True, False])
@pytest.mark.parametrize(("values", "release"), NAMINGS)
def test_policy_role_and_pods_name_the_same_account(
    render: Render, umbrella: bool, values: dict[str, Any], release: str
) -> None:
    chart = "nvdra" if umbrella else "nvdra-gpu-plugin"
    under_it = {"resources": {"computeDomains": {"enabled": False}}, "nvdra-gpu-plugin": values}
    objects = render(chart, under_it if umbrella else values, release=release)
    namespace, name = account_of_the_pods(objects)

    assert len(objects["ValidatingAdmissionPolicy"]) == 3
    for policy in objects["ValidatingAdmissionPolicy"].values():
        (condition,) = policy["spec"]["matchConditions"]
        assert condition["expression"] == (
            f"request.userInfo.username == 'system:serviceaccount:{namespace}:{name}'"
        )
    (binding,) = objects["ClusterRoleBinding"].values()
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": name, "namespace": namespace}]
    for account in objects.get("ServiceAccount", {}).values():
        assert (account["metadata"]["namespace"], account["metadata"]["name"]) == (namespace, name)


def test_an_existing_account_is_not_created_but_gets_the_permissions(render: Render) -> None:
    values = {"serviceAccount": {"create": False, "name": "mine"}}
    objects = render("nvdra-gpu-plugin", values)
    assert "ServiceAccount" not in objects
    assert "ClusterRole" in objects


def test_the_namespaces_default_account_is_never_used(
    refusal: Callable[..., str],
) -> None:
    text = refusal("nvdra-gpu-plugin", {"serviceAccount": {"create": False}})
    assert "serviceAccount.create=false needs serviceAccount.name" in text


def test_roles_can_be_omitted(render: Render) -> None:
    objects = render("nvdra-gpu-plugin", {"rbac": {"create": False}})
    assert "ClusterRole" not in objects
    assert "ClusterRoleBinding" not in objects
    assert "ServiceAccount" in objects


def test_annotations_of_the_account_are_the_users(render: Render) -> None:
    values = {"serviceAccount": {"annotations": {"team": "gpu"}}}
    (account,) = render("nvdra-gpu-plugin", values)["ServiceAccount"].values()
    assert account["metadata"]["annotations"] == {"team": "gpu"}


def test_slices_are_restricted_in_every_api_version(render: Render) -> None:
    objects = render("nvdra-gpu-plugin")
    policy = objects["ValidatingAdmissionPolicy"]["nvdra-nvdra-gpu-plugin"]
    (rule,) = policy["spec"]["matchConstraints"]["resourceRules"]
    assert policy["spec"]["failurePolicy"] == "Fail"
    assert rule == {
        "apiGroups": ["resource.k8s.io"],
        "apiVersions": ["v1", "v1beta2", "v1beta1"],
        "operations": ["CREATE", "UPDATE", "DELETE"],
        "resources": ["resourceslices"],
    }


def test_every_policy_is_in_force(render: Render) -> None:
    objects = render("nvdra-gpu-plugin")
    for name, policy in objects["ValidatingAdmissionPolicy"].items():
        assert policy["spec"]["failurePolicy"] == "Fail"
        assert objects["ValidatingAdmissionPolicyBinding"][name]["spec"] == {
            "policyName": name,
            "validationActions": ["Deny"],
        }


def test_mps_daemons_are_restricted_whether_or_not_the_gate_is_on(render: Render) -> None:
    found = [
        render("nvdra-gpu-plugin", {"global": {"featureGates": {"MPSSupport": is_on}}})
        for is_on in (False, True)
    ]
    off, on = (
        objects["ValidatingAdmissionPolicy"]["nvdra-nvdra-gpu-plugin-mps"] for objects in found
    )
    assert off == on


def test_directories_of_the_node_are_those_of_the_values(render: Render) -> None:
    values = {
        "global": {"nvidiaDriverRoot": "/run/nvidia/driver/"},
        "kubeletPlugin": {"kubeletPluginsDirectoryPath": "/data/kubelet/plugins/"},
    }
    policy = render("nvdra-gpu-plugin", values)["ValidatingAdmissionPolicy"]
    text = str(policy["nvdra-nvdra-gpu-plugin-mps"])
    assert "'/data/kubelet/plugins/gpu.nvidia.com/mps/'" in text
    assert "'/run/nvidia/driver'" in text


def test_openshift_allows_privileged_pods(render: Render) -> None:
    scc = "security.openshift.io/v1/SecurityContextConstraints"
    bindings = render("nvdra-gpu-plugin", None, "--api-versions", scc)["ClusterRoleBinding"]
    extra = bindings["nvdra-nvdra-gpu-plugin-openshift-privileged"]
    assert extra["roleRef"]["name"] == "system:openshift:scc:privileged"
    assert extra["subjects"] == bindings["nvdra-nvdra-gpu-plugin"]["subjects"]
