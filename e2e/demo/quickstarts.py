# SPDX-License-Identifier: Apache-2.0
"""The quickstarts: apply each, and look into its containers or at what its user is told."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml
from nvdra_lab.errors import LabError
from nvdra_testing.cluster import api_versions, device_health, workloads
from nvdra_testing.cluster.installation import Cluster, Device
from nvdra_testing.cluster.kubectl import Kubectl

from e2e.demo.screen import Screen
from e2e.demo.tables import PCIE_ROOT

FOLDER = Path(__file__).parents[1] / "quickstarts"
DOMAIN = "8-one-domain-over-two-nodes.yaml"
ONE_SLICE = "9-a-mig-device-to-order.yaml"
FOUR_SLICES = "10-four-slices-of-one-board.yaml"
TURNS = "11-two-pods-take-turns.yaml"
WELL = "12-a-gpu-that-is-well.yaml"
MPS_PAIR = "15-an-mps-pair.yaml"
VIRTUAL_MACHINE = "16-a-gpu-for-a-virtual-machine.yaml"
TOLD_LATER = (DOMAIN, ONE_SLICE, FOUR_SLICES, TURNS, WELL, MPS_PAIR, VIRTUAL_MACHINE)
"""Told in chapters of their own."""

NOT_TOLD = ("13-a-mig-device-by-its-resource.yaml", "14-two-pods-share-a-gpu.yaml")
"""They need values of the chart that the demo does not set."""

SINCE = {
    ONE_SLICE: api_versions.PARTITIONS_SINCE,
    FOUR_SLICES: api_versions.PARTITIONS_SINCE,
    WELL: device_health.HAS_TAINTS,
}
"""Quickstart → the first release of Kubernetes that has what it needs."""

LACKING = {
    "4": "As expected: no GPU of this profile is such a one. Those of PROFILE=dgx-h100 are.",
    "5": "As expected: no two GPUs of this profile hang below one PCIe root. Those of "
    "PROFILE=dgx-h100 do.",
}
"""What quickstarts say on hardware that does not have what they ask for, by number."""

SHOWN = "e2e/quickstarts"
NAMESPACE = "demo"
SEEN = "nvidia-smi -L; ls /dev/nvidia*"
FOR_ALL = 8
"""GPUs that all quickstarts of the chapter hold at once; on fewer each makes room for the next."""

FOR_ANY = 4
"""GPUs that the first, which stays, and the greediest of the others hold."""


@dataclass(frozen=True)
class Quickstart:
    """One file: what its first line says, and its pods."""

    file: str
    title: str
    pods: tuple[str, ...]


def parse(file: str, text: str) -> Quickstart:
    """A quickstart from its file's name and text."""
    title = text.splitlines()[0].removeprefix("#").strip()
    objects = yaml.safe_load_all(text)
    names = [each["metadata"]["name"] for each in objects if each["kind"] == "Pod"]
    return Quickstart(file, title, tuple(names))


def pending_quickstarts(devices: Sequence[Device], release: tuple[int, int]) -> set[str]:
    """The quickstarts (by number) that must stay pending on that hardware and Kubernetes."""
    roots = Counter((device.node, device.attributes.get(PCIE_ROOT)) for device in devices)
    has_pair = any(count > 1 for (_, root), count in roots.items() if root)
    products = [device.attributes["productName"] for device in devices]
    has_chosen = any(name in product for name in ("H100", "GB200") for product in products)
    has_extended = release >= api_versions.EXTENDED_RESOURCES_SINCE
    is_served = {"4": has_chosen, "5": has_pair, "6": False, "7": has_extended}
    return {number for number, is_so in is_served.items() if not is_so}


def is_served_by(release: tuple[int, int], file: str) -> bool:
    """Whether that release of Kubernetes has what a quickstart needs."""
    return release >= SINCE.get(file, (0, 0))


def run(screen: Screen, cluster: Cluster, devices: Sequence[Device]) -> None:
    """All of them, one after another.

    Raises:
        LabError: There are too few GPUs to show anything.
    """
    screen.chapter(
        "Pods that ask for GPUs",
        f"Each file is a manifest for any cluster; here they go to the namespace {NAMESPACE}. "
        f"Below each container's name: what it sees by `{SEEN}`.",
    )
    if len(devices) < FOR_ANY:
        raise LabError(
            f"{len(devices)} GPUs are too few for the quickstarts, which take {FOR_ANY}: "
            "make cluster-down, then make demo with more NODES= or another PROFILE="
        )
    with screen.step(f"an empty namespace {NAMESPACE}"):
        _empty(cluster)
    if cluster.kubectl.resource_api_version != "v1":
        version = f"{api_versions.GROUP}/{cluster.kubectl.resource_api_version}"
        screen.prose(f"Claims are written in {version} here.", indent=2)
    files = sorted(file for file in FOLDER.glob("*.yaml") if file.name not in TOLD_LATER + NOT_TOLD)
    for file in files:
        quickstart = parse(file.name, file.read_text())
        _show(
            screen,
            cluster,
            quickstart,
            is_served=file.name[0] not in pending_quickstarts(devices, cluster.release),
        )
        if len(devices) < FOR_ALL and file not in (files[0], files[-1]):
            pods = cluster.kubectl.in_namespace(NAMESPACE)
            pods.run("delete", "-f", str(file), "--wait")


def make_room(screen: Screen, cluster: Cluster) -> None:
    """Delete all pods but those of the first quickstart, and so set their GPUs free."""
    pods = cluster.kubectl.in_namespace(NAMESPACE)
    first, *_ = sorted(FOLDER.glob("1-*.yaml"))
    staying = parse(first.name, first.read_text()).pods
    names = [pod["metadata"]["name"] for pod in pods.get("pods")]
    with screen.step(f"room for what follows: all pods but {' and '.join(staying)} are deleted"):
        pods.delete("pod", *(name for name in names if name not in staying))


def start(screen: Screen, pods: Kubectl, file: str) -> Quickstart:
    """Apply one quickstart, and wait until its pods run."""
    quickstart = parse(file, (FOLDER / file).read_text())
    screen.heading(quickstart.title)
    screen.commands([f"kubectl -n {NAMESPACE} apply -f {SHOWN}/{file}"])
    pods.apply(FOLDER / file)
    with screen.step(f"{' and '.join(quickstart.pods)}: Running"):
        pods.wait_running(*quickstart.pods)
    return quickstart


def delete_pods(screen: Screen, pods: Kubectl, quickstart: Quickstart) -> None:
    """Delete the pods of a quickstart, and with them their claims that are from templates."""
    screen.commands([f"kubectl -n {NAMESPACE} delete pod {' '.join(quickstart.pods)}"])
    pods.delete("pod", *quickstart.pods)


def show_what_pods_see(screen: Screen, pods: Kubectl, quickstart: Quickstart) -> None:
    """Each pod's own `nvidia-smi -L`."""
    for name in quickstart.pods:
        screen.commands([f"kubectl -n {NAMESPACE} exec {name} -- nvidia-smi -L"])
        screen.quote(pods.exec(name, "nvidia-smi", "-L"))


def _empty(cluster: Cluster) -> None:
    """The namespace, without what an earlier demo left in it."""
    if cluster.kubectl.exists("namespace", NAMESPACE):
        kinds = "pods,computedomains,resourceclaimtemplates,resourceclaims"
        cluster.kubectl.in_namespace(NAMESPACE).run("delete", kinds, "--all", "--wait")
    else:
        cluster.kubectl.run("create", "namespace", NAMESPACE)


def _show(screen: Screen, cluster: Cluster, quickstart: Quickstart, *, is_served: bool) -> None:
    pods = cluster.kubectl.in_namespace(NAMESPACE)
    screen.heading(quickstart.title)
    screen.commands([f"kubectl -n {NAMESPACE} apply -f {SHOWN}/{quickstart.file}"])
    pods.apply(FOLDER / quickstart.file)
    if not is_served:
        for name in quickstart.pods:
            _show_pending(screen, pods, name)
        if lacking := LACKING.get(quickstart.file.partition("-")[0]):
            screen.prose(lacking, indent=6)
        return
    with screen.step(f"{' and '.join(quickstart.pods)}: Running"):
        pods.wait_running(*quickstart.pods)
    for name in quickstart.pods:
        _show_containers(screen, pods, name)
        _show_topology(screen, cluster, pods, name)


def _show_containers(screen: Screen, pods: Kubectl, name: str) -> None:
    """Every container's own view of the hardware."""
    spec = pods.get("pod", name)["spec"]
    for container in spec["containers"]:
        seen = pods.exec(name, "sh", "-c", SEEN, container=container["name"]).splitlines()
        files = [line for line in seen if line.startswith("/dev/")]
        screen.prose(f"{name}/{container['name']} on {spec['nodeName']}", style="cyan")
        screen.quote("\n".join(line for line in seen if line not in files), indent=6)
        screen.prose(" ".join(files), indent=6)


def _show_topology(screen: Screen, cluster: Cluster, pods: Kubectl, name: str) -> None:
    """Where the GPUs of a pod with several hang."""
    for claim in workloads.claims_of(pods, name):
        given = cluster.allocated_devices(claim)
        if len(given) > 1:
            places = [f"{device.name} below {device.attributes[PCIE_ROOT]}" for device in given]
            screen.prose(f"{given[0].node}: {', '.join(places)}", indent=6)


def _show_pending(screen: Screen, pods: Kubectl, name: str) -> None:
    """A pod that waits: what `kubectl describe` tells its user."""
    pods.wait(
        lambda: None if _scheduler_message(pods, name) else "nothing yet", "the scheduler's verdict"
    )
    facts = [f"{name} is {pods.get('pod', name)['status']['phase']}"]
    for claim in workloads.claims_of(pods, name):
        is_allocated = "allocation" in claim.get("status", {})
        facts.append(f"its claim {'allocated' if is_allocated else 'not allocated'}")
    screen.prose(f"{', '.join(facts)}; its user is told:", style="yellow")
    screen.commands([f"kubectl -n {NAMESPACE} describe pod {name}"])
    screen.prose(f"Warning  FailedScheduling  {_scheduler_message(pods, name)}", indent=6)


def _scheduler_message(pods: Kubectl, name: str) -> str:
    """Why the scheduler finds no node: the message of its last event about the pod."""
    said = [message for reason, message in pods.events(name) if reason == "FailedScheduling"]
    return said[-1] if said else ""
