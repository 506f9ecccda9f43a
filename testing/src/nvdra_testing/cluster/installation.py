# SPDX-License-Identifier: Apache-2.0
"""A lab with the driver installed as users install it, for the end-to-end tests and the demo.

`lab_command` starts and stops the lab itself.
"""

import contextlib
import json
import os
import signal
import subprocess
import tempfile
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nvdra_lab import model

from nvdra_testing.cluster import api_versions
from nvdra_testing.cluster.kubectl import Kubectl
from nvdra_testing.cluster.lab_command import STATE_DIR, Lab

CHART = Path(__file__).parents[4] / "charts/nvdra"
RELEASE = "nvdra"
NAMESPACE = "nvdra-system"
DRIVER = "gpu.nvidia.com"
GPUS_ONLY = "--set=resources.computeDomains.enabled=false"
"""A helm flag: install gpu.nvidia.com without ComputeDomains."""
SIMULATED_ROOTS = {
    "nvidiaDriverRoot": "/run/nvidia/driver",
    "procRoot": "/run/nvidia/proc",
    "sysRoot": "/run/nvidia/sys",
}
"""The simulated hardware is at these paths on every node of a lab; `devRoot` stays /dev."""
LAB_SETTINGS = {**SIMULATED_ROOTS, "imageRegistry": "docker.io", "imagePullPolicy": "Never"}
"""Values under `global` in a lab, whose nodes have the images: `lab image load` imports them."""

API_SERVER = "kube-apiserver"
DEBUG_PORT = 6060


NOT_YET = ("standing by", "taking over")
"""What an instance says in `/readyz?verbose` that is ready and does not serve yet."""


@dataclass(frozen=True)
class Component:
    """One of the driver's programs as the chart installs it.

    Attributes:
        name: The name of its chart.
        http_port: The port of its probes and metrics.
        driver: The DRA driver that it serves.
    """

    name: str
    http_port: int
    driver: str

    @property
    def label(self) -> str:
        """The label selector of its pods."""
        return f"app.kubernetes.io/name={self.name},app.kubernetes.io/instance={RELEASE}"


GPU_PLUGIN = Component("nvdra-gpu-plugin", 8080, DRIVER)
CD_PLUGIN = Component("nvdra-cd-plugin", 8081, "compute-domain.nvidia.com")


@dataclass(frozen=True)
class Device:
    """A published device, with attributes and capacities as plain values."""

    node: str
    name: str
    attributes: Mapping[str, Any]
    capacity: Mapping[str, str]

    @property
    def uuid(self) -> str:
        return str(self.attributes["uuid"])


@dataclass(frozen=True)
class Cluster:
    """A running lab, an administrator's kubectl, and the plugin that the test is about."""

    lab: Lab
    kubectl: Kubectl
    component: Component = GPU_PLUGIN

    @classmethod
    def from_lab(cls, lab: Lab, component: Component = GPU_PLUGIN) -> "Cluster":
        """The cluster of a running lab."""
        return cls(lab, lab.kubectl(), component)

    @property
    def driver_namespace(self) -> Kubectl:
        """An administrator's kubectl in the driver's namespace."""
        return self.kubectl.in_namespace(NAMESPACE)

    @property
    def host_address(self) -> str:
        """The address at which pods reach this machine."""
        return model.network(self._lab_facts["index"]).host_address

    @property
    def release(self) -> tuple[int, int]:
        """The major and minor version of Kubernetes."""
        major, minor, _ = map(int, self._lab_facts["kubernetes"].split("."))
        return major, minor

    def nodes(self) -> list[str]:
        """The names of the nodes."""
        return sorted(node["metadata"]["name"] for node in self.kubectl.get("nodes"))

    def install(self, *helm_flags: str, wait_s: int = 120) -> None:
        """Run `helm upgrade --install`, and wait until the plugins of all nodes serve.

        helm waits until they are ready, and an instance that stands by is. Nor does it wait until a
        former controller has been told to end, which may go on leading.

        Args:
            *helm_flags: More flags of helm, such as `--set-json=…`.
            wait_s: How long helm waits.
        """
        self.start_installation("--wait", f"--timeout={wait_s}s", *helm_flags)
        chosen = ("deployment", "-l", f"app.kubernetes.io/instance={RELEASE}")
        limit = (f"--timeout={wait_s}s",)
        self.driver_namespace.run("rollout", "status", *chosen, *limit, timeout_s=wait_s + 10)
        self.kubectl.wait(self._inactive, "the plugins of all nodes to serve")

    def start_installation(self, *helm_flags: str) -> None:
        """Run `helm upgrade --install`, and wait for nothing that the flags do not say."""
        settings = [f"--set-string=global.{name}={value}" for name, value in LAB_SETTINGS.items()]
        where = ["--namespace", NAMESPACE, "--create-namespace"]
        self.helm("upgrade", "--install", RELEASE, str(CHART), *where, *settings, *helm_flags)

    def uninstall(self) -> None:
        """Run `helm uninstall`, and wait until the driver's pods are gone."""
        self.helm("uninstall", RELEASE, "--namespace", NAMESPACE, "--wait")
        self.driver_namespace.wait(
            lambda: self._driver_pods() or None, "the driver's pods to be gone", timeout_s=60
        )

    def helm_test(self) -> tuple[int, list[str]]:
        """Run `helm test`. Returns its exit status and what its pod has printed."""
        done = self.lab.run("helm", "test", RELEASE, "--namespace", NAMESPACE, "--hide-notes")
        lines = done.stderr.splitlines()
        return done.returncode, [line for line in lines if line.lstrip()[:1] in {*"✓✗→"}]

    def helm(self, *arguments: str) -> str:
        """Run helm in the lab."""
        return self.lab.run_checked("helm", *arguments)

    def devices(self) -> list[Device]:
        """All devices that the driver publishes, by node and name."""
        driver = f"--field-selector=spec.driver={self.component.driver}"
        slices = self.kubectl.get("resourceslices", "", driver)
        found = [
            _device(each["spec"]["nodeName"], api_versions.device_as_v1(device))
            for each in slices
            for device in each["spec"].get("devices") or []
        ]
        return sorted(found, key=lambda device: (device.node, device.name))

    def device(self, node: str, name: str) -> Device:
        """One published device."""
        return next(one for one in self.devices() if (one.node, one.name) == (node, name))

    def allocated_devices(self, claim: Mapping[str, Any]) -> list[Device]:
        """The devices that are allocated to a claim, in the order of its allocation."""
        results = claim["status"]["allocation"]["devices"]["results"]
        known = {(device.node, device.name): device for device in self.devices()}
        return [known[result["pool"], result["device"]] for result in results]

    def plugin_pod(self, node: str) -> str:
        """The name of the plugin's pod on a node; one that ends does not count."""
        on_node = f"--field-selector=spec.nodeName={node}"
        pods = self.driver_namespace.get("pods", "", "-l", self.component.label, on_node)
        found = [pod["metadata"] for pod in pods]
        (name,) = (each["name"] for each in found if "deletionTimestamp" not in each)
        return str(name)

    def _inactive(self) -> str | None:
        """What a plugin says that stands by or takes over; None if all serve."""
        pods = self.driver_namespace.get("pods", "", "-l", self.component.label)
        for pod in pods:
            if "deletionTimestamp" in pod["metadata"]:
                continue
            where = f"{pod['metadata']['name']}:{self.component.http_port}"
            path = f"/api/v1/namespaces/{NAMESPACE}/pods/{where}/proxy/readyz?verbose"
            told = self.kubectl.run_unchecked("get", "--raw", path)
            if told.returncode or any(each in told.stdout for each in NOT_YET):
                return told.stderr or told.stdout
        return None

    def restart_plugin(self, node: str) -> None:
        """Delete the plugin's pod on a node, and wait until the new pod is ready."""
        self.driver_namespace.delete("pod", self.plugin_pod(node))
        self.wait_ready(node)

    def reboot(self, node: str, **hardware: Any) -> None:
        """Reboot a node, and wait until its plugin is ready again.

        Args:
            node: The node.
            hardware: What a node file of the simulator says of hardware and driver from this boot
                on, as `profile="dgx-h100"`; as before if nothing is given.
        """
        before = self._plugin_containers(node)
        document = {"apiVersion": "nvdra.sim/v1", "kind": "Node", "metadata": {"name": node}}
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            json.dump({**document, **hardware}, file)
            file.flush()
            flags = ("--hardware", file.name) if hardware else ()
            self.lab.run_checked("reboot", node, *flags)
        self.wait_ready(node, other_than=before)

    def wait_ready(self, node: str, other_than: Mapping[str, bool] | None = None) -> None:
        """Wait until a node has one ready plugin whose container is none of `other_than`."""
        old = set(other_than or {})

        def not_ready() -> str | None:
            plugins = self._plugin_containers(node)
            is_so = list(plugins.values()) == [True] and not old & set(plugins)
            return None if is_so else str(plugins)

        self.driver_namespace.wait(
            not_ready, f"the plugin of {node} to be ready again", timeout_s=150
        )

    def metrics(self, node: str) -> dict[str, float]:
        """The metrics of a node's plugin: sample name with labels → value."""
        where = f"{self.plugin_pod(node)}:{self.component.http_port}"
        path = f"/api/v1/namespaces/{NAMESPACE}/pods/{where}/proxy/metrics"
        lines = self.kubectl.run("get", "--raw", path).splitlines()
        samples = (line.rpartition(" ") for line in lines if line and not line.startswith("#"))
        return {name: float(value) for name, _, value in samples}

    def prepared_gpu_count(self, node: str) -> int:
        """The number of GPUs that are prepared on a node."""
        labels = f'device_type="gpu",driver="{DRIVER}",node="{node}"'
        return int(self.metrics(node)[f"nvidia_dra_prepared_devices{{{labels}}}"])

    def trace(self, node: str, uid: str, form: str = "text") -> str:
        """A claim's trace, from the debug endpoint, which is reached by a port-forward."""
        return self.pod_trace(self.plugin_pod(node), uid, form)

    def pod_trace(self, pod: str, uid: str, form: str = "text") -> str:
        """A trace from the debug endpoint of one pod of the driver."""
        with self.port_forward(pod, DEBUG_PORT) as address:
            url = f"{address}/debug/traces/{uid}?format={form}"
            with urllib.request.urlopen(url, timeout=10) as answer:
                return str(answer.read().decode())

    @contextlib.contextmanager
    def port_forward(self, pod: str, port: int) -> Iterator[str]:
        """Run `kubectl port-forward` to a pod of the driver, and yield the local URL."""
        argv = [self.kubectl.program, f"--kubeconfig={self.kubectl.kubeconfig}", "-n", NAMESPACE]
        argv += ["port-forward", f"pod/{pod}", f":{port}"]
        with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout is not None
                line = process.stdout.readline()  # Forwarding from 127.0.0.1:41234 -> 6060
                assert line.startswith("Forwarding from"), (
                    f"unexpected output of kubectl port-forward: {line!r}"
                )
                yield f"http://{line.split()[2]}"
            finally:
                process.terminate()

    def wait_idle(self) -> None:
        """Wait until the claims of earlier tests are gone."""
        self.kubectl.wait(
            lambda: self.kubectl.run("get", "resourceclaims", "-A", "--no-headers") or None,
            "the claims of earlier tests to be gone",
            timeout_s=180,
        )

    def simctl(self, node: str, *command: str) -> str:
        """Change a node's simulated hardware with nvdra-simctl."""
        return self.lab.run_checked("sim", node, *command)

    @contextlib.contextmanager
    def mig_devices(self, node: str, gpu: int, *cuts: tuple[str, int]) -> Iterator[list[Device]]:
        """Put a GPU into MIG mode and divide it, while the block runs; yields its MIG devices.

        Args:
            node: The node.
            gpu: The index of a GPU that no claim holds.
            cuts: Profile and first memory slice of each MIG device.
        """
        self._set_mig_mode(node, gpu, "1")
        for profile, start in cuts:
            self._change_mig(node, "create", str(gpu), profile, str(start))
        prefix = f"gpu-{gpu}-mig-"

        def found() -> list[Device]:
            here = [device for device in self.devices() if device.node == node]
            return [device for device in here if device.name.startswith(prefix)]

        self.kubectl.wait(
            lambda: None if len(found()) == len(cuts) else str(found()), "the MIG devices"
        )
        try:
            yield found()
        finally:
            self.make_whole(node, gpu)

    def make_whole(self, node: str, gpu: int) -> None:
        """Destroy the MIG devices of a GPU, and end its MIG mode, as an administrator does."""
        for instance in {
            each["gpu_instance"] for each in self.mig_list(node) if each["gpu"] == gpu
        }:
            self._change_mig(node, "destroy", str(gpu), f"--gi={instance}")
        self._set_mig_mode(node, gpu, "0")
        self.kubectl.wait(
            lambda: None if self._publishes(node, f"gpu-{gpu}") else "it is not",
            f"gpu-{gpu} of {node} to be offered again",
        )

    def _change_mig(self, node: str, *command: str) -> None:
        self.simctl(node, "mig", *command, f"--proc-root={model.PROC_ROOT}")

    def _set_mig_mode(self, node: str, gpu: int, mode: str) -> None:
        smi = f"{model.DRIVER_ROOT}/usr/bin/nvidia-smi"
        self.exec_on_node(node, smi, "-i", str(gpu), "-mig", mode)

    def mig_list(self, node: str) -> list[dict[str, Any]]:
        """The MIG devices that exist on a node, as `nvdra-simctl mig list` describes them."""
        found: list[dict[str, Any]] = json.loads(self.simctl(node, "mig", "list", "--json"))
        return found

    def wait_no_mig_devices(self, node: str) -> None:
        """Wait until no MIG device exists on a node."""
        self.kubectl.wait(
            lambda: str(self.mig_list(node) or "") or None, "the MIG devices to be destroyed"
        )

    def exec_on_node(self, node: str, *command: str) -> str:
        """Run a command on a node."""
        return self.lab.run_checked("exec", node, "--", *command)

    @contextlib.contextmanager
    def slow_function(self, node: str, function: str, milliseconds: int) -> Iterator[None]:
        """Delay calls of NVML, or commands of the driver's programs, while the block runs.

        Args:
            node: The node.
            function: As of `failing`.
            milliseconds: How long each takes.
        """
        self.simctl(node, "slow", str(milliseconds), "--function", function)
        try:
            yield
        finally:
            self.simctl(node, "fault", "rm", "all")

    @contextlib.contextmanager
    def slow_gpu(self, node: str, gpu: int, milliseconds: int) -> Iterator[None]:
        """Delay every NVML call on a GPU while the block runs.

        Afterwards, wait until the GPU is published: on a busy machine, calls may have queued for so
        long that it was withdrawn.
        """
        self.simctl(node, "slow", str(milliseconds), "--gpu", str(gpu))
        try:
            yield
        finally:
            self.simctl(node, "fault", "rm", "all")
        self.kubectl.wait(
            lambda: None if self._publishes(node, f"gpu-{gpu}") else "it is not",
            f"gpu-{gpu} of {node} to be offered",
        )

    @contextlib.contextmanager
    def failing(self, node: str, function: str) -> Iterator[None]:
        """Let calls of NVML, or commands of the driver's programs, fail while the block runs.

        Args:
            node: The node.
            function: A glob of functions, or a command such as `mps:start`.
        """
        self.simctl(node, "fault", "add", function, "--result", "UNKNOWN")
        try:
            yield
        finally:
            self.simctl(node, "fault", "rm", "all")

    @contextlib.contextmanager
    def paused_api_server(self) -> Iterator[None]:
        """Stop the API server's process while the block runs; connections stay open, unanswered.

        A controller of ours gives its lease up after 10 s, and a node's lease lasts 40.
        """
        facts = json.loads(self.lab.run_checked("status", "--json"))
        (pid,) = (each["pid"] for each in facts["components"] if each["name"] == API_SERVER)
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)

    @contextlib.contextmanager
    def lose_gpu(self, node: str, gpu: int) -> Iterator[None]:
        """Let a GPU fall off the bus while the block runs, which must prepare a claim for it.

        Afterwards, wait until the GPU is published again. The plugin notices the loss only when it
        next
        queries the GPU.
        """
        name = f"gpu-{gpu}"
        self.simctl(node, "gpu", "lose", str(gpu))
        try:
            yield
            self.kubectl.wait(
                lambda: "it is" if self._publishes(node, name) else None,
                f"{name} of {node} to be offered no more",
            )
        finally:
            self.simctl(node, "gpu", "restore", str(gpu))
        self.kubectl.wait(
            lambda: None if self._publishes(node, name) else "it is not",
            f"{name} of {node} to be offered again",
        )

    @property
    def _lab_facts(self) -> dict[str, Any]:
        facts: dict[str, Any] = json.loads((STATE_DIR / self.lab.name / "lab.json").read_text())
        return facts

    def _plugin_containers(self, node: str) -> dict[str, bool]:
        """The containers of plugins on a node, and whether each is ready."""
        on_node = f"--field-selector=spec.nodeName={node}"
        pods = self.driver_namespace.get("pods", "", "-l", self.component.label, on_node)
        states = [each for pod in pods for each in pod["status"].get("containerStatuses", [])]
        return {state.get("containerID", ""): state["ready"] for state in states}

    def _publishes(self, node: str, name: str) -> bool:
        return (node, name) in {(device.node, device.name) for device in self.devices()}

    def _driver_pods(self) -> str:
        chosen = ["-l", f"app.kubernetes.io/instance={RELEASE}"]
        return " ".join(self.driver_namespace.run("get", "pods", *chosen, "-o", "name").split())


def _device(node: str, device: Mapping[str, Any]) -> Device:
    values = {
        name: next(iter(value.values())) for name, value in device.get("attributes", {}).items()
    }
    sizes = {name: str(size["value"]) for name, size in device.get("capacity", {}).items()}
    return Device(node, str(device["name"]), values, sizes)
