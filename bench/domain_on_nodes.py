"""Measures a ComputeDomain on two real nodes: from the creation of its pods until they run.

The domain and its claim templates exist before two pods are created, one per node. The steps are
read from watches of the pods, the daemons and their clique.
"""

import time
from typing import Any

import yaml
from nvdra_api import names
from nvdra_lab.progress import Progress
from nvdra_testing.cluster import compute_domains
from nvdra_testing.cluster.installation import NAMESPACE, Cluster
from nvdra_testing.cluster.kubectl import Kubectl

from bench import cluster_watch
from bench.figures import Summary
from bench.pods import SETTLE_S, WAIT_S, is_running, pods_of

PROFILE = "gb200-nvl72"
NAME = "ring"
STEPS = ("scheduled", "daemons placed", "daemons running", "daemons ready", "running")
"""The steps that both nodes reach, in this order."""

PROGRAMS = {
    "nvdra-cd-plugin": "[n]vdra-cd-plugin",
    "nvdra-cd-controller": "[n]vdra-cd-controller",
    "nvdra-imex-daemon": "[c]ompute-domain-daemon",
}
"""Component → pattern of its command line. The pattern does not match itself."""


def measure(cluster: Cluster, rounds: int, progress: Progress) -> dict[str, Any]:
    """Measure the seconds from the first pod's appearance to each step, and MiB per component."""
    times: list[dict[str, float]] = []
    resident: dict[str, float] = {}
    title = f"{rounds} times a domain over two nodes"
    with cluster.kubectl.fresh_namespace() as pods, progress.step(title) as step:
        for number in range(rounds + 1):
            step.detail = f"round {number}"
            took = _once(cluster, pods, resident)
            if number > 0:  # the first one warms up
                times.append(took)
    return {
        "steps_s": {step: vars(Summary.of([took[step] for took in times])) for step in STEPS},
        "resident_mib": resident,
    }


def _once(cluster: Cluster, pods: Kubectl, resident: dict[str, float]) -> dict[str, float]:
    uid = compute_domains.create_domain(pods, NAME)
    workers = [
        compute_domains.channel_pod(f"{NAME}-{node}", compute_domains.template_name(NAME), node)
        for node in cluster.nodes()
    ]
    chosen = f"labelSelector={names.DOMAIN_LABEL}%3D{uid}"
    cliques = f"/apis/resource.nvidia.com/v1beta1/namespaces/{NAMESPACE}/computedomaincliques"
    paths = (
        pods_of(pods.namespace),
        f"{pods_of(NAMESPACE)}?{chosen}",
        f"{cliques}?{chosen}",
    )
    took: dict[str, float] = {}
    seen: dict[tuple[str, str], Any] = {}
    with cluster_watch.events(cluster.kubectl, *paths) as events:
        pods.run("create", "-f", "-", text=yaml.safe_dump_all(workers))
        at, event = events.get(timeout=WAIT_S)
        started = at
        while len(took) < len(STEPS):
            obj = event["object"]
            seen[obj["kind"], obj["metadata"]["name"]] = obj
            for step in _reached(list(seen.values()), pods.namespace, len(workers)):
                took.setdefault(step, at - started)
            if len(took) < len(STEPS):
                at, event = events.get(timeout=WAIT_S)
    for component, pattern in PROGRAMS.items():
        for mib in _resident_mib(cluster, pattern):
            resident[component] = max(resident.get(component, 0), mib)
    pods.delete("pod", *(each["metadata"]["name"] for each in workers), timeout_s=WAIT_S)
    pods.delete("computedomain", NAME)
    compute_domains.Domain(cluster, uid).wait_gone(WAIT_S)
    time.sleep(SETTLE_S)
    return took


def _reached(objects: list[Any], namespace: str, count: int) -> list[str]:
    """The steps that `count` nodes have reached."""
    pods = [each for each in objects if each["kind"] == "Pod"]
    workers = [each for each in pods if each["metadata"]["namespace"] == namespace]
    daemons = [each for each in pods if each["metadata"]["namespace"] != namespace]
    entries = [one for each in objects for one in each.get("daemons") or ()]
    counts = (
        sum(bool(pod["spec"].get("nodeName")) for pod in workers),
        sum(bool(pod["spec"].get("nodeName")) for pod in daemons),
        sum(map(is_running, daemons)),
        sum(entry["status"] == "Ready" for entry in entries),
        sum(map(is_running, workers)),
    )
    return [step for step, found in zip(STEPS, counts, strict=True) if found == count]


def _resident_mib(cluster: Cluster, pattern: str) -> list[float]:
    """Resident set of every process on the nodes whose command line matches."""
    script = (
        "for d in /proc/[0-9]*; do "
        f"tr '\\0' ' ' < $d/cmdline | grep -q '{pattern}' && grep VmRSS $d/status; done; true"
    )
    lines = [
        line
        for node in cluster.nodes()
        for line in cluster.exec_on_node(node, "sh", "-c", script).splitlines()
    ]
    return [int(line.split()[1]) / 1024 for line in lines]
