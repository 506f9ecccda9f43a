# SPDX-License-Identifier: Apache-2.0
"""`nvdra-migrate` and the charts agree about every value of the reference's chart."""

import json
import re
import subprocess
from collections.abc import Callable
from typing import Any

import pytest
from nvdra_api.gates import KNOWN_FEATURES, UNAVAILABLE_FEATURES
from nvdra_migrate import chart_variables, rules, wrapped_values
from nvdra_migrate.migration import migrate
from nvdra_migrate.reference_values import REFERENCE_VALUES
from nvdra_testing import yaml_documents
from nvdra_testing.charts import CHARTS

Objects = dict[str, dict[str, Any]]
Template = Callable[..., subprocess.CompletedProcess[str]]

# Another value for each, which the reference accepts.
OTHER: dict[str, Any] = {
    "nvidiaDriverRoot": "/run/nvidia/driver",
    "nvidiaCDIHookPath": "/usr/bin/nvidia-cdi-hook",
    "altProcDevices": "/var/lib/nvml-mock/imex/proc-devices",
    "selectorLabelsOverride": {"app": "dra"},
    "gpuResourcesEnabledOverride": True,
    "consumableShares": "4",
    "allowDefaultNamespace": True,
    "resourceApiVersion": "resource.k8s.io/v1beta1",
    "imagePullSecrets": [{"name": "pull"}],
    "image.pullPolicy": "Always",
    "serviceAccount.create": False,
    "serviceAccount.annotations": {"a": "b"},
    "featureGates": {"TimeSlicingSettings": True},
    "logVerbosity": "6",
    "maskNvidiaDriverParams": True,
    "resources.gpus.enabled": False,
    "resources.computeDomains.enabled": False,
    "resources.computeDomains.imex.mode": "hostManaged",
    "resources.computeDomains.imex.isolation": "",
    "resources.computeDomains.imex.hostSocketPath": "/run/imex.sock",
    "controller.replicas": 2,
    "controller.leaderElection.enabled": True,
    "controller.leaderElection.leaseDuration": "30s",
    "controller.leaderElection.renewDeadline": "12s",
    "controller.leaderElection.retryPeriod": "3s",
    "controller.containers.computeDomain.env": [{"name": "ADDITIONAL_NAMESPACES", "value": "old"}],
    "kubeletPlugin.updateStrategy": {"rollingUpdate": {"maxUnavailable": 1}},
    "webhook.strategy": {"type": "Recreate"},
    "webhook.failurePolicy": "Ignore",
    "webhook.tls.mode": "secret",
    "webhook.tls.certManager.issuerType": "issuer",
    "webhook.tls.certManager.dnsNames": ["a.example.com"],
}
BY_END: dict[str, Any] = {
    "priorityClassName": "high",
    "podAnnotations": {"a": "b"},
    "podSecurityContext": {"runAsUser": 1},
    "securityContext": {"runAsUser": 2},
    "nodeSelector": {"a": "b"},
    "affinity": {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}},
    "tolerations": [{"key": "x", "operator": "Exists"}],
    "resources": {"limits": {"memory": "1Gi"}},
    "env": [{"name": "MINE", "value": "1"}],
    "metricsPath": "/m",
    "enabled": True,
    "replicas": 2,
    "annotations": {"a": "b"},
    "create": False,
}
NEEDS: dict[str, dict[str, Any]] = {
    "consumableShares": {"featureGates": {"ConsumableShares": True}},
    "resources.computeDomains.imex.mode": {"featureGates": {"HostManagedIMEXDaemon": True}},
}
WITHOUT_EFFECT = {
    "gpuResourcesEnabledOverride",  # accepted, not needed
    "allowDefaultNamespace",  # lifts a refusal
}


def other(path: str) -> Any:
    """A value that is not the default, of the same kind."""
    default, end = REFERENCE_VALUES[path].default, path.rpartition(".")[2]
    if path in OTHER:
        return OTHER[path]
    if isinstance(default, bool):
        return not default
    if end in BY_END:
        return BY_END[end]
    if isinstance(default, int):
        return default + 10000
    return ":9090" if end.lower().endswith("httpendpoint") else "/x/y" if "/" in default else "x"


def nested(path: str, value: Any) -> dict[str, Any]:
    for key in reversed(path.split(".")):
        value = {key: value}
    assert isinstance(value, dict)
    return value


@pytest.mark.parametrize(
    "path", sorted(path for path in REFERENCE_VALUES if not path.startswith("webhook."))
)
def test_each_value_alone_is_carried_into_a_chart_that_takes_it(
    template: Template, path: str
) -> None:
    needed = NEEDS.get(path, {})
    result = migrate(nested(path, other(path)) | needed)
    if migrate(needed).values == result.values:
        assert [each for each in result.outcomes if each.path.startswith(path) and each.reason]
        return
    done = template("nvdra", result.values)
    assert done.returncode == 0, done.stderr
    if path not in WITHOUT_EFFECT:
        assert done.stdout != template("nvdra", migrate(needed).values).stdout


@pytest.mark.parametrize(
    "path", sorted(path for path in REFERENCE_VALUES if path.startswith("webhook."))
)
def test_each_value_of_the_webhook_alone_has_the_same_place(path: str) -> None:
    value = other(path)
    result = migrate(nested(path, value))
    assert result.values == nested(path, value)
    assert result.is_complete


def test_each_value_alone_in_our_chart_is_refused_by_name_or_means_the_same(
    refusal: Callable[..., str],
) -> None:
    # One call: the schema reports all at once. What is left is in the same place in both charts.
    same = {"resources.gpus.enabled", "resources.computeDomains.enabled"}
    same.add("gpuResourcesEnabledOverride")
    values: dict[str, Any] = {}
    for path in REFERENCE_VALUES:
        level = values
        *branch, last = path.split(".")
        for key in branch:
            level = level.setdefault(key, {})
        level[last] = other(path)
    told = re.findall(
        r"at '/(\S+?)': value must be '(?:set as|left out: )", refusal("nvdra", values)
    )
    for path in set(REFERENCE_VALUES) - same:
        place = path.replace(".", "/")
        assert any(f"{place}/".startswith(f"{each}/") for each in told) or path.startswith(
            "webhook."
        ), path


def test_a_whole_copy_of_the_references_file_installs_after_the_migration(
    render: Callable[..., Objects],
) -> None:
    values: dict[str, Any] = {}
    for path, each in REFERENCE_VALUES.items():
        level = values
        *branch, last = path.split(".")
        for key in branch:
            level = level.setdefault(key, {})
        level[last] = each.default
    result = migrate(values)
    assert result.is_complete
    assert render("nvdra", result.values) == render("nvdra")


def test_the_variables_that_the_charts_set_are_known(template: Template) -> None:
    settings = {
        "global": {
            "nvidiaCDIHookPath": "/hook",
            "featureGates": {"MPSSupport": True},
            "imagePullSecrets": [{"name": "x"}],
            "otlp": {"endpoint": "http://collector:4318"},
            "additionalNamespaces": ["old"],
        },
        "nvdra-cd-controller": {
            "daemon": {"priorityClassName": "x", "resources": {"limits": {"memory": "1Gi"}}}
        },
    }
    objects = yaml_documents.load_all(template("nvdra", settings).stdout)
    workloads = {
        each["metadata"]["name"]: each
        for each in objects
        if each and each["kind"] in ("DaemonSet", "Deployment")
    }
    for chart, known in {
        rules.GPU: chart_variables.GPU_PLUGIN,
        rules.CD: chart_variables.CD_PLUGIN,
        rules.CONTROLLER: chart_variables.CONTROLLER,
    }.items():
        (container,) = workloads[f"nvdra-{chart}"]["spec"]["template"]["spec"]["containers"]
        assert {each["name"] for each in container["env"]} == known


def test_the_features_that_are_absent_are_those_of_the_plugin() -> None:
    absent = {
        gate
        for gate in KNOWN_FEATURES
        if not migrate({"featureGates": {str(gate): True}}).is_complete
    }
    assert absent == UNAVAILABLE_FEATURES


def test_the_globals_that_are_named_beside_a_dependency_are_those_of_the_chart() -> None:
    schema = json.loads((CHARTS / "nvdra" / "values.schema.json").read_text())
    assert set(schema["properties"]["global"]["properties"]) == wrapped_values.NVDRA_GLOBALS
