"""A lab with the driver in it, as users install it: what the end-to-end tests and the demo act on.

Bringing the lab itself up and down is `lab`'s business (`labtool`).
"""

import contextlib
import json
import subprocess
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import served
from kubectl import Kubectl
from labtool import STATE, Lab
from nvdra_lab import model

CHART = Path(__file__).parents[2] / "charts/nvdra"
RELEASE = "nvdra"
NAMESPACE = "nvdra-system"
DRIVER = "gpu.nvidia.com"
PART = "app.kubernetes.io/part-of=nvdra"
GPUS_ALONE = "--set=resources.computeDomains.enabled=false"
"""A flag of helm: gpu.nvidia.com, and nothing of compute domains."""
ROOTS = {
    "nvidiaDriverRoot": "/run/nvidia/driver",
    "procRoot": "/run/nvidia/proc",
    "sysRoot": "/run/nvidia/sys",
}
"""Where every node of a lab has its simulated hardware; the chart's `devRoot` stays /dev."""

DEBUG_PORT = 6060


@dataclass(frozen=True)
class Component:
    """One of the driver's programs as the chart installs it.

    Attributes:
        name: Of its chart.
        http_port: Of its probes and metrics.
        driver: The DRA driver it serves.
    """

    name: str
    http_port: int
    driver: str

    @property
    def label(self) -> str:
        """The selector of its pods."""
        return f"app.kubernetes.io/name={self.name},app.kubernetes.io/instance={RELEASE}"


GPUS = Component("nvdra-gpu-plugin", 8080, DRIVER)
DOMAINS = Component("nvdra-cd-plugin", 8081, "compute-domain.nvidia.com")


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
    """A lab that is up, its administrator, and the plugin whose pods are looked at."""

    lab: Lab
    kubectl: Kubectl
    component: Component = GPUS

    @classmethod
    def of(cls, lab: Lab, component: Component = GPUS) -> "Cluster":
        """The cluster of a lab that is up."""
        return cls(lab, lab.kubectl(), component)

    @property
    def driver(self) -> Kubectl:
        """The namespace that the driver is installed in."""
        return self.kubectl.within(NAMESPACE)

    @property
    def host_address(self) -> str:
        """Where pods reach this machine."""
        return model.network(self._facts["index"]).host_address

    @property
    def release(self) -> tuple[int, int]:
        """Kubernetes' major and minor number."""
        major, minor, _ = map(int, self._facts["kubernetes"].split("."))
        return major, minor

    def nodes(self) -> list[str]:
        """The nodes' names."""
        return sorted(node["metadata"]["name"] for node in self.kubectl.get("nodes"))

    def install(self, *settings: str, wait_s: int = 60) -> None:
        """`helm upgrade --install`, and wait until every node's plugins are ready.

        Args:
            settings: More flags of helm, as `--set-json=…`.
            wait_s: How long helm waits.
        """
        roots = [f"--set-string=global.{name}={path}" for name, path in ROOTS.items()]
        where = ["--namespace", NAMESPACE, "--create-namespace"]
        how = ["--wait", f"--timeout={wait_s}s"]
        self.helm("upgrade", "--install", RELEASE, str(CHART), *where, *how, *roots, *settings)
        self.wait_rolled_out(wait_s)

    def wait_rolled_out(self, wait_s: int = 60) -> None:
        """Until every node's plugins are those of the last install or rollback, and ready."""
        # helm is content while `maxUnavailable` plugins are still starting, and a pod that reaches
        # such a node is looked at again by its kubelet only a minute later.
        limit = f"--timeout={wait_s}s"
        self.driver.run("rollout", "status", "daemonset", "-l", PART, limit, timeout_s=wait_s + 5)

    def uninstall(self) -> None:
        """`helm uninstall`, and wait until the driver's pods are gone."""
        self.helm("uninstall", RELEASE, "--namespace", NAMESPACE, "--wait")
        self.driver.wait(
            lambda: self._running() or None, "the driver's pods to be gone", timeout_s=60
        )

    def helm(self, *arguments: str) -> str:
        """Run helm in the lab."""
        return self.lab.must("helm", *arguments)

    def devices(self) -> list[Device]:
        """Every device the driver publishes, by node and name."""
        driver = f"--field-selector=spec.driver={self.component.driver}"
        slices = self.kubectl.get("resourceslices", "", driver)
        found = [
            _device(each["spec"]["nodeName"], served.device(device))
            for each in slices
            for device in each["spec"].get("devices", [])
        ]
        return sorted(found, key=lambda device: (device.node, device.name))

    def device(self, node: str, name: str) -> Device:
        """One published device."""
        return next(one for one in self.devices() if (one.node, one.name) == (node, name))

    def allocated(self, claim: Mapping[str, Any]) -> list[Device]:
        """The devices that a claim was given, in the order of its allocation."""
        results = claim["status"]["allocation"]["devices"]["results"]
        known = {(device.node, device.name): device for device in self.devices()}
        return [known[result["pool"], result["device"]] for result in results]

    def plugin(self, node: str) -> str:
        """The name of the plugin's pod on a node."""
        on_node = f"--field-selector=spec.nodeName={node}"
        (pod,) = self.driver.get("pods", "", "-l", self.component.label, on_node)
        return str(pod["metadata"]["name"])

    def restart_plugin(self, node: str) -> None:
        """Delete the plugin's pod on a node, and wait until its successor is ready."""
        self.driver.delete("pod", self.plugin(node))
        self.wait_ready(node)

    def reboot(self, node: str) -> None:
        """Start a node anew, and wait until its plugin is ready again."""
        before = self._plugins(node)
        self.lab.must("reboot", node)
        self.wait_ready(node, other_than=before)

    def wait_ready(self, node: str, other_than: Mapping[str, bool] | None = None) -> None:
        """Until a node has one plugin, which is ready, in another container than one of those."""
        old = set(other_than or {})

        def not_ready() -> str | None:
            plugins = self._plugins(node)
            is_so = list(plugins.values()) == [True] and not old & set(plugins)
            return None if is_so else str(plugins)

        self.driver.wait(not_ready, f"the plugin of {node} to be ready again", timeout_s=60)

    def metrics(self, node: str) -> dict[str, float]:
        """What the plugin of a node counts: sample, labels included, → value."""
        where = f"{self.plugin(node)}:{self.component.http_port}"
        path = f"/api/v1/namespaces/{NAMESPACE}/pods/{where}/proxy/metrics"
        lines = self.kubectl.run("get", "--raw", path).splitlines()
        samples = (line.rpartition(" ") for line in lines if line and not line.startswith("#"))
        return {name: float(value) for name, _, value in samples}

    def held(self, node: str) -> int:
        """How many GPUs are prepared on a node."""
        labels = f'device_type="gpu",driver="{DRIVER}",node="{node}"'
        return int(self.metrics(node)[f"nvidia_dra_prepared_devices{{{labels}}}"])

    def trace(self, node: str, uid: str, form: str = "text") -> str:
        """A claim's trace, from the debug endpoint that only a port-forward reaches."""
        return self.trace_of(self.plugin(node), uid, form)

    def trace_of(self, pod: str, uid: str, form: str = "text") -> str:
        """A trace as one pod of the driver knows it."""
        with self.forwarded(pod, DEBUG_PORT) as address:
            url = f"{address}/debug/traces/{uid}?format={form}"
            with urllib.request.urlopen(url, timeout=10) as answer:
                return str(answer.read().decode())

    @contextlib.contextmanager
    def forwarded(self, pod: str, port: int) -> Iterator[str]:
        """`kubectl port-forward` to a pod of the driver; the address on this machine."""
        argv = [self.kubectl.program, f"--kubeconfig={self.kubectl.kubeconfig}", "-n", NAMESPACE]
        argv += ["port-forward", f"pod/{pod}", f":{port}"]
        with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout is not None
                line = process.stdout.readline()  # Forwarding from 127.0.0.1:41234 -> 6060
                assert line.startswith("Forwarding from"), f"kubectl port-forward said: {line!r}"
                yield f"http://{line.split()[2]}"
            finally:
                process.terminate()

    def sim(self, node: str, *command: str) -> str:
        """Change a node's simulated hardware, by nvdra-simctl."""
        return self.lab.must("sim", node, *command)

    def inside(self, node: str, *command: str) -> str:
        """Run a command in a node."""
        return self.lab.must("exec", node, "--", *command)

    @contextlib.contextmanager
    def slowed(self, node: str, gpu: int, milliseconds: int) -> Iterator[None]:
        """Every NVML call on that GPU takes so much longer while the block runs."""
        self.sim(node, "slow", str(milliseconds), "--gpu", str(gpu))
        try:
            yield
        finally:
            self.sim(node, "fault", "rm", "all")

    @contextlib.contextmanager
    def lost(self, node: str, gpu: int) -> Iterator[None]:
        """That GPU has fallen off the bus while the block runs, in which a claim has to meet it.

        Afterwards it is offered again: the plugin sees that only when it next asks the board.
        """
        name = f"gpu-{gpu}"
        self.sim(node, "gpu", "lose", str(gpu))
        try:
            yield
            self.kubectl.wait(
                lambda: "it is" if self._offers(node, name) else None,
                f"{name} of {node} to be offered no more",
            )
        finally:
            self.sim(node, "gpu", "restore", str(gpu))
        self.kubectl.wait(
            lambda: None if self._offers(node, name) else "it is not",
            f"{name} of {node} to be offered again",
        )

    @property
    def _facts(self) -> dict[str, Any]:
        facts: dict[str, Any] = json.loads((STATE / self.lab.name / "lab.json").read_text())
        return facts

    def _plugins(self, node: str) -> dict[str, bool]:
        """The containers of plugins on a node, and whether each is ready."""
        on_node = f"--field-selector=spec.nodeName={node}"
        pods = self.driver.get("pods", "", "-l", self.component.label, on_node)
        states = [each for pod in pods for each in pod["status"].get("containerStatuses", [])]
        return {state.get("containerID", ""): state["ready"] for state in states}

    def _offers(self, node: str, name: str) -> bool:
        return (node, name) in {(device.node, device.name) for device in self.devices()}

    def _running(self) -> str:
        chosen = ["-l", f"app.kubernetes.io/instance={RELEASE}"]
        return " ".join(self.driver.run("get", "pods", *chosen, "-o", "name").split())


def _device(node: str, device: Mapping[str, Any]) -> Device:
    values = {
        name: next(iter(value.values())) for name, value in device.get("attributes", {}).items()
    }
    sizes = {name: str(size["value"]) for name, size in device.get("capacity", {}).items()}
    return Device(node, str(device["name"]), values, sizes)
