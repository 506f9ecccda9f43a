"""One description of the values: what is listed is used, checked, and the same in both charts."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from nvdra_api.types import gates

Render = Callable[..., dict[str, dict[str, Any]]]

PLUGIN = "nvdra-gpu-plugin"
CONTROLLER = "nvdra-cd-controller"

# Each value of the plugin's chart, and another one that must make a difference.
OTHER: dict[str, Any] = {
    "global.nvidiaDriverRoot": "/run/nvidia/driver",
    "global.nvidiaCDIHookPath": "/usr/bin/nvidia-cdi-hook",
    "global.procRoot": "/run/nvidia/proc",
    "global.sysRoot": "/run/nvidia/sys",
    "global.devRoot": "/run/nvidia/dev",
    "global.featureGates": {"DynamicMIG": True},
    "global.logVerbosity": "2",
    "global.imageRegistry": "registry.example.com",
    "global.imagePullPolicy": "Always",
    "global.imagePullSecrets": [{"name": "pull"}],
    "global.resourceApiVersion": "resource.k8s.io/v1beta1",
    "global.otlp.endpoint": "http://collector:4318",
    "nameOverride": "agent",
    "fullnameOverride": "agent",
    "namespaceOverride": "gpus",
    "image.repository": "example.com/x",
    "image.tag": "dev",
    "serviceAccount.create": False,
    "serviceAccount.annotations": {"a": "b"},
    "serviceAccount.name": "mine",
    "rbac.create": False,
    "deviceClasses.extendedResourceName": "",
    "kubeletPlugin.metrics.enabled": False,
    "kubeletPlugin.metrics.gpuHttpEndpoint": ":9090",
    "kubeletPlugin.metrics.metricsPath": "/m",
    "kubeletPlugin.priorityClassName": "high",
    "kubeletPlugin.updateStrategy.type": "OnDelete",
    "kubeletPlugin.updateStrategy.rollingUpdate.maxUnavailable": 1,
    "kubeletPlugin.podAnnotations": {"a": "b"},
    "kubeletPlugin.podSecurityContext": {"runAsUser": 0},
    "kubeletPlugin.nodeSelector": {"a": "b"},
    "kubeletPlugin.tolerations": [],
    "kubeletPlugin.affinity": None,
    "kubeletPlugin.kubeletRegistrarDirectoryPath": "/k/r",
    "kubeletPlugin.kubeletPluginsDirectoryPath": "/k/p",
    "kubeletPlugin.networkPolicy.enabled": True,
    "kubeletPlugin.containers.gpus.env": [{"name": "A", "value": "b"}],
    "kubeletPlugin.containers.gpus.securityContext.privileged": False,
    "kubeletPlugin.containers.gpus.resources": {"limits": {"memory": "200Mi"}},
}


def leaves(values: dict[str, Any], prefix: str = "") -> Iterator[str]:
    """The dotted paths of the values that a user sets; an affinity is one."""
    for key, value in values.items():
        path = f"{prefix}{key}"
        if isinstance(value, dict) and value and key != "affinity":
            yield from leaves(value, f"{path}.")
        else:
            yield path


def at(path: str, value: Any) -> dict[str, Any]:
    for key in reversed(path.split(".")):
        value = {key: value}
    assert isinstance(value, dict)
    return value


def read(charts: Path, chart: str) -> dict[str, Any]:
    values: dict[str, Any] = yaml.safe_load((charts / chart / "values.yaml").read_text())
    return values


def schema(charts: Path, chart: str) -> dict[str, Any]:
    text: dict[str, Any] = json.loads((charts / chart / "values.schema.json").read_text())
    return text


def settable(node: dict[str, Any], prefix: str = "") -> Iterator[str]:
    """The dotted paths that a schema accepts; the gates are one of them."""
    for key, inner in node.get("properties", {}).items():
        path = f"{prefix}{key}"
        if "const" in inner:
            continue
        if "properties" in inner and key != "featureGates":
            yield from settable(inner, f"{path}.")
        else:
            yield path


def test_every_value_of_the_plugin_has_its_test_below(charts: Path) -> None:
    assert set(OTHER) == set(leaves(read(charts, PLUGIN)))


@pytest.mark.parametrize("path", sorted(OTHER))
def test_this_value_makes_a_difference(render: Render, path: str) -> None:
    # Where an account is not made, its name must be given.
    base: dict[str, Any] = {"serviceAccount": {"name": "given"}} if "Account.create" in path else {}
    changed = at(path, OTHER[path])
    if base:
        changed["serviceAccount"] |= base["serviceAccount"]
    assert render(PLUGIN, changed) != render(PLUGIN, base)


def test_the_schema_of_the_plugin_knows_its_values_and_no_more(charts: Path) -> None:
    assert set(settable(schema(charts, PLUGIN))) == set(OTHER) - {
        "kubeletPlugin.containers.gpus.securityContext.privileged",
    } | {"kubeletPlugin.containers.gpus.securityContext"}


def test_both_charts_describe_the_globals_in_the_same_words(charts: Path) -> None:
    blocks = [
        (charts / chart / "values.yaml").read_text().partition("\n\n")[0]
        for chart in ("nvdra", PLUGIN)
    ]
    assert blocks[0] == blocks[1]
    assert "global:" in blocks[0]


def test_both_charts_check_the_globals_alike(charts: Path) -> None:
    properties = [schema(charts, chart)["properties"]["global"] for chart in ("nvdra", PLUGIN)]
    assert properties[0] == properties[1]
    assert set(properties[0]["properties"]) == set(read(charts, "nvdra")["global"])


def test_the_umbrella_and_its_parts_have_the_versions_that_they_name(charts: Path) -> None:
    umbrella = yaml.safe_load((charts / "nvdra" / "Chart.yaml").read_text())
    part = yaml.safe_load((charts / PLUGIN / "Chart.yaml").read_text())
    (dependency,) = umbrella["dependencies"]
    assert (dependency["name"], dependency["version"]) == (part["name"], part["version"])
    assert dependency["condition"] == "resources.gpus.enabled"


@pytest.mark.parametrize("chart", ["nvdra", PLUGIN])
def test_helm_lint_has_nothing_to_say(helm: str, charts: Path, chart: str) -> None:
    argv = [helm, "lint", "--strict", "--quiet", "--kube-version", "1.36.3", str(charts / chart)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "[WARNING]" not in done.stdout


def test_a_packaged_umbrella_brings_its_parts_along(
    helm: str, charts: Path, tmp_path: Path, render: Render
) -> None:
    argv = [helm, "package", str(charts / "nvdra"), "--destination", str(tmp_path)]
    subprocess.run(argv, capture_output=True, check=True)
    # An absolute path replaces the charts' folder in front of it.
    assert render(str(tmp_path / "nvdra-0.1.0.tgz")) == render("nvdra")


def test_inside_somebody_elses_chart_their_globals_are_left_alone(
    charts: Path, tmp_path: Path, render: Render
) -> None:
    (tmp_path / "charts").mkdir()
    (tmp_path / "Chart.yaml").write_text("apiVersion: v2\nname: theirs\nversion: 1.0.0\n")
    (tmp_path / "charts" / "nvdra").symlink_to(charts / "nvdra")
    values = {"global": {"storageClass": "fast", "logVerbosity": 2}}
    (daemonset,) = render(str(tmp_path), values)["DaemonSet"].values()
    (container,) = daemonset["spec"]["template"]["spec"]["containers"]
    assert {"name": "V", "value": "2"} in container["env"]


def test_the_schema_knows_exactly_the_gates_there_are(charts: Path) -> None:
    known = schema(charts, "nvdra")["properties"]["global"]["properties"]["featureGates"]
    assert set(known["properties"]) == {*map(str, gates.GATES), *gates.AGGREGATES}


@pytest.fixture
def copy(charts: Path, tmp_path: Path) -> Path:
    """The charts in a folder where a test may change them."""
    ignored = shutil.ignore_patterns("tests")
    return shutil.copytree(charts, tmp_path / "charts", symlinks=True, ignore=ignored)


def document(charts: Path) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, str(charts / "document_values.py")]
    return subprocess.run(argv, capture_output=True, text=True, check=False)


def test_the_readme_lists_the_values_as_they_are(charts: Path, copy: Path) -> None:
    assert document(copy).returncode == 0
    assert (copy / "README.md").read_text() == (charts / "README.md").read_text()


def test_what_changes_in_any_chart_changes_its_table(copy: Path) -> None:
    texts = {file: file.read_text() for file in copy.glob("*/values.yaml")}
    assert {file.parent.name for file in texts} == {"nvdra", CONTROLLER, PLUGIN}
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
            assert f"| {words} in {file.parent.name}, for every image. |" in block


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
    assert f"is needed for each of nvdra, {CONTROLLER}, {PLUGIN}; found: " in done.stderr
    assert "Traceback" not in done.stderr
    assert readme.read_text() == broken


def test_every_value_is_explained_or_is_a_field_of_the_pod(charts: Path) -> None:
    silent = re.findall(r"^\| `([^`]+)` \| .* \|  \|$", (charts / "README.md").read_text(), re.M)
    assert {path.rpartition(".")[2] for path in silent} == {
        "annotations",
        "priorityClassName",
        "podAnnotations",
        "podSecurityContext",
        "nodeSelector",
        "tolerations",
        "resources",
    }
