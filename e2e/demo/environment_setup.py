# SPDX-License-Identifier: Apache-2.0
"""Prepares the demo: builds programs and images, starts a lab, installs the driver."""

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path

from nvdra_lab import state, status_report, versions
from nvdra_lab.artifacts import binaries, images, project_images
from nvdra_lab.environment import Environment
from nvdra_lab.errors import LabError
from nvdra_lab.kubernetes.kubectl import Kubectl
from nvdra_lab.machines import hardware, requirements
from nvdra_lab.model import Lab
from nvdra_lab.providers import local
from nvdra_lab.providers.local import LabRequest
from nvdra_lab.status_report import StatusReport
from nvdra_testing.cluster.installation import (
    GPU_PLUGIN,
    LAB_SETTINGS,
    NAMESPACE,
    RELEASE,
    Cluster,
)
from nvdra_testing.cluster.lab_command import Lab as LabTool

from e2e.demo import tables
from e2e.demo.screen import Screen

LOG_LINES = 15
PASSTHROUGH_VALUES = "e2e/cluster/passthrough-values.yaml"
"""Values of the chart for a lab whose GPUs can change drivers."""

NOTED = {
    "nvdra-gpu-plugin": "kubeletPlugin",
    "nvdra-cd-plugin": "kubeletPlugin",
    "nvdra-cd-controller": "controller",
}
"""Component → the value of its chart below which its pods' annotations are."""


def start_cluster(screen: Screen, environment: Environment, wishes: LabRequest) -> Cluster:
    """Return a cluster with the project's images: the one that runs, or a new one.

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
    archives = project_images.build(environment, "auto", hook, screen.progress)

    screen.chapter(
        "A cluster from nothing",
        "etcd, the control plane and every node's containerd and kubelet run as processes of this "
        "machine, each node in namespaces of its own. Only the GPUs are simulated.",
    )
    lab = _running_lab(screen, environment, wishes, programs)
    if lab is None:
        lab = local.up(environment, wishes, screen.progress)
    for archive in archives.values():
        images.load(environment, lab, programs, archive, screen.progress)
    found = Cluster.from_lab(LabTool(lab.name))
    screen.commands(["kubectl get nodes"])
    screen.show(tables.nodes(found.kubectl.get("nodes")))
    return found


def install_driver(screen: Screen, environment: Environment, cluster: Cluster, *gates: str) -> None:
    """Install the driver as users install it.

    Args:
        screen: Where to say so.
        environment: Where the images are.
        cluster: The cluster.
        *gates: The feature gates to turn on.

    Raises:
        LabError: It does not become ready; helm's words, the pods, the end of their log.
    """
    screen.chapter(
        "The driver, from its images and its chart",
        "The hardware is simulated below three folders of each node, so the chart is told where, "
        "and the images are in the nodes already. Nothing else differs from nodes with GPUs.",
    )
    settings = [f"--set global.{name}={value}" for name, value in LAB_SETTINGS.items()]
    where = f"-n {NAMESPACE} --create-namespace --wait"
    screen.commands([f"helm upgrade --install {RELEASE} charts/nvdra {where} \\"])
    choices = [f"--set global.featureGates.{gate}=true" for gate in gates]
    pairs = [" ".join(settings[start : start + 2]) for start in range(0, len(settings), 2)]
    lab = state.load(environment, cluster.lab.name)
    files = [PASSTHROUGH_VALUES] if lab is not None and lab.has_passthrough else []
    lines = [*pairs, *(f"--values {file}" for file in files), *choices]
    screen.quote(" \\\n".join(lines), indent=9)
    with screen.step("the driver is ready on every node"):
        _uninstall_interrupted(cluster)
        try:
            flags = [f"--values={environment.repository / file}" for file in files]
            flags += [f"--set=global.featureGates.{gate}=true" for gate in gates]
            cluster.install(*_image_annotations(environment), *flags)
            cluster.kubectl.wait(
                lambda: _nodes_without_devices(cluster), "every node to publish its devices"
            )
        except (AssertionError, subprocess.SubprocessError) as error:
            raise LabError(f"{error}\n\n{_driver_state(cluster)}") from error
    screen.commands([f"kubectl -n {NAMESPACE} get pods -o wide"])
    screen.show(tables.pods(cluster.driver_namespace.get("pods")))


def _image_annotations(environment: Environment) -> list[str]:
    """Flags of helm that start pods anew whose image is another one under the same tag."""
    flags = []
    for component, value in NOTED.items():
        digest = (environment.cache.images / f"{component}.digest").read_text()
        note = json.dumps({"nvdra-demo/image": digest[:16]})
        flags.append(f"--set-json={component}.{value}.podAnnotations={note}")
    return flags


def _running_lab(
    screen: Screen, environment: Environment, wishes: LabRequest, programs: Mapping[str, str]
) -> Lab | None:
    """The lab of that name if it is up; one that no process is left of is none."""
    lab = state.load(environment, wishes.name)
    if lab is None:
        return None
    where = state.folder(environment, lab.name)
    kubectl = Kubectl(
        programs["kubectl"], where.admin_kubeconfig, where.kubectl_cache, environment.variables
    )
    facts = status_report.gather(environment, lab, kubectl)
    if not any(part.pid for part in facts.components):
        return None
    if not status_report.is_healthy(facts):
        raise LabError(f"lab {lab.name} is up, but not well:\n{problems(facts)}")
    screen.done(f"lab {lab.name} is up already: {_describe(lab)}")
    if not matches_request(lab, wishes):
        asked = _facts(wishes.node_count, wishes.profile, wishes.kube, wishes.has_passthrough)
        screen.note(f"(asked for: {asked}; that takes a `make cluster-down` before)")
    return lab


def matches_request(lab: Lab, wishes: LabRequest) -> bool:
    """Whether that lab is what would be started; `wishes.kube` may be short, "1.36"."""
    has_kube = f"{lab.kubernetes}.".startswith(f"{wishes.kube}.")
    wanted = (wishes.node_count, wishes.profile, wishes.has_passthrough)
    return has_kube and (len(lab.nodes), lab.profile, lab.has_passthrough) == wanted


def problems(facts: StatusReport) -> str:
    """What is not as it should be, a line each."""
    lines = [f"{part.name}: {part.state}" for part in facts.components if part.state != "running"]
    lines += [f"{node.name}: {node.reason}" for node in facts.nodes if not node.is_ready]
    return "\n".join([*lines, *([facts.trouble] if facts.trouble else [])])


def _describe(lab: Lab) -> str:
    return _facts(len(lab.nodes), lab.profile, lab.kubernetes, lab.has_passthrough)


def _facts(node_count: int, profile: str | None, kubernetes: str, has_passthrough: bool) -> str:
    drivers = ", passthrough" if has_passthrough else ""
    return f"{node_count} nodes, {profile}, Kubernetes {kubernetes}{drivers}"


def _uninstall_interrupted(cluster: Cluster) -> None:
    """A helm that was stopped in the midst keeps every later one from its work."""
    answer = cluster.lab.run("helm", "status", RELEASE, "--namespace", NAMESPACE, "-o", "json")
    if answer.returncode == 0 and json.loads(answer.stdout)["info"]["status"].startswith("pending"):
        cluster.uninstall()


def _nodes_without_devices(cluster: Cluster) -> str | None:
    """The nodes whose GPUs are not published yet."""
    heard = {device.node for device in cluster.devices()}
    pods = cluster.driver_namespace.get("pods", "", "-l", GPU_PLUGIN.label)
    missing = {pod["spec"]["nodeName"] for pod in pods} - heard
    return f"nothing from {', '.join(sorted(missing))}" if missing else None


def _driver_state(cluster: Cluster) -> str:
    pods = cluster.driver_namespace.run_unchecked("get", "pods", "-o", "wide").stdout
    everybody = f"app.kubernetes.io/instance={RELEASE}"
    log = cluster.driver_namespace.run_unchecked(
        "logs", "-l", everybody, "--prefix", f"--tail={LOG_LINES}"
    )
    return f"{pods}\n{log.stdout or log.stderr}".strip()
