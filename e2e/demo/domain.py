"""A ComputeDomain over two nodes: what its user applies and is told, from making to deleting."""

import json

import members
from cluster import DEBUG_PORT, DOMAINS, Cluster
from cluster import NAMESPACE as DRIVERS
from kubectl import Kubectl
from members import Domain
from nvdra_api.runtime.telemetry import waterfall

from e2e.demo import critical, merging, quickstarts
from e2e.demo.quickstarts import FOLDER, NAMESPACE, SHOWN
from e2e.demo.screen import INDENT, Screen
from e2e.demo.trace import fitted

NAME = "ring"
LIST = f"kubectl -n {NAMESPACE} get computedomains"
RACK = "gb200-nvl72"
"""A profile whose nodes are trays of one rack, joined by NVLink."""


def run(screen: Screen, cluster: Cluster) -> None:
    """Before, during and after, and the trace of it all; only where there are two nodes for it."""
    screen.chapter(
        "A ComputeDomain over two nodes",
        "Pods that claim its channel join it: on each of their nodes the driver starts an IMEX "
        "daemon, and lets the pod start once that is ready. A node is in one domain at a time.",
    )
    if len(cluster.nodes()) < len(_quickstart().pods):
        screen.note(f"{_quickstart().title} It needs two nodes: make demo NODES=2")
        return
    pods = cluster.kubectl.within(NAMESPACE)
    _list(screen, pods)
    screen.heading(_quickstart().title)
    screen.commands([f"kubectl -n {NAMESPACE} apply -f {SHOWN}/{quickstarts.DOMAIN}"])
    pods.apply(FOLDER / quickstarts.DOMAIN)
    # A list of the same moment would show nothing but the name.
    pods.wait(
        lambda: None if members.status(pods, NAME).get("status") else "none",
        f"the status of domain {NAME}",
    )
    _list(screen, pods)
    with screen.step(f"{' and '.join(_quickstart().pods)}: Running"):
        pods.wait_running(*_quickstart().pods, timeout_s=100)
        members.wait_ready(pods, NAME, len(_quickstart().pods))
    _list(screen, pods)
    _channels(screen, pods)
    found = Domain(cluster, members.uid_of(pods, NAME))
    _trace(screen, cluster, found)
    _delete(screen, pods, found)


def _quickstart() -> quickstarts.Quickstart:
    return quickstarts.parse(quickstarts.DOMAIN, (FOLDER / quickstarts.DOMAIN).read_text())


def _list(screen: Screen, pods: Kubectl) -> None:
    """What the user sees of domains now."""
    screen.commands([LIST])
    done = pods.attempt("get", "computedomains")
    screen.quote(done.stdout or done.stderr)


def _channels(screen: Screen, pods: Kubectl) -> None:
    """What each pod was given; without NVLink between nodes there is nothing to give."""
    for name in _quickstart().pods:
        node = pods.get("pod", name)["spec"]["nodeName"]
        screen.prose(f"{name} on {node}", style="cyan")
        screen.quote(pods.logs(name), indent=6)
    if all(not each["cliqueID"] for each in members.status(pods, NAME).get("nodes", [])):
        screen.note(
            "These nodes have no NVLink between them, so the pods run without channels; "
            f"make cluster-down, then make demo PROFILE={RACK} shows them"
        )


def _trace(screen: Screen, cluster: Cluster, found: Domain) -> None:
    """How the domain was formed, by everybody who took part in it."""
    nodes = found.nodes()
    plugins = [
        pod["metadata"]["name"]
        for pod in cluster.driver.get("pods", "", "-l", DOMAINS.label)
        if pod["spec"]["nodeName"] in nodes
    ]
    pods = [*members.controllers(cluster), *plugins, *found.daemons().values()]
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
    parts = [json.loads(cluster.trace_of(pod, found.uid, "json")) for pod in pods]
    whole = merging.merged(parts)
    screen.quote(fitted(waterfall.text(whole), screen.width - INDENT))
    path = critical.section(whole)
    if path is not None:
        screen.heading("And what all of it waited for; between two bars kubelet and runtime work")
        screen.quote(fitted(waterfall.section(path), screen.width - INDENT))
    screen.blank()


def _delete(screen: Screen, pods: Kubectl, found: Domain) -> None:
    """The pods and the domain go, and with them whatever was made for them."""
    names = " ".join(_quickstart().pods)
    screen.commands([f"kubectl -n {NAMESPACE} delete pod {names}; … delete computedomain {NAME}"])
    with screen.step("nothing is left of it: daemons, claims, labels of nodes"):
        pods.delete("pod", *_quickstart().pods)
        pods.delete("computedomain", NAME)
        found.wait_gone(30)
    _list(screen, pods)
