# SPDX-License-Identifier: Apache-2.0
"""What the test of an installation reads of a plugin whose DaemonSet may not create a pod."""

from nvdra_runtime.installation.checker import Checker
from nvdra_runtime.installation.findings import Checks, Plugin
from nvdra_runtime.installation.placement import Placement
from nvdra_runtime.kube.client import Client
from nvdra_testing.control_plane import domain_objects
from nvdra_testing.control_plane.apiserver import ApiServer

NAME = "nvdra-gpu-plugin"
LEVEL = 'violates PodSecurity "restricted:latest": privileged'


def write_event(server: ApiServer, namespace: str, daemonset: str, at: str, says: str) -> None:
    about = {"kind": "DaemonSet", "name": daemonset, "namespace": namespace}
    event = {
        "metadata": {"generateName": "e-"},
        "involvedObject": about,
        "reason": "FailedCreate",
        "message": f'Error creating: pods "{daemonset}-x2v" is forbidden: {says}',
        "lastTimestamp": f"2026-01-01T00:00:{at}Z",
    }
    server.create(f"/api/v1/namespaces/{namespace}/events", event)


async def test_pods_that_are_refused_are_why_the_plugin_runs_on_no_node(
    server: ApiServer, api: Client
) -> None:
    namespace = domain_objects.create_namespace(server, "nvdra")
    write_event(server, namespace, NAME, "02", LEVEL)
    write_event(server, namespace, NAME, "01", "exceeded quota")
    write_event(server, namespace, "another", "03", "exceeded quota")
    plugin = Plugin(
        program=NAME,
        driver="gpu.nvidia.com",
        namespace=namespace,
        selector=f"app.kubernetes.io/name={NAME}",
        daemonset=NAME,
    )
    (found,) = await Checker(api, Checks(plugins=(plugin,))).look()
    assert found.text == (
        f"{NAME} runs on no node, because its pods are refused: "
        f"Error creating: pods is forbidden: {LEVEL}"
    )
    assert f"namespace {namespace} pod-security.kubernetes.io/enforce=privileged" in found.remedy


async def test_nodes_with_a_taint_are_found_by_the_labels_of_the_plugin(
    server: ApiServer, api: Client
) -> None:
    namespace = domain_objects.create_namespace(server, "nvdra")
    taint = {"key": "sku", "value": "gpu", "effect": "NoSchedule"}
    for name, labels, taints in (
        ("tainted", {"gpus": "yes", "kubernetes.io/os": "linux"}, [taint]),
        ("by-the-other-label", {"pci": "yes", "kubernetes.io/os": "linux"}, [taint]),
        ("without-gpus", {"kubernetes.io/os": "linux"}, [taint]),
        ("of-another-system", {"gpus": "yes", "kubernetes.io/os": "windows"}, [taint]),
        ("free", {"gpus": "yes", "kubernetes.io/os": "linux"}, []),
    ):
        node = {"metadata": {"name": name, "labels": labels}, "spec": {"taints": taints}}
        server.create("/api/v1/nodes", node)
    terms = tuple(
        {"matchExpressions": [{"key": key, "operator": "In", "values": ["yes"]}]}
        for key in ("gpus", "pci")
    )
    selector = {"kubernetes.io/os": "linux"}
    placement = Placement(nodeSelector=selector, terms=terms, setting="kubeletPlugin.tolerations")
    plugin = Plugin(
        program=NAME,
        driver="gpu.nvidia.com",
        namespace=namespace,
        selector=f"app.kubernetes.io/name={NAME}",
        placement=placement,
    )
    (found,) = await Checker(api, Checks(plugins=(plugin,))).look()
    assert found.text == (
        f"by-the-other-label, tainted: {NAME} does not run there, because it does not tolerate "
        "sku=gpu:NoSchedule"
    )
    assert "set kubeletPlugin.tolerations to" in found.remedy
