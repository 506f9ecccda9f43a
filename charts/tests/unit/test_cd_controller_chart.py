# SPDX-License-Identifier: Apache-2.0
"""The chart nvdra-cd-controller: settings, and permissions of both accounts."""

from collections.abc import Callable
from typing import Any

import pytest
from nvdra_api.ids import DomainUID
from nvdra_cd_controller import network_policies
from nvdra_cd_controller.crds import definitions
from nvdra_cd_controller.settings import Settings
from nvdra_runtime.settings import flags, loader
from nvdra_testing import charts, yaml_documents

Render = Callable[..., dict[str, dict[str, Any]]]

CHART = "nvdra-cd-controller"
NAME = "nvdra-nvdra-cd-controller"
UID = DomainUID("11111111-2222-3333-4444-555555555555")
MONITORING = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
DEFAULTS = {
    "POD_NAME": "metadata.name",
    "POD_UID": "metadata.uid",
    "NODE_NAME": "spec.nodeName",
    "NAMESPACE": "nvdra-system",
    "IMAGE_NAME": charts.image("nvdra-imex-daemon", CHART),
    "CD_DAEMON_IMAGE_PULL_POLICY": "IfNotPresent",
    "CD_DAEMON_HTTP_ENDPOINT": ":8080",
    "CD_DAEMON_RESOURCES": '{"limits":{"cpu":"16","memory":"32Gi"},'
    '"requests":{"cpu":"50m","memory":"128Mi"}}',
    "LOG_VERBOSITY_CD_DAEMON": "4",
    "MAX_NODES_PER_IMEX_DOMAIN": "18",
    "CRDS": "auto",
    "IMEX_MODE": "driverManaged",
    "IMEX_ISOLATION": "domain",
    "LEADER_ELECTION_ENABLED": "true",
    "LEADER_ELECTION_LEASE_LOCK_NAMESPACE": "nvdra-system",
    "LEADER_ELECTION_LEASE_LOCK_NAME": NAME,
    "LEADER_ELECTION_LEASE_DURATION": "15s",
    "LEADER_ELECTION_RENEW_DEADLINE": "10s",
    "LEADER_ELECTION_RETRY_PERIOD": "2s",
    "HTTP_ENDPOINT": ":8080",
    "METRICS_PATH": "/metrics",
    "LOGGING_FORMAT": "json",
    "V": "4",
}
HOST_MANAGED: dict[str, Any] = {
    "global": {
        "featureGates": {"HostManagedIMEXDaemon": True},
        "imex": {"mode": "hostManaged"},
    },
}


def environment(objects: dict[str, dict[str, Any]]) -> dict[str, str]:
    (deployment,) = objects["Deployment"].values()
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    entries = container["env"]
    assert len({entry["name"] for entry in entries}) == len(entries)
    return {
        entry["name"]: entry["value"]
        if "value" in entry
        else entry["valueFrom"]["fieldRef"]["fieldPath"]
        for entry in entries
    }


def test_the_controller_gets_exactly_these_settings_by_default(render: Render) -> None:
    assert environment(render(CHART)) == DEFAULTS


@pytest.mark.parametrize(
    ("values", "changed"),
    [
        ({"global": {"logVerbosity": 6}}, {"V": "6", "LOG_VERBOSITY_CD_DAEMON": "6"}),
        ({"global": {"loggingFormat": "text"}}, {"LOGGING_FORMAT": "text"}),
        ({"daemon": {"logVerbosity": "2"}}, {"LOG_VERBOSITY_CD_DAEMON": "2"}),
        (
            {"daemon": {"metrics": {"httpEndpoint": ":9090"}}},
            {"CD_DAEMON_HTTP_ENDPOINT": ":9090"},
        ),
        (
            {"daemon": {"image": {"repository": "x/d", "tag": "t"}}},
            {"IMAGE_NAME": f"{charts.REGISTRY}/x/d:t"},
        ),
        (
            {"global": {"imageRegistry": "other.example.com"}},
            {"IMAGE_NAME": f"other.example.com/nvdra/nvdra-imex-daemon:{charts.version(CHART)}"},
        ),
        ({"global": {"imagePullPolicy": "Never"}}, {"CD_DAEMON_IMAGE_PULL_POLICY": "Never"}),
        ({"daemon": {"priorityClassName": "high"}}, {"CD_DAEMON_PRIORITY_CLASS_NAME": "high"}),
        (
            {"daemon": {"resources": {"limits": {"cpu": 1, "memory": "200Mi"}}}},
            {
                "CD_DAEMON_RESOURCES": '{"limits":{"cpu":1,"memory":"200Mi"},'
                '"requests":{"cpu":"50m","memory":"128Mi"}}'
            },
        ),
        (
            {"global": {"imagePullSecrets": [{"name": "a"}, {"name": "b"}]}},
            {"CD_DAEMON_IMAGE_PULL_SECRET_NAMES": "a,b"},
        ),
        (
            {"global": {"featureGates": {"ComputeDomainCliques": False}}},
            {"FEATURE_GATES": "ComputeDomainCliques=false"},
        ),
        (
            {"global": {"otlp": {"endpoint": "http://collector:4318"}}},
            {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"},
        ),
        ({"controller": {"maxNodesPerImexDomain": 36}}, {"MAX_NODES_PER_IMEX_DOMAIN": "36"}),
        (
            {"controller": {"leaderElection": {"leaseDuration": "1m"}}},
            {"LEADER_ELECTION_LEASE_DURATION": "1m"},
        ),
        ({"controller": {"metrics": {"enabled": False}}}, {"METRICS_PATH": ""}),
        ({"controller": {"metrics": {"httpEndpoint": ":9090"}}}, {"HTTP_ENDPOINT": ":9090"}),
        ({"controller": {"env": [{"name": "KUBE_API_QPS", "value": "9"}]}}, {"KUBE_API_QPS": "9"}),
        (
            {"namespaceOverride": "domains"},
            {"NAMESPACE": "domains", "LEADER_ELECTION_LEASE_LOCK_NAMESPACE": "domains"},
        ),
    ],
)
def test_a_value_is_the_setting_of_the_same_name(
    render: Render, values: dict[str, Any], changed: dict[str, str]
) -> None:
    told = environment(render(CHART, values))

    assert told == DEFAULTS | changed
    assert loader.load_or_raise(Settings, [], told).pod_name


def test_daemons_without_metrics_have_no_endpoint(render: Render) -> None:
    values = {"daemon": {"metrics": {"enabled": False}, "networkPolicy": {"enabled": True}}}
    objects = render(CHART, values)

    told = environment(objects)
    assert set(DEFAULTS) ^ set(told) == {"CD_DAEMON_HTTP_ENDPOINT", "CD_DAEMON_NETWORK_POLICY"}
    assert loader.load_or_raise(Settings, [], told).cd_daemon_http_endpoint == ""
    rules = loader.load_or_raise(Settings, [], told).cd_daemon_network_policy
    assert rules is not None
    assert rules.ingress == ()
    assert rules.egress


def test_every_variable_of_the_chart_is_one_of_the_controllers(render: Render) -> None:
    known = {variable for entry in flags.flag_table(Settings) for variable in entry.env}
    everything = {
        "global": {"imagePullSecrets": [{"name": "a"}], "featureGates": {"AllAlpha": False}},
        "daemon": {
            "priorityClassName": "high",
            "resources": {"limits": {"cpu": "1"}},
            "networkPolicy": {"enabled": True},
        },
    }
    assert set(environment(render(CHART, everything))) - known == set()


@pytest.mark.parametrize(
    ("install", "verbs"),
    [
        ("auto", ["get", "create", "patch"]),
        ("always", ["get", "create", "patch"]),
        ("never", ["get"]),
    ],
)
def test_the_controller_writes_its_two_definitions_at_most(
    render: Render, install: str, verbs: list[str]
) -> None:
    objects = render(CHART, {"crds": {"install": install}})
    assert "CustomResourceDefinition" not in objects
    assert environment(objects)["CRDS"] == install
    (rule,) = (
        rule
        for rule in objects["ClusterRole"][NAME]["rules"]
        if rule["apiGroups"] == ["apiextensions.k8s.io"]
    )
    assert rule["verbs"] == verbs
    assert set(rule["resourceNames"]) == {own.name for own in definitions.own()}


def test_the_lease_is_the_controllers_own(render: Render) -> None:
    lease = render(CHART)["Role"][f"{NAME}-lease"]
    assert [rule.get("resourceNames") for rule in lease["rules"]] == [None, [NAME]]


def test_policies_restrict_pods_entries_and_labels(render: Render) -> None:
    objects = render(CHART)

    policies = objects["ValidatingAdmissionPolicy"]
    of_the_controller = ("nodes", "daemonsets", "networkpolicies", "templates", "domains")
    parts = (*of_the_controller, "definitions", "daemons", "cliques")
    assert set(policies) == {f"{NAME}-{part}" for part in parts}
    for name, policy in policies.items():
        assert policy["spec"]["failurePolicy"] == "Fail"
        binding = objects["ValidatingAdmissionPolicyBinding"][name]["spec"]
        assert binding == {"policyName": name, "validationActions": ["Deny"]}


def test_controller_and_daemons_keep_their_permissions_in_earlier_namespaces(
    template: Callable[..., Any],
) -> None:
    done = template(CHART, {"global": {"additionalNamespaces": ["old"]}})
    items = [item for item in yaml_documents.load_all(done.stdout) if item]
    placed = [
        (item["kind"], item["metadata"]["name"], item["metadata"].get("namespace"))
        for item in items
    ]
    (deployment,) = (item for item in items if item["kind"] == "Deployment")
    told = environment({"Deployment": {"controller": deployment}})
    assert told == DEFAULTS | {"ADDITIONAL_NAMESPACES": "old"}
    for namespace in ("nvdra-system", "old"):
        assert ("ServiceAccount", "compute-domain-daemon-service-account", namespace) in placed
        assert ("Role", f"{NAME}-daemons", namespace) in placed
        assert ("RoleBinding", f"{NAME}-daemons", namespace) in placed
        assert ("RoleBinding", "compute-domain-daemon-role-binding", namespace) in placed


@pytest.mark.parametrize(
    "gates",
    [{"ComputeDomainCliques": False}, {"AllBeta": False}, {"AllBeta": False, "AllAlpha": True}],
)
def test_without_cliques_a_daemon_writes_its_own_nodes_entry_in_the_status_of_domains(
    render: Render, gates: dict[str, bool]
) -> None:
    objects = render(CHART, {"global": {"featureGates": gates}})

    policy = objects["ValidatingAdmissionPolicy"][f"{NAME}-status"]["spec"]
    (condition,) = policy["matchConditions"]
    assert condition["expression"] == (
        "request.userInfo.username in "
        '["system:serviceaccount:nvdra-system:compute-domain-daemon-service-account"]'
    )


@pytest.mark.parametrize(
    "gates",
    [
        {"ComputeDomainCliques": True, "IMEXDaemonsWithDNSNames": True, "AllBeta": False},
        {"AllAlpha": False},
        {},
    ],
)
def test_with_cliques_a_daemon_cannot_read_domains(render: Render, gates: dict[str, bool]) -> None:
    objects = render(CHART, {"global": {"featureGates": gates}})

    assert f"{NAME}-status" not in objects["ValidatingAdmissionPolicy"]
    (rule,) = objects["ClusterRole"]["compute-domain-daemon-role"]["rules"]
    assert rule["resources"] == ["events"]


def test_where_the_hosts_run_imex_there_are_no_objects_for_daemons(render: Render) -> None:
    objects = render(CHART, HOST_MANAGED)

    assert set(objects["ServiceAccount"]) == {NAME}
    assert set(objects["Role"]) == {f"{NAME}-lease"}
    assert set(objects["ValidatingAdmissionPolicy"]) == {
        f"{NAME}-{part}" for part in ("definitions", "templates", "domains")
    }


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"global": {"imex": {"mode": "hostManaged"}}}, "HostManagedIMEXDaemon=true"),
        ({"global": {"imexMode": "hostManaged"}}, "global.imexMode is not a setting"),
        ({"controller": {"imex": {"mode": "hostManaged"}}}, "set as global.imex"),
        ({"controller": {"additionalNamespaces": []}}, "set as global.additionalNamespaces"),
        ({"controller": {"metrics": {"profilePath": "/debug/pprof"}}}, "port 6060"),
        ({"serviceAccount": {"create": False}}, "serviceAccount.name"),
        ({"global": {"imex": {"isolation": "channel"}}}, "/global/imex/isolation"),
        ({"controller": {"replicas": 0}}, "/controller/replicas"),
        ({"controller": {"leaderElection": {"leaseDuration": "15"}}}, "leaseDuration"),
        ({"controller": {"replica": 2}}, "replica"),
        ({"daemon": {"metrics": {"httpEndpoint": "127.0.0.1:8080"}}}, "/daemon/metrics"),
    ],
)
def test_an_invalid_value_is_rejected(
    refusal: Callable[..., str], values: dict[str, Any], says: str
) -> None:
    assert says in refusal(CHART, values)


def test_the_pod_has_no_privileges_on_its_node(render: Render) -> None:
    (deployment,) = render(CHART)["Deployment"].values()
    pod = deployment["spec"]["template"]["spec"]

    assert pod["securityContext"]["runAsNonRoot"] is True
    (container,) = pod["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert "hostNetwork" not in pod
    assert pod["volumes"] == [{"name": "tmp", "emptyDir": {"sizeLimit": "16Mi"}}]


def test_openshift_allows_the_users_of_controller_and_daemons(render: Render) -> None:
    scc = "security.openshift.io/v1/SecurityContextConstraints"
    bindings = render(CHART, None, "--api-versions", scc)["RoleBinding"]

    granted = {
        name: (item["roleRef"]["name"], item["subjects"][0]["name"])
        for name, item in bindings.items()
        if "openshift" in name
    }
    assert granted == {
        f"{NAME}-openshift-nonroot": ("system:openshift:scc:nonroot-v2", NAME),
        "compute-domain-daemon-openshift-anyuid-role-binding": (
            "system:openshift:scc:anyuid",
            "compute-domain-daemon-service-account",
        ),
    }


def test_the_controller_gets_what_network_policies_of_daemons_allow(render: Render) -> None:
    monitoring = [{"podSelector": {}, "namespaceSelector": {"matchLabels": {"a": "b"}}}]
    values = {
        "global": {"otlp": {"endpoint": "http://collector:4318"}},
        "daemon": {"networkPolicy": {"enabled": True, "metricsFrom": monitoring}},
    }
    objects = render(CHART, values)
    assert "NetworkPolicy" not in objects, "the controller makes them, one for each domain"

    told = environment(objects)
    rules = loader.load_or_raise(Settings, [], told).cd_daemon_network_policy
    assert rules is not None
    spec = network_policies.network_policy(UID, "nvdra-system", rules)["spec"]
    daemons = {"matchLabels": {"resource.nvidia.com/computeDomain": UID}}
    coming, metrics = spec["ingress"]
    assert metrics == {"ports": [{"protocol": "TCP", "port": 8080}], "from": monitoring}
    assert coming["from"] == [{"podSelector": daemons}]
    peers, name_service, server, collector = spec["egress"]
    assert peers["to"] == [{"podSelector": daemons}]
    assert name_service == {
        "ports": [{"protocol": "UDP", "port": 53}, {"protocol": "TCP", "port": 53}]
    }
    assert [each["port"] for each in server["ports"]] == [443, 6443]
    assert [each["port"] for each in collector["ports"]] == [4318, 53, 53]


def test_a_network_policy_restricts_the_controller_to_the_api_server(render: Render) -> None:
    values = {"controller": {"networkPolicy": {"enabled": True}}}
    objects = render(CHART, values)
    (policy,) = objects["NetworkPolicy"].values()
    (deployment,) = objects["Deployment"].values()

    assert policy["spec"]["podSelector"] == deployment["spec"]["selector"]
    (server,) = policy["spec"]["egress"]
    assert [each["port"] for each in server["ports"]] == [443, 6443]


def test_without_the_value_no_domain_gets_a_network_policy(render: Render) -> None:
    told = environment(render(CHART, {"daemon": {"networkPolicy": {"metricsFrom": [MONITORING]}}}))
    assert told == DEFAULTS
    assert loader.load_or_raise(Settings, [], told).cd_daemon_network_policy is None


def test_where_the_hosts_run_imex_no_policy_is_about_daemons(render: Render) -> None:
    values = {**HOST_MANAGED, "daemon": {"networkPolicy": {"enabled": True}}}
    assert "NetworkPolicy" not in render(CHART, values)
