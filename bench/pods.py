# SPDX-License-Identifier: Apache-2.0
"""Measures the start of pods on two real nodes, with a claim and without.

The time is from the event that a pod is added to the event that its container runs. The difference
between pods with a claim and pods without is the cost of the claim: its allocation, the kubelet's
calls, the prepare, and the CDI injection.
"""

import time
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import yaml
from nvdra_lab.progress import Progress
from nvdra_runtime.telemetry import keys
from nvdra_testing.cluster import workloads
from nvdra_testing.cluster.installation import Cluster
from nvdra_testing.cluster.kubectl import Kubectl

from bench import cluster_watch
from bench.figures import Summary

PROFILE = "dgx-h100"
TEMPLATE = "gpu"
GPUS = 16
"""Number of GPUs on two nodes of the profile."""

WAIT_S = 60
SETTLE_S = 1.0
"""Time between two measurements, in which the previous pods are cleaned up."""


class _Took(NamedTuple):
    """Seconds from the first pod's appearance."""

    scheduled: float
    running: float


def measure(cluster: Cluster, rounds: int, bursts: int, progress: Progress) -> dict[str, Any]:
    """Measure the seconds until pods run, one at a time and sixteen at once."""
    with cluster.kubectl.fresh_namespace() as kubectl:
        kubectl.apply(workloads.template(TEMPLATE, workloads.gpus()))
        measured = {}
        for name, count, times in (("one", 1, rounds), ("sixteen", GPUS, bursts)):
            before = _prepares(cluster)
            measured[name] = _compared(kubectl, count, times, progress)
            after = _prepares(cluster)
            measured[name]["prepare_s"] = (after[0] - before[0]) / (after[1] - before[1])
        return measured


def _prepares(cluster: Cluster) -> tuple[float, float]:
    """The plugins' total seconds of prepare calls so far, and their number."""
    samples = [item for node in cluster.nodes() for item in cluster.metrics(node).items()]

    def total(suffix: str) -> float:
        name = f"{keys.CLAIM_OPERATION_SECONDS}_{suffix}{{"
        return sum(
            value
            for sample, value in samples
            if sample.startswith(name) and f'="{keys.PREPARE}"' in sample
        )

    return total("sum"), total("count")


def _compared(kubectl: Kubectl, count: int, rounds: int, progress: Progress) -> dict[str, Any]:
    """Measure pods with and without a claim in turns, and the differences between neighbours."""
    plain: list[_Took] = []
    claimed: list[_Took] = []
    with progress.step(f"{rounds} times {count} pods, with a claim and without") as step:
        for number in range(rounds + 1):
            step.detail = f"round {number}"
            pair = _until_running(kubectl, count, ()), _until_running(kubectl, count, (TEMPLATE,))
            if number > 0:  # the first one warms up
                plain.append(pair[0])
                claimed.append(pair[1])
    pairs = list(zip(plain, claimed, strict=True))
    return {
        "plain_s": _summary(took.running for took in plain),
        "claimed_s": _summary(took.running for took in claimed),
        "difference_s": _summary(with_.running - without.running for without, with_ in pairs),
        "until_scheduled_s": _summary(
            with_.scheduled - without.scheduled for without, with_ in pairs
        ),
    }


def _summary(seconds: Iterable[float]) -> dict[str, Any]:
    return vars(Summary.of(list(seconds)))


def _until_running(kubectl: Kubectl, count: int, templates: Sequence[str]) -> _Took:
    """Measure until the last pod is scheduled and the last container runs, then delete the pods."""
    names = [f"p{index}" for index in range(count)]
    manifests = [workloads.pod(name, templates=templates) for name in names]
    with cluster_watch.events(kubectl, pods_of(kubectl.namespace)) as events:
        kubectl.run("create", "-f", "-", text=yaml.safe_dump_all(manifests))
        at, event = events.get(timeout=WAIT_S)
        began = scheduled = at
        unscheduled, waiting = set(names), set(names)
        while waiting:
            pod = event["object"]
            name = pod["metadata"]["name"]
            if name in unscheduled and pod["spec"].get("nodeName"):
                unscheduled.discard(name)
                scheduled = at
            if is_running(pod):
                waiting.discard(name)
            if waiting:
                at, event = events.get(timeout=WAIT_S)
    kubectl.delete("pod", *names, timeout_s=WAIT_S)
    time.sleep(SETTLE_S)
    return _Took(scheduled - began, at - began)


def pods_of(namespace: str) -> str:
    """Path of a namespace's pods."""
    return f"/api/v1/namespaces/{namespace}/pods"


def is_running(pod: Any) -> bool:
    """Whether every container of a pod has started."""
    states = pod.get("status", {}).get("containerStatuses") or ()
    return bool(states) and all("running" in each["state"] for each in states)
