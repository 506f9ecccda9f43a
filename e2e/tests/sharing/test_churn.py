# SPDX-License-Identifier: Apache-2.0
"""Three hundred pods of all kinds come and go on two nodes: nothing grows, and nothing is left.

`--soak` runs them. A wave has pods with a GPU each, with turns on one, with one by MPS, with MIG
devices made for them, and with MIG devices by MPS.
"""

import json
from dataclasses import dataclass
from typing import Any, Final

import pytest
from nvdra_testing.cluster import api_versions, mps_daemons, workloads
from nvdra_testing.cluster.installation import Cluster
from nvdra_testing.cluster.kubectl import Kubectl

PODS: Final = 300
SETTLED_AFTER: Final = 60
"""Memory is compared with that after so many pods."""
MOST_GROWTH: Final = 1.05
MORE_SOCKETS: Final = 8
"""The API server closes connections, and as many as are used at once are opened again."""
WAVE_S: Final = 120
SPECS: Final = "/var/run/cdi"
STATE: Final = "/var/lib/kubelet/plugins/gpu.nvidia.com"

IN_TURNS: Final = {
    "kind": "GpuConfig",
    "sharing": {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Medium"}},
}
BY_MPS: Final = mps_daemons.config(**mps_daemons.HALF)
MIG_BY_MPS: Final = mps_daemons.config("MigDeviceConfig", **mps_daemons.HALF)
IS_GPU: Final = f"{workloads.attribute('type')} == 'gpu'"
"""Where MIG devices are offered, they are of the class of GPUs, too."""


@dataclass(frozen=True)
class Leftovers:
    """What pods could leave behind on a node.

    Attributes:
        files: CDI specs and the plugin's directory.
        instances: MIG devices.
        modes: Compute mode of each GPU, and whether it is in MIG mode.
    """

    files: frozenset[str]
    instances: int
    modes: tuple[tuple[str, bool], ...]


@dataclass(frozen=True)
class Usage:
    """What a plugin uses."""

    memory_mib: float
    descriptors: int


@pytest.mark.soak("300 pods take a quarter of an hour")
@pytest.mark.timeout(3600)
def test_pods_that_come_and_go_leave_nothing_behind(
    with_all_gates: Cluster, idle: Cluster, pods: Kubectl
) -> None:
    every = kinds(with_all_gates)
    for kind, (wanted, config) in every.items():
        pods.apply(workloads.template(kind, wanted, config=config))
    started = 0
    while started < SETTLED_AFTER:
        started += wave(with_all_gates, pods, started, [*every])
    nodes = with_all_gates.nodes()
    before = {node: leftovers(with_all_gates, node) for node in nodes}
    settled = {node: usage(with_all_gates, node) for node in nodes}
    while started < PODS:
        started += wave(with_all_gates, pods, started, [*every])
    ended = {node: usage(with_all_gates, node) for node in nodes}
    print(f"{started} pods; after {SETTLED_AFTER}: {settled}; at the end: {ended}")
    assert {node: leftovers(with_all_gates, node) for node in nodes} == before
    for node in nodes:
        assert ended[node].memory_mib <= settled[node].memory_mib * MOST_GROWTH
        assert ended[node].descriptors <= settled[node].descriptors + MORE_SOCKETS


def kinds(cluster: Cluster) -> dict[str, tuple[dict[str, Any], dict[str, Any] | None]]:
    """The request and the config of each kind of claim that the cluster serves."""

    def mig(profile: str) -> dict[str, Any]:
        return workloads.mig_devices("mig", f"{workloads.attribute('profile')} == '{profile}'")

    gpu = workloads.gpus("gpu", IS_GPU)
    whole: dict[str, tuple[dict[str, Any], dict[str, Any] | None]] = {
        "whole": (gpu, None),
        "turns": (gpu, IN_TURNS),
        "mps": (gpu, BY_MPS),
    }
    if cluster.release < api_versions.PARTITIONS_SINCE:
        return whole
    return whole | {
        "small": (mig("1g.10gb"), None),
        "large": (mig("3g.40gb"), None),
        "mig-mps": (mig("2g.20gb"), MIG_BY_MPS),
    }


def wave(cluster: Cluster, pods: Kubectl, first: int, every: list[str]) -> int:
    """Let two pods of each kind run and end, and wait until nothing of them is left."""
    named = {f"p{first + at}": kind for at, kind in enumerate(every * 2)}
    manifests = [workloads.pod(name, templates=[kind]) for name, kind in named.items()]
    pods.apply({"apiVersion": "v1", "kind": "List", "items": manifests})
    pods.wait_running(*named, timeout_s=WAVE_S)
    pods.delete("pod", *named)
    pods.wait(lambda: pods.run("get", "resourceclaims", "-o", "name") or None, "no claim", WAVE_S)
    for node in cluster.nodes():
        mps_daemons.wait_gone(cluster, node)
    return len(named)


def leftovers(cluster: Cluster, node: str) -> Leftovers:
    """What is on a node now."""
    shown = json.loads(cluster.simctl(node, "show", "--json"))
    return Leftovers(
        files=frozenset(cluster.exec_on_node(node, "find", SPECS, STATE).splitlines()),
        instances=len(cluster.mig_list(node)),
        modes=tuple((gpu["compute_mode"], gpu["mig_mode"]) for gpu in shown["gpus"]),
    )


def usage(cluster: Cluster, node: str) -> Usage:
    """What a node's plugin uses now."""
    found = cluster.metrics(node)
    return Usage(
        memory_mib=found["process_resident_memory_bytes"] / 2**20,
        descriptors=int(found["process_open_fds"]),
    )
