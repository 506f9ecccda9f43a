# SPDX-License-Identifier: Apache-2.0
"""The objects of an installation and their names."""

import re
from collections.abc import Callable
from typing import Any

import pytest
from nvdra_testing import charts

Render = Callable[..., dict[str, dict[str, Any]]]

NAME = "nvdra-nvdra-gpu-plugin"
GPUS_ALONE: dict[str, Any] = {"resources": {"computeDomains": {"enabled": False}}}
DOMAINS_ALONE: dict[str, Any] = {"resources": {"gpus": {"enabled": False}}}
SELECTOR = {
    "app.kubernetes.io/name": "nvdra-gpu-plugin",
    "app.kubernetes.io/instance": "nvdra",
}


def alone(values: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    return "nvdra-gpu-plugin", values


def under_the_umbrella(values: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    return "nvdra", {**GPUS_ALONE, "nvdra-gpu-plugin": values}


def counted(objects: dict[str, dict[str, Any]]) -> dict[str, list[str]]:
    return {kind: sorted(named) for kind, named in objects.items()}


def test_gpus_alone_need_only_the_other_driver_disabled(render: Render) -> None:
    assert counted(render("nvdra", GPUS_ALONE)) == {
        "DaemonSet": [NAME],
        "ServiceAccount": [NAME],
        "ClusterRole": [NAME],
        "ClusterRoleBinding": [NAME],
        "Role": [f"{NAME}-mps"],
        "RoleBinding": [f"{NAME}-mps"],
        "ValidatingAdmissionPolicy": [NAME, f"{NAME}-claims", f"{NAME}-mps"],
        "ValidatingAdmissionPolicyBinding": [NAME, f"{NAME}-claims", f"{NAME}-mps"],
        "DeviceClass": ["gpu.nvidia.com", "mig.nvidia.com", "vfio.gpu.nvidia.com"],
    }


def test_compute_domains_alone_are_a_plugin_and_a_controller(render: Render) -> None:
    plugin, controller = "nvdra-nvdra-cd-plugin", "nvdra-nvdra-cd-controller"
    policies = [
        f"{controller}-cliques",
        f"{controller}-daemons",
        f"{controller}-daemonsets",
        f"{controller}-definitions",
        f"{controller}-domains",
        f"{controller}-networkpolicies",
        f"{controller}-nodes",
        f"{controller}-templates",
        plugin,
        f"{plugin}-daemon-class",
        f"{plugin}-nodes",
    ]
    assert counted(render("nvdra", DOMAINS_ALONE)) == {
        "DaemonSet": [plugin],
        "Deployment": [controller],
        "ServiceAccount": ["compute-domain-daemon-service-account", controller, plugin],
        "ClusterRole": ["compute-domain-daemon-role", controller, plugin],
        "ClusterRoleBinding": ["compute-domain-daemon-role-binding", controller, plugin],
        "Role": [
            "compute-domain-daemon-role",
            f"{controller}-daemons",
            f"{controller}-lease",
            f"{plugin}-daemons",
        ],
        "RoleBinding": [
            "compute-domain-daemon-role-binding",
            f"{controller}-daemons",
            f"{controller}-lease",
            f"{plugin}-daemons",
        ],
        "ValidatingAdmissionPolicy": policies,
        "ValidatingAdmissionPolicyBinding": policies,
        "DeviceClass": [
            "compute-domain-daemon.nvidia.com",
            "compute-domain-default-channel.nvidia.com",
        ],
    }


def test_a_default_installation_has_both_drivers(render: Render) -> None:
    both: dict[str, dict[str, Any]] = {}
    for half in (GPUS_ALONE, DOMAINS_ALONE):
        for kind, named in render("nvdra", half).items():
            both[kind] = both.get(kind, {}) | named
    assert render("nvdra") == both


@pytest.mark.parametrize(
    ("parts", "values"),
    [
        (["nvdra-gpu-plugin"], GPUS_ALONE),
        (["nvdra-cd-plugin", "nvdra-cd-controller"], DOMAINS_ALONE),
    ],
)
def test_a_component_chart_alone_creates_the_same_objects(
    render: Render, parts: list[str], values: dict[str, Any]
) -> None:
    found: dict[str, dict[str, Any]] = {}
    for part in parts:
        for kind, named in render(part).items():
            found[kind] = found.get(kind, {}) | named
    assert found == render("nvdra", values)


MODES: dict[str, dict[str, Any]] = {
    "as it comes": {},
    "without cliques": {"featureGates": {"ComputeDomainCliques": False}},
    "host managed": {
        "featureGates": {"HostManagedIMEXDaemon": True},
        "imex": {"mode": "hostManaged"},
    },
    "in another version": {"resourceApiVersion": "resource.k8s.io/v1beta1"},
}
EVERYTHING_ON = {
    "nvdra-gpu-plugin": {"kubeletPlugin": {"networkPolicy": {"enabled": True}}},
    "nvdra-cd-plugin": {"kubeletPlugin": {"networkPolicy": {"enabled": True}}},
    "nvdra-cd-controller": {
        "controller": {"networkPolicy": {"enabled": True}},
        "daemon": {"networkPolicy": {"enabled": True}},
    },
}
OPENSHIFT = ("--api-versions", "security.openshift.io/v1/SecurityContextConstraints")


@pytest.mark.parametrize("mode", MODES)
def test_with_gpus_alone_nothing_mentions_domains(template: Callable[..., Any], mode: str) -> None:
    values = {**GPUS_ALONE, **EVERYTHING_ON, "global": MODES[mode]}
    done = template("nvdra", values, *OPENSHIFT)
    assert done.returncode == 0, done.stderr
    gates = re.sub(r"(?m)^ +- name: FEATURE_GATES\n.*$", "", done.stdout)
    for word in ("compute-domain", "computedomain", "nvdra-cd-", "imex"):
        assert word not in gates.lower(), word


@pytest.mark.parametrize("mode", MODES)
def test_with_domains_alone_nothing_mentions_the_gpu_driver(
    template: Callable[..., Any], mode: str
) -> None:
    values = {**DOMAINS_ALONE, **EVERYTHING_ON, "global": MODES[mode]}
    done = template("nvdra", values, *OPENSHIFT)
    assert done.returncode == 0, done.stderr
    for word in ("nvdra-gpu-plugin", "gpu.nvidia.com", "mig.nvidia.com"):
        assert word not in done.stdout, word


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("switched", [{}, GPUS_ALONE, DOMAINS_ALONE])
def test_every_account_is_created_and_every_role_is_bound(
    render: Render, switched: dict[str, Any], mode: str
) -> None:
    objects = render("nvdra", {**switched, "global": MODES[mode]})
    made = set(objects["ServiceAccount"])
    running = {
        item["spec"]["template"]["spec"]["serviceAccountName"]
        for kind in ("DaemonSet", "Deployment")
        for item in objects.get(kind, {}).values()
    }
    assert running | {"compute-domain-daemon-service-account"} >= made >= running
    for kind in ("Role", "ClusterRole"):
        bindings = objects.get(f"{kind}Binding", {}).values()
        assert {each["roleRef"]["name"] for each in bindings} == set(objects.get(kind, {}))
        for each in bindings:
            assert {subject["name"] for subject in each["subjects"]} <= made


def test_without_both_drivers_there_are_no_objects(render: Render) -> None:
    off = {"enabled": False}
    assert render("nvdra", {"resources": {"gpus": off, "computeDomains": off}}) == {}


@pytest.mark.parametrize("accepted", [True, False])
def test_the_reference_drivers_gpu_override_changes_no_object(
    render: Render, accepted: bool
) -> None:
    assert render("nvdra", {"gpuResourcesEnabledOverride": accepted}) == render("nvdra")


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
    full_names = {full_name for kind in objects.values() for full_name in kind}
    assert full_names == {name, f"{name}-claims", f"{name}-mps"}
    assert sorted(classes) == ["gpu.nvidia.com", "mig.nvidia.com", "vfio.gpu.nvidia.com"]


@pytest.mark.parametrize("values", [{}, {"nameOverride": "agent"}, {"fullnameOverride": "agent"}])
def test_the_selector_contains_only_the_names_of_chart_and_release(
    render: Render, values: dict[str, Any]
) -> None:
    (daemonset,) = render("nvdra-gpu-plugin", values)["DaemonSet"].values()
    assert daemonset["spec"]["selector"] == {"matchLabels": SELECTOR}
    assert daemonset["spec"]["template"]["metadata"]["labels"] == SELECTOR


def test_every_object_is_labelled_with_chart_and_release(render: Render) -> None:
    for chart in ("nvdra-gpu-plugin", "nvdra-cd-plugin", "nvdra-cd-controller"):
        rendered = render(chart)
        assert {"ServiceAccount", "ClusterRole"} <= set(rendered)
        for kind, named in rendered.items():
            for item in named.values():
                assert item["metadata"]["labels"] == {
                    "app.kubernetes.io/name": chart,
                    "app.kubernetes.io/instance": "nvdra",
                    "app.kubernetes.io/part-of": "nvdra",
                    "app.kubernetes.io/version": charts.version(chart),
                    "app.kubernetes.io/managed-by": "Helm",
                    "helm.sh/chart": f"{chart}-{charts.version(chart)}",
                }, kind


def test_another_namespace_applies_to_every_namespaced_object(render: Render) -> None:
    values = {"namespaceOverride": "gpus", "kubeletPlugin": {"networkPolicy": {"enabled": True}}}
    objects = render("nvdra-gpu-plugin", values)
    for kind in ("DaemonSet", "ServiceAccount", "NetworkPolicy"):
        (item,) = objects[kind].values()
        assert item["metadata"]["namespace"] == "gpus"
    (binding,) = objects["ClusterRoleBinding"].values()
    assert binding["subjects"][0]["namespace"] == "gpus"


@pytest.mark.parametrize("kube", ["1.32.13", "1.34.1-gke.1279000", "1.35.0-eks-1", "1.37.1"])
def test_kubernetes_from_1_32_on_is_supported_including_vendor_versions(
    render: Render, kube: str
) -> None:
    assert render("nvdra", kube=kube)["DaemonSet"]


def test_an_older_kubernetes_is_an_error(refusal: Callable[..., str]) -> None:
    assert "requires kubeVersion: >=1.32.0-0" in refusal("nvdra", kube="1.31.9")


def test_a_network_policy_restricts_the_plugin_to_the_api_server(render: Render) -> None:
    values = {"kubeletPlugin": {"networkPolicy": {"enabled": True}}}
    (policy,) = render("nvdra-gpu-plugin", values)["NetworkPolicy"].values()
    assert policy["spec"]["podSelector"] == {"matchLabels": SELECTOR}
    assert policy["spec"]["policyTypes"] == ["Ingress", "Egress"]
    assert policy["spec"]["ingress"] == [{"ports": [{"protocol": "TCP", "port": 8080}]}]
    assert [[rule["port"] for rule in to["ports"]] for to in policy["spec"]["egress"]] == [
        [443, 6443]
    ]


@pytest.mark.parametrize("chart", ["nvdra-gpu-plugin", "nvdra-cd-controller", "nvdra-webhook"])
def test_a_network_policy_lets_pods_out_to_the_ports_of_this_api_server(
    render: Render, chart: str
) -> None:
    values = {**charts.RESTRICTED[chart], "global": {"apiServerPorts": [443, 16443]}}
    (policy,) = render(chart, values)["NetworkPolicy"].values()
    assert [[rule["port"] for rule in to["ports"]] for to in policy["spec"]["egress"]] == [
        [443, 16443]
    ]


@pytest.mark.parametrize(
    ("endpoint", "port"),
    [
        ("http://collector.monitoring:4318", 4318),
        ("https://collector.example.com/otlp", 443),
        ("http://[fd00::7]", 80),
    ],
)
def test_a_network_policy_allows_the_otlp_endpoint(
    render: Render, endpoint: str, port: int
) -> None:
    values = {
        "global": {"otlp": {"endpoint": endpoint}},
        "kubeletPlugin": {"networkPolicy": {"enabled": True}},
    }
    (policy,) = render("nvdra-gpu-plugin", values)["NetworkPolicy"].values()
    assert [rule["port"] for rule in policy["spec"]["egress"][1]["ports"]] == [port, 53, 53]


MONITORING = [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}]
POLICY = {"networkPolicy": {"enabled": True, "metricsFrom": MONITORING}}
RESTRICTED: dict[str, dict[str, Any]] = {
    "nvdra-gpu-plugin": {"kubeletPlugin": POLICY},
    "nvdra-cd-plugin": {"kubeletPlugin": POLICY},
    "nvdra-cd-controller": {"controller": POLICY},
    "nvdra-webhook": POLICY,
}


@pytest.mark.parametrize("chart", RESTRICTED)
def test_a_network_policy_says_who_may_read_metrics(render: Render, chart: str) -> None:
    objects = render(chart, RESTRICTED[chart])
    for policy in objects["NetworkPolicy"].values():
        rules = [rule for rule in policy["spec"]["ingress"] if rule.get("from") == MONITORING]
        assert [[port["port"] for port in rule["ports"]] for rule in rules] in ([[8080]], [[8081]])
        # Every port that is open to everybody is the webhook's, whose clients are no pods.
        others = [rule for rule in policy["spec"]["ingress"] if "from" not in rule]
        assert [rule["ports"][0]["port"] for rule in others] in ([], [443])


@pytest.mark.parametrize("chart", RESTRICTED)
def test_without_metrics_a_network_policy_lets_nobody_in(render: Render, chart: str) -> None:
    def off(values: dict[str, Any]) -> dict[str, Any]:
        return {**values, "metrics": {"enabled": False}}

    values = RESTRICTED[chart]
    values = off(values) if values is POLICY else {key: off(inner) for key, inner in values.items()}
    ports = {
        port["port"]
        for policy in render(chart, values)["NetworkPolicy"].values()
        for rule in policy["spec"].get("ingress", [])
        for port in rule["ports"]
    }
    assert ports <= {443}


def test_api_servers_are_selected_by_their_addresses(render: Render) -> None:
    servers = [{"ipBlock": {"cidr": "10.0.0.0/28"}}]
    values = {"networkPolicy": {"enabled": True, "apiServersFrom": servers}}
    (policy,) = render("nvdra-webhook", values)["NetworkPolicy"].values()
    https = policy["spec"]["ingress"][0]
    assert https == {"ports": [{"protocol": "TCP", "port": 443}], "from": servers}


def test_every_container_has_a_limit_of_memory(render: Render) -> None:
    objects = render("nvdra", {"webhook": {"enabled": True, "tls": {"mode": "self-managed"}}})
    workloads = [*objects["DaemonSet"].values(), *objects["Deployment"].values()]
    assert len(workloads) == 4
    for workload in workloads:
        for container in workload["spec"]["template"]["spec"]["containers"]:
            resources = container["resources"]
            assert set(resources) == {"requests", "limits"}, container["name"]
            assert "memory" in resources["requests"]
            assert "memory" in resources["limits"]
