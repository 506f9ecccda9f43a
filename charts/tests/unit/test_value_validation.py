"""Values without effect, and harmful values, are rejected with a helpful message."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

Refusal = Callable[..., str]

PLUGIN = "nvdra-gpu-plugin"
DOMAINS = "nvdra-cd-plugin"
CONTROLLER = "nvdra-cd-controller"
IN_GLOBAL = [
    "nvidiaDriverRoot",
    "nvidiaCDIHookPath",
    "featureGates",
    "logVerbosity",
    "imagePullSecrets",
    "resourceApiVersion",
]
IN_THE_PLUGIN = [
    "nameOverride",
    "fullnameOverride",
    "namespaceOverride",
    "image",
    "serviceAccount",
    "kubeletPlugin",
]
GONE = {
    "altProcDevices": "global.procRoot",
    "selectorLabelsOverride": "app.kubernetes.io/name and app.kubernetes.io/instance",
    "allowDefaultNamespace": "every namespace",
    "maskNvidiaDriverParams": "not part of this release",
    "webhook": "a setting of the chart nvdra-webhook",
    "namespace": "--namespace",
    "nvidiaCtkPath": "global.nvidiaCDIHookPath",
}


@pytest.mark.parametrize("chart", ["nvdra", PLUGIN, DOMAINS])
@pytest.mark.parametrize("value", ["x", 1, True, [], {"a": 1}])
def test_a_value_that_is_global_now_is_an_error_that_names_its_place(
    refusal: Refusal, chart: str, value: Any
) -> None:
    text = refusal(chart, dict.fromkeys(IN_GLOBAL, value))
    for key in IN_GLOBAL:
        assert f"at '/{key}': value must be 'set as global.{key}'" in text


def test_a_value_of_the_plugin_at_the_top_is_an_error_that_names_its_place(
    refusal: Refusal,
) -> None:
    text = refusal("nvdra", {key: {"a": 1} for key in IN_THE_PLUGIN})
    for key in IN_THE_PLUGIN:
        place = f"set as nvdra-gpu-plugin.{key} and nvdra-cd-plugin.{key}"
        assert f"at '/{key}': value must be '{place}'" in text


def test_a_value_of_the_gpu_plugin_elsewhere_is_an_error_that_names_its_place(
    refusal: Refusal,
) -> None:
    values = {"consumableShares": 4}
    assert "set as nvdra-gpu-plugin.kubeletPlugin.consumableShares" in refusal("nvdra", values)
    assert "set as kubeletPlugin.consumableShares" in refusal(PLUGIN, values)
    for chart in (DOMAINS, CONTROLLER):
        assert "a setting of the chart nvdra-gpu-plugin" in refusal(chart, values)


def test_a_value_of_the_controller_elsewhere_is_an_error_that_names_its_place(
    refusal: Refusal,
) -> None:
    at_the_top = refusal("nvdra", {"controller": {"replicas": 2}})
    assert "at '/controller': value must be 'set as nvdra-cd-controller.controller'" in at_the_top
    for chart in (PLUGIN, DOMAINS):
        assert "a setting of the chart nvdra-cd-controller" in refusal(
            chart, {"controller": {"replicas": 2}}
        )


@pytest.mark.parametrize("chart", ["nvdra", PLUGIN, DOMAINS])
def test_a_removed_value_is_an_error_that_names_the_reason(refusal: Refusal, chart: str) -> None:
    gone = {key: why for key, why in GONE.items() if (chart, key) != ("nvdra", "webhook")}
    text = refusal(chart, dict.fromkeys(gone, "x"))
    for key, why in gone.items():
        assert re.search(rf"at '/{key}': value must be 'left out: .*{re.escape(why)}.*'", text)


def test_every_value_of_the_reference_drivers_chart_is_handled(charts: Path) -> None:
    # The top level of its values.yaml, and the keys that only its templates know.
    ours = {"gpuResourcesEnabledOverride", "resources"}
    reference = {*IN_GLOBAL, *IN_THE_PLUGIN, *GONE, *ours, "consumableShares", "controller"}
    for chart in ("nvdra", PLUGIN, DOMAINS, CONTROLLER):
        schema = json.loads((charts / chart / "values.schema.json").read_text())
        assert reference <= set(schema["properties"])


@pytest.mark.parametrize("chart", [PLUGIN, DOMAINS, CONTROLLER])
@pytest.mark.parametrize("key", ["resources", "gpuResourcesEnabledOverride"])
def test_the_umbrellas_own_values_are_rejected_by_component_charts(
    refusal: Refusal, chart: str, key: str
) -> None:
    assert "the chart nvdra" in refusal(chart, {key: True})


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"featureGates": {}, "logVerbosity": 4}, "set as global.featureGates"),
        ({"imagePullSecrets": []}, "set as global.imagePullSecrets"),
        ({"image": {"pullPolicy": "Always"}}, "set as global.imagePullPolicy"),
        ({"daemon": {"image": {"pullPolicy": "Always"}}}, "set as global.imagePullPolicy"),
        ({"nvidiaDriverRoot": "/r"}, "a setting of the charts nvdra-gpu-plugin and nvdra-cd-pl"),
        ({"kubeletPlugin": {}}, "a setting of the charts nvdra-gpu-plugin and nvdra-cd-plugin"),
        ({"resourceApiVersion": "resource.k8s.io/v1"}, "asks the API server"),
        ({"altProcDevices": "/p"}, "the controller looks at no node"),
        (
            {"controller": {"containers": {"computeDomain": {"env": []}}}},
            "set as controller.env, controller.resources and controller.securityContext",
        ),
        ({"controller": {"leaderElection": {"enabled": False}}}, "there is always an election"),
        ({"controller": {"metrics": {"httpEndpoint": "127.0.0.1:80"}}}, "httpEndpoint"),
        ({"daemon": {"resources": {"claims": []}}}, "additional properties 'claims'"),
        ({"daemon": {"resources": {"limits": {"memory": "200 MB"}}}}, "/resources/limits/memory"),
        ({"daemon": {"networkPolicy": True}}, "/daemon/networkPolicy"),
    ],
)
def test_an_invalid_value_of_the_controller_is_rejected_with_advice(
    refusal: Refusal, values: dict[str, Any], text: str
) -> None:
    assert text in refusal(CONTROLLER, values)


@pytest.mark.parametrize(
    ("values", "place"),
    [
        ({"driverRoot": "/"}, "at '': additional properties 'driverRoot'"),
        ({"resources": {"gpu": {}}}, "at '/resources': additional properties 'gpu'"),
        ({PLUGIN: {"kubeletplugin": {}}}, "at '': additional properties 'kubeletplugin'"),
        (
            {PLUGIN: {"kubeletPlugin": {"containers": {"gpus": {"limits": 1}}}}},
            "at '/kubeletPlugin/containers/gpus': additional properties 'limits'",
        ),
        (
            {"global": {"featureGates": {"DynamicMig": True}}},
            "at '/global/featureGates': additional properties 'DynamicMig'",
        ),
    ],
)
def test_an_unknown_value_is_rejected(refusal: Refusal, values: dict[str, Any], place: str) -> None:
    assert place in refusal("nvdra", values)


@pytest.mark.parametrize("chart", ["nvdra", PLUGIN, DOMAINS, "nvdra-cd-controller"])
def test_an_unknown_global_value_is_rejected_with_the_valid_ones(
    refusal: Refusal, charts: Path, chart: str
) -> None:
    text = refusal(chart, {"global": {"logverbosity": 2}})
    known = yaml.safe_load((charts / chart / "values.yaml").read_text())["global"]
    assert "global.logverbosity is not a setting of nvdra" in text
    assert f"those are {', '.join(known)}\n" in text


@pytest.mark.parametrize(
    ("values", "place"),
    [
        ({"global": {"featureGates": {"DynamicMIG": "false"}}}, "/global/featureGates/DynamicMIG"),
        ({"global": {"logVerbosity": "debug"}}, "/global/logVerbosity"),
        ({"global": {"logVerbosity": -1}}, "/global/logVerbosity"),
        ({"global": {"loggingFormat": "klog"}}, "/global/loggingFormat"),
        ({"global": {"nvidiaDriverRoot": "run/nvidia"}}, "/global/nvidiaDriverRoot"),
        ({"global": {"nvidiaDriverRoot": ""}}, "/global/nvidiaDriverRoot"),
        ({"global": {"nvidiaCDIHookPath": "nvidia-cdi-hook"}}, "/global/nvidiaCDIHookPath"),
        ({"global": {"procRoot": ""}}, "/global/procRoot"),
        ({"global": {"imagePullPolicy": "Sometimes"}}, "/global/imagePullPolicy"),
        ({"global": {"imagePullSecrets": ["pull"]}}, "/global/imagePullSecrets/0"),
        ({"global": {"resourceApiVersion": "v1"}}, "/global/resourceApiVersion"),
        ({"global": {"otlp": {"endpoint": "collector:4317"}}}, "/global/otlp/endpoint"),
        ({"resources": {"gpus": {"enabled": "false"}}}, "/resources/gpus/enabled"),
        ({"resources": {"computeDomains": {"enabled": 1}}}, "/resources/computeDomains/enabled"),
        ({"resources": {"computeDomains": {"imex": {}}}}, "set as global.imex"),
        ({"global": {"imex": {"mode": "theirs"}}}, "/global/imex/mode"),
        ({"global": {"imex": {"isolation": "channel"}}}, "/global/imex/isolation"),
        ({"global": {"imex": {"modes": ""}}}, "additional properties 'modes'"),
        ({"global": {"imex": {"mode": "hostManaged"}}}, "HostManagedIMEXDaemon=true"),
        ({"global": {"additionalNamespaces": "old"}}, "/global/additionalNamespaces"),
        ({PLUGIN: {"rbac": {"create": "yes"}}}, "/rbac/create"),
        ({PLUGIN: {"image": {"pullPolicy": "Always"}}}, "set as global.imagePullPolicy"),
    ],
)
def test_an_invalid_value_is_rejected_with_its_path(
    refusal: Refusal, values: dict[str, Any], place: str
) -> None:
    assert place in refusal("nvdra", values)


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"metrics": {"gpuHttpEndpoint": "8080"}}, "/kubeletPlugin/metrics/gpuHttpEndpoint"),
        ({"metrics": {"gpuHttpEndpoint": "127.0.0.1:80"}}, "/kubeletPlugin/metrics/gpuHttpEndp"),
        (
            {"metrics": {"computeDomainHttpEndpoint": ":8081"}},
            "a setting of the chart nvdra-cd-plugin",
        ),
        ({"containers": {"computeDomains": {}}}, "a setting of the chart nvdra-cd-plugin"),
        ({"consumableShares": "half"}, "/kubeletPlugin/consumableShares"),
        ({"consumableShares": 0}, "/kubeletPlugin/consumableShares"),
        ({"consumableShares": True}, "/kubeletPlugin/consumableShares"),
        ({"consumableShares": 4}, "global.featureGates.ConsumableShares=true"),
        ({"containers": {"init": {}}}, "there is no init container"),
        ({"containers": {"gpus": {"healthcheckPort": 51516}}}, "/healthz and /readyz on the port"),
        ({"updateStrategy": {"rollingUpdate": {"maxSurge": "101%"}}}, "maxSurge': '101%'"),
        ({"updateStrategy": {"rollingUpdate": {"maxSurge": 0}}}, "are both 0"),
        ({"updateStrategy": {"rollingUpdate": {"maxSurge": "0%"}}}, "are both 0"),
        ({"updateStrategy": {"rollingUpdate": {"maxUnavailable": -1}}}, "maxUnavailable"),
    ],
)
def test_an_invalid_value_of_the_gpu_plugin_is_rejected(
    refusal: Refusal, values: dict[str, Any], text: str
) -> None:
    assert text in refusal(PLUGIN, {"kubeletPlugin": values})


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"metrics": {"computeDomainHttpEndpoint": "8081"}}, "/kubeletPlugin/metrics/computeDomai"),
        ({"metrics": {"gpuHttpEndpoint": ":8080"}}, "a setting of the chart nvdra-gpu-plugin"),
        ({"containers": {"gpus": {}}}, "a setting of the chart nvdra-gpu-plugin"),
        (
            {"containers": {"computeDomains": {"healthcheckPort": 51515}}},
            "/healthz and /readyz on the port",
        ),
        ({"containers": {"computeDomains": {"gpuCliqueLabelEnabled": "true"}}}, "gpuCliqueLabel"),
        ({"updateStrategy": {"rollingUpdate": {"maxSurge": "101%"}}}, "maxSurge': '101%'"),
        ({"updateStrategy": {"rollingUpdate": {"maxSurge": 0}}}, "are both 0"),
    ],
)
def test_an_invalid_value_of_the_compute_domain_plugin_is_rejected(
    refusal: Refusal, values: dict[str, Any], text: str
) -> None:
    assert text in refusal(DOMAINS, {"kubeletPlugin": values})


@pytest.mark.parametrize(
    ("system", "path"),
    [("proc", "/"), ("sys", "/host"), ("proc", "/etc/"), ("proc", "/run/.."), ("dev", "/run/..")],
)
def test_a_root_that_would_hide_files_of_the_image_is_rejected(
    refusal: Refusal, system: str, path: str
) -> None:
    text = refusal("nvdra", {"global": {f"{system}Root": path}})
    assert f"global.{system}Root=" in text
    assert "at least two levels below /" in text


@pytest.mark.parametrize("path", ["/plugins", "/plugins/", "/k/../plugins"])
def test_a_kubelet_root_that_would_hide_files_of_the_image_is_rejected(
    refusal: Refusal, path: str
) -> None:
    text = refusal(PLUGIN, {"kubeletPlugin": {"kubeletPluginsDirectoryPath": path}})
    assert "kubeletPluginsDirectoryPath=/plugins" in text
    assert "at least two levels below /" in text


def test_the_directory_of_device_nodes_must_be_named_dev(refusal: Refusal) -> None:
    text = refusal("nvdra", {"global": {"devRoot": "/run/nvidia/devices"}})
    assert "global.devRoot=/run/nvidia/devices must be a directory named dev" in text
