# SPDX-License-Identifier: Apache-2.0
"""The environment variables of the GPU plugin's container."""

from collections.abc import Callable
from typing import Any

import pytest
from nvdra_gpu_plugin.settings import Settings
from nvdra_runtime.settings import flags, loader
from nvdra_testing import charts

Render = Callable[..., dict[str, dict[str, Any]]]


def environment(objects: dict[str, dict[str, Any]]) -> dict[str, str]:
    """By variable: its value, or the field of the pod that it comes from."""
    (daemonset,) = objects["DaemonSet"].values()
    (container,) = daemonset["spec"]["template"]["spec"]["containers"]
    entries = container["env"]
    assert len({entry["name"] for entry in entries}) == len(entries)
    return {
        entry["name"]: entry["value"]
        if "value" in entry
        else entry["valueFrom"]["fieldRef"]["fieldPath"]
        for entry in entries
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
    "HTTP_ENDPOINT": ":8080",
    "METRICS_PATH": "/metrics",
    "DEVICE_TAINT_EFFECT": "NoSchedule",
    "KEEP_MIG_MODE": "false",
    "CONSUMABLE_SHARES": "disabled",
    "SHARE_CONFIGS": "any",
    "NAMESPACE": "metadata.namespace",
    "IMAGE_NAME": charts.image("nvdra-gpu-plugin"),
    "IMAGE_PULL_POLICY": "IfNotPresent",
    "SERVICE_ACCOUNT_NAME": "nvdra-nvdra-gpu-plugin",
    "MPS_DAEMON_PRIORITY_CLASS_NAME": "nvdra-nvdra-gpu-plugin-mps-daemon",
    "MPS_DAEMON_REQUESTS": "cpu=50m,memory=256Mi",
    "MPS_DAEMON_LIMITS": "cpu=16,memory=32Gi",
    "MPS_DAEMON_TERMINATION_GRACE_PERIOD_SECONDS": "3600",
    "LOGGING_FORMAT": "json",
    "V": "4",
    "NVIDIA_VISIBLE_DEVICES": "void",
}


DRIVER_CONTAINER = {
    "NVIDIA_DRIVER_ROOT": "/run/nvidia/driver",
    "DRIVER_ROOT_CTR_PATH": "/driver-root/driver",
}


def test_the_plugin_gets_exactly_these_settings_by_default(render: Render) -> None:
    assert environment(render("nvdra-gpu-plugin")) == DEFAULTS


@pytest.mark.parametrize(
    ("setting", "changed"),
    [
        ({"nvidiaDriverRoot": "/run/nvidia/driver"}, DRIVER_CONTAINER),
        ({"nvidiaDriverRoot": "/run/nvidia/driver/"}, DRIVER_CONTAINER),
        ({"nvidiaCDIHookPath": "/usr/bin/h"}, {"NVIDIA_CDI_HOOK_PATH": "/usr/bin/h"}),
        ({"procRoot": "/run/nvidia/proc"}, {"PROC_ROOT": "/run/nvidia/proc"}),
        ({"sysRoot": "/run/nvidia/sys"}, {"SYS_ROOT": "/run/nvidia/sys"}),
        ({"devRoot": "/run/nvidia/dev"}, {"DEV_ROOT": "/run/nvidia/dev"}),
        (
            {"featureGates": {"MPSSupport": False, "DynamicMIG": True}},
            {"FEATURE_GATES": "DynamicMIG=true,MPSSupport=false"},
        ),
        (
            {"imagePullSecrets": [{"name": "a"}, {"name": "b"}]},
            {"IMAGE_PULL_SECRETS": "a,b"},
        ),
        ({"imagePullPolicy": "Always"}, {"IMAGE_PULL_POLICY": "Always"}),
        ({"logVerbosity": 6}, {"V": "6"}),
        ({"logVerbosity": "0"}, {"V": "0"}),
        ({"logVerbosity": 0}, {"V": "0"}),
        ({"loggingFormat": "text"}, {"LOGGING_FORMAT": "text"}),
        (
            {"otlp": {"endpoint": "http://collector:4318"}},
            {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"},
        ),
    ],
)
def test_a_global_value_is_the_setting_of_the_same_name(
    render: Render, setting: dict[str, Any], changed: dict[str, str]
) -> None:
    assert environment(render("nvdra-gpu-plugin", {"global": setting})) == DEFAULTS | changed


@pytest.mark.parametrize(
    ("values", "changed"),
    [
        ({"metrics": {"gpuHttpEndpoint": ":9090"}}, {"HTTP_ENDPOINT": ":9090"}),
        ({"metrics": {"metricsPath": "/m"}}, {"METRICS_PATH": "/m"}),
        ({"metrics": {"enabled": False}}, {"METRICS_PATH": ""}),
        ({"deviceTaintEffect": "NoExecute"}, {"DEVICE_TAINT_EFFECT": "NoExecute"}),
        ({"shareConfigs": "class"}, {"SHARE_CONFIGS": "class"}),
        ({"keepMigMode": True}, {"KEEP_MIG_MODE": "true"}),
        (
            {"mpsDaemon": {"resources": {"limits": {"cpu": None, "memory": 34359738368}}}},
            {"MPS_DAEMON_LIMITS": "memory=34359738368"},
        ),
        (
            {"mpsDaemon": {"terminationGracePeriodSeconds": 600}},
            {"MPS_DAEMON_TERMINATION_GRACE_PERIOD_SECONDS": "600"},
        ),
        ({"kubeletPluginsDirectoryPath": "/k/p"}, {"KUBELET_PLUGINS_DIRECTORY_PATH": "/k/p"}),
        ({"kubeletRegistrarDirectoryPath": "/k/r"}, {"KUBELET_REGISTRAR_DIRECTORY_PATH": "/k/r"}),
        (
            {"containers": {"gpus": {"env": [{"name": "KUBE_API_QPS", "value": "50"}]}}},
            {"KUBE_API_QPS": "50"},
        ),
    ],
)
def test_a_value_of_the_plugin_is_its_setting(
    render: Render, values: dict[str, Any], changed: dict[str, str]
) -> None:
    objects = render("nvdra-gpu-plugin", {"kubeletPlugin": values})
    assert environment(objects) == DEFAULTS | changed


def test_a_daemon_of_mps_is_not_preempted_and_preempts_no_pod(render: Render) -> None:
    """With the class of the plugin it ends, on a full node, the pod whose claim it is for."""
    gate = {"featureGates": {"MPSSupport": True}}
    objects = render("nvdra-gpu-plugin", {"global": gate})
    ((name, found),) = objects["PriorityClass"].items()
    assert environment(objects)["MPS_DAEMON_PRIORITY_CLASS_NAME"] == name
    assert (found["value"], found["preemptionPolicy"]) == (10**9, "Never")
    assert f"'{name}'" in str(objects["ValidatingAdmissionPolicy"])
    for values in ({}, {"global": gate, "kubeletPlugin": {"priorityClassName": ""}}):
        assert "PriorityClass" not in render("nvdra-gpu-plugin", values)


GATE = {"featureGates": {"ConsumableShares": True}}


@pytest.mark.parametrize("policy", ["disabled", "memory", "unlimited", "4", 4, ""])
def test_how_devices_are_shared_is_a_setting_that_the_plugin_accepts(
    render: Render, policy: str | int
) -> None:
    values = {"global": GATE, "kubeletPlugin": {"consumableShares": policy}}
    told = environment(render("nvdra-gpu-plugin", values))
    assert told["CONSUMABLE_SHARES"] == (str(policy) or "disabled")
    shares = loader.load_or_raise(Settings, [], told).shares
    assert (shares is not None) == (policy not in ("", "disabled"))


# Read by others than the plugin's flags: the container runtime, the set-up of telemetry.
READ_ELSEWHERE = {"NVIDIA_VISIBLE_DEVICES", "OTEL_EXPORTER_OTLP_ENDPOINT"}

EVERYTHING = {
    "nvidiaCDIHookPath": "/usr/bin/nvidia-cdi-hook",
    "featureGates": {"TimeSlicingSettings": True},
    "otlp": {"endpoint": "http://collector:4318"},
}


def test_every_variable_of_the_chart_is_one_of_the_plugins(render: Render) -> None:
    known = {variable for entry in flags.flag_table(Settings) for variable in entry.env}
    assert (
        set(environment(render("nvdra-gpu-plugin", {"global": EVERYTHING}))) - known
        == READ_ELSEWHERE
    )


def test_the_plugin_accepts_the_charts_settings(render: Render) -> None:
    told = environment(
        render("nvdra-gpu-plugin", {"global": {**EVERYTHING, "devRoot": "/run/nvidia/dev"}})
    )
    understood = loader.load_or_raise(Settings, [], told)
    assert str(understood.dev_root) == "/run/nvidia/dev"
    assert understood.http_endpoint == ":8080"
    assert understood.logging_format == "json"
    assert understood.v == 4
    assert understood.feature_gates.explicit["TimeSlicingSettings"]


PASSTHROUGH: dict[str, Any] = {"global": {"featureGates": {"PassthroughSupport": True}}}


def test_without_the_gate_for_passthrough_the_plugin_sees_no_more_of_the_node(
    render: Render,
) -> None:
    ignored = {"kubeletPlugin": {"passthrough": {"prebound": "ignore"}}}
    assert render("nvdra-gpu-plugin", ignored) == render("nvdra-gpu-plugin")


@pytest.mark.parametrize("gates", [{"PassthroughSupport": True}, {"AllAlpha": True}])
def test_for_passthrough_the_plugin_sees_processes_and_modules_read_only(
    render: Render, gates: dict[str, bool]
) -> None:
    values = {"global": {"featureGates": gates}}
    pod = render("nvdra-gpu-plugin", values)["DaemonSet"]["nvdra-nvdra-gpu-plugin"]["spec"][
        "template"
    ]["spec"]
    paths = {each["name"]: each.get("hostPath", {}).get("path") for each in pod["volumes"]}
    (container,) = pod["containers"]
    mounts = {
        paths[each["name"]]: (each["mountPath"], each.get("readOnly", False))
        for each in container["volumeMounts"]
        if paths[each["name"]]
    }
    assert mounts["/proc"] == ("/host/proc", True)
    assert mounts["/lib/modules"] == ("/lib/modules", True)


def test_what_becomes_of_gpus_that_others_have_bound_is_a_setting(render: Render) -> None:
    assert environment(render("nvdra-gpu-plugin", PASSTHROUGH))["PASSTHROUGH_PREBOUND"] == "offer"
    values = {**PASSTHROUGH, "kubeletPlugin": {"passthrough": {"prebound": "ignore"}}}
    assert environment(render("nvdra-gpu-plugin", values))["PASSTHROUGH_PREBOUND"] == "ignore"
