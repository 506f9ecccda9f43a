# SPDX-License-Identifier: Apache-2.0
"""Runs a DRA plugin as a process on a simulated node against a real API server.

This is what tests and the benchmark need for it: the node's files, the Node object, claims that are
allocated as by the scheduler, and the plugin's ports and log.
"""

import contextlib
import json
import signal
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

from nvdra_api.ids import ClaimUID
from nvdra_api.resource.claims import ClaimRef
from nvdra_sim import installation
from nvdra_sim.configuration import node_config
from nvdra_sim.simctl import main as simctl

from nvdra_testing import ports, preloaded
from nvdra_testing.certificates import NO_SYSTEM_CERTIFICATES
from nvdra_testing.control_plane.apiserver import ApiServer, RawJson

DRIVER = "gpu.nvidia.com"
PROFILE = "dgx-h100"
START_S = 60


@dataclass(frozen=True)
class Node:
    """A simulated node, and the directories of the plugin's files on it.

    Attributes:
        name: The name of the node and of its pool.
        roots: Driver, proc, sys and dev of the simulated hardware.
        kubelet: The kubelet's root directory.
        cdi: The directory of CDI specs.
    """

    name: str
    roots: installation.Roots
    kubelet: Path
    cdi: Path

    @property
    def state_path(self) -> Path:
        """The file with the state of the simulated hardware."""
        return next(self.roots.driver.glob("lib/firmware/nvidia/*/gsp_nvdra_sim.bin"))

    def simctl(self, *command: str) -> str:
        """What nvdra-simctl prints for the node: `node.simctl("gpu", "lose", "0")`.

        It runs in this process: a program would take a third of a second to start.
        """
        return simctl.output_of([*command, f"--state={self.state_path}"])

    def nvml_calls(self, function: str) -> int:
        """How often a function of NVML was called on the node."""
        counted = json.loads(self.simctl("counters", "--json"))
        return sum(int(each["calls"]) for each in counted if each["function"] == function)

    def make_mig_device(
        self, gpu: int, profile: str, start: int, compute: str | None = None
    ) -> None:
        """Make a GPU instance and its compute instances, as an administrator does.

        Args:
            gpu: The index of a GPU in MIG mode.
            profile: Such as `1g.10gb`.
            start: The first memory slice.
            compute: The sizes of the compute instances, such as `2c,1c`; none if empty; one that
                covers the GPU instance by default.
        """
        sizes = () if compute is None else (f"--compute={compute}",)
        self._change_mig("create", str(gpu), profile, str(start), *sizes)

    def destroy_mig_device(self, gpu: int, gpu_instance: int) -> None:
        """Destroy a GPU instance with its compute instances, as an administrator does."""
        self._change_mig("destroy", str(gpu), f"--gi={gpu_instance}")

    def _change_mig(self, *command: str) -> None:
        self.simctl("mig", *command, f"--proc-root={self.roots.proc}")

    def nvidia_smi(self, *arguments: str) -> str:
        """Run the node's nvidia-smi, as an administrator does."""
        command: list[str | Path] = [self.roots.driver / "usr/bin/nvidia-smi", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout
        return done.stdout


@contextlib.contextmanager
def simulated_node(
    directory: Path, name: str, profile: str | None = PROFILE, **sections: Any
) -> Iterator[Node]:
    """Simulated hardware below `directory`, with real device nodes; this needs root.

    The path of `directory` must be short. `sections` are those of a node file.
    """
    roots = installation.Roots.below(directory / "hw")
    sections["node"] = {"visibility": "all", **sections.get("node", {})}
    description = node_config.from_profile(profile, name, sections)
    installation.install(
        description,
        driver_root=roots.driver,
        proc_root=roots.proc,
        sys_root=roots.sys,
        dev_root=roots.dev,
    )
    try:
        yield Node(name, roots, directory / "k", directory / "cdi")
    finally:
        installation.uninstall(driver_root=roots.driver)


def create_node_object(server: ApiServer, name: str, kubelet_version: str = "v1.36.3") -> None:
    """Create the Node object, which owns the slices, with the version of its kubelet."""
    node = server.create("/api/v1/nodes", {"metadata": {"name": name}})
    # The API server asks for all of them.
    info = dict.fromkeys(
        (
            *("machineID", "systemUUID", "bootID", "kernelVersion", "osImage"),
            *("containerRuntimeVersion", "kubeProxyVersion", "operatingSystem", "architecture"),
        ),
        "",
    )
    node["status"] = {"nodeInfo": {**info, "kubeletVersion": kubelet_version}}
    server.request("PUT", f"/api/v1/nodes/{name}/status", node)


def allow_admin_access(server: ApiServer) -> None:
    """Label the namespace `default`, so that its claims may use adminAccess."""
    namespace = server.request("GET", "/api/v1/namespaces/default")
    labels = namespace["metadata"].setdefault("labels", {})
    labels["resource.kubernetes.io/admin-access"] = "true"
    server.request("PUT", "/api/v1/namespaces/default", namespace)


@dataclass
class PluginProcess:
    """A running plugin.

    Attributes:
        log: Its output.
        http: `host:port` of probes and metrics.
        debug: `host:port` of the debug endpoint.
        started: Monotonic seconds when it was started.
    """

    process: subprocess.Popen[bytes]
    log: Path
    http: str
    debug: str
    started: float = field(default_factory=time.monotonic)

    def get(self, path: str, *, debug: bool = False, accept: str = "*/*") -> tuple[int, str]:
        """The status and body of a page of the plugin."""
        url = f"http://{self.debug if debug else self.http}{path}"
        request = urllib.request.Request(url, headers={"Accept": accept})
        try:
            with urllib.request.urlopen(request, timeout=5) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def put(self, path: str, text: str) -> int:
        """PUT to a page of the debug endpoint, and return the status."""
        url = f"http://{self.debug}{path}"
        request = urllib.request.Request(url, data=text.encode(), method="PUT")
        with urllib.request.urlopen(request, timeout=5) as response:
            return int(response.status)

    def is_listening(self) -> bool:
        """Whether the debug port, which is opened last, is open."""
        try:
            return self.get("/debug/flags/v", debug=True)[0] == 200
        except OSError:
            return False

    def trace(self, uid: str) -> Any:
        """The trace of a claim as JSON."""
        status, body = self.get(f"/debug/traces/{uid}", debug=True)
        assert status == 200, body
        return json.loads(body)

    def resident_mib(self) -> float:
        """The resident set, in MiB."""
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) / 1024
        raise AssertionError("the plugin has ended")

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """End the process, and return its exit code."""
        self.process.send_signal(number)
        return self.process.wait(timeout=30)


@contextlib.contextmanager
def run_plugin(
    server: ApiServer,
    node: Node,
    *,
    flags: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
    program: Sequence[str] = ("nvdra-gpu-plugin",),
) -> Iterator[PluginProcess]:
    """Run the plugin on `node` until the block is left; it may be stopped before."""
    http, debug = (f"127.0.0.1:{port}" for port in ports.free_ports(2))
    log = node.kubelet.parent / f"plugin-{uuid4().hex[:6]}.log"
    argv = [
        *program,
        f"--node-name={node.name}",
        f"--kubeconfig={server.kubeconfig}",
        f"--nvidia-driver-root={node.roots.driver}",
        f"--container-driver-root={node.roots.driver}",
        f"--proc-root={node.roots.proc}",
        f"--sys-root={node.roots.sys}",
        f"--dev-root={node.roots.dev}",
        f"--cdi-root={node.cdi}",
        f"--kubelet-plugins-directory-path={node.kubelet}/plugins",
        f"--kubelet-registrar-directory-path={node.kubelet}/plugins_registry",
        "--nvidia-cdi-hook-path=/usr/bin/nvidia-cdi-hook",
        f"--http-endpoint={http}",
        f"--debug-endpoint={debug}",
        *flags,
    ]
    with log.open("wb") as output:
        variables = {**NO_SYSTEM_CERTIFICATES, **(environ or {})}
        process = preloaded.start(argv, variables, output, output)
    plugin = PluginProcess(process, log, http, debug)
    try:
        yield plugin
    finally:
        if process.poll() is None:
            plugin.stop()


CLAIMS = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"


def claims_path(namespace: str) -> str:
    """The path of a namespace's claims."""
    return CLAIMS.replace("/default/", f"/{namespace}/")


def create_allocated_claim(
    server: ApiServer,
    node: str,
    devices: Sequence[str],
    *,
    config: Sequence[Mapping[str, Any]] = (),
    admin: bool = False,
    capacity: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    request: str = "gpu",
    pod: str = "p",
    pod_uid: str = "",
    has_allocation_timestamp: bool = True,
    name: str = "",
    driver: str = DRIVER,
    namespace: str = "default",
    others: Sequence[Mapping[str, str]] = (),
    shares: Sequence[str] = (),
) -> ClaimRef:
    """Create a claim that is allocated to these devices of the node, as by the scheduler.

    Without `has_allocation_timestamp`, the allocation has no time, as before Kubernetes 1.36.
    `capacity` is what the request asks for of each device. A `request` of the form `main/sub` makes
    a prioritised list with one alternative. `others` are results of other drivers. With `shares`,
    which are share IDs, the claim has a share of each device and not the whole.
    """
    name = name or f"claim-{uuid4().hex[:10]}"
    main, _, alternative = request.partition("/")
    wanted: dict[str, Any] = {"deviceClassName": driver, "count": len(devices)}
    if admin:
        wanted["adminAccess"] = True
    if capacity:
        wanted["capacity"] = {"requests": dict(capacity)}
    asked: dict[str, Any] = {"name": main, "exactly": wanted}
    if alternative:
        asked = {"name": main, "firstAvailable": [{"name": alternative, **wanted}]}
    path = claims_path(namespace)
    claim = server.create(
        path,
        {
            "metadata": {"name": name, "annotations": dict(annotations or {})},
            "spec": {"devices": {"requests": [asked]}},
        },
    )
    result = {"request": request, "driver": driver, "pool": node}
    results = [
        {**result, "device": device, **({"adminAccess": True} if admin else {})}
        for device in devices
    ]
    for each, share in zip(results, shares, strict=False):
        each |= {
            "shareID": share,
            "consumedCapacity": {"memory": (capacity or {}).get("memory", "0")},
        }
    results += [{"request": request, **other} for other in others]
    selector = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
    claim["status"] = {
        "allocation": {
            "devices": {"results": results, "config": list(config)},
            "nodeSelector": {"nodeSelectorTerms": [selector]},
            **(
                {"allocationTimestamp": claim["metadata"]["creationTimestamp"]}
                if has_allocation_timestamp
                else {}
            ),
        },
        "reservedFor": [{"resource": "pods", "name": pod, "uid": pod_uid or str(uuid4())}],
    }
    server.send("PUT", f"{path}/{name}/status", claim)
    return ClaimRef(namespace, name, ClaimUID(claim["metadata"]["uid"]))


def opaque_config(
    parameters: Mapping[str, Any] | RawJson, source: str = "FromClaim", driver: str = DRIVER
) -> dict[str, Any]:
    """An opaque entry of an allocation's config, for one of our drivers."""
    value = parameters if isinstance(parameters, RawJson) else dict(parameters)
    return {"source": source, "opaque": {"driver": driver, "parameters": value}}


def shared_by_time(interval: str = "", source: str = "FromClaim") -> list[dict[str, Any]]:
    """The config of a claim whose GPUs are shared by time, with this interval."""
    slicing = {"timeSlicingConfig": {"interval": interval}} if interval else {}
    config = {
        "apiVersion": "resource.nvidia.com/v1beta1",
        "kind": "GpuConfig",
        "sharing": {"strategy": "TimeSlicing", **slicing},
    }
    return [opaque_config(config, source)]


def shared_by_mps(kind: str = "GpuConfig", **config: Any) -> list[dict[str, Any]]:
    """The config of a claim whose devices are shared by MPS, with these settings."""
    settings = {"mpsConfig": config} if config else {}
    parameters = {
        "apiVersion": "resource.nvidia.com/v1beta1",
        "kind": kind,
        "sharing": {"strategy": "MPS", **settings},
    }
    return [opaque_config(parameters)]
