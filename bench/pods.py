"""From a pod's creation to its container running, on two real nodes, with a claim and without.

What a watcher sees: the pod appears, then its container runs. The difference between pods with a
claim and pods without is what the claim costs its user: allocation, the kubelet's calls, the
prepare, the injection. Needs root: a lab of its own, which is taken down again.
"""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from queue import SimpleQueue
from typing import Any, NamedTuple

import workloads
import yaml
from cluster import GPUS_ALONE, Cluster
from kubectl import Kubectl
from labtool import LAB, STATE, Lab
from nvdra_api.types import keys
from nvdra_lab.progress import Progress

from bench.figures import Summary

NAME = "bench"
TEMPLATE = "gpu"
GPUS = 16
"""Of two nodes of the profile: so many pods can hold one each."""

WAIT_S = 60
SETTLE_S = 1.0
"""Between two measurements, so that the pods before have been cleaned away."""


class _Seen(NamedTuple):
    at: float
    event: Any


class _Took(NamedTuple):
    """Seconds from the first pod's appearance."""

    scheduled: float
    running: float


@contextmanager
def running(progress: Progress) -> Iterator[Cluster]:
    """A lab of two nodes with the driver installed by helm, until the block is left."""
    _lab("image", "build")
    if (STATE / NAME).exists():
        _lab("down", "--name", NAME)
    _lab("up", "--name", NAME, "--nodes", "2")
    try:
        _lab("image", "load", "--name", NAME)
        cluster = Cluster.of(Lab(NAME))
        with progress.step("helm install nvdra"):
            cluster.install(GPUS_ALONE)
        yield cluster
    finally:
        _lab("down", "--name", NAME)


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
    with _watching(kubectl) as events:
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
            if _is_running(pod):
                waiting.discard(name)
            if waiting:
                at, event = events.get(timeout=WAIT_S)
    kubectl.delete("pod", *names, timeout_s=WAIT_S)
    time.sleep(SETTLE_S)
    return _Took(scheduled - began, at - began)


def _is_running(pod: Any) -> bool:
    states = pod.get("status", {}).get("containerStatuses") or ()
    return bool(states) and all("running" in each["state"] for each in states)


@contextmanager
def _watching(kubectl: Kubectl) -> Iterator["SimpleQueue[_Seen]"]:
    """What happens to the namespace's pods from now on, with the moment it was seen."""
    path = f"/api/v1/namespaces/{kubectl.namespace}/pods?watch=true"
    argv = [kubectl.program, f"--kubeconfig={kubectl.kubeconfig}", "get", "--raw", path]
    seen: SimpleQueue[_Seen] = SimpleQueue()
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as process:

        def read() -> None:
            assert process.stdout is not None
            for line in process.stdout:
                seen.put(_Seen(time.perf_counter(), json.loads(line)))

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        time.sleep(SETTLE_S / 2)  # the watch says nothing when it is established
        try:
            yield seen
        finally:
            with suppress(ProcessLookupError):
                process.terminate()
            process.wait()
            reader.join()


def _lab(*arguments: str) -> None:
    """Run `lab`, which says itself how far it is."""
    done = subprocess.run([LAB, *arguments], check=False)
    if done.returncode != 0:
        sys.exit(f"lab {' '.join(arguments)} failed, see above")
