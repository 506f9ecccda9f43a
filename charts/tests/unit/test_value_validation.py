# SPDX-License-Identifier: Apache-2.0
"""Values without effect, and harmful values, are rejected with a helpful message."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from nvdra_testing import yaml_documents
from nvdra_testing.charts import folder

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
    "allowDefaultNamespace",
]
COMPONENTS = (PLUGIN, DOMAINS, CONTROLLER)
IN_EACH_COMPONENT = ["nameOverride", "fullnameOverride", "namespaceOverride"]
IN_BOTH_PLUGINS = ["priorityClassName", "affinity", "kubeletPluginsDirectoryPath"]
GONE = {
    "altProcDevices": "global.procRoot",
    "selectorLabelsOverride": "app.kubernetes.io/name and app.kubernetes.io/instance",
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


def test_each_value_at_its_old_place_is_told_its_own_new_place_at_once(refusal: Refusal) -> None:
    values = {
        **dict.fromkeys(IN_EACH_COMPONENT, "x"),
        "image": {"repository": "a/b", "tag": "v1", "pullPolicy": "Always"},
        "serviceAccount": {"create": False, "annotations": {}, "name": "mine"},
        "kubeletPlugin": {
            "metrics": {"gpuHttpEndpoint": ":1", "computeDomainHttpEndpoint": ":2"},
            "containers": {"gpus": {"env": []}, "computeDomains": {"resources": {}}},
            **dict.fromkeys(IN_BOTH_PLUGINS, "x"),
        },
        "controller": {"replicas": 2, "containers": {"computeDomain": {"env": []}}},
        "resources": {"computeDomains": {"imex": {"mode": "hostManaged"}}},
    }
    told = dict(re.findall(r"at '/(\S+)': value must be 'set as (.*)'", refusal("nvdra", values)))
    for key in IN_EACH_COMPONENT:
        assert all(f"{component}.{key}" in told[key] for component in COMPONENTS)
    for key in ("repository", "tag"):
        assert all(f"{component}.image.{key}" in told[f"image/{key}"] for component in COMPONENTS)
        assert f"nvdra-cd-controller.daemon.image.{key}" in told[f"image/{key}"]
    assert told["image/pullPolicy"] == "global.imagePullPolicy"
    for key in ("create", "annotations", "name"):
        place = told[f"serviceAccount/{key}"]
        assert all(f"{component}.serviceAccount.{key}" in place for component in COMPONENTS)
    for key in IN_BOTH_PLUGINS:
        place = f"{PLUGIN}.kubeletPlugin.{key} and {DOMAINS}.kubeletPlugin.{key}"
        assert told[f"kubeletPlugin/{key}"] == place
    for component, key in (
        (PLUGIN, "metrics/gpuHttpEndpoint"),
        (DOMAINS, "metrics/computeDomainHttpEndpoint"),
        (PLUGIN, "containers/gpus/env"),
        (DOMAINS, "containers/computeDomains/resources"),
    ):
        place = f"{component}.kubeletPlugin.{key.replace('/', '.')}"
        assert told[f"kubeletPlugin/{key}"] == place
    assert told["controller/replicas"] == f"{CONTROLLER}.controller.replicas"
    assert told["controller/containers/computeDomain/env"] == f"{CONTROLLER}.controller.env"
    assert told["resources/computeDomains/imex/mode"] == "global.imex.mode"


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
    below = {"image", "serviceAccount", "kubeletPlugin", "controller"}
    reference = {*IN_GLOBAL, *IN_EACH_COMPONENT, *below, *GONE, *ours, "consumableShares"}
    for chart in ("nvdra", PLUGIN, DOMAINS, CONTROLLER):
        schema = json.loads((folder(chart) / "values.schema.json").read_text())
        assert reference <= set(schema["properties"])


@pytest.mark.parametrize(
    ("chart", "key"),
    [
        *((chart, "resources") for chart in (PLUGIN, DOMAINS, CONTROLLER)),
        *((chart, "gpuResourcesEnabledOverride") for chart in (DOMAINS, CONTROLLER)),
    ],
)
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
            "set as controller.env",
        ),
        ({"controller": {"leaderElection": {"enabled": False}}}, "there is always an election"),
        ({"controller": {"metrics": {"httpEndpoint": "127.0.0.1:80"}}}, "httpEndpoint"),
        ({"daemon": {"resources": {"claims": []}}}, "additional properties 'claims'"),
        ({"daemon": {"resources": {"limits": {"memory": "200 MB"}}}}, "/resources/limits/memory"),
        ({"daemon": {"networkPolicy": True}}, "/daemon/networkPolicy"),
        (
            {"daemon": {"networkPolicy": {"metricsFrom": [{"podSelectors": {}}]}}},
            "/daemon/networkPolicy/metricsFrom/0",
        ),
        (
            {"daemon": {"networkPolicy": {"metricsFrom": [{"podSelector": {"a": "b"}}]}}},
            "/daemon/networkPolicy/metricsFrom/0/podSelector",
        ),
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
    ],
)
def test_an_unknown_value_is_rejected(refusal: Refusal, values: dict[str, Any], place: str) -> None:
    assert place in refusal("nvdra", values)


@pytest.mark.parametrize("chart", ["nvdra", PLUGIN, DOMAINS, "nvdra-cd-controller"])
def test_an_unknown_global_value_is_rejected_with_the_valid_ones(
    refusal: Refusal, charts: Path, chart: str
) -> None:
    text = refusal(chart, {"global": {"logverbosity": 2}})
    known = yaml_documents.load((folder(chart) / "values.yaml").read_text())["global"]
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
        ({"resources": {"computeDomains": {"imex": {"mode": ""}}}}, "set as global.imex.mode"),
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
    ("gate", "nearest"),
    [
        ("DynamicMig", "; did you mean DynamicMIG? The gates are AllAlpha,"),
        ("MPSSuport", "; did you mean MPSSupport?"),
        ("HealthCheck", "; did you mean NVMLDeviceHealthCheck?"),
        ("X", "is not a feature gate. The gates are AllAlpha,"),
    ],
)
def test_an_unknown_gate_is_rejected_with_the_nearest_one(
    refusal: Refusal, gate: str, nearest: str
) -> None:
    text = refusal("nvdra", {"global": {"featureGates": {gate: True}}})
    assert text.count(f"global.featureGates.{gate} is not a feature gate") == 1
    assert nearest in text


def test_a_gate_without_the_gate_that_it_needs_is_rejected(refusal: Refusal, template: Any) -> None:
    needed = {"IMEXDaemonsWithDNSNames": False}
    text = refusal("nvdra", {"global": {"featureGates": needed}})
    assert "ComputeDomainCliques, which is on by default, needs IMEXDaemonsWithDNSNames" in text
    for gates in (needed | {"ComputeDomainCliques": False}, {"AllBeta": False}):
        assert template("nvdra", {"global": {"featureGates": gates}}).returncode == 0


def test_all_problems_of_a_values_file_are_told_at_once(refusal: Refusal) -> None:
    env = [
        {"name": "MAX_NODES_PER_IMEX_DOMAIN", "value": "9"},
        {"name": "ADDITIONAL_NAMESPACES", "value": "old"},
        {"name": "LEADER_ELECTION_ENABLED", "value": "false"},
        {"name": "MINE", "value": "1"},
    ]
    values = {
        "global": {
            "verbosity": 2,
            "featureGates": {"Zz": True},
            "imex": {"mode": "hostManaged"},
            "devRoot": "/run/x",
        },
        PLUGIN: {
            "fullnameOverride": "same",
            "serviceAccount": {"create": False},
            "kubeletPlugin": {"consumableShares": 2, "metrics": {"gpuHttpEndpoint": ":6060"}},
            "deviceClasses": {"migExtendedResources": ["big"]},
        },
        DOMAINS: {"fullnameOverride": "same", "namespaceOverride": "other"},
        CONTROLLER: {"controller": {"env": env, "metrics": {"httpEndpoint": ":70000"}}},
        "webhook": {"enabled": True, "namespaceOverride": "third"},
    }
    text = refusal("nvdra", values, namespace="default")
    problems = re.findall(r"^- (.*)$", text, re.M)
    expected = [
        "global.verbosity is not a setting",
        "global.featureGates.Zz is not",
        "the namespace is default",
        "global.imex.mode=hostManaged needs",
        f"{CONTROLLER}.controller.metrics.httpEndpoint=:70000: ports end at 65535",
        f"{CONTROLLER}.controller.env: MAX_NODES_PER_IMEX_DOMAIN is a setting of this chart: "
        f"set {CONTROLLER}.controller.maxNodesPerImexDomain instead",
        f"{CONTROLLER}.controller.env: ADDITIONAL_NAMESPACES is a setting of this chart: "
        "set global.additionalNamespaces instead",
        f"{CONTROLLER}.controller.env: LEADER_ELECTION_ENABLED is set by this chart; leave it out",
        "global.devRoot=/run/x must be",
        f"{PLUGIN}.serviceAccount.create=false needs serviceAccount.name",
        f"{PLUGIN}.kubeletPlugin.consumableShares=2 needs",
        f'{PLUGIN}.deviceClasses.migExtendedResources: "big" is no MIG profile',
        f"{PLUGIN}.kubeletPlugin.metrics.gpuHttpEndpoint=:6060: the debug endpoint has port 6060",
        f"{PLUGIN} and {DOMAINS} would both be named same",
        f"{DOMAINS} would be in the namespace other and {CONTROLLER} in default",
        f"webhook would be in the namespace third and {CONTROLLER} in default, and claims of IMEX",
    ]
    for start in expected:
        assert [each for each in problems if each.startswith(start)], f"{start}\n{text}"
    assert len(problems) == len(expected)


def test_a_component_alone_and_one_in_another_chart_tell_their_own_problems(
    refusal: Refusal, tmp_path: Path
) -> None:
    values = {"serviceAccount": {"create": False}}
    assert "- serviceAccount.create=false needs" in refusal(PLUGIN, values)
    (tmp_path / "charts").mkdir()
    (tmp_path / "Chart.yaml").write_text("apiVersion: v2\nname: theirs\nversion: 1.0.0\n")
    for chart in ("nvdra", PLUGIN):
        (tmp_path / "charts" / chart).symlink_to(folder(chart))
    assert "serviceAccount.create=false needs" in refusal(str(tmp_path), {PLUGIN: values})
    assert "serviceAccount.create=false needs" in refusal(
        str(tmp_path), {"nvdra": {PLUGIN: values}}
    )


@pytest.mark.parametrize("chart", ["nvdra", *COMPONENTS])
def test_the_default_namespace_is_rejected_unless_it_is_allowed(
    refusal: Refusal, template: Any, chart: str
) -> None:
    assert "global.allowDefaultNamespace=true" in refusal(chart, namespace="default")
    allowed = {"global": {"allowDefaultNamespace": True}}
    assert template(chart, allowed, namespace="default").returncode == 0
    if chart != "nvdra":
        elsewhere = {"namespaceOverride": "gpus"}
        assert template(chart, elsewhere, namespace="default").returncode == 0


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
