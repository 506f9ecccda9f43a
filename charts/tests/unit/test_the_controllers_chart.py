"""nvdra-cd-controller's chart: settings, rights of both accounts, definitions that stay."""

from collections.abc import Callable
from typing import Any

import pytest
import yaml
from nvdra_api.runtime.process import flags, settings
from nvdra_cd_controller.settings import Settings

Render = Callable[..., dict[str, dict[str, Any]]]

CHART = "nvdra-cd-controller"
NAME = "nvdra-nvdra-cd-controller"
DEFAULTS = {
    "POD_NAME": "metadata.name",
    "POD_UID": "metadata.uid",
    "NODE_NAME": "spec.nodeName",
    "NAMESPACE": "nvdra-system",
    "IMAGE_NAME": "nvdra/nvdra-imex-daemon:0.1.0",
    "LOG_VERBOSITY_CD_DAEMON": "4",
    "MAX_NODES_PER_IMEX_DOMAIN": "18",
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


def rights(role: dict[str, Any]) -> dict[tuple[str, str], set[str]]:
    found: dict[tuple[str, str], set[str]] = {}
    for rule in role["rules"]:
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                found.setdefault((group, resource), set()).update(rule["verbs"])
    return found


def test_the_controller_gets_exactly_these_settings_by_default(render: Render) -> None:
    assert environment(render(CHART)) == DEFAULTS


@pytest.mark.parametrize(
    ("values", "changed"),
    [
        ({"global": {"logVerbosity": 6}}, {"V": "6", "LOG_VERBOSITY_CD_DAEMON": "6"}),
        ({"daemon": {"logVerbosity": "2"}}, {"LOG_VERBOSITY_CD_DAEMON": "2"}),
        (
            {"daemon": {"image": {"repository": "x/d", "tag": "t"}}},
            {"IMAGE_NAME": "x/d:t"},
        ),
        (
            {"global": {"imageRegistry": "registry.example.com"}},
            {"IMAGE_NAME": "registry.example.com/nvdra/nvdra-imex-daemon:0.1.0"},
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
    assert settings.read(Settings, [], told).pod_name


def test_every_variable_of_the_chart_is_one_of_the_controllers(render: Render) -> None:
    known = {variable for entry in flags.table(Settings) for variable in entry.env}
    everything = {
        "global": {"imagePullSecrets": [{"name": "a"}], "featureGates": {"AllAlpha": False}},
    }
    assert set(environment(render(CHART, everything))) - known == set()


def test_an_upgrade_brings_the_definitions_and_an_uninstall_leaves_them(render: Render) -> None:
    definitions = render(CHART)["CustomResourceDefinition"]

    assert set(definitions) == {
        "computedomains.resource.nvidia.com",
        "computedomaincliques.resource.nvidia.com",
    }
    for definition in definitions.values():
        assert definition["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}


def test_the_controller_may_do_what_it_does_and_nothing_else(render: Render) -> None:
    objects = render(CHART)

    assert rights(objects["ClusterRole"][NAME]) == {
        ("resource.nvidia.com", "computedomains"): {"list", "watch", "patch"},
        ("resource.nvidia.com", "computedomains/status"): {"update"},
        ("resource.k8s.io", "resourceclaimtemplates"): {
            "get", "list", "watch", "create", "patch", "delete",
        },
        ("", "events"): {"create", "patch"},
        ("", "nodes"): {"list", "watch", "patch"},
    }  # fmt: skip
    assert rights(objects["Role"][f"{NAME}-daemons"]) == {
        ("apps", "daemonsets"): {"get", "list", "watch", "create", "update", "patch", "delete"},
        ("resource.nvidia.com", "computedomaincliques"): {"get", "list", "watch", "update"},
        ("", "pods"): {"list", "watch"},
    }
    lease = objects["Role"][f"{NAME}-lease"]
    assert rights(lease) == {("coordination.k8s.io", "leases"): {"create", "get", "update"}}
    assert [rule.get("resourceNames") for rule in lease["rules"]] == [None, [NAME]]


def test_a_daemon_sees_cliques_and_labels_its_own_pod_in_its_namespace_alone(
    render: Render,
) -> None:
    objects = render(CHART)

    assert rights(objects["Role"]["compute-domain-daemon-role"]) == {
        ("resource.nvidia.com", "computedomaincliques"): {
            "get", "list", "watch", "create", "update", "patch",
        },
        ("", "pods"): {"patch"},
    }  # fmt: skip
    assert rights(objects["ClusterRole"]["compute-domain-daemon-role"]) == {
        ("", "events"): {"create", "patch"},
    }
    (policy,) = objects["ValidatingAdmissionPolicy"].values()
    assert policy["spec"]["failurePolicy"] == "Fail"
    (binding,) = objects["ValidatingAdmissionPolicyBinding"].values()
    assert binding["spec"]["policyName"] == policy["metadata"]["name"]


def test_where_the_driver_was_before_the_controller_and_daemons_keep_their_rights(
    template: Callable[..., Any],
) -> None:
    done = template(CHART, {"global": {"additionalNamespaces": ["old"]}})
    items = [item for item in yaml.safe_load_all(done.stdout) if item]
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

    assert rights(objects["ClusterRole"]["compute-domain-daemon-role"]) == {
        ("", "events"): {"create", "patch"},
        ("resource.nvidia.com", "computedomains"): {"get", "list", "watch"},
        ("resource.nvidia.com", "computedomains/status"): {"update", "patch"},
    }
    policy = objects["ValidatingAdmissionPolicy"][f"{NAME}-status"]["spec"]
    (condition,) = policy["matchConditions"]
    assert condition["expression"] == (
        "request.userInfo.username in "
        '["system:serviceaccount:nvdra-system:compute-domain-daemon-service-account"]'
    )


@pytest.mark.parametrize(
    "gates", [{"ComputeDomainCliques": True, "AllBeta": False}, {"AllAlpha": False}, {}]
)
def test_with_cliques_a_daemon_sees_no_domain(render: Render, gates: dict[str, bool]) -> None:
    objects = render(CHART, {"global": {"featureGates": gates}})

    assert set(rights(objects["ClusterRole"]["compute-domain-daemon-role"])) == {("", "events")}
    assert set(objects["ValidatingAdmissionPolicy"]) == {f"{NAME}-daemons"}


def test_where_the_hosts_run_imex_there_is_nothing_for_daemons(render: Render) -> None:
    objects = render(CHART, HOST_MANAGED)

    assert set(objects["ServiceAccount"]) == {NAME}
    assert set(objects["Role"]) == {f"{NAME}-lease"}
    assert "ValidatingAdmissionPolicy" not in objects
    assert ("", "nodes") not in rights(objects["ClusterRole"][NAME])


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
    ],
)
def test_a_wrong_value_is_refused(
    refusal: Callable[..., str], values: dict[str, Any], says: str
) -> None:
    assert says in refusal(CHART, values)


def test_the_pod_runs_with_no_rights_on_its_node(render: Render) -> None:
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
    assert "volumes" not in pod
