# SPDX-License-Identifier: Apache-2.0
"""Plugins are replaced while pods with GPUs and channels come and go on every node.

Kubelets from 1.33 on can have two instances of a plugin: there no prepare fails, and the slices
stay as they are. Before 1.33 the new instance waits for the old one to end, and the node is without
the driver for as long as it then takes.
"""

import json
import re
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial

import pytest
from nvdra_testing.cluster import (
    compute_domains,
    disturbances,
    former_images,
    plugin_instances,
    pod_load,
    published_devices,
    recorders,
    workloads,
)
from nvdra_testing.cluster.compute_domains import Domain
from nvdra_testing.cluster.installation import (
    CD_PLUGIN,
    CHART,
    GPU_PLUGIN,
    NAMESPACE,
    RELEASE,
    Cluster,
    Component,
)
from nvdra_testing.cluster.kubectl import Kubectl
from nvdra_testing.cluster.plugin_instances import SocketGaps
from nvdra_testing.cluster.pod_load import Load, Refusal, Start, Stream
from nvdra_testing.cluster.published_devices import Absence
from nvdra_testing.cluster.recorders import Recording

PLUGINS = (GPU_PLUGIN, CD_PLUGIN)
STRIKE_POLL_S = 0.02
TWO_INSTANCES_SINCE = (1, 33)
ONE_GPU = 'test "$(nvidia-smi -L | wc -l)" = 1 && sleep 1'
ONE_CHANNEL = f"test -e {compute_domains.CHANNELS_DIR}/channel0 && sleep 1"
ROLLED_OUT_S = 150
STARTED_S = 90
"""The longest time from a pod's scheduling to its sandbox. The kubelet's call may take half of it,
as the IMEX daemon that the pod may need does on a busy machine.
"""
ALL_DONE_S = 120
"""A kubelet may repeat a failed prepare after more than a minute."""
GAP_S = 5
"""On a busy machine; measured were 0.4 s without registration and 1 s without slices."""
LONG_PULL_S = 40
"""From 1.33 on, kubelets delete the slices of a driver that has been away for 30 s."""
UPDATE = "kubeletPlugin.updateStrategy.rollingUpdate"
WAITED = "DaemonNotReady"
DAEMON_LATE_S = 30
"""A prepare gives up after 43 s if its daemon is not ready by then; a plugin that is stopped would
give up earlier.
"""
CANNOT_PULL = ("ErrImagePull", "ImagePullBackOff")
CUT_OFF = re.compile("rpc error: code = (Canceled|Unavailable) ")
"""A call that an instance was just passing on when it was killed; the kubelet repeats it."""

Strike = Callable[[Cluster, Component, str], bool]
"""Does something to the instance of a pod's UID, and returns whether it was there."""


@dataclass(frozen=True)
class Witness:
    """What is seen of the plugins while pods come and go.

    Attributes:
        load: The pods.
        slices: Every version of every ResourceSlice.
        recorded_gaps: By driver and node, when there was no registration socket.
        began: When everything was as it should be.
    """

    load: Load
    slices: Recording
    recorded_gaps: Mapping[tuple[str, str], SocketGaps]
    began: float

    def longest_start(self) -> Start:
        """The pod that waited longest for its claims and its sandbox."""
        return max(self.load.starts(self.began), key=lambda start: start.seconds)

    def absences(self) -> list[Absence]:
        """When published devices were not there."""
        return published_devices.absences(self.slices, self.began)

    def gaps(self) -> dict[tuple[str, str], float]:
        """By driver and node, the longest time without registration socket, in seconds."""
        return {
            where: max(each.seconds) for where, each in self.recorded_gaps.items() if each.seconds
        }

    def print_figures(self) -> None:
        """Print what was measured, for whoever runs the test with `-s` and for failures."""
        print(f"{len(self.load.starts(self.began))} starts, the longest: {self.longest_start()}")
        print(f"gaps: {self.gaps()}")
        print(*self.absences(), *self.load.failed_prepares(), sep="\n")


@pytest.mark.timeout(600, func_only=True)
def test_no_pod_and_no_slice_notices_that_plugins_are_replaced(
    rack: Cluster, team: Kubectl, rack_settings: list[str]
) -> None:
    former = revision(rack)
    with observed(rack, team) as seen:
        install(rack, rack_settings)
        roll_back(rack, former)
        seen.load.wait_succeeded(ALL_DONE_S)
        if rack.release >= TWO_INSTANCES_SINCE:
            check_undisturbed(seen)
        else:
            check_short_gaps(seen)


@pytest.mark.soak("strikes at the right moment only on a machine with time to spare")
@pytest.mark.timeout(600, func_only=True)
def test_no_pod_and_no_slice_notices_that_new_plugins_are_killed(
    rack: Cluster, team: Kubectl, rack_settings: list[str]
) -> None:
    former = revision(rack)
    with observed(rack, team) as seen:
        with struck_standbys(rack) as left_alone:
            install(rack, rack_settings)
        roll_back(rack, former)
        seen.load.wait_succeeded(ALL_DONE_S)
        if rack.release >= TWO_INSTANCES_SINCE:
            check_undisturbed(seen, left_alone)
        else:
            check_short_gaps(seen)


@pytest.mark.soak("waits longer than kubelets do before they delete slices")
@pytest.mark.timeout(600, func_only=True)
def test_nothing_changes_while_the_image_of_the_next_release_cannot_be_pulled(
    rack: Cluster, team: Kubectl
) -> None:
    former = revision(rack)
    with observed(rack, team) as seen:
        images = [f"--set-string={each.name}.image.tag=none" for each in PLUGINS]
        images.append("--set=global.imagePullPolicy=IfNotPresent")
        rack.helm("upgrade", RELEASE, str(CHART), "-n", NAMESPACE, "--reuse-values", *images)
        rack.driver_namespace.wait(partial(not_waiting, rack), "images to be missing", 60)
        time.sleep(LONG_PULL_S)
        roll_back(rack, former)
        seen.load.wait_succeeded(ALL_DONE_S)
        # Also where a kubelet cannot have two instances, for the second one never starts.
        check_undisturbed(seen)


@pytest.mark.soak("builds images of released versions")
@pytest.mark.timeout(900, func_only=True)
def test_the_latest_release_is_updated_without_a_gap_and_can_come_back(
    rack: Cluster, team: Kubectl, rack_settings: list[str]
) -> None:
    tags = former_images.load(rack.lab, *(each.name for each in PLUGINS))
    released = [
        flag
        for name, tag in tags.items()
        for flag in (
            f"--set-string={name}.image.tag={tag}",
            # As its chart has it: its instances do not stand by.
            f"--set-string={name}.{UPDATE}.maxUnavailable=100%",
        )
    ]
    rack.install(*rack_settings, *released, wait_s=ROLLED_OUT_S)
    former = revision(rack)
    with observed(rack, team) as seen:
        rack.install(*rack_settings, wait_s=ROLLED_OUT_S)
        check_all_ready(rack)
        if rack.release >= TWO_INSTANCES_SINCE:
            seen.print_figures()
            assert seen.absences() == []
            assert seen.gaps() == {}
            # It answers a claim that waits for a daemon when it is stopped.
            assert [each for each in seen.load.failed_prepares() if WAITED not in each] == []
        # helm does not wait for instances that may be unavailable.
        roll_back(rack, former, is_waited_for=False)
        what = "the former plugins to be ready"
        rack.driver_namespace.wait(partial(not_ready, rack), what, ROLLED_OUT_S)
        seen.load.wait_succeeded(ALL_DONE_S)
    rack.install(*rack_settings, wait_s=ROLLED_OUT_S)


def not_waiting(rack: Cluster) -> str | None:
    """Which plugin has no pod whose image cannot be pulled; None if each has one."""
    found = {
        each.name
        for each in PLUGINS
        for pod in rack.driver_namespace.get("pods", "", "-l", each.label)
        for state in pod["status"].get("containerStatuses", [])
        if state["state"].get("waiting", {}).get("reason") in CANNOT_PULL
    }
    return ", ".join(each.name for each in PLUGINS if each.name not in found) or None


def revision(rack: Cluster) -> str:
    """The revision of helm's release."""
    found = json.loads(rack.helm("history", RELEASE, "-n", NAMESPACE, "-o", "json"))
    return str(found[-1]["revision"])


def roll_back(rack: Cluster, to: str, *, is_waited_for: bool = True) -> None:
    """Go back to a revision; by default helm returns when all its plugins are ready."""
    where = ("-n", NAMESPACE, "--wait", f"--timeout={ROLLED_OUT_S}s")
    rack.helm("rollback", RELEASE, to, *where)
    if is_waited_for:
        check_all_ready(rack)


def install(rack: Cluster, settings: list[str]) -> None:
    """Replace both plugins on all nodes; helm returns when all new ones are ready."""
    note = [f"--set-string={each.name}.kubeletPlugin.podAnnotations.next=1" for each in PLUGINS]
    rack.install(*settings, *note, wait_s=ROLLED_OUT_S)
    check_all_ready(rack)


def check_all_ready(rack: Cluster) -> None:
    """Check that every DaemonSet of the driver's plugins is updated and ready on all nodes."""
    assert not_ready(rack) is None


def not_ready(rack: Cluster) -> str | None:
    """The status of a plugin's DaemonSet that is not updated and ready on all nodes."""
    nodes = len(rack.nodes())
    for each in PLUGINS:
        (found,) = rack.driver_namespace.get("daemonsets", "", "-l", each.label)
        status = found["status"]
        is_seen = status["observedGeneration"] == found["metadata"]["generation"]
        counts = (status.get("updatedNumberScheduled"), status["numberReady"])
        if not is_seen or counts != (nodes, nodes):
            return f"{each.name}: {status}"
    return None


def check_undisturbed(seen: Witness, left_alone: Collection[tuple[str, str]] = ()) -> None:
    """Check that no pod and nobody who reads slices has noticed anything.

    Args:
        seen: What was seen.
        left_alone: Drivers and nodes whose only instance was struck, which nobody could hide.
    """
    seen.print_figures()
    failed = seen.load.refused(seen.began)
    assert left_alone or [each for each in failed if not is_excused(each)] == []
    assert seen.absences() == []
    assert {where: gap for where, gap in seen.gaps().items() if where not in left_alone} == {}
    # A kubelet repeats a failed prepare a minute later.
    assert failed or seen.longest_start().seconds < STARTED_S


def is_excused(refused: Refusal) -> bool:
    """Whether no plugin is to blame for a failed prepare."""
    was_daemon_late = WAITED in refused.message and refused.seconds > DAEMON_LATE_S
    return was_daemon_late or CUT_OFF.search(refused.message) is not None


def check_short_gaps(seen: Witness) -> None:
    """Check that each driver was away from each node, but not for long."""
    seen.print_figures()
    assert set(seen.gaps()) == set(seen.recorded_gaps)
    assert max(seen.gaps().values()) < GAP_S
    assert max(each.seconds for each in seen.absences()) < GAP_S


@contextmanager
def observed(rack: Cluster, team: Kubectl) -> Iterator[Witness]:
    """Pods that come and go on every node while the block runs, and who watches them."""
    domain = Domain(rack, compute_domains.create_domain(team, "ring"))
    team.apply(workloads.template("gpu", workloads.gpus("gpu")))
    with ExitStack() as stack:
        slices = stack.enter_context(recorders.record_versions(rack.kubectl, "resourceslices"))
        flowing = list(streams(rack))
        load = stack.enter_context(pod_load.running(team, flowing))
        disturbances.wait_flowing(team, load, flowing)
        gaps = {
            (each.driver, node): stack.enter_context(plugin_instances.record_gaps(rack, each, node))
            for each in PLUGINS
            for node in rack.nodes()
        }
        yield Witness(load, slices, gaps, time.monotonic())
    team.delete("computedomain", "ring")
    domain.wait_gone(ALL_DONE_S)
    compute_domains.wait_released(rack, ALL_DONE_S)


def streams(rack: Cluster) -> Iterator[Stream]:
    for node in rack.nodes():
        yield Stream(f"gpus-{node}", node, "gpu", 2, ONE_GPU)
        yield Stream(
            f"channels-{node}", node, compute_domains.template_name("ring"), 1, ONE_CHANNEL
        )


@contextmanager
def struck_standbys(rack: Cluster) -> Iterator[Collection[tuple[str, str]]]:
    """Strike the new instances that appear on every node while the block runs, each one once.

    The process is killed on one node, the pod is deleted on the other one, the other way round for
    the other driver. Yields the drivers and nodes where the strike came late: the DaemonSet's
    controller had just told the former instance to end, so that the struck one was the only one.
    """
    first, second = rack.nodes()
    strikes: dict[tuple[Component, str], Strike] = {
        (GPU_PLUGIN, first): kill,
        (GPU_PLUGIN, second): delete,
        (CD_PLUGIN, first): delete,
        (CD_PLUGIN, second): kill,
    }
    former = {each: set(plugin_instances.pods(rack, *each)) for each in strikes}
    left_alone: set[tuple[str, str]] = set()
    stop = threading.Event()

    def strike() -> None:
        while strikes and not stop.wait(STRIKE_POLL_S):
            for (component, node), act in list(strikes.items()):
                find = newcomer if act is delete else standby
                found = find(rack, component, node, former[component, node])
                if found is not None and act(rack, component, found):
                    print(f"{act.__name__}: {component.name} of {node}")
                    del strikes[component, node]
                    if not former[component, node] & set(
                        plugin_instances.pods(rack, component, node)
                    ):
                        left_alone.add((component.driver, node))
                        print("it was the only one")

    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(strike)
        try:
            yield left_alone
        finally:
            stop.set()
    running.result()
    assert not strikes, f"no second instance was seen: {list(strikes)}"


def newcomer(rack: Cluster, component: Component, node: str, former: set[str]) -> str | None:
    """The UID of the new pod of a plugin on a node.

    It is deleted while it starts: once it is ready, the former pod is told to end within moments.
    """
    return next(iter(set(plugin_instances.pods(rack, component, node)) - former), None)


def standby(rack: Cluster, component: Component, node: str, former: set[str]) -> str | None:
    """The UID of the new pod of a plugin that stands by on a node."""
    if rack.release < TWO_INSTANCES_SINCE:
        return newcomer(rack, component, node, former)
    names = plugin_instances.sockets(rack, component, node)
    of_instance = re.compile(rf"{re.escape(component.driver)}-(?P<uid>[0-9a-f-]{{36}})-reg\.sock")
    uids = {found["uid"] for name in names if (found := of_instance.fullmatch(name))}
    return next(iter(uids - former), None)


def kill(_rack: Cluster, component: Component, uid: str) -> bool:
    """Kill the process of an instance."""
    return plugin_instances.kill(component, uid)


def delete(rack: Cluster, component: Component, uid: str) -> bool:
    """Delete the pod of an instance."""
    pods = rack.driver_namespace.get("pods", "", "-l", component.label)
    names = [each["metadata"]["name"] for each in pods if each["metadata"]["uid"] == uid]
    rack.driver_namespace.run("delete", "pod", *names, "--wait=false")
    return True
