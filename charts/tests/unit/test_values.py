# SPDX-License-Identifier: Apache-2.0
"""Values are documented, used and validated, and described in the same way in all charts."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from nvdra_api import gates
from nvdra_testing import yaml_documents
from nvdra_testing.charts import RESTRICTED, folder, version

Render = Callable[..., dict[str, dict[str, Any]]]
RenderTest = Callable[..., list[dict[str, Any]]]
Template = Callable[..., subprocess.CompletedProcess[str]]

PLUGIN = "nvdra-gpu-plugin"
DOMAINS = "nvdra-cd-plugin"
CONTROLLER = "nvdra-cd-controller"
WEBHOOK = "nvdra-webhook"
PARTS = (PLUGIN, DOMAINS, CONTROLLER, WEBHOOK)

# Each value of a part's chart, and another one that must make a difference.
COMMON: dict[str, Any] = {
    "global.nvidiaDriverRoot": "/run/nvidia/driver",
    "global.nvidiaCDIHookPath": "/usr/bin/nvidia-cdi-hook",
    "global.procRoot": "/run/nvidia/proc",
    "global.sysRoot": "/run/nvidia/sys",
    "global.devRoot": "/run/nvidia/dev",
    "global.featureGates": {"DynamicMIG": True},
    "global.logVerbosity": "2",
    "global.loggingFormat": "text",
    "global.imageRegistry": "other.example.com",
    "global.imagePullPolicy": "Always",
    "global.imagePullSecrets": [{"name": "pull"}],
    "global.resourceApiVersion": "resource.k8s.io/v1beta1",
    "global.allowDefaultNamespace": True,
    "global.apiServerPorts": [16443],
    "global.testPod.nodeSelector": {"a": "b"},
    "global.testPod.tolerations": [],
    "global.testPod.resources": {"limits": {"memory": "1Gi"}},
    "global.podMonitors.enabled": True,
    "global.podMonitors.interval": "1m",
    "global.podMonitors.labels": {"a": "b"},
    "global.otlp.endpoint": "http://collector:4318",
    "nameOverride": "agent",
    "fullnameOverride": "agent",
    "namespaceOverride": "gpus",
    "image.repository": "example.com/x",
    "image.tag": "dev",
    "image.digest": f"sha256:{'a' * 64}",
    "serviceAccount.create": False,
    "serviceAccount.annotations": {"a": "b"},
    "serviceAccount.name": "mine",
    "rbac.create": False,
    "kubeletPlugin.metrics.enabled": False,
    "kubeletPlugin.metrics.metricsPath": "/m",
    "kubeletPlugin.priorityClassName": "high",
    "kubeletPlugin.updateStrategy.type": "OnDelete",
    "kubeletPlugin.updateStrategy.rollingUpdate.maxSurge": 1,
    "kubeletPlugin.updateStrategy.rollingUpdate.maxUnavailable": 1,
    "kubeletPlugin.podAnnotations": {"a": "b"},
    "kubeletPlugin.podSecurityContext": {"runAsUser": 0},
    "kubeletPlugin.nodeSelector": {"a": "b"},
    "kubeletPlugin.tolerations": [],
    "kubeletPlugin.affinity": None,
    "kubeletPlugin.kubeletRegistrarDirectoryPath": "/k/r",
    "kubeletPlugin.kubeletPluginsDirectoryPath": "/k/p",
    "kubeletPlugin.networkPolicy.enabled": True,
    "kubeletPlugin.networkPolicy.metricsFrom": [{"podSelector": {}}],
}


def container(name: str) -> dict[str, Any]:
    prefix = f"kubeletPlugin.containers.{name}"
    return {
        f"{prefix}.env": [{"name": "A", "value": "b"}],
        f"{prefix}.securityContext": {"privileged": False},
        f"{prefix}.resources": {"limits": {"memory": "200Mi"}},
    }


SHARED_BY_ALL = (
    "global.featureGates",
    "global.logVerbosity",
    "global.loggingFormat",
    "global.imageRegistry",
    "global.imagePullPolicy",
    "global.imagePullSecrets",
    "global.allowDefaultNamespace",
    "global.apiServerPorts",
    "global.testPod.nodeSelector",
    "global.testPod.tolerations",
    "global.testPod.resources",
    "global.podMonitors.enabled",
    "global.podMonitors.interval",
    "global.podMonitors.labels",
    "global.otlp.endpoint",
    "nameOverride",
    "fullnameOverride",
    "namespaceOverride",
    "image.repository",
    "image.tag",
    "image.digest",
    "serviceAccount.create",
    "serviceAccount.annotations",
    "serviceAccount.name",
    "rbac.create",
)

OTHER: dict[str, dict[str, Any]] = {
    PLUGIN: {
        **COMMON,
        "global.admittedByOthers": ["policies.kyverno.io/"],
        "gpuResourcesEnabledOverride": True,
        "deviceClasses.create": False,
        "deviceClasses.extendedResourceName": "",
        "deviceClasses.migExtendedResources": ["1g.10gb"],
        "deviceClasses.vfio.enableAPIDevice": True,
        "kubeletPlugin.metrics.gpuHttpEndpoint": ":9090",
        "kubeletPlugin.deviceTaintEffect": "NoExecute",
        "kubeletPlugin.keepMigMode": True,
        "kubeletPlugin.consumableShares": 4,
        "kubeletPlugin.shareConfigs": "class",
        "kubeletPlugin.passthrough.prebound": "ignore",
        "kubeletPlugin.mpsDaemon.resources": {"limits": {"memory": "2Gi"}},
        "kubeletPlugin.mpsDaemon.terminationGracePeriodSeconds": 600,
        **container("gpus"),
    },
    DOMAINS: {
        **COMMON,
        "global.admittedByOthers": ["policies.kyverno.io/"],
        "global.imex.mode": "hostManaged",
        "global.imex.isolation": "",
        "global.imex.hostSocketPath": "/run/imex.sock",
        "global.additionalNamespaces": ["old"],
        "deviceClasses.create": False,
        "deviceClasses.computeDomainAlias": True,
        "kubeletPlugin.metrics.computeDomainHttpEndpoint": ":9090",
        "kubeletPlugin.containers.computeDomains.gpuCliqueLabelEnabled": True,
        **container("computeDomains"),
    },
    CONTROLLER: {
        **{path: COMMON[path] for path in SHARED_BY_ALL},
        "global.admittedByOthers": ["policies.kyverno.io/"],
        "global.imex.mode": "hostManaged",
        "global.imex.isolation": "",
        "global.additionalNamespaces": ["old"],
        "crds.install": "never",
        "daemon.image.repository": "example.com/d",
        "daemon.image.tag": "dev",
        "daemon.image.digest": f"sha256:{'a' * 64}",
        "daemon.logVerbosity": "2",
        "daemon.priorityClassName": "high",
        "daemon.resources": {"limits": {"memory": "200Mi"}},
        "daemon.metrics.enabled": False,
        "daemon.metrics.httpEndpoint": ":9090",
        "daemon.networkPolicy.enabled": True,
        "daemon.networkPolicy.metricsFrom": [{"podSelector": {}}],
        "controller.replicas": 2,
        "controller.maxNodesPerImexDomain": 36,
        "controller.leaderElection.leaseDuration": "30s",
        "controller.leaderElection.renewDeadline": "12s",
        "controller.leaderElection.retryPeriod": "3s",
        "controller.metrics.enabled": False,
        "controller.metrics.httpEndpoint": ":9090",
        "controller.metrics.metricsPath": "/m",
        "controller.priorityClassName": "high",
        "controller.podAnnotations": {"a": "b"},
        "controller.podSecurityContext": {"runAsUser": 1},
        "controller.securityContext": {"privileged": True},
        "controller.nodeSelector": {"a": "b"},
        "controller.tolerations": [],
        "controller.affinity": None,
        "controller.topologySpreadConstraints": [],
        "controller.networkPolicy.enabled": True,
        "controller.networkPolicy.metricsFrom": [{"podSelector": {}}],
        "controller.env": [{"name": "A", "value": "b"}],
        "controller.resources": {"limits": {"memory": "200Mi"}},
    },
    WEBHOOK: {
        **{path: COMMON[path] for path in SHARED_BY_ALL},
        "enabled": True,
        "controllerServiceAccountName": "mine",
        "replicas": 2,
        "servicePort": 8443,
        "containerPort": 8443,
        "failurePolicy": "Ignore",
        "timeoutSeconds": 3,
        "warnings.enabled": False,
        "warnings.timeoutSeconds": 3,
        "tls.mode": "self-managed",
        "tls.certManager.issuerType": "issuer",
        "tls.certManager.issuerName": "mine",
        "tls.certManager.dnsNames": ["a.example"],
        "tls.secret.name": "mine",
        "tls.secret.caBundle": "QQ==",
        "clusterLookupInterval": "0s",
        "shutdownGracePeriod": "1s",
        "metrics.enabled": False,
        "metrics.httpEndpoint": ":9090",
        "metrics.metricsPath": "/m",
        "priorityClassName": "high",
        "strategy": {"type": "Recreate"},
        "podDisruptionBudget.enabled": False,
        "podAnnotations": {"a": "b"},
        "podSecurityContext": {"runAsUser": 1},
        "nodeSelector": {"a": "b"},
        "tolerations": [],
        "affinity": {"nodeAffinity": {}},
        "topologySpreadConstraints": [],
        "networkPolicy.enabled": True,
        "networkPolicy.metricsFrom": [{"podSelector": {}}],
        "networkPolicy.apiServersFrom": [{"ipBlock": {"cidr": "10.0.0.0/28"}}],
        "containers.webhook.securityContext": {"privileged": True},
        "containers.webhook.env": [{"name": "A", "value": "b"}],
        "containers.webhook.resources": {"limits": {"memory": "80Mi"}},
    },
}
HOST_MANAGED: dict[str, Any] = {
    "global": {
        "featureGates": {"HostManagedIMEXDaemon": True},
        "imex": {"mode": "hostManaged"},
    },
}


FIELDS = {"affinity", "podSecurityContext", "securityContext"}
"""Fields of the pod: one value each, whatever they contain; `resources` of a container, too."""


def is_field(key: str, value: dict[str, Any]) -> bool:
    return key in FIELDS or (key == "resources" and value.keys() <= {"requests", "limits"})


def leaves(values: dict[str, Any], prefix: str = "") -> Iterator[str]:
    """The dotted paths of the values that a user sets; a field of the pod counts as one."""
    for key, value in values.items():
        path = f"{prefix}{key}"
        if isinstance(value, dict) and value and not is_field(key, value):
            yield from leaves(value, f"{path}.")
        else:
            yield path


def at(path: str, value: Any) -> dict[str, Any]:
    for key in reversed(path.split(".")):
        value = {key: value}
    assert isinstance(value, dict)
    return value


def read(charts: Path, chart: str) -> dict[str, Any]:
    values: dict[str, Any] = yaml_documents.load(
        (folder(chart, charts) / "values.yaml").read_text()
    )
    return values


def schema(charts: Path, chart: str) -> dict[str, Any]:
    text: dict[str, Any] = json.loads((folder(chart, charts) / "values.schema.json").read_text())
    return text


def settable(node: dict[str, Any], prefix: str = "") -> Iterator[str]:
    """The dotted paths that a schema accepts for the chart itself.

    The feature gates count as one, and so do amounts.
    """
    for key, inner in node.get("properties", {}).items():
        path = f"{prefix}{key}"
        if "const" in inner or "condition only" in inner.get("description", ""):
            continue
        if "properties" in inner and key not in ("featureGates", "resources"):
            yield from settable(inner, f"{path}.")
        else:
            yield path


@pytest.mark.parametrize("chart", PARTS)
def test_every_value_of_a_component_chart_is_tested_below(charts: Path, chart: str) -> None:
    assert set(OTHER[chart]) == set(leaves(read(charts, chart)))


@pytest.mark.parametrize(
    ("chart", "path"),
    [
        (chart, path)
        for chart, values in OTHER.items()
        for path in sorted(values)
        if path not in ("enabled", "gpuResourcesEnabledOverride")  # which lets helm install
    ],
)
def test_the_value_has_an_effect(
    render: Render, render_test: RenderTest, template: Template, chart: str, path: str
) -> None:
    # Where an account is not made, its name must be given; a mode needs its gate.
    base: dict[str, Any] = {}
    changed = at(path, OTHER[chart][path])
    if path == "serviceAccount.create":
        base = {"serviceAccount": {"name": "given"}}
        changed["serviceAccount"] |= base["serviceAccount"]
    if path == "global.imex.mode":
        base = {"global": {"featureGates": {"HostManagedIMEXDaemon": True}}}
        changed["global"] |= base["global"]
    if path == "kubeletPlugin.consumableShares":
        base = {"global": {"featureGates": {"ConsumableShares": True}}}
        changed |= base
    if path == "kubeletPlugin.passthrough.prebound":
        base = {"global": {"featureGates": {"PassthroughSupport": True}}}
        changed |= base
    if path == "global.additionalNamespaces":  # a role and an account of one name in each
        base = {"global": dict(HOST_MANAGED["global"])}
        changed["global"] |= base["global"]
    if path.startswith("global.podMonitors.") and not path.endswith(".enabled"):
        base = {"global": {"podMonitors": {"enabled": True}}}
        changed["global"]["podMonitors"] |= base["global"]["podMonitors"]
    if path == "global.allowDefaultNamespace":  # it only lifts a refusal
        assert template(chart, namespace="default").returncode != 0
        assert template(chart, changed, namespace="default").returncode == 0
        return
    if path.startswith("global.testPod."):
        assert render_test(chart, changed) != render_test(chart)
        return
    if path == "global.apiServerPorts":
        base = dict(RESTRICTED[chart])
        changed |= base
    if path.startswith("tls.certManager.issuer"):
        base = {"tls": {"certManager": {"issuerType": "clusterissuer", "issuerName": "other"}}}
        manager = changed["tls"]["certManager"]
        changed["tls"]["certManager"] = {**base["tls"]["certManager"], **manager}
    if path.startswith("tls.secret."):
        base = {"tls": {"mode": "secret", "secret": {"name": "other", "caBundle": "Qg=="}}}
        changed["tls"] = {
            "mode": "secret",
            "secret": {**base["tls"]["secret"], **changed["tls"]["secret"]},
        }
    if path.endswith("networkPolicy.metricsFrom") or path.endswith("networkPolicy.apiServersFrom"):
        *above, name = path.split(".")
        base = at(".".join([*above, "enabled"]), True)
        changed = at(".".join(above), {"enabled": True, name: OTHER[chart][path]})
    if path == "podDisruptionBudget.enabled":
        base = {"replicas": 2}
        changed |= base
    assert render(chart, changed) != render(chart, base)


@pytest.mark.parametrize("chart", PARTS)
def test_the_schema_of_a_component_chart_has_exactly_its_values(charts: Path, chart: str) -> None:
    # Under the umbrella a part is given all globals, those of the others too.
    others = set(leaves({"global": read(charts, "nvdra")["global"]})) - set(OTHER[chart])
    assert set(settable(schema(charts, chart))) - others == set(OTHER[chart])


@pytest.mark.parametrize("chart", [PLUGIN, DOMAINS])
def test_component_charts_describe_global_values_like_the_umbrella(
    charts: Path, chart: str
) -> None:
    umbrella, part = (
        (folder(each, charts) / "values.yaml").read_text().partition("\n\n")[0]
        for each in ("nvdra", chart)
    )
    assert umbrella.startswith(part)
    assert "global:" in part


@pytest.mark.parametrize("chart", PARTS)
def test_component_charts_check_global_values_like_the_umbrella(charts: Path, chart: str) -> None:
    umbrella, part = (
        schema(charts, each)["properties"]["global"]["properties"] for each in ("nvdra", chart)
    )
    assert part.items() <= umbrella.items()
    assert set(umbrella) == set(read(charts, "nvdra")["global"])


def test_what_charts_have_in_common_is_copied_from_one_place(charts: Path, copy: Path) -> None:
    files = {file.relative_to(copy): file for file in copy.glob("nvdra/**/_*.tpl")}
    shared = {file.name for file in (copy / "shared").iterdir()}
    for file in files.values():
        if file.name in shared:
            file.write_text("another text\n")
    argv = [sys.executable, str(copy / "share_templates.py")]
    subprocess.run(argv, check=True)
    for place, file in files.items():
        assert file.read_text() == (charts / place).read_text(), "python charts/share_templates.py"


def test_helm_says_nothing_of_a_checkout(template: Template) -> None:
    # helm 3 prints a line about each link before every message of its own.
    for chart in ("nvdra", *PARTS):
        assert template(chart).stderr == ""


def test_the_umbrella_names_the_versions_of_its_component_charts(charts: Path) -> None:
    umbrella = yaml_documents.load((charts / "nvdra" / "Chart.yaml").read_text())
    gpus, domains = "resources.gpus.enabled", "resources.computeDomains.enabled"
    switches = dict(zip(PARTS, (gpus, domains, domains, "webhook.enabled"), strict=True))
    assert [each["name"] for each in umbrella["dependencies"]] == list(PARTS)
    for dependency in umbrella["dependencies"]:
        part = yaml_documents.load((folder(dependency["name"], charts) / "Chart.yaml").read_text())
        assert (dependency["name"], dependency["version"]) == (part["name"], part["version"])
        assert dependency["condition"] == switches[part["name"]]


@pytest.mark.parametrize("chart", ["nvdra", *PARTS])
def test_helm_lint_reports_nothing(helm: str, charts: Path, chart: str) -> None:
    argv = [
        helm,
        "lint",
        "--strict",
        "--quiet",
        "--kube-version",
        "1.36.3",
        str(folder(chart, charts)),
    ]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "[WARNING]" not in done.stdout


def test_a_packaged_umbrella_contains_its_component_charts(
    helm: str, charts: Path, tmp_path: Path, render: Render
) -> None:
    argv = [helm, "package", str(charts / "nvdra"), "--destination", str(tmp_path)]
    subprocess.run(argv, capture_output=True, check=True)
    # An absolute path replaces the charts' folder in front of it.
    assert render(str(tmp_path / f"nvdra-{version()}.tgz")) == render("nvdra")


def test_the_charts_know_exactly_the_existing_feature_gates(charts: Path) -> None:
    text = (charts / "shared" / "_problems.tpl").read_text()
    _, _, after = text.partition('{{- define "nvdra.knownGates" -}}')
    listed = re.findall(r'"(\w+)"', after.partition("{{- end -}}")[0])
    assert listed == sorted({*map(str, gates.KNOWN_FEATURES), *gates.AGGREGATES})


@pytest.fixture
def copy(charts: Path, tmp_path: Path) -> Path:
    """Copies of the charts that a test may change."""
    ignored = shutil.ignore_patterns("tests")
    return shutil.copytree(charts, tmp_path / "charts", symlinks=True, ignore=ignored)


def document(charts: Path) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, str(charts / "document_values.py")]
    return subprocess.run(argv, capture_output=True, text=True, check=False)


def test_the_readme_lists_all_values(charts: Path, copy: Path) -> None:
    pages = [copy / "README.md", *copy.glob("nvdra/**/README.md")]
    assert len(pages) == 1 + len(("nvdra", *PARTS))
    for page in pages:
        text = re.sub(r"^\| `global\..*\n", "", page.read_text(), flags=re.MULTILINE)
        page.write_text(text)
    assert document(copy).returncode == 0
    for page in pages:
        there = (charts / page.relative_to(copy)).read_text()
        assert page.read_text() == there, "python charts/document_values.py"


def test_a_change_of_a_chart_changes_its_table(copy: Path) -> None:
    texts = {file: file.read_text() for file in copy.glob("**/values.yaml")}
    assert {file.parent.name for file in texts} == {"nvdra", *PARTS}
    # The second time, a table is replaced that contains a character of the markers around it.
    for words in ("One <of> three", "Another <of> three"):
        for file, text in texts.items():
            new = f"{words} in {file.parent.name}"
            file.write_text(text.replace("Always, IfNotPresent or Never", new))
        assert document(copy).returncode == 0
        readme = (copy / "README.md").read_text()
        for file in texts:
            _, _, after = readme.partition(f"<!-- values: {file.parent.name} -->\n")
            block, _, _ = after.partition("<!-- end -->")
            assert f"| {words} in {file.parent.name}, for every image" in block


@pytest.mark.parametrize(
    ("marker", "instead"),
    [
        (f"<!-- values: {PLUGIN} -->", "<!-- values: other -->"),
        (f"<!-- values: {PLUGIN} -->", "<!-- values: nvdra -->"),
        (f"<!-- values: {PLUGIN} -->", ""),
        ("<!-- end -->", ""),
    ],
)
def test_a_table_that_cannot_be_placed_is_an_error(copy: Path, marker: str, instead: str) -> None:
    readme = copy / "README.md"
    broken = readme.read_text().replace(marker, instead, 1)
    readme.write_text(broken)
    done = document(copy)
    assert done.returncode == 1
    assert (
        f"is needed for each of nvdra, {CONTROLLER}, {DOMAINS}, {PLUGIN}, {WEBHOOK}; found: "
        in (done.stderr)
    )
    assert "Traceback" not in done.stderr
    assert readme.read_text() == broken


def test_every_value_is_explained_or_is_a_field_of_the_pod(charts: Path) -> None:
    silent = re.findall(r"^\| `([^`]+)` \| .* \|  \|$", (charts / "README.md").read_text(), re.M)
    assert {path.rpartition(".")[2] for path in silent} == {
        "annotations",
        "priorityClassName",
        "podAnnotations",
        "podSecurityContext",
        "tolerations",
    }
