"""Which objects there are, and what they are called."""

from collections.abc import Callable
from typing import Any

import pytest

Render = Callable[..., dict[str, dict[str, Any]]]

NAME = "nvdra-nvdra-gpu-plugin"
SELECTOR = {
    "app.kubernetes.io/name": "nvdra-gpu-plugin",
    "app.kubernetes.io/instance": "nvdra",
}


def alone(values: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    return "nvdra-gpu-plugin", values


def under_the_umbrella(values: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    return "nvdra", {"nvdra-gpu-plugin": values}


def test_a_plain_install_needs_no_value(render: Render) -> None:
    objects = render("nvdra")
    assert {kind: sorted(named) for kind, named in objects.items()} == {
        "DaemonSet": [NAME],
        "ServiceAccount": [NAME],
        "ClusterRole": [NAME],
        "ClusterRoleBinding": [NAME],
        "ValidatingAdmissionPolicy": [NAME],
        "ValidatingAdmissionPolicyBinding": [NAME],
        "DeviceClass": ["gpu.nvidia.com", "mig.nvidia.com", "vfio.gpu.nvidia.com"],
    }


def test_the_plugins_chart_installed_alone_makes_the_same_objects(render: Render) -> None:
    assert render("nvdra-gpu-plugin") == render("nvdra")


def test_switching_gpus_off_leaves_nothing_of_the_plugin(render: Render) -> None:
    assert render("nvdra", {"resources": {"gpus": {"enabled": False}}}) == {}


@pytest.mark.parametrize("accepted", [True, False])
def test_the_references_gpu_override_is_accepted_and_changes_nothing(
    render: Render, accepted: bool
) -> None:
    assert render("nvdra", {"gpuResourcesEnabledOverride": accepted}) == render("nvdra")


def test_a_reference_install_without_compute_domains_carries_over(render: Render) -> None:
    values = {"resources": {"computeDomains": {"enabled": False}}}
    assert render("nvdra", values) == render("nvdra")


@pytest.mark.parametrize("where", [alone, under_the_umbrella])
@pytest.mark.parametrize(
    ("values", "release", "name"),
    [
        ({}, "gpus", "gpus-nvdra-gpu-plugin"),
        ({}, "nvdra-gpu-plugin", "nvdra-gpu-plugin"),
        ({}, "my-nvdra-gpu-plugin", "my-nvdra-gpu-plugin"),
        ({"nameOverride": "agent"}, "gpus", "gpus-agent"),
        ({"nameOverride": "agent"}, "gpu-agent", "gpu-agent"),
        ({"fullnameOverride": "agent"}, "gpus", "agent"),
        ({"fullnameOverride": "x" * 70}, "gpus", "x" * 63),
        ({}, "r" * 53, f"{'r' * 53}-nvdra-gpu"),
        ({}, "r" * 48, f"{'r' * 48}-nvdra-gpu-plug"),
        ({}, "r" * 49, f"{'r' * 49}-nvdra-gpu-plu"),
    ],
)
def test_every_object_but_the_classes_has_the_full_name(
    render: Render, where: Any, values: dict[str, Any], release: str, name: str
) -> None:
    objects = render(*where(values), release=release)
    classes = objects.pop("DeviceClass")
    assert {named for kind in objects.values() for named in kind} == {name}
    assert sorted(classes) == ["gpu.nvidia.com", "mig.nvidia.com", "vfio.gpu.nvidia.com"]


@pytest.mark.parametrize("values", [{}, {"nameOverride": "agent"}, {"fullnameOverride": "agent"}])
def test_the_selector_is_the_charts_and_the_releases_name_and_nothing_else(
    render: Render, values: dict[str, Any]
) -> None:
    (daemonset,) = render("nvdra-gpu-plugin", values)["DaemonSet"].values()
    assert daemonset["spec"]["selector"] == {"matchLabels": SELECTOR}
    assert daemonset["spec"]["template"]["metadata"]["labels"] == SELECTOR


def test_every_object_says_which_chart_and_release_made_it(render: Render) -> None:
    for kind, named in render("nvdra").items():
        for item in named.values():
            assert item["metadata"]["labels"] == {
                **SELECTOR,
                "app.kubernetes.io/part-of": "nvdra",
                "app.kubernetes.io/version": "0.1.0",
                "app.kubernetes.io/managed-by": "Helm",
                "helm.sh/chart": "nvdra-gpu-plugin-0.1.0",
            }, kind


def test_another_namespace_takes_every_namespaced_object_along(render: Render) -> None:
    values = {"namespaceOverride": "gpus", "kubeletPlugin": {"networkPolicy": {"enabled": True}}}
    objects = render("nvdra-gpu-plugin", values)
    for kind in ("DaemonSet", "ServiceAccount", "NetworkPolicy"):
        (item,) = objects[kind].values()
        assert item["metadata"]["namespace"] == "gpus"
    (binding,) = objects["ClusterRoleBinding"].values()
    assert binding["subjects"][0]["namespace"] == "gpus"


@pytest.mark.parametrize("kube", ["1.32.13", "1.34.1-gke.1279000", "1.35.0-eks-1", "1.37.1"])
def test_kubernetes_from_1_32_on_is_supported_also_by_its_vendors(
    render: Render, kube: str
) -> None:
    assert render("nvdra", kube=kube)["DaemonSet"]


def test_an_older_kubernetes_is_refused(refusal: Callable[..., str]) -> None:
    assert "requires kubeVersion: >=1.32.0-0" in refusal("nvdra", kube="1.31.9")


def test_a_network_policy_lets_the_plugin_reach_the_api_server_only(render: Render) -> None:
    values = {"kubeletPlugin": {"networkPolicy": {"enabled": True}}}
    (policy,) = render("nvdra-gpu-plugin", values)["NetworkPolicy"].values()
    assert policy["spec"]["podSelector"] == {"matchLabels": SELECTOR}
    assert policy["spec"]["policyTypes"] == ["Egress"]
    assert [[rule["port"] for rule in to["ports"]] for to in policy["spec"]["egress"]] == [
        [443, 6443]
    ]


@pytest.mark.parametrize(
    ("endpoint", "port"),
    [
        ("http://collector.monitoring:4318", 4318),
        ("https://collector.example.com/otlp", 443),
        ("http://[fd00::7]", 80),
    ],
)
def test_a_network_policy_lets_traces_out_too(render: Render, endpoint: str, port: int) -> None:
    values = {
        "global": {"otlp": {"endpoint": endpoint}},
        "kubeletPlugin": {"networkPolicy": {"enabled": True}},
    }
    (policy,) = render("nvdra-gpu-plugin", values)["NetworkPolicy"].values()
    assert [rule["port"] for rule in policy["spec"]["egress"][1]["ports"]] == [port, 53, 53]
