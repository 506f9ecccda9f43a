"""The setting of the demo: programs and images, a lab that is up, the driver installed."""

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path

from cluster import GPUS, NAMESPACE, RELEASE, ROOTS, Cluster
from labtool import Lab as LabTool
from nvdra_lab import binaries, hardware, images, projects, report, requirements, state, versions
from nvdra_lab.environment import Environment
from nvdra_lab.errors import LabError
from nvdra_lab.kubectl import Kubectl
from nvdra_lab.model import Lab
from nvdra_lab.providers import local
from nvdra_lab.providers.local import Wishes
from nvdra_lab.report import Report

from e2e.demo import tables
from e2e.demo.screen import Screen

LOG_LINES = 15
NOTED = {
    "nvdra-gpu-plugin": "kubeletPlugin",
    "nvdra-cd-plugin": "kubeletPlugin",
    "nvdra-cd-controller": "controller",
}
"""Component → the value of its chart below which its pods' annotations are."""


def cluster(screen: Screen, environment: Environment, wishes: Wishes) -> Cluster:
    """A cluster with the project's images: the one that is up, or a new one.

    Raises:
        LabError: What could not be built or started, and where its log is; or what is wrong with
            the lab that is up.
    """
    requirements.check(environment)
    screen.chapter(
        "The programs and the images",
        f"What is built once is kept in {environment.cache.root}: etcd, Kubernetes, containerd "
        "and helm from their Go modules, the driver's images from its wheels.",
    )
    hardware.describe(wishes.profile, "node-1")  # known, or refused before minutes of building
    kubernetes = versions.resolve(wishes.kube, binaries.releases(environment, "kubernetes"))
    programs = binaries.ensure(environment, kubernetes, screen.progress)
    screen.done(f"{len(programs)} programs: Kubernetes {kubernetes} and what it needs")
    hook = Path(programs["nvidia-cdi-hook"])
    archives = projects.build(environment, "auto", hook, screen.progress)

    screen.chapter(
        "A cluster from nothing",
        "etcd, the control plane and every node's containerd and kubelet run as processes of this "
        "machine, each node in namespaces of its own. Only the GPUs are simulated.",
    )
    lab = _standing(screen, environment, wishes, programs)
    if lab is None:
        lab = local.up(environment, wishes, screen.progress)
    for archive in archives.values():
        images.load(environment, lab, programs, archive, screen.progress)
    found = Cluster.of(LabTool(lab.name))
    screen.commands(["kubectl get nodes"])
    screen.show(tables.nodes(found.kubectl.get("nodes")))
    return found


def driver(screen: Screen, environment: Environment, cluster: Cluster) -> None:
    """The driver, installed as users install it.

    Raises:
        LabError: It does not become ready; helm's words, the pods, the end of their log.
    """
    screen.chapter(
        "The driver, from its images and its chart",
        "The hardware is simulated below three folders of each node, so the chart is told where; "
        "nothing else differs from nodes with GPUs.",
    )
    roots = " ".join(f"--set global.{name}={path}" for name, path in ROOTS.items())
    where = f"-n {NAMESPACE} --create-namespace --wait"
    first, second, third = roots.split(" --set ")
    screen.commands([f"helm upgrade --install {RELEASE} charts/nvdra {where} \\"])
    screen.quote(f"{first} --set {second} \\\n--set {third}", indent=9)
    with screen.step("the driver is ready on every node"):
        _forget_interrupted(cluster)
        try:
            cluster.install(*_notes(environment))
            cluster.kubectl.wait(lambda: _silent(cluster), "every node to publish its devices")
        except (AssertionError, subprocess.SubprocessError) as error:
            raise LabError(f"{error}\n\n{_what_the_driver_says(cluster)}") from error
    screen.commands([f"kubectl -n {NAMESPACE} get pods -o wide"])
    screen.show(tables.pods(cluster.driver.get("pods")))


def _notes(environment: Environment) -> list[str]:
    """Flags of helm that start pods anew whose image is another one under the same tag."""
    flags = []
    for component, value in NOTED.items():
        digest = (environment.cache.images / f"{component}.digest").read_text()
        note = json.dumps({"nvdra-demo/image": digest[:16]})
        flags.append(f"--set-json={component}.{value}.podAnnotations={note}")
    return flags


def _standing(
    screen: Screen, environment: Environment, wishes: Wishes, programs: Mapping[str, str]
) -> Lab | None:
    """The lab of that name if it is up; one that no process is left of is none."""
    lab = state.load(environment, wishes.name)
    if lab is None:
        return None
    where = state.folder(environment, lab.name)
    kubectl = Kubectl(
        programs["kubectl"], where.admin_kubeconfig, where.kubectl_cache, environment.variables
    )
    facts = report.gather(environment, lab, kubectl)
    if not any(part.pid for part in facts.components):
        return None
    if not report.is_well(facts):
        raise LabError(f"lab {lab.name} is up, but not well:\n{troubles(facts)}")
    screen.done(f"lab {lab.name} is up already: {_described(lab)}")
    if not is_as_wished(lab, wishes):
        screen.note(
            f"(asked for: {wishes.node_count} nodes, {wishes.profile}, Kubernetes {wishes.kube}; "
            "that takes a `make cluster-down` before)"
        )
    return lab


def is_as_wished(lab: Lab, wishes: Wishes) -> bool:
    """Whether that lab is what would be started; `wishes.kube` may be short, "1.36"."""
    has_kube = f"{lab.kubernetes}.".startswith(f"{wishes.kube}.")
    return has_kube and (len(lab.nodes), lab.profile) == (wishes.node_count, wishes.profile)


def troubles(facts: Report) -> str:
    """What is not as it should be, a line each."""
    lines = [f"{part.name}: {part.state}" for part in facts.components if part.state != "running"]
    lines += [f"{node.name}: {node.why}" for node in facts.nodes if not node.is_ready]
    return "\n".join([*lines, *([facts.trouble] if facts.trouble else [])])


def _described(lab: Lab) -> str:
    return f"{len(lab.nodes)} nodes, {lab.profile}, Kubernetes {lab.kubernetes}"


def _forget_interrupted(cluster: Cluster) -> None:
    """A helm that was stopped in the midst keeps every later one from its work."""
    answer = cluster.lab.run("helm", "status", RELEASE, "--namespace", NAMESPACE, "-o", "json")
    if answer.returncode == 0 and json.loads(answer.stdout)["info"]["status"].startswith("pending"):
        cluster.uninstall()


def _silent(cluster: Cluster) -> str | None:
    """The nodes whose GPUs are not published yet."""
    heard = {device.node for device in cluster.devices()}
    pods = cluster.driver.get("pods", "", "-l", GPUS.label)
    missing = {pod["spec"]["nodeName"] for pod in pods} - heard
    return f"nothing from {', '.join(sorted(missing))}" if missing else None


def _what_the_driver_says(cluster: Cluster) -> str:
    pods = cluster.driver.attempt("get", "pods", "-o", "wide").stdout
    everybody = f"app.kubernetes.io/instance={RELEASE}"
    log = cluster.driver.attempt("logs", "-l", everybody, "--prefix", f"--tail={LOG_LINES}")
    return f"{pods}\n{log.stdout or log.stderr}".strip()
