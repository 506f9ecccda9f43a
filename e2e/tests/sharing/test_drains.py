# SPDX-License-Identifier: Apache-2.0
"""A node whose GPUs do not work any more is drained, whatever its pods have changed of them.

Each remedy for such a GPU begins with that. The driver has all its gates for single GPUs.
"""

import random
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import pytest
from nvdra_testing.cluster import api_versions, mps_daemons, workloads
from nvdra_testing.cluster.installation import Cluster
from nvdra_testing.cluster.kubectl import Kubectl
from nvdra_testing.cluster.workloads import Manifest
from nvdra_testing.crash_campaigns import node_agreement
from nvdra_testing.crash_campaigns.node_agreement import GpuModes
from nvdra_testing.hardware.gpu_faults import CALL_FAULTS
from nvdra_testing.week_of_a_node.incidents import Place

NODE = "node-1"
DRAIN_S = 120
"""Without a limit of its own, `kubectl drain` waits until the last pod is gone. A GPU that hangs
holds up each of its claims for half a minute."""
OFFERED_S = 120
GPUS = 5
"""Those that have pods."""
IN_TURNS = {
    "kind": "GpuConfig",
    "sharing": {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long"}},
}
MPS_ON_MIG = {**mps_daemons.config(), "kind": "MigDeviceConfig"}


def claims(cluster: Cluster) -> Mapping[str, Manifest]:
    """A claim of every kind, each of a GPU of its own; those of MIG devices, if there are some."""
    uuids = [cluster.device(NODE, f"gpu-{index}").uuid for index in range(GPUS)]

    def whole(index: int, **how: Any) -> tuple[Manifest, Mapping[str, Any]]:
        return workloads.gpus("gpu", workloads.is_whole_gpu(uuids[index])), how

    found = {
        "whole": whole(0),
        "in-turns": whole(1, config=IN_TURNS),
        "mps": whole(2, config=mps_daemons.config()),
    }
    if cluster.release >= api_versions.PARTITIONS_SINCE:
        found["mig"] = workloads.mig_device_of(uuids[3], "1g.10gb"), {}
        found["beside"] = workloads.mig_device_of(uuids[3], "2g.20gb"), {}
        found["mps-on-mig"] = workloads.mig_device_of(uuids[4], "3g.40gb"), {"config": MPS_ON_MIG}
    return {name: workloads.template(name, each, **how) for name, (each, how) in found.items()}


@pytest.mark.parametrize(
    "fault",
    [
        "lost",
        "hangs",
        pytest.param("unknown errors", marks=pytest.mark.soak),
        pytest.param("reset required", marks=pytest.mark.soak),
        pytest.param("monitored", marks=pytest.mark.soak),
    ],
)
@pytest.mark.timeout(480, func_only=True)
def test_a_node_is_drained_although_its_gpus_do_not_work_and_is_as_new_when_they_do(
    with_all_gates: Cluster, idle: Cluster, pods: Kubectl, fault: str
) -> None:
    templates = claims(with_all_gates)
    for name, template in templates.items():
        pods.apply(template)
        pods.apply(workloads.pod(name, templates=[name]))
    pods.wait_running(*templates)
    with broken(with_all_gates, fault), drained(with_all_gates):
        assert not pods.get("pods", "")
    with_all_gates.wait_idle()
    pods.wait(partial(not_as_new, with_all_gates), "the GPUs to be as new", OFFERED_S)
    mps_daemons.wait_gone(with_all_gates, NODE)
    for name in templates:
        pods.apply(workloads.pod(f"{name}-again", templates=[name]))
    pods.wait_running(*(f"{name}-again" for name in templates), timeout_s=OFFERED_S)


@contextmanager
def broken(cluster: Cluster, fault: str) -> Iterator[None]:
    """All GPUs that have pods have this fault while the block runs."""
    with ExitStack() as stack:
        for gpu in range(GPUS):
            stack.enter_context(CALL_FAULTS[fault](place_of(cluster), gpu))
        yield


@contextmanager
def drained(cluster: Cluster) -> Iterator[None]:
    """The node is drained, and nothing is scheduled to it while the block runs."""
    try:
        cluster.kubectl.run(
            *("drain", NODE, "--ignore-daemonsets", "--delete-emptydir-data", "--force"),
            timeout_s=DRAIN_S,
        )
        yield
    finally:
        cluster.kubectl.run("uncordon", NODE)


def not_as_new(cluster: Cluster) -> str | None:
    """What claims have left on the GPUs; None if it is nothing."""
    found = node_agreement.found_modes(place_of(cluster), [f"gpu-{index}" for index in range(GPUS)])
    changed = {gpu: modes for gpu, modes in found.items() if modes != GpuModes()}
    return str(changed) if changed else None


def place_of(cluster: Cluster) -> Place:
    return Place(cluster, NODE, random.Random(NODE))
