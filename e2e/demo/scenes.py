"""What the demo shows: published devices, the quickstarts, the trace of a claim, the way on."""

import json
from datetime import datetime, timedelta
from itertools import groupby
from pathlib import Path
from typing import Any

import workloads
import yaml
from cluster import Cluster
from kubectl import Kubectl
from rich.table import Table

from e2e.demo.screen import Screen, listing

QUICKSTARTS = Path(__file__).parents[1] / "quickstarts"
UNSERVED = "6-a-gpu-that-no-node-has.yaml"
TRACED = "chosen-gpu"
NAMESPACE = "demo"
SEEN = "nvidia-smi -L; ls -d /dev/nvidia*"
PCIE_ROOT = "resource.kubernetes.io/pcieRoot"
WIDE = 100
NUMA = "resource.kubernetes.io/numaNode"


def published(screen: Screen, cluster: Cluster) -> None:
    """Every device the driver published."""
    screen.chapter(
        "What the driver publishes",
        "One ResourceSlice per node; claims select by any of these attributes, and more.",
    )
    screen.command("kubectl get resourceslices -o yaml")
    screen.show(_devices(cluster, has_space=screen.width >= WIDE))


def _devices(cluster: Cluster, has_space: bool) -> Table:
    columns = "NODE", "DEVICE", "PRODUCT", "MEMORY", "PCIE ROOT", "NUMA"
    table = listing(*columns, *(("PCI ADDRESS", "ARCHITECTURE") if has_space else ()))
    for _, devices in groupby(cluster.devices(), lambda device: device.node):
        for index, device in enumerate(devices):
            known = device.attributes
            cells = [
                device.node if index == 0 else "",
                device.name,
                known["productName"],
                device.capacity["memory"],
                known.get(PCIE_ROOT, "-"),
                str(known.get(NUMA, "-")),
                known["pcieBusID"],
                known["architecture"],
            ]
            table.add_row(*cells[: len(table.columns)])
    return table


def quickstarts(screen: Screen, cluster: Cluster) -> None:
    """Apply each, and look into its containers."""
    screen.chapter(
        "Pods that ask for GPUs",
        f"Each file is a manifest for any cluster; here they go to the namespace {NAMESPACE}.",
    )
    with screen.step(f"a fresh namespace {NAMESPACE}"):
        cluster.kubectl.delete("namespace", NAMESPACE, timeout_s=120)
        cluster.kubectl.run("create", "namespace", NAMESPACE)
    pods = cluster.kubectl.within(NAMESPACE)
    for file in sorted(QUICKSTARTS.glob("*.yaml")):
        _quickstart(screen, pods, file)


def trace(screen: Screen, cluster: Cluster) -> None:
    """Where the time went from a claim's creation to its pod at work."""
    pods = cluster.kubectl.within(NAMESPACE)
    (claim,) = workloads.claims_of(pods, TRACED)
    uid = claim["metadata"]["uid"]
    node = claim["status"]["allocation"]["devices"]["results"][0]["pool"]
    screen.chapter(
        f"The trace of the claim of {TRACED}",
        "The claim's UID is its trace ID, here and in Jaeger or Tempo (chart value "
        "global.otlp.endpoint). Before `prepare` the scheduler and the kubelet are at work.",
    )
    screen.command(f"kubectl -n nvdra port-forward pod/{cluster.plugin(node)} 6060 &")
    screen.command(f"curl 'localhost:6060/debug/traces/{uid}?format=text'")
    screen.quote("\n" + cluster.trace(node, uid))
    screen.say("")
    screen.show(_beside(pods, json.loads(cluster.trace(node, uid, "json"))))


def farewell(screen: Screen, cluster: Cluster, seconds: float) -> None:
    """What to try next, and how to stop."""
    name = cluster.lab.name
    flag = "" if name == "lab" else f" --name {name}"
    screen.chapter("Your turn", f"All of this took {seconds:.0f} s; the cluster is yours now.")
    tries = {
        f'PATH=$PWD/.venv/bin:$PATH; eval "$(lab env{flag})"': "kubectl and helm talk to it",
        f"kubectl -n {NAMESPACE} get pods,resourceclaims -o wide": "",
        f"kubectl -n {NAMESPACE} exec own-gpu-a -- nvidia-smi": "one GPU, the container's own",
        f"lab sim{flag} node-1 show": "the simulated hardware; --help: what can go wrong with it",
        f"lab sim{flag} node-1 gpu lose 7": "a pod that is given it now says so in its events",
        f"lab exec{flag} node-1 -- nvidia-smi": "in the node: all of its GPUs",
        f"lab status{flag}; lab logs{flag}": "the cluster's processes and what they say",
        _stop(name): "stops it; nothing is left but the build cache",
    }
    table = Table.grid(padding=(0, 3))
    table.add_column(style="green", no_wrap=True)
    table.add_column(style="dim")
    for command, about in tries.items():
        table.add_row(command, about)
    screen.show(table)


def _stop(lab: str) -> str:
    return "make cluster-down" if lab == "lab" else f"lab down --name {lab}"


def _quickstart(screen: Screen, pods: Kubectl, file: Path) -> None:
    text = file.read_text()
    names = [each["metadata"]["name"] for each in yaml.safe_load_all(text) if each["kind"] == "Pod"]
    screen.say(f"\n   [bold]{_title(text)}[/]")
    screen.command(f"kubectl -n {NAMESPACE} apply -f e2e/quickstarts/{file.name}")
    pods.apply(file)
    for name in names:
        if file.name == UNSERVED:
            _unserved(screen, pods, name)
        else:
            _served(screen, pods, name)


def _served(screen: Screen, pods: Kubectl, name: str) -> None:
    with screen.step(f"{name} is Running"):
        pods.wait_running(name)
    pod = pods.get("pod", name)["spec"]
    for container in pod["containers"]:
        seen = pods.exec(name, "sh", "-c", SEEN, container=container["name"]).splitlines()
        nodes = [line for line in seen if line.startswith("/dev/")]
        gpus = [line for line in seen if not line.startswith("/dev/")]
        screen.say(
            f"   container {container['name']} [dim]on {pod['nodeName']}[/]  [green]$ {SEEN}[/]"
        )
        screen.quote("\n".join([*gpus, "  ".join(nodes)]), indent=6)


def _unserved(screen: Screen, pods: Kubectl, name: str) -> None:
    pods.wait(lambda: None if _warnings(pods, name) else "no event yet", "the scheduler's verdict")
    (claim,) = workloads.claims_of(pods, name)
    state = "allocated" if "allocation" in claim.get("status", {}) else "pending"
    phase = pods.get("pod", name)["status"]["phase"]
    screen.say(f"   {name} [dim]is[/] [yellow]{phase}[/][dim], its claim[/] [yellow]{state}[/]")
    screen.command(f"kubectl -n {NAMESPACE} describe pod {name}")
    for reason, message in _warnings(pods, name):
        screen.quote(f"Warning  {reason}  {message}", indent=6)


def _warnings(pods: Kubectl, name: str) -> list[tuple[str, str]]:
    return [event for event in pods.events(name) if event[0] == "FailedScheduling"]


def _title(text: str) -> str:
    """The comment that a quickstart begins with."""
    lines = text.splitlines()
    comment = lines[: next(i for i, line in enumerate(lines) if not line.startswith("#"))]
    return " ".join(line.removeprefix("#").strip() for line in comment)


def _beside(pods: Kubectl, story: dict[str, Any]) -> Table:
    """The moments of the pod beside those of its claim; Kubernetes keeps most as whole seconds."""
    created = datetime.fromisoformat(story["start"])
    prepared = created + timedelta(milliseconds=story["duration_ms"])
    (container,) = pods.get("pod", TRACED)["status"]["containerStatuses"]
    line = pods.run("logs", "--timestamps", TRACED).split()[0]
    table = listing("TIME (UTC)", "", "KNOWN FROM")
    table.add_row(f"{created:%T}", "the claim was created", "its metadata, whole seconds")
    table.add_row(_precise(prepared), "its GPU was prepared", "the end of the trace")
    started = datetime.fromisoformat(container["state"]["running"]["startedAt"])
    table.add_row(f"{started:%T}", "the container was Running", "the pod's status, whole seconds")
    first = datetime.fromisoformat(line[:26] + "+00:00")
    table.add_row(_precise(first), "it had printed its first line", "kubectl logs --timestamps")
    return table


def _precise(moment: datetime) -> str:
    return f"{moment:%T.%f}"[:-3]
