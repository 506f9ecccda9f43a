# SPDX-License-Identifier: Apache-2.0
"""Installations that are sure to fail, or to do harm, in the cluster as helm sees it."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from nvdra_testing import yaml_documents
from nvdra_testing.charts import FROM_REGISTRY, folder

Cluster = Any  # conftest.Cluster; a conftest cannot be imported

NODE, LABEL = "node-of-the-test", "nvidia.com/gpu.present"
WHERE = ("--namespace", "nvdra-system")
RENDERED = ("--skip-tests", "--kube-version=1.36.3", FROM_REGISTRY)
LABELS = {LABEL: "true", "zone": "a", "generation": "4", "kubernetes.io/os": "linux"}
LEVEL = "pod-security.kubernetes.io/enforce"
AFFINITY = (
    "nvdra-gpu-plugin.kubeletPlugin.affinity.nodeAffinity."
    "requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms"
)


@pytest.fixture(scope="module")
def cluster(serving: Callable[..., Cluster]) -> Cluster:
    made = serving()
    assert made.kubectl("create", "namespace", "nvdra-system").returncode == 0
    return made


@pytest.fixture
def device_plugin(cluster: Cluster) -> Iterator[Cluster]:
    """A node on which a device plugin offers GPUs."""
    metadata = {"name": NODE, "labels": LABELS}
    node = {"apiVersion": "v1", "kind": "Node", "metadata": metadata}
    assert cluster.kubectl("create", "-f", "-", stdin=node).returncode == 0
    offered = {"status": {"allocatable": {"nvidia.com/gpu": "8", "nvidia.com/mig-1g.10gb": "0"}}}
    how = ("patch", "node", NODE, "--subresource=status", "--type=merge", "-p", json.dumps(offered))
    assert cluster.kubectl(*how).returncode == 0
    yield cluster
    cluster.kubectl("delete", "node", NODE)


def tried(cluster: Cluster, *flags: str, chart: str = "nvdra") -> str:
    """What helm says against an installation; empty if it would install."""
    how = (*WHERE, "--dry-run=server", FROM_REGISTRY, *flags)
    done = cluster.helm("install", "nvdra", str(folder(chart)), *how)
    return "" if done.returncode == 0 else str(done.stderr)


def test_beside_a_device_plugin_the_gpu_plugin_is_refused(device_plugin: Cluster) -> None:
    for chart in ("nvdra", "nvdra-gpu-plugin"):
        said = tried(device_plugin, chart=chart)
        assert f"offers GPUs on {NODE} (nvidia.com/gpu), where the GPU plugin would run" in said
        assert "gpuResourcesEnabledOverride=true" in said
        assert "docs/device-plugin.md" in said
        assert tried(device_plugin, "--set=gpuResourcesEnabledOverride=true", chart=chart) == ""
    assert "leave them out with nvdra-gpu-plugin.kubeletPlugin.affinity" in tried(device_plugin)
    assert tried(device_plugin, "--set=resources.gpus.enabled=false") == ""


@pytest.mark.parametrize(
    ("requirement", "is_met"),
    [
        ("{key: zone, operator: In, values: [a, b]}", True),
        ("{key: zone, operator: In, values: [b]}", False),
        ("{key: zone, operator: NotIn, values: [b]}", True),
        ("{key: zone, operator: NotIn, values: [a]}", False),
        ("{key: other, operator: NotIn, values: [a]}", True),
        ("{key: zone, operator: Exists}", True),
        ("{key: other, operator: Exists}", False),
        ("{key: other, operator: DoesNotExist}", True),
        ("{key: zone, operator: DoesNotExist}", False),
        ('{key: generation, operator: Gt, values: ["3"]}', True),
        ('{key: generation, operator: Gt, values: ["4"]}', False),
        ('{key: generation, operator: Lt, values: ["5"]}', True),
        ('{key: zone, operator: Lt, values: ["5"]}', False),
    ],
)
def test_only_nodes_of_the_plugin_count(
    device_plugin: Cluster, requirement: str, is_met: bool
) -> None:
    term = f"{AFFINITY}=[{{matchExpressions: [{requirement}]}}]"
    values = "--set-json=" + _as_json(term)
    assert bool(tried(device_plugin, values)) == is_met


def _as_json(term: str) -> str:
    key, _, value = term.partition("=")
    return f"{key}={json.dumps(yaml_documents.load(value))}"


def test_other_ways_to_leave_a_node_out(device_plugin: Cluster) -> None:
    selector = "--set=nvdra-gpu-plugin.kubeletPlugin.nodeSelector"
    assert tried(device_plugin, f"{selector}.zone=a")
    assert tried(device_plugin, f"{selector}.zone=b") == ""
    named = "[{matchFields: [{key: metadata.name, operator: NotIn, values: [%s]}]}]"
    for name, is_met in ((NODE, False), ("another", True)):
        values = "--set-json=" + _as_json(f"{AFFINITY}={named % name}")
        assert bool(tried(device_plugin, values)) == is_met
    assert tried(device_plugin, "--set-json=nvdra-gpu-plugin.kubeletPlugin.affinity=null")


def test_a_release_that_runs_beside_a_device_plugin_goes_on_with_a_note(
    cluster: Cluster, request: pytest.FixtureRequest
) -> None:
    assert cluster.install("nvdra").returncode == 0
    request.getfixturevalue("device_plugin")
    done = cluster.helm("upgrade", "nvdra", str(folder("nvdra")), *WHERE, FROM_REGISTRY)
    assert done.returncode == 0, done.stderr
    assert f"A device plugin offers GPUs on {NODE} (nvidia.com/gpu)" in done.stdout
    cluster.helm("uninstall", "nvdra", *WHERE)


def test_a_namespace_whose_pod_security_refuses_plugins(cluster: Cluster) -> None:
    label = ("label", "--overwrite", "namespace", "nvdra-system")
    cluster.kubectl(*label, f"{LEVEL}=restricted")
    said = tried(cluster)
    assert said.count("the namespace nvdra-system enforces the Pod Security level restricted") == 1
    assert f"kubectl label --overwrite namespace nvdra-system {LEVEL}=privileged" in said
    cluster.kubectl(*label, f"{LEVEL}=privileged")
    assert tried(cluster) == ""


def test_device_classes_of_another_driver_are_named(cluster: Cluster) -> None:
    selectors = [{"cel": {"expression": "device.driver == 'gpu.nvidia.com'"}}]
    theirs = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": "gpu.nvidia.com"},
        "spec": {"selectors": selectors},
    }
    assert cluster.kubectl("create", "-f", "-", stdin=theirs).returncode == 0
    said = tried(cluster)
    assert "the DeviceClass gpu.nvidia.com, which was made by another tool than helm" in said
    assert "kubectl delete deviceclass gpu.nvidia.com" in said
    owner = ("meta.helm.sh/release-name=dra", "meta.helm.sh/release-namespace=gpus")
    cluster.kubectl("annotate", "deviceclass", "gpu.nvidia.com", *owner)
    assert "belongs to the helm release dra in the namespace gpus" in tried(cluster)
    keep = "--set=nvdra-gpu-plugin.deviceClasses.create=false"
    assert cluster.install("nvdra", keep).returncode == 0
    cluster.helm("uninstall", "nvdra", *WHERE)
    assert cluster.kubectl("delete", "deviceclass", "gpu.nvidia.com").returncode == 0
    assert cluster.install("nvdra").returncode == 0
    done = cluster.helm("upgrade", "nvdra", str(folder("nvdra")), *WHERE, FROM_REGISTRY)
    assert done.returncode == 0, done.stderr
    cluster.helm("uninstall", "nvdra", *WHERE)


def test_what_kubectl_has_applied_from_the_manifests_is_taken_over(cluster: Cluster) -> None:
    chart = str(folder("nvdra"))
    manifests = cluster.helm("template", "nvdra", chart, *WHERE, *RENDERED)
    items = [each for each in yaml_documents.load_all(manifests.stdout) if each]
    listed = {"apiVersion": "v1", "kind": "List", "items": items}
    assert cluster.kubectl("apply", "--server-side", "-f", "-", stdin=listed).returncode == 0
    without = cluster.install("nvdra")
    assert "exists and cannot be imported into the current release" in without.stderr
    done = cluster.install("nvdra", "--take-ownership")
    assert done.returncode == 0, done.stderr
    upgraded = cluster.helm("upgrade", "nvdra", chart, *WHERE, FROM_REGISTRY)
    assert upgraded.returncode == 0, upgraded.stderr
    assert cluster.helm("uninstall", "nvdra", *WHERE).returncode == 0
    left = cluster.kubectl("get", "deviceclasses,clusterroles", "-o", "name").stdout
    assert "nvidia.com" not in left
    assert "nvdra" not in left


def test_classes_of_the_manifests_of_another_release_are_not_taken_over(cluster: Cluster) -> None:
    chart = str(folder("nvdra"))
    manifests = cluster.helm("template", "other", chart, *WHERE, *RENDERED)
    items = [each for each in yaml_documents.load_all(manifests.stdout) if each]
    classes = [each for each in items if each["kind"] == "DeviceClass"]
    listed = {"apiVersion": "v1", "kind": "List", "items": classes}
    assert cluster.kubectl("create", "-f", "-", stdin=listed).returncode == 0
    assert "which was made by another tool than helm" in tried(cluster, "--take-ownership")
    cluster.kubectl("delete", "deviceclasses", "--all")
