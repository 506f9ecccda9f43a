"""What the demo shows: published devices, the quickstarts, the trace of a claim, the way on."""

import json
from datetime import datetime, timedelta
from itertools import groupby
from pathlib import Path
from typing import Any

import workloads
import yaml
from cluster import NAMESPACE as DRIVER_NAMESPACE
from cluster import PLUGIN, Cluster
from kubectl import Kubectl
from rich.table import Table

from e2e.demo.screen import Screen, listing

QUICKSTARTS = Path(__file__).parents[1] / "quickstarts"
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


def quickstarts(screen: Screen, cluster: Cluster) -> list[str]:
    """Apply each, and look into its containers; the pods that run."""
    screen.chapter(
        "Pods that ask for GPUs",
        f"Each file is a manifest for any cluster; here they go to the namespace {NAMESPACE}.",
    )
    with screen.step(f"a fresh namespace {NAMESPACE}"):
        cluster.kubectl.delete("namespace", NAMESPACE, timeout_s=120)
        cluster.kubectl.run("create", "namespace", NAMESPACE)
    pods = cluster.kubectl.within(NAMESPACE)
    files = sorted(QUICKSTARTS.glob("*.yaml"))
    return [name for file in files for name in _quickstart(screen, pods, file)]


def trace(screen: Screen, cluster: Cluster, running: Sequence[str]) -> None:
    """Where the time went from a claim's creation to its pod at work."""
    if not running:
        return
    name = TRACED if TRACED in running else running[0]
    pods = cluster.kubectl.within(NAMESPACE)
    (claim,) = workloads.claims_of(pods, name)
    uid = claim["metadata"]["uid"]
    node = claim["status"]["allocation"]["devices"]["results"][0]["pool"]
    screen.chapter(
        f"The trace of the claim of {name}",
        "The claim's UID is its trace ID, here and in Jaeger or Tempo (chart value "
        "global.otlp.endpoint). Before `prepare` the scheduler and the kubelet are at work.",
    )
    screen.command(f"kubectl -n nvdra port-forward pod/{cluster.plugin(node)} 6060 &")
    screen.command(f"curl 'localhost:6060/debug/traces/{uid}?format=text'")
    screen.quote("\n" + cluster.trace(node, uid))
    screen.say("")
    screen.show(_beside(pods, name, json.loads(cluster.trace(node, uid, "json"))))


def farewell(screen: Screen, cluster: Cluster, seconds: float) -> None:
    """What to try next, and how to stop."""
    name = cluster.lab.name
    flag = _flag(name)
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
    screen.pairs(tries)


def where_to_look(screen: Screen, lab: str) -> None:
    """After a failure, while the cluster is up."""
    flag, plugins = _flag(lab), PLUGIN.partition(",")[0]
    screen.say("\nWhere to look:")
    screen.pairs(
        {
            f"lab status{flag}": "which component is not well (lab is .venv/bin/lab)",
            f"lab logs{flag} node-1/kubelet": "a component's log; without one, which there are",
            f"lab kubectl{flag} -n {DRIVER_NAMESPACE} logs -l {plugins}": "the driver's log",
            _stop(lab): "the cluster stays up until then",
        }
    )


def _flag(lab: str) -> str:
    return "" if lab == "lab" else f" --name {lab}"


def _stop(lab: str) -> str:
    return "make cluster-down" if lab == "lab" else f"lab down --name {lab}"


def _quickstart(screen: Screen, pods: Kubectl, file: Path) -> list[str]:
    """Apply one, show what became of its pods; those that run."""
    text = file.read_text()
    names = [each["metadata"]["name"] for each in yaml.safe_load_all(text) if each["kind"] == "Pod"]
    screen.say(f"\n   [bold]{_title(text)}[/]")
    screen.command(f"kubectl -n {NAMESPACE} apply -f e2e/quickstarts/{file.name}")
    pods.apply(file)
    return [name for name in names if _came_to_run(screen, pods, name)]


def _came_to_run(screen: Screen, pods: Kubectl, name: str) -> bool:
    """Wait for the pod, or for the scheduler to say that no node can serve it; show which."""
    with screen.step(f"{name} is settled"):
        pods.wait(lambda: _unsettled(pods, name), f"pod {name} to run or to be refused", 60)
    if _warnings(pods, name):
        _show_refusal(screen, pods, name)
        return False
    pod = pods.get("pod", name)["spec"]
    for container in pod["containers"]:
        seen = pods.exec(name, "sh", "-c", SEEN, container=container["name"]).splitlines()
        nodes = [line for line in seen if line.startswith("/dev/")]
        gpus = [line for line in seen if not line.startswith("/dev/")]
        screen.say(
            f"   container {container['name']} [dim]on {pod['nodeName']}[/]  [green]$ {SEEN}[/]"
        )
        screen.quote("\n".join([*gpus, "  ".join(nodes)]), indent=6)
    return True


def _show_refusal(screen: Screen, pods: Kubectl, name: str) -> None:
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


def _beside(pods: Kubectl, name: str, story: dict[str, Any]) -> Table:
    """The moments of the pod beside those of its claim; Kubernetes keeps most as whole seconds."""
    created = datetime.fromisoformat(story["start"])
    prepared = created + timedelta(milliseconds=story["duration_ms"])
    (container,) = pods.get("pod", name)["status"]["containerStatuses"]
    line = pods.run("logs", "--timestamps", name).split()[0]
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
