"""From a pod's creation to its container running, on two real nodes, with a claim and without.

What a watcher sees: the pod appears, then its container runs. The difference between pods with a
claim and pods without is what the claim costs its user: allocation, the kubelet's calls, the
prepare, the injection.
"""

import time
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import workloads
import yaml
from cluster import Cluster
from kubectl import Kubectl
from nvdra_api.types import keys
from nvdra_lab.progress import Progress

from bench import watching
from bench.figures import Summary

PROFILE = "dgx-h100"
TEMPLATE = "gpu"
GPUS = 16
"""Of two nodes of the profile: so many pods can hold one each."""

WAIT_S = 60
SETTLE_S = 1.0
"""Between two measurements, so that the pods before have been cleaned away."""


class _Took(NamedTuple):
    """Seconds from the first pod's appearance."""

    scheduled: float
    running: float


def measure(cluster: Cluster, rounds: int, bursts: int, progress: Progress) -> dict[str, Any]:
    """Seconds until pods run, one at a time and sixteen at once; both kinds take turns."""
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
    """Seconds that the kubelets have waited for answers to their prepares, and how many; so far."""
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
    """With the claim and without, and the medians of the differences of neighbours."""
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
    """Until the last pod has its node, and the last container runs; then all are gone."""
    names = [f"p{index}" for index in range(count)]
    manifests = [workloads.pod(name, templates=templates) for name in names]
    with watching.events(kubectl, pods_of(kubectl.namespace)) as events:
        kubectl.run("create", "-f", "-", text=yaml.safe_dump_all(manifests))
        at, event = events.get(timeout=WAIT_S)
        began = scheduled = at
        homeless, waiting = set(names), set(names)
        while waiting:
            pod = event["object"]
            name = pod["metadata"]["name"]
            if name in homeless and pod["spec"].get("nodeName"):
                homeless.discard(name)
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
