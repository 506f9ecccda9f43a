"""The setting of the demo: a lab that is up, the project's images in it, the driver installed."""

import json
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

from cluster import NAMESPACE, RELEASE, ROOTS, Cluster
from labtool import LAB, Lab
from nvdra_lab import environment
from rich.table import Table

from e2e.demo.screen import Screen, listing

DIGEST = "nvdra-gpu-plugin.digest"
IMAGE_NOTE = "nvdra-gpu-plugin.kubeletPlugin.podAnnotations"


class Failed(Exception):
    """A command of `lab` that has said itself what went wrong."""


@dataclass(frozen=True)
class Wishes:
    """The cluster that is asked for; one that is up is taken as it is."""

    lab: str
    nodes: int
    profile: str
    kube: str


def cluster(screen: Screen, wishes: Wishes) -> Cluster:
    """A cluster with the project's images: the one that is up, or a new one."""
    screen.chapter(
        "A cluster from nothing",
        "etcd, the control plane and every node's containerd and kubelet are processes of this "
        "machine. Only the GPUs are simulated. What is built is kept in ~/.cache/nvdra.",
    )
    lab = Lab(wishes.lab)
    facts = _facts(lab)
    if facts is None:
        _run("up", "--name", lab.name, *_flags(wishes))
    else:
        screen.say(f"✓ lab {lab.name} is up already")
        _note_differences(screen, wishes, facts)
    _run("image", "build")
    _run("image", "load", "--name", lab.name)
    found = Cluster.of(lab)
    screen.say("")
    screen.command("kubectl get nodes")
    screen.show(_nodes(found))
    return found


def driver(screen: Screen, cluster: Cluster) -> None:
    """The driver, installed as users install it."""
    screen.chapter(
        "The driver, from its image and its chart",
        "The nodes' driver, procfs and sysfs are the simulator's, so their roots are given; "
        "nothing else differs from a cluster with GPUs.",
    )
    roots = ",".join(f"global.{name}={path}" for name, path in ROOTS.items())
    screen.command(
        f"helm install {RELEASE} charts/nvdra -n {NAMESPACE} --create-namespace --wait \\"
    )
    screen.quote(f"      --set {roots}")
    with screen.step("the driver is ready on every node"):
        # The tag stays the same from build to build; this starts the pods anew on another image.
        digest = (environment.read().cache.images / DIGEST).read_text()
        note = json.dumps({"nvdra-demo/image": digest[:16]})
        cluster.install(f"--set-json={IMAGE_NOTE}={note}")


def _facts(lab: Lab) -> dict[str, Any] | None:
    """What is up, or None; a lab that is not well is a failure."""
    answer = lab.run("status", "--json")
    if not answer.stdout:
        return None
    facts: dict[str, Any] = json.loads(answer.stdout)
    if answer.returncode != 0:
        raise Failed(
            f"lab {lab.name} is up but not well (lab status says how); take it down and "
            "begin again: make cluster-down"
        )
    return facts


def _note_differences(screen: Screen, wishes: Wishes, facts: dict[str, Any]) -> None:
    is_so = (len(facts["nodes"]), facts["profile"])
    asked = (wishes.nodes, wishes.profile)
    if is_so != asked or not facts["kubernetes"].startswith(wishes.kube):
        screen.say(
            f"  [yellow]it has {is_so[0]} nodes, {is_so[1]}, Kubernetes {facts['kubernetes']}[/]; "
            "for another one: make cluster-down"
        )


def _flags(wishes: Wishes) -> list[str]:
    wanted = {"--nodes": str(wishes.nodes), "--profile": wishes.profile, "--kube": wishes.kube}
    return [word for pair in wanted.items() for word in pair]


def _run(*arguments: str) -> None:
    """Run `lab`; it shows its own progress, on the stream that everything else goes to."""
    sys.stdout.flush()
    argv, stream = [str(LAB), *arguments], sys.stdout.fileno()
    done = subprocess.run(argv, stdout=subprocess.DEVNULL, stderr=stream, check=False)
    if done.returncode != 0:
        raise Failed(f"lab {' '.join(arguments)} failed; it says why above")


def _nodes(cluster: Cluster) -> Table:
    table = listing("NAME", "STATUS", "VERSION", "ADDRESS", "RUNTIME")
    for node in cluster.kubectl.get("nodes"):
        status = node["status"]
        ready = {each["type"]: each["status"] for each in status["conditions"]}["Ready"]
        table.add_row(
            node["metadata"]["name"],
            "Ready" if ready == "True" else "NotReady",
            status["nodeInfo"]["kubeletVersion"],
            status["addresses"][0]["address"],
            status["nodeInfo"]["containerRuntimeVersion"],
        )
    return table
