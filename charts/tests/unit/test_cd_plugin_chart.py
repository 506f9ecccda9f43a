# SPDX-License-Identifier: Apache-2.0
"""The chart nvdra-cd-plugin: settings, device classes, permissions."""

from collections.abc import Callable
from typing import Any

import pytest
from nvdra_cd_plugin.settings import Settings
from nvdra_runtime.settings import flags, loader
from nvdra_testing import charts, yaml_documents

Render = Callable[..., dict[str, dict[str, Any]]]

CHART = "nvdra-cd-plugin"
NAME = "nvdra-nvdra-cd-plugin"
HOST_MANAGED: dict[str, Any] = {
    "global": {
        "featureGates": {"HostManagedIMEXDaemon": True},
        "imex": {"mode": "hostManaged"},
    },
}
DEFAULTS = {
    "NODE_NAME": "spec.nodeName",
    "POD_NAME": "metadata.name",
    "POD_UID": "metadata.uid",
    "NVIDIA_DRIVER_ROOT": "/",
    "DRIVER_ROOT_CTR_PATH": "/driver-root",
    "PROC_ROOT": "/proc",
    "SYS_ROOT": "/sys",
    "DEV_ROOT": "/dev",
    "CDI_ROOT": "/var/run/cdi",
    "KUBELET_REGISTRAR_DIRECTORY_PATH": "/var/lib/kubelet/plugins_registry",
    "KUBELET_PLUGINS_DIRECTORY_PATH": "/var/lib/kubelet/plugins",
    "LOGGING_FORMAT": "json",
    "V": "4",
    "NVIDIA_VISIBLE_DEVICES": "void",
    "NAMESPACE": "nvdra-system",
    "IMEX_MODE": "driverManaged",
    "IMEX_ISOLATION": "domain",
    "IMEX_HOST_SOCKET_PATH": "/etc/nvidia-imex/imex_ctrl.sock",
    "GPU_CLIQUE_LABEL_ENABLED": "false",
    "HTTP_ENDPOINT": ":8081",
    "METRICS_PATH": "/metrics",
}


def pod(objects: dict[str, dict[str, Any]]) -> dict[str, Any]:
    spec: dict[str, Any] = objects["DaemonSet"][NAME]["spec"]["template"]["spec"]
    return spec


def environment(objects: dict[str, dict[str, Any]]) -> dict[str, str]:
    (container,) = pod(objects)["containers"]
    entries = container["env"]
    assert len({entry["name"] for entry in entries}) == len(entries)
    return {
        entry["name"]: entry["value"]
        if "value" in entry
        else entry["valueFrom"]["fieldRef"]["fieldPath"]
        for entry in entries
    }


def test_the_plugin_gets_exactly_these_settings_by_default(render: Render) -> None:
    assert environment(render(CHART)) == DEFAULTS


@pytest.mark.parametrize(
    ("values", "changed"),
    [
        (
            {"global": {"nvidiaDriverRoot": "/r/d/"}},
            {"NVIDIA_DRIVER_ROOT": "/r/d", "DRIVER_ROOT_CTR_PATH": "/driver-root/d"},
        ),
        ({"global": {"featureGates": {"AllBeta": True}}}, {"FEATURE_GATES": "AllBeta=true"}),
        (
            {"global": {"additionalNamespaces": ["a", "b"]}, "rbac": {"create": False}},
            {"ADDITIONAL_NAMESPACES": "a,b"},
        ),
        ({"global": {"imex": {"hostSocketPath": "/s"}}}, {"IMEX_HOST_SOCKET_PATH": "/s"}),
        (
            HOST_MANAGED,
            {"IMEX_MODE": "hostManaged", "FEATURE_GATES": "HostManagedIMEXDaemon=true"},
        ),
        ({"namespaceOverride": "domains"}, {"NAMESPACE": "domains"}),
        (
            {"kubeletPlugin": {"metrics": {"computeDomainHttpEndpoint": ":9"}}},
            {"HTTP_ENDPOINT": ":9"},
        ),
        ({"kubeletPlugin": {"metrics": {"enabled": False}}}, {"METRICS_PATH": ""}),
        (
            {"kubeletPlugin": {"containers": {"computeDomains": {"gpuCliqueLabelEnabled": True}}}},
            {"GPU_CLIQUE_LABEL_ENABLED": "true"},
        ),
    ],
)
def test_a_value_is_the_setting_of_the_same_name(
    render: Render, values: dict[str, Any], changed: dict[str, str]
) -> None:
    told = environment(render(CHART, values))

    assert told == DEFAULTS | changed
    assert str(loader.load_or_raise(Settings, [], told).plugin_dir).endswith(
        "/compute-domain.nvidia.com"
    )


# Read by others than the plugin's flags: the container runtime, the set-up of telemetry.
READ_ELSEWHERE = {"NVIDIA_VISIBLE_DEVICES", "OTEL_EXPORTER_OTLP_ENDPOINT"}


def test_every_variable_of_the_chart_is_one_of_the_plugins(render: Render) -> None:
    known = {variable for entry in flags.flag_table(Settings) for variable in entry.env}
    everything = {
        "nvidiaCDIHookPath": "/usr/bin/nvidia-cdi-hook",
        "featureGates": {"AllAlpha": False},
        "otlp": {"endpoint": "http://collector:4318"},
        "additionalNamespaces": ["old"],
    }
    objects = render(CHART, {"global": everything, "rbac": {"create": False}})
    assert set(environment(objects)) - known == READ_ELSEWHERE


def test_the_pod_has_the_same_mounts_as_the_gpu_plugins(render: Render) -> None:
    mine = pod(render(CHART))
    theirs = render("nvdra-gpu-plugin")["DaemonSet"]["nvdra-nvdra-gpu-plugin"]
    gpus = theirs["spec"]["template"]["spec"]
    (container,), (other,) = mine["containers"], gpus["containers"]

    assert container["name"] == "compute-domains"
    assert container["command"] == ["nvdra-cd-plugin"]
    assert container["image"] == charts.image("nvdra-cd-plugin")
    assert container["ports"] == [{"name": "http", "containerPort": 8081}]
    assert container["volumeMounts"] == other["volumeMounts"]
    assert mine["volumes"] == gpus["volumes"]
    assert mine["affinity"] == gpus["affinity"]
    assert mine["terminationGracePeriodSeconds"] == gpus["terminationGracePeriodSeconds"]


def test_each_class_selects_one_kind_of_device(render: Render) -> None:
    expressions = {
        name: item["spec"]["selectors"][0]["cel"]["expression"]
        for name, item in render(CHART)["DeviceClass"].items()
    }
    driver = "device.driver == 'compute-domain.nvidia.com'"
    attributes = "device.attributes['compute-domain.nvidia.com']"
    assert expressions == {
        "compute-domain-daemon.nvidia.com": f"{driver} && {attributes}.type == 'daemon'",
        "compute-domain-default-channel.nvidia.com": (
            f"{driver} && {attributes}.type == 'channel' && {attributes}.id == 0"
        ),
    }


def test_where_the_hosts_run_imex_there_is_no_daemon_class(render: Render) -> None:
    objects = render(CHART, HOST_MANAGED)

    assert set(objects["DeviceClass"]) == {"compute-domain-default-channel.nvidia.com"}
    assert set(objects["ValidatingAdmissionPolicy"]) == {NAME, f"{NAME}-nodes"}
    assert "Role" not in objects


def test_the_plugin_reads_and_admits_daemons_in_earlier_namespaces(
    template: Callable[..., Any],
) -> None:
    done = template(CHART, {"global": {"additionalNamespaces": ["old"]}})
    items = [item for item in yaml_documents.load_all(done.stdout) if item]
    placed = [(each["kind"], each["metadata"].get("namespace")) for each in items]
    for namespace in ("nvdra-system", "old"):
        assert ("Role", namespace) in placed
        assert ("RoleBinding", namespace) in placed
    (policy,) = (
        each
        for each in items
        if each["kind"] == "ValidatingAdmissionPolicy"
        and each["metadata"]["name"] == f"{NAME}-daemon-class"
    )
    managed = policy["spec"]["variables"][0]
    assert managed == {"name": "managed", "expression": '["nvdra-system","old"]'}


@pytest.mark.parametrize(
    "values", [{}, {"serviceAccount": {"name": "mine"}}, {"namespaceOverride": "domains"}]
)
def test_policies_roles_and_pods_name_the_same_account(
    render: Render, values: dict[str, Any]
) -> None:
    objects = render(CHART, values)
    name = pod(objects)["serviceAccountName"]
    namespace = objects["DaemonSet"][NAME]["metadata"]["namespace"]

    for policy in (NAME, f"{NAME}-nodes"):
        spec = objects["ValidatingAdmissionPolicy"][policy]["spec"]
        (condition,) = spec["matchConditions"]
        assert condition["expression"] == (
            f"request.userInfo.username == 'system:serviceaccount:{namespace}:{name}'"
        )
        assert spec["failurePolicy"] == "Fail"
    for kind in ("ClusterRoleBinding", "RoleBinding"):
        for binding in objects[kind].values():
            assert binding["subjects"] == [
                {"kind": "ServiceAccount", "name": name, "namespace": namespace}
            ]


@pytest.mark.parametrize("version", ["v1", "v1beta2", "v1beta1"])
def test_claims_of_the_daemons_class_are_checked_in_every_api_version(
    render: Render, version: str
) -> None:
    values = {"global": {"resourceApiVersion": f"resource.k8s.io/{version}"}}
    policy = render(CHART, values)["ValidatingAdmissionPolicy"][f"{NAME}-daemon-class"]
    constraints = policy["spec"]["matchConstraints"]
    assert constraints["matchPolicy"] == "Equivalent"
    (rule,) = constraints["resourceRules"]
    assert rule["apiVersions"] == [version]
    assert ("exactly" in policy["spec"]["variables"][2]["expression"]) == (version != "v1beta1")


def test_openshift_allows_privileged_pods(render: Render) -> None:
    scc = "security.openshift.io/v1/SecurityContextConstraints"
    bindings = render(CHART, None, "--api-versions", scc)["ClusterRoleBinding"]
    extra = bindings[f"{NAME}-openshift-privileged"]
    assert extra["roleRef"]["name"] == "system:openshift:scc:privileged"
    assert extra["subjects"] == bindings[NAME]["subjects"]
