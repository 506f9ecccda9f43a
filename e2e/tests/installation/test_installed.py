# SPDX-License-Identifier: Apache-2.0
"""`helm install`, and `helm test`, which says whether everything works."""

from typing import Any

from nvdra_testing.cluster.installation import RELEASE, Cluster

Installed = Any  # conftest.Installed; a conftest cannot be imported

V1_SINCE = (1, 34)
GOAL_S = 30
BOUND_S = 180
"""Four groups of tests share the processors."""


def test_everything_is_ready_when_helm_returns(installed: Installed) -> None:
    print(f"helm install --wait took {installed.took_s:.1f} s (goal: {GOAL_S} s)")
    assert installed.took_s < BOUND_S
    pods = installed.cluster.driver_namespace.get("pods")
    programs = sorted(pod["spec"]["containers"][0]["command"][0] for pod in pods)
    nodes = len(installed.cluster.nodes())
    assert programs == sorted(
        ["nvdra-gpu-plugin", "nvdra-cd-plugin"] * nodes
        + ["nvdra-cd-controller", "nvdra-webhook", "nvdra-webhook"]
    )
    for pod in pods:
        assert installed.cluster.driver_namespace.not_ready(pod["metadata"]["name"]) is None
        assert sum(each["restartCount"] for each in pod["status"]["containerStatuses"]) == 0
    _, _, missing = installed.notes.partition("LOOK AT THIS in your cluster:")
    expected = []
    if any(runtime.startswith("containerd://1.") for runtime in runtimes(installed.cluster)):
        expected.append("- containerd 1 injects no CDI device unless")
    if installed.cluster.release < V1_SINCE:
        expected.append("- This cluster serves no resource.k8s.io/v1")
    lines = missing.strip().splitlines()
    assert len(lines) == len(expected), lines
    for beginning in expected:
        assert any(line.startswith(beginning) for line in lines), lines


def runtimes(cluster: Cluster) -> set[str]:
    """The container runtimes of the nodes, as `containerd://1.7.35`."""
    nodes = cluster.kubectl.get("nodes")
    return {node["status"]["nodeInfo"]["containerRuntimeVersion"] for node in nodes}


def test_helm_test_checks_everything_and_leaves_nothing(cluster: Cluster) -> None:
    code, lines = cluster.helm_test()
    print("\n".join(lines))
    nodes = cluster.nodes()
    assert code == 0
    assert all(line.startswith("✓") for line in lines)
    for words in (
        "DeviceClass gpu.nvidia.com exists",
        "DeviceClass compute-domain-daemon.nvidia.com exists",
        "serves resource.nvidia.com/v1beta1",
        "1 of 1 replicas of nvdra-nvdra-cd-controller are ready",
        "2 of 2 replicas of nvdra-webhook are ready",
        "the webhook refuses a claim with a wrong config",
        "the webhook lets a claim with a right config in",
        *(f"{node}: nvdra-gpu-plugin is ready and publishes" for node in nodes),
        *(f"{node}: nvdra-cd-plugin is ready and publishes" for node in nodes),
    ):
        assert any(words in line for line in lines), words
    kinds = "pods,serviceaccounts,roles,rolebindings,clusterroles,clusterrolebindings"
    left = cluster.kubectl.run("get", kinds, "-A", "-o", "name").split()
    assert not [name for name in left if name.endswith(f"/{RELEASE}-test")]
