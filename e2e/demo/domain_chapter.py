# SPDX-License-Identifier: Apache-2.0
"""The chapter about a ComputeDomain over two nodes, from its creation to its deletion."""

import json

from nvdra_runtime.telemetry.recent_traces import waterfall
from nvdra_runtime.telemetry.recent_traces.recorder import Trace
from nvdra_testing.cluster import compute_domains
from nvdra_testing.cluster.compute_domains import Domain
from nvdra_testing.cluster.installation import CD_PLUGIN, DEBUG_PORT, Cluster
from nvdra_testing.cluster.installation import NAMESPACE as DRIVERS
from nvdra_testing.cluster.kubectl import Kubectl

from e2e.demo import critical_path, quickstarts, trace_merge
from e2e.demo.claim_trace import fit_width
from e2e.demo.quickstarts import FOLDER, NAMESPACE, SHOWN
from e2e.demo.screen import INDENT, Screen

NAME = "ring"
LIST = f"kubectl -n {NAMESPACE} get computedomains"
RACK = "gb200-nvl72"
"""A profile whose nodes are trays of one rack, joined by NVLink."""


def run(screen: Screen, cluster: Cluster) -> None:
    """Show the domain and its trace; skipped if there are fewer than two nodes."""
    screen.chapter(
        "A ComputeDomain over two nodes",
        "Pods that claim its channel join it: on each of their nodes the driver starts an IMEX "
        "daemon, and lets the pod start once that is ready. A node is in one domain at a time.",
    )
    if len(cluster.nodes()) < len(_quickstart().pods):
        screen.note(f"{_quickstart().title} It needs two nodes: make demo NODES=2")
        return
    pods = cluster.kubectl.in_namespace(NAMESPACE)
    _list(screen, pods)
    screen.heading(_quickstart().title)
    screen.commands([f"kubectl -n {NAMESPACE} apply -f {SHOWN}/{quickstarts.DOMAIN}"])
    pods.apply(FOLDER / quickstarts.DOMAIN)
    # A list of the same moment would show nothing but the name.
    pods.wait(
        lambda: None if compute_domains.status(pods, NAME).get("status") else "none",
        f"the status of domain {NAME}",
    )
    _list(screen, pods)
    with screen.step(f"{' and '.join(_quickstart().pods)}: Running"):
        pods.wait_running(*_quickstart().pods, timeout_s=100)
        compute_domains.wait_ready(pods, NAME, len(_quickstart().pods))
    _list(screen, pods)
    _channels(screen, pods)
    found = Domain(cluster, compute_domains.uid_of(pods, NAME))
    show_trace(screen, cluster, found)
    _delete(screen, pods, found)


def _quickstart() -> quickstarts.Quickstart:
    return quickstarts.parse(quickstarts.DOMAIN, (FOLDER / quickstarts.DOMAIN).read_text())


def _list(screen: Screen, pods: Kubectl) -> None:
    """Show the list of domains as the user sees it."""
    screen.commands([LIST])
    done = pods.run_unchecked("get", "computedomains")
    screen.quote(done.stdout or done.stderr)


def _channels(screen: Screen, pods: Kubectl) -> None:
    """Show the channels of each pod; there are none without NVLink between nodes."""
    nodes = compute_domains.status(pods, NAME).get("nodes", [])
    connected = {each["name"] for each in nodes if each["cliqueID"]}
    for name in _quickstart().pods:
        node = pods.get("pod", name)["spec"]["nodeName"]
        if node in connected:  # a pod that has just started has printed nothing yet
            compute_domains.listed_channels(pods, name)
        screen.prose(f"{name} on {node}", style="cyan")
        screen.quote(pods.logs(name), indent=6)
    if not connected:
        screen.note(
            "These nodes have no NVLink between them, so the pods run without channels; "
            f"make cluster-down, then make demo PROFILE={RACK} shows them"
        )


def show_trace(screen: Screen, cluster: Cluster, found: Domain) -> None:
    """Show the domain's trace, merged from all processes that took part."""
    whole = merged_trace(screen, cluster, found)
    screen.quote(fit_width(waterfall.render(whole), screen.width - INDENT))
    show_critical_path(screen, whole)


def show_critical_path(screen: Screen, whole: Trace) -> None:
    """Show what the formation of a domain waited for, if it was formed."""
    path = critical_path.section(whole)
    if path is not None:
        screen.heading("And what all of it waited for; between two bars kubelet and runtime work")
        screen.quote(fit_width(waterfall.render_section(path), screen.width - INDENT))
    screen.blank()


def merged_trace(screen: Screen, cluster: Cluster, found: Domain) -> Trace:
    """Say how to read a part of the trace, and return all of it."""
    nodes = found.labelled_nodes()
    plugins = [
        pod["metadata"]["name"]
        for pod in cluster.driver_namespace.get("pods", "", "-l", CD_PLUGIN.label)
        if pod["spec"]["nodeName"] in nodes
    ]
    pods = [*compute_domains.controller_pods(cluster), *plugins, *found.daemons().values()]
    screen.heading(
        "Its trace has the UID of the domain; the controller, every plugin and every daemon know "
        "their part"
    )
    screen.prose(
        "Where the time went, all parts together, as Jaeger or Tempo would have them. One part:",
        style="dim",
    )
    screen.commands(
        [
            f"kubectl -n {DRIVERS} port-forward pod/{pods[0]} {DEBUG_PORT} & sleep 2",
            f"curl 'localhost:{DEBUG_PORT}/debug/traces/{found.uid}?format=text'; kill %1",
        ]
    )
    screen.blank()
    parts = [json.loads(cluster.pod_trace(pod, found.uid, "json")) for pod in pods]
    return trace_merge.merge(parts)


def _delete(screen: Screen, pods: Kubectl, found: Domain) -> None:
    """Delete the pods and the domain, and wait until everything made for them is gone."""
    names = " ".join(_quickstart().pods)
    screen.commands([f"kubectl -n {NAMESPACE} delete pod {names}; … delete computedomain {NAME}"])
    with screen.step("nothing is left of it: daemons, claims, labels of nodes"):
        pods.delete("pod", *_quickstart().pods)
        pods.delete("computedomain", NAME)
        found.wait_gone()
    _list(screen, pods)
