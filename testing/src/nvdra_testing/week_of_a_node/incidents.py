# SPDX-License-Identifier: Apache-2.0
"""What happens to a node in a week: each kind with its undo, and the reasons that it may cause.

Each function is a context manager: the incident has begun when its block is entered, and is undone
when the block is left. Whoever calls it then waits until the node is well.
"""

import json
import os
import random
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import yaml
from nvdra_api import names
from nvdra_api.errors import Reason
from nvdra_lab import layout

from nvdra_testing.cluster.installation import GPU_PLUGIN, Cluster
from nvdra_testing.faults import strace
from nvdra_testing.hardware import gpu_faults
from nvdra_testing.week_of_a_node.history import (
    CONNECTION_LOST,
    CONTAINER_FAILED,
    NOT_REGISTERED,
)
from nvdra_testing.week_of_a_node.verdict import SILENCE

PROFILE = "dgx-h100"
GPUS = 8
DRIVER_ROOT = "/run/nvidia/driver"
STATE = "/var/lib/kubelet/plugins/gpu.nvidia.com/state.sqlite"
VERSIONS = ("580.95.05", "580.105.08", "590.44.1")
DYNAMIC_MAJORS = range(480, 500)
"""What a kernel gives to modules that ask for any; the profile has higher ones."""

DRAIN_S = 150
"""Of this, up to a minute is the grace of pods, and their kubelet's calls."""

AWAY = frozenset({SILENCE, NOT_REGISTERED, CONNECTION_LOST, Reason.DEADLINE_EXCEEDED})
"""What is told while the plugin or its node is away, or begins."""

BROKEN = frozenset({Reason.DEVICE_UNHEALTHY, Reason.UNKNOWN_DEVICE, Reason.DEVICE_IN_USE})
"""What is told of a GPU that does not work: also that something is left on it of an earlier claim,
which is undone when it does."""

LEFT_BEHIND = frozenset({Reason.DEVICE_IN_USE})
"""A kubelet that was away looks for claims of pods that are gone once a minute."""


@dataclass(frozen=True)
class Place:
    """Where an incident happens: a node, and the draw of this incident's details."""

    cluster: Cluster
    node: str
    draw: random.Random

    def sh(self, script: str) -> str:
        """Run a shell script on the node."""
        return self.cluster.exec_on_node(self.node, "sh", "-c", script)

    def simctl(self, *command: str) -> str:
        """Change the node's simulated hardware."""
        return self.cluster.simctl(self.node, *command)

    def gpus(self) -> list[dict[str, Any]]:
        """The GPUs that the hardware has."""
        found: list[dict[str, Any]] = json.loads(self.simctl("show", "--json"))["gpus"]
        return found

    def any_gpu(self) -> str:
        return str(self.draw.randrange(GPUS))


@dataclass(frozen=True)
class Kind:
    """A kind of incident.

    Attributes:
        name: For the report.
        happen: The incident as a context manager.
        lasts_s: The shortest and the longest time until it is undone.
        reasons: What pods may be told because of it.
        is_everywhere: Whether it concerns all nodes.
    """

    name: str
    happen: Callable[[Place], AbstractContextManager[None]]
    lasts_s: tuple[float, float]
    reasons: frozenset[str]
    is_everywhere: bool = False


# The node


@contextmanager
def reboot(place: Place) -> Iterator[None]:
    """The node's power is cut; it comes back as it was."""
    place.cluster.lab.run_checked("reboot", place.node)
    yield


@contextmanager
def reboot_with_other_majors(place: Place) -> Iterator[None]:
    """nvidia-uvm and nvidia-caps get other device majors in the next boot."""
    uvm, caps = place.draw.sample(DYNAMIC_MAJORS, 2)
    _reboot_with(place, {"node": {"majors": {"nvidia-uvm": uvm, "nvidia-caps": caps}}})
    yield


@contextmanager
def reboot_with_another_driver(place: Place) -> Iterator[None]:
    """The driver was upgraded, or downgraded; the reboot loads it."""
    now = place.sh(f"ls {DRIVER_ROOT}/lib/firmware/nvidia").split()
    others = [version for version in VERSIONS if version not in now]
    _reboot_with(place, {"driver": {"version": place.draw.choice(others)}})
    yield


def _reboot_with(place: Place, sections: dict[str, Any]) -> None:
    head = {"apiVersion": "nvdra.sim/v1", "kind": "Node", "metadata": {"name": place.node}}
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        yaml.safe_dump({**head, "profile": PROFILE, **sections}, file)
        file.flush()
        place.cluster.lab.run_checked("reboot", place.node, "--hardware", file.name)


@contextmanager
def reboot_without_a_board(place: Place) -> Iterator[None]:
    """A board has failed: the others close up to other minor numbers, until it is replaced."""
    uuids = [str(each["uuid"]) for each in place.gpus()]
    uuids.pop(place.draw.randrange(len(uuids)))
    others = [{"index": index, "uuid": uuid} for index, uuid in enumerate(uuids)]
    _reboot_with(place, {"overrides": {"gpu_count": len(others), "gpus": others}})
    try:
        yield
    finally:
        _reboot_with(place, {})


@contextmanager
def drain_node(place: Place) -> Iterator[None]:
    """The node is drained, and back when its maintenance is over."""
    kubectl = place.cluster.kubectl
    try:
        kubectl.run(
            *("drain", place.node, "--ignore-daemonsets", "--delete-emptydir-data", "--force"),
            timeout_s=DRAIN_S,
        )
        yield
    finally:
        kubectl.run("uncordon", place.node)


@contextmanager
def restart_kubelet(place: Place) -> Iterator[None]:
    """The kubelet ends and is started again."""
    place.cluster.lab.run_checked("restart", f"{place.node}/kubelet")
    yield


@contextmanager
def kill_api_server(place: Place) -> Iterator[None]:
    """The API server is killed and started again: all watches end, and requests have no answer."""
    os.kill(_process(place.cluster, layout.CONTROL_PLANE, "kube-apiserver"), signal.SIGKILL)
    kubectl = place.cluster.kubectl

    def not_ready() -> str | None:
        done = kubectl.run_unchecked("get", "--raw", "/readyz")
        return None if done.returncode == 0 else done.stderr

    kubectl.wait(not_ready, "the API server to be ready again", timeout_s=120)
    yield


@contextmanager
def fill_disk(place: Place) -> Iterator[None]:
    """The disk with the plugin's records has no room: whatever would make a file grow fails."""
    injected = strace.InjectedError(
        "ENOSPC", [STATE, f"{STATE}-wal", f"{STATE}-journal"], calls=strace.WRITE_CALLS
    )
    pid = plugin_process(place)
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "strace"
        with strace.fail_calls(log, strace.threads(pid), injected):
            yield


# The driver


@contextmanager
def stop_service(place: Place) -> Iterator[None]:
    """nvidia-persistenced or nvidia-fabricmanager stops: its directory below /run goes."""
    name = place.draw.choice(("nvidia-persistenced", "nvidia-fabricmanager"))
    folder = f"{DRIVER_ROOT}/run/{name}"
    place.sh(f"mv {folder} {folder}-stopped")
    try:
        yield
    finally:
        place.sh(f"mv {folder}-stopped {folder}")


@contextmanager
def replace_driver_container(place: Place) -> Iterator[None]:
    """A driver container ends and another one begins; there is no driver in between."""
    files = "/var/lib/driver-container"
    place.sh(
        f"rm -rf {files}; cp -a {DRIVER_ROOT} {files}; "
        f"mount -t tmpfs none {DRIVER_ROOT}; sleep 6; "
        f"umount --lazy {DRIVER_ROOT}; mount --bind {files} {DRIVER_ROOT}"
    )
    try:
        yield
    finally:
        place.sh(f"umount --lazy {DRIVER_ROOT}; rm -rf {files}")


@contextmanager
def release_nvml(place: Place) -> Iterator[None]:
    """The plugin releases NVML for an administrator, who resets a GPU or reloads the module."""
    work = place.draw.choice((("gpu", "reset", place.any_gpu()), ("driver", "unload")))
    release, resume = place.draw.choice((_by_command(place), _by_annotation(place)))
    release()
    try:
        _retry(place, *work)
        if work[0] == "driver":
            place.simctl("driver", "load")
        yield
    finally:
        resume()


def _by_command(place: Place) -> tuple[Callable[[], object], Callable[[], object]]:
    """How to release NVML and how to resume with the plugin's commands."""

    def run(*command: str) -> str:
        pod = place.cluster.plugin_pod(place.node)
        return place.cluster.driver_namespace.exec(pod, "nvdra-gpu-plugin", *command)

    return lambda: run("release", "--for=5m", "--force"), lambda: run("resume")


def _by_annotation(place: Place) -> tuple[Callable[[], object], Callable[[], object]]:
    """The same with the annotation of the Node."""
    annotate = partial(place.cluster.kubectl.run, "annotate", "--overwrite", "node", place.node)
    return (
        partial(annotate, f"{names.RELEASE_NVML_ANNOTATION}=5m,force"),
        partial(annotate, f"{names.RELEASE_NVML_ANNOTATION}-"),
    )


def _retry(place: Place, *command: str, timeout_s: float = 60) -> None:
    """Do what fails while anybody has NVML open: the plugin, or a container's nvidia-smi."""
    deadline = time.monotonic() + timeout_s
    while (done := place.cluster.lab.run("sim", place.node, *command)).returncode:
        assert time.monotonic() < deadline, done.stderr
        time.sleep(0.5)


# A GPU


@contextmanager
def cool_gpus(place: Place) -> Iterator[None]:
    """All GPUs take seconds to answer their first client, and the plugin is started meanwhile."""
    for gpu in range(GPUS):
        place.simctl("gpu", "initialisation", str(gpu), str(place.draw.randrange(1000, 3000)))
    try:
        _delete_plugin_pod(place)
        yield
    finally:
        for gpu in range(GPUS):
            place.simctl("gpu", "initialisation", str(gpu), "0")


@contextmanager
def slow_gpu(place: Place) -> Iterator[None]:
    """Each call on a GPU takes long."""
    with _faulty(place, str(place.draw.randrange(500, 2000))):
        yield


@contextmanager
def hang_gpu(place: Place) -> Iterator[None]:
    """A GPU stops answering."""
    with gpu_faults.hanging(place, int(place.any_gpu())):
        yield


@contextmanager
def lose_gpu(place: Place) -> Iterator[None]:
    """A GPU falls off the bus, and comes back."""
    gpu = place.any_gpu()
    place.simctl("gpu", "lose", gpu)
    try:
        yield
    finally:
        place.simctl("gpu", "restore", gpu)


@contextmanager
def break_gpu(result: str, place: Place) -> Iterator[None]:
    """Each call on a GPU answers with this error."""
    with gpu_faults.answering(result, place, int(place.any_gpu())):
        yield


@contextmanager
def monitor_gpu(place: Place) -> Iterator[None]:
    """DCGM has a GPU open: what is made on it stays, and its MIG mode does not change."""
    with gpu_faults.monitored(place, int(place.any_gpu())):
        yield


@contextmanager
def _faulty(place: Place, milliseconds: str) -> Iterator[None]:
    with gpu_faults.rules(place, int(place.any_gpu()), *gpu_faults.CALLS, delay_ms=milliseconds):
        yield


# The plugin


@contextmanager
def kill_plugin(place: Place) -> Iterator[None]:
    """The plugin's process is killed."""
    os.kill(plugin_process(place), signal.SIGKILL)
    yield


@contextmanager
def pause_plugin(place: Place) -> Iterator[None]:
    """The plugin's process does not run for a while, as on a node that swaps."""
    pid = plugin_process(place)
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


@contextmanager
def stop_plugin(place: Place) -> Iterator[None]:
    """The plugin's pod is deleted."""
    _delete_plugin_pod(place)
    yield


@contextmanager
def roll_plugins(place: Place) -> Iterator[None]:
    """The DaemonSet is rolled, as by an upgrade."""
    driver = place.cluster.driver_namespace
    driver.run("rollout", "restart", "daemonset", "-l", GPU_PLUGIN.label)
    driver.run(
        "rollout", "status", "daemonset", "-l", GPU_PLUGIN.label, "--timeout=180s", timeout_s=185
    )
    yield


def _delete_plugin_pod(place: Place) -> None:
    driver = place.cluster.driver_namespace
    on_node = f"--field-selector=spec.nodeName={place.node}"
    driver.run("delete", "pod", "-l", GPU_PLUGIN.label, on_node, "--wait", timeout_s=120)


def plugin_process(place: Place) -> int:
    """The host's process id of the plugin on a node."""
    return _process(place.cluster, place.node, "nvdra-gpu-plugin")


def _process(cluster: Cluster, machine: str, program: str, timeout_s: float = 60) -> int:
    """The host's process id of a program on a machine of the lab, which may be starting."""
    cgroup = f"/{layout.cgroup(cluster.lab.name, machine)}/"
    deadline = time.monotonic() + timeout_s
    while True:
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and _is_of(entry, cgroup, program):
                return int(entry.name)
        assert time.monotonic() < deadline, f"no {program} runs on {machine}"
        time.sleep(0.2)


def _is_of(process: Path, cgroup: str, program: str) -> bool:
    with suppress(FileNotFoundError, ProcessLookupError):
        words = (process / "cmdline").read_text(errors="replace").split("\0")
        if not any(
            word.endswith(f"/{program}") for word in words[:2]
        ):  # or an interpreter's script
            return False
        return cgroup in (process / "cgroup").read_text().replace("\n", "/\n")
    return False


KINDS = (
    Kind("reboot", reboot, (1, 5), AWAY | LEFT_BEHIND | {CONTAINER_FAILED}),
    Kind(
        "reboot, other device majors",
        reboot_with_other_majors,
        (1, 5),
        AWAY | LEFT_BEHIND | {CONTAINER_FAILED},
    ),
    Kind(
        "reboot, another driver",
        reboot_with_another_driver,
        (1, 5),
        AWAY | LEFT_BEHIND | {CONTAINER_FAILED},
    ),
    Kind(
        "reboot, a board less",
        reboot_without_a_board,
        (20, 40),
        AWAY | BROKEN | {CONTAINER_FAILED},
    ),
    Kind("node drained", drain_node, (5, 15), LEFT_BEHIND),
    Kind("kubelet restarted", restart_kubelet, (1, 5), AWAY | LEFT_BEHIND),
    Kind(
        "API server killed",
        kill_api_server,
        (1, 5),
        frozenset({SILENCE, Reason.API_UNAVAILABLE, CONNECTION_LOST, Reason.DEADLINE_EXCEEDED}),
        is_everywhere=True,
    ),
    Kind("disk full", fill_disk, (10, 20), frozenset({Reason.STATE_UNAVAILABLE})),
    Kind(
        "service of the driver stopped",
        stop_service,
        (8, 15),
        # A container that is created before the spec follows; the kubelet creates it again.
        frozenset({CONTAINER_FAILED}),
    ),
    Kind(
        "driver container replaced",
        replace_driver_container,
        (5, 15),
        LEFT_BEHIND | {Reason.DRIVER_MISMATCH, Reason.DEVICE_NODE_MISSING, CONTAINER_FAILED},
    ),
    Kind(
        "NVML released",
        release_nvml,
        (5, 15),
        BROKEN | {Reason.NVML_RELEASED, Reason.DRIVER_MISMATCH},
    ),
    Kind("cold GPUs", cool_gpus, (5, 15), AWAY),
    Kind("slow GPU", slow_gpu, (10, 20), BROKEN | {Reason.DEADLINE_EXCEEDED, SILENCE}),
    Kind(
        "hung GPU",
        hang_gpu,
        (12, 25),
        BROKEN | {Reason.DEADLINE_EXCEEDED},
    ),
    Kind("lost GPU", lose_gpu, (8, 20), BROKEN),
    Kind("GPU that needs a reset", partial(break_gpu, "RESET_REQUIRED"), (8, 20), BROKEN),
    Kind("GPU with unknown errors", partial(break_gpu, "UNKNOWN"), (8, 40), BROKEN),
    Kind("GPU held by DCGM", monitor_gpu, (15, 30), BROKEN),
    Kind("plugin killed", kill_plugin, (1, 5), AWAY),
    Kind("plugin paused", pause_plugin, (8, 20), AWAY),
    Kind("plugin stopped", stop_plugin, (1, 5), AWAY),
    Kind("plugins rolled", roll_plugins, (1, 5), AWAY, is_everywhere=True),
)


def plan(draw: random.Random, kinds: tuple[Kind, ...] = KINDS) -> Iterator[Kind]:
    """Endless kinds: each once in a drawn order, then again in another."""
    while True:
        yield from draw.sample(kinds, len(kinds))
