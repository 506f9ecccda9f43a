# SPDX-License-Identifier: Apache-2.0
"""`python -m bench.domain_on_nodes`: a ComputeDomain on real nodes, until its pods run.

The domain and its claim templates exist before the pods are created, one per node. The steps are
read from watches of the pods, the daemons and their clique; the writes of the clique, by whomever,
are counted by the API server. Needs root.
"""

import argparse
import os
import sys
import time
from typing import Any, NamedTuple

import yaml
from nvdra_api import names
from nvdra_lab.progress import Progress
from nvdra_testing.cluster import compute_domains
from nvdra_testing.cluster.installation import CD_PLUGIN, NAMESPACE, Cluster
from nvdra_testing.cluster.kubectl import Kubectl
from nvdra_testing.control_plane import request_counts
from nvdra_testing.control_plane.request_counts import RequestCounts

from bench import cluster_watch, lab
from bench.figures import Summary
from bench.pods import SETTLE_S, WAIT_S, is_running, pods_of

PROFILE = "gb200-nvl72"
NAME = "ring"
CLIQUES = "computedomaincliques"
STEPS = ("scheduled", "daemons placed", "daemons running", "daemons ready", "running")
"""The steps that all nodes reach, in this order."""

REQUESTS = ("clique writes", "clique conflicts", "clique reads", "pod patches")
"""Requests of all components and users while a domain forms, for each node."""

PROGRAMS = {
    "nvdra-cd-plugin": "[n]vdra-cd-plugin",
    "nvdra-cd-controller": "[n]vdra-cd-controller",
    "nvdra-imex-daemon": "[c]ompute-domain-daemon",
}
"""Component → pattern of its command line. The pattern does not match itself."""


class Formed(NamedTuple):
    """One domain that has formed.

    Attributes:
        steps_s: Step → seconds from the appearance of the first pod.
        requests: Kind of request → how many there were, for each node.
    """

    steps_s: dict[str, float]
    requests: dict[str, float]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.domain_on_nodes", description=__doc__)
    parser.add_argument("--nodes", type=int, default=18, help="how many (18)")
    parser.add_argument(
        "--rounds", type=int, default=2, help="how often after a first time, at least twice (2)"
    )
    given = parser.parse_args()
    progress = Progress()
    with lab.running(progress, PROFILE, component=CD_PLUGIN, nodes=given.nodes) as cluster:
        found = measure(cluster, max(2, given.rounds), progress)
    for step, summary in found["steps_s"].items():
        print(f"{step:18} {summary['p50']:7.2f} s")
    for kind, summary in found["requests"].items():
        print(f"{kind:18} {summary['p50']:7.2f} for each node")
    for component, mib in found["resident_mib"].items():
        print(f"{component:20} {mib:5.0f} MiB at most")
    print(f"{given.nodes} nodes, load {os.getloadavg()[0]:.1f}")
    return 0


def measure(cluster: Cluster, rounds: int, progress: Progress) -> dict[str, Any]:
    """Measure the seconds to each step, the requests for each node, and MiB per component."""
    found: list[Formed] = []
    resident: dict[str, float] = {}
    nodes = len(cluster.nodes())
    title = f"{rounds} times a domain over {nodes} nodes"
    with cluster.kubectl.fresh_namespace() as pods, progress.step(title) as step:
        for number in range(rounds + 1):
            step.detail = f"round {number}"
            formed = _once(cluster, pods, resident)
            if number > 0:  # the first one warms up
                found.append(formed)
    return {
        "nodes": nodes,
        "steps_s": {
            step: vars(Summary.of([each.steps_s[step] for each in found])) for step in STEPS
        },
        "requests": {
            kind: vars(Summary.of([each.requests[kind] for each in found])) for kind in REQUESTS
        },
        "resident_mib": resident,
    }


def _once(cluster: Cluster, pods: Kubectl, resident: dict[str, float]) -> Formed:
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
    before = _counts(cluster)
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
    requests = _requests(_counts(cluster).since(before), len(workers))
    for component, pattern in PROGRAMS.items():
        for mib in _resident_mib(cluster, pattern):
            resident[component] = max(resident.get(component, 0), mib)
    pods.delete("pod", *(each["metadata"]["name"] for each in workers), timeout_s=WAIT_S)
    pods.delete("computedomain", NAME)
    compute_domains.Domain(cluster, uid).wait_gone(WAIT_S)
    time.sleep(SETTLE_S)
    return Formed(took, requests)


def _counts(cluster: Cluster) -> RequestCounts:
    return request_counts.parse(cluster.kubectl.run("get", "--raw", "/metrics"))


def _requests(spent: RequestCounts, nodes: int) -> dict[str, float]:
    counts = (
        spent.writes(CLIQUES),
        spent.writes(CLIQUES, request_counts.CONFLICT),
        spent.reads(CLIQUES),
        spent.total("pods", ("PATCH",)),
    )
    return {kind: count / nodes for kind, count in zip(REQUESTS, counts, strict=True)}


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


if __name__ == "__main__":
    sys.exit(main())
