# SPDX-License-Identifier: Apache-2.0
"""An installation moves from the latest release to this state and back; its pods run throughout.

Pods with whole GPUs and MIG devices come and go meanwhile, and a domain has a pod on each node.
`test_rollouts.py` has pods with channels that come and go.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial

import pytest
from nvdra_api import names
from nvdra_testing.cluster import (
    compute_domains,
    disturbances,
    former_images,
    pod_load,
    released_driver,
    workloads,
)
from nvdra_testing.cluster.compute_domains import Domain
from nvdra_testing.cluster.disturbances import Report, Watch
from nvdra_testing.cluster.installation import (
    CD_PLUGIN,
    GPU_PLUGIN,
    RELEASE,
    Cluster,
)
from nvdra_testing.cluster.kubectl import Kubectl
from nvdra_testing.cluster.pod_load import Stream

NODES = ("node-1", "node-2")
COMPONENTS = ("nvdra-gpu-plugin", "nvdra-cd-plugin", "nvdra-cd-controller", "nvdra-imex-daemon")
PLUGINS = tuple(f"daemonset/{RELEASE}-{each.name}" for each in (GPU_PLUGIN, CD_PLUGIN))
CONTROLLER = f"deployment/{compute_domains.CONTROLLER_NAME}"
WEBHOOK = f"deployment/{RELEASE}-webhook"
NEWER = [
    "--set=global.featureGates.DynamicMIG=true",
    "--set=webhook.enabled=true",
    "--set=webhook.tls.mode=self-managed",
]
"""What the release does not have: MIG devices that are made for claims, and the webhook."""
REWRITTEN_S = 5.0
"""A pool with MIG devices has a slice more, of counters: two requests, half a second here."""

DOMAIN = "ring"
WHOLE = f"{workloads.attribute('type')} == 'gpu'"
SMALLEST = f"{workloads.attribute('profile')}.startsWith('1g.')"
ONE_GPU = 'test "$(nvidia-smi -L | wc -l)" = 1 && sleep 1'
ONE_SLICE = 'test "$(nvidia-smi -L | grep -c MIG-)" = 1 && sleep 1'
CHECKED = {"kind": "GpuConfig"}
"""An opaque config, so that claims cannot be created while no webhook answers."""

ROLLED_OUT_S = 150
DONE_S = 150
"""A kubelet may repeat a failed prepare after more than a minute."""
LEFT = (
    "customresourcedefinition.apiextensions.k8s.io/computedomaincliques.resource.nvidia.com",
    "customresourcedefinition.apiextensions.k8s.io/computedomains.resource.nvidia.com",
)


@dataclass
class Held:
    """Pods that run throughout.

    Attributes:
        pods: Their namespace.
        containers: The container of each, and how often it was restarted.
    """

    pods: Kubectl
    containers: dict[str, tuple[str, int]] = field(default_factory=dict)

    def add(self, *pods: str) -> None:
        """Remember the containers of running pods."""
        self.containers |= {name: self._container(name) for name in pods}

    def delete(self, pod: str) -> None:
        """Delete a pod, and wait until it is gone, with its claims."""
        del self.containers[pod]
        self.pods.delete("pod", pod)

    def check(self) -> None:
        """Check that each pod still has the container that it had."""
        assert {name: self._container(name) for name in self.containers} == self.containers

    def _container(self, name: str) -> tuple[str, int]:
        (status,) = self.pods.get("pod", name)["status"]["containerStatuses"]
        assert status["ready"], status
        return status["containerID"], status["restartCount"]


@dataclass
class Journey:
    """The phases of an installation's life, and what was noticed in each."""

    watch: Watch
    held: Held
    domain: Domain
    daemons: dict[str, str]
    reports: dict[str, Report] = field(default_factory=dict)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Note what is noticed while the block runs and until the load has gone on."""
        began = time.monotonic()
        yield
        self.watch.load.wait_succeeded(DONE_S)
        report = self.reports[name] = self.watch.report(began)
        print(f"{name}: {report}", *report.failed_prepares, *report.absences, sep="\n  ")
        print(*report.not_ready, sep="\n  ")
        self.held.check()
        assert self.domain.daemons() == self.daemons


@pytest.mark.soak("builds images of released versions")
@pytest.mark.timeout(1800, func_only=True)
def test_pods_outlive_an_upgrade_each_rollout_a_downgrade_and_an_uninstallation(
    rack: Cluster, team: Kubectl, rack_settings: list[str]
) -> None:
    tags = former_images.load(rack.lab, *COMPONENTS)
    gpus = replace(rack, component=GPU_PLUGIN)
    rack.uninstall()
    with former_release(rack, tags, rack_settings):
        held = Held(team)
        domain = hold_gpu_and_channels(rack, team, held)
        with disturbances.watched(rack, team, list(streams())) as watch:
            journey = Journey(watch, held, domain, domain.daemons())
            with journey.phase("helm upgrade from the release"):
                rack.install(*rack_settings, *NEWER, wait_s=ROLLED_OUT_S)
            journey.reports["helm upgrade from the release"].check_none(REWRITTEN_S)
            roll_each_component(gpus, team, journey)
            replace_each_daemon(rack, team, journey)
            with journey.phase("helm upgrade back to the release"):
                released_driver.install(rack, tags, *rack_settings, wait_s=ROLLED_OUT_S)
                wait_rolled_out(rack, *PLUGINS, CONTROLLER)
            assert journey.reports["helm upgrade back to the release"].not_ready == []
            gpu = check_left_divided(gpus, held)
            with journey.phase("helm upgrade again"):
                rack.install(*rack_settings, *NEWER, wait_s=ROLLED_OUT_S)
            journey.reports["helm upgrade again"].check_none(REWRITTEN_S)
            assert not_offered(gpus, gpu)  # what is left is an administrator's (docs/upgrade.md)
            gpus.make_whole(*gpu)
        check_uninstalled(rack, held)
    rack.install(*rack_settings, wait_s=ROLLED_OUT_S)
    held.check()
    compute_domains.wait_ready(team, DOMAIN, len(NODES))
    team.delete("pod", *held.containers)
    team.delete("computedomain", DOMAIN)
    domain.wait_gone()
    compute_domains.wait_released(rack)
    compute_domains.wait_released(gpus)


@contextmanager
def former_release(rack: Cluster, tags: dict[str, str], settings: list[str]) -> Iterator[None]:
    """Install the latest release; if the block fails, this state's default installation is back.

    Its CRDs are among its objects: those that the controller has made are in its way.
    """
    rack.kubectl.run("delete", "--ignore-not-found", *LEFT)
    released_driver.install(rack, tags, *settings, wait_s=ROLLED_OUT_S)
    try:
        wait_rolled_out(rack, *PLUGINS, CONTROLLER)
        yield
    except BaseException:
        rack.install(*settings, wait_s=ROLLED_OUT_S)
        raise


def hold_gpu_and_channels(rack: Cluster, team: Kubectl, held: Held) -> Domain:
    """Run a pod with a GPU, and on each node one with a channel of a domain."""
    domain = Domain(rack, compute_domains.create_domain(team, DOMAIN))
    team.apply(workloads.template("gpu", workloads.gpus("gpu", WHOLE), config=CHECKED))
    team.apply(workloads.template("slice", workloads.mig_devices("mig", SMALLEST)))
    team.apply(workloads.pod("with-gpu", templates=["gpu"]))
    compute_domains.run_on(team, DOMAIN, NODES, timeout_s=150)
    team.wait_running("with-gpu")
    compute_domains.wait_ready(team, DOMAIN, len(NODES), 60)
    held.add("with-gpu", *NODES)
    return domain


def streams() -> Iterator[Stream]:
    """Pods with whole GPUs on each node. Its channel is held: a node has one for all domains."""
    for node in NODES:
        yield Stream(f"gpus-{node}", node, "gpu", 1, ONE_GPU)


def roll_each_component(rack: Cluster, team: Kubectl, journey: Journey) -> None:
    """Replace each component alone, while pods with MIG devices come and go as well."""
    team.apply(workloads.pod("with-slice", templates=["slice"]))
    team.wait_running("with-slice", timeout_s=90)
    journey.held.add("with-slice")
    slices = [Stream(f"slices-{node}", node, "slice", 1, ONE_SLICE) for node in NODES]
    with pod_load.running(team, slices) as load:
        disturbances.wait_flowing(team, load, slices)
        for what in (*PLUGINS, CONTROLLER, WEBHOOK):
            with journey.phase(f"rollout of {what}"):
                rack.driver_namespace.run("rollout", "restart", what)
                wait_rolled_out(rack, what)
            journey.reports[f"rollout of {what}"].check_none()
        load.wait_succeeded(DONE_S)


def replace_each_daemon(rack: Cluster, team: Kubectl, journey: Journey) -> None:
    """Replace the IMEX daemons one after another, as docs/upgrade.md says.

    Its node is not ready in the domain meanwhile; who holds a channel keeps it.
    """
    pods = rack.driver_namespace
    for node in NODES:
        what = f"another IMEX daemon on {node}"
        with journey.phase(what):
            former = journey.daemons[node]
            pods.delete("pod", former)
            pods.wait(partial(not_replaced, journey.domain, node, former), "another daemon")
            journey.daemons = journey.domain.daemons()
            pods.wait_running(journey.daemons[node], timeout_s=60)
            compute_domains.wait_ready(team, DOMAIN, len(NODES), 60)
        report = journey.reports[what]
        assert report.failed_prepares == []
        assert report.absences == []
        for each in NODES:
            assert compute_domains.channels(team, each) == {"channel0"}


def not_replaced(domain: Domain, node: str, former: str) -> str | None:
    """The node's former daemon, if no other one is there."""
    found = domain.daemons().get(node, former)
    return found if found == former else None


def wait_rolled_out(rack: Cluster, *what: str) -> None:
    """Wait until all pods of these workloads are new and ready."""
    for each in what:
        words = ("rollout", "status", each, f"--timeout={ROLLED_OUT_S}s")
        rack.driver_namespace.run(*words, timeout_s=ROLLED_OUT_S + 10)


def check_left_divided(gpus: Cluster, held: Held) -> tuple[str, int]:
    """Delete the pod with a MIG device under the release, which knows no MIG devices.

    Returns:
        Node and index of the GPU, which stays in MIG mode and is not offered.
    """
    node = held.pods.get("pod", "with-slice")["spec"]["nodeName"]
    (made,) = gpus.mig_list(node)
    assert workloads.visible_mig_devices(held.pods, "with-slice") == {made["uuid"]}
    held.delete("with-slice")
    assert [each["uuid"] for each in gpus.mig_list(node)] == [made["uuid"]]
    gpu = (node, int(made["gpu"]))
    assert not_offered(gpus, gpu)
    return gpu


def not_offered(gpus: Cluster, gpu: tuple[str, int]) -> bool:
    """Whether no device of a whole GPU is offered."""
    node, index = gpu
    offered = [(device.node, device.name) for device in gpus.devices()]
    return (node, f"gpu-{index}") not in offered


def check_uninstalled(rack: Cluster, held: Held) -> None:
    """Uninstall the driver: pods run on, and nothing of the release is left but definitions."""
    rack.uninstall()
    held.check()
    labelled = ("-l", "app.kubernetes.io/managed-by=Helm", "-o", "name")
    kinds = rack.kubectl.run("api-resources", "--verbs=list", "-o", "name").split()
    left = [
        name
        for kind in kinds
        if not kind.startswith(("events", "componentstatuses"))
        for name in rack.kubectl.run("get", kind, "-A", *labelled).split()
    ]
    assert sorted(left) == sorted(LEFT)
    assert held.pods.exists("computedomain", DOMAIN)
    (daemonset,) = rack.driver_namespace.get("daemonsets", "", "-l", names.DOMAIN_LABEL)
    assert daemonset["status"]["numberReady"] == len(NODES)
