# SPDX-License-Identifier: Apache-2.0
"""MPS in a lab: the control daemons of claims, and CUDA processes in pods."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from nvdra_testing.cluster import api_versions, workloads
from nvdra_testing.cluster.installation import Cluster
from nvdra_testing.cluster.kubectl import Kubectl
from nvdra_testing.cluster.workloads import Manifest

LABEL = "gpu.nvidia.com/mps-node"
"""Every Deployment of a daemon has it, and each of its pods."""
DIRECTORY = "/var/lib/kubelet/plugins/gpu.nvidia.com/mps"
"""One directory for each daemon of the node."""
GONE_S = 60
"""Where a claim has ended while the API server was away, the plugin asks it again every 10 s."""

CLIENT = """
import ctypes, json, sys

cuda = ctypes.CDLL("libcuda.so.1")
context, count = ctypes.c_void_p(), ctypes.c_int()
address, free, total = ctypes.c_size_t(), ctypes.c_size_t(), ctypes.c_size_t()
started = [cuda.cuInit(0), cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0)]
cuda.cuDeviceGetAttribute(ctypes.byref(count), 16, 0)
cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
sizes = [ctypes.c_size_t(int(each) << 20) for each in sys.argv[1:]]
allocated = [cuda.cuMemAlloc_v2(ctypes.byref(address), size) for size in sizes]
print(json.dumps([*started, count.value, free.value >> 20, *allocated]))
"""

OUT_OF_MEMORY = 2
"""`CUDA_ERROR_OUT_OF_MEMORY`."""

ALL_GATES = tuple(
    f"--set=global.featureGates.{gate}=true"
    for gate in (
        "ConsumableShares",
        "DynamicMIG",
        "MPSSupport",
        "NVMLDeviceHealthCheck",
        "TimeSlicingSettings",
    )
)
"""Flags of helm: everything that the driver can do with single GPUs."""

HALF: Final[dict[str, Any]] = {
    "defaultActiveThreadPercentage": 50,
    "defaultPinnedDeviceMemoryLimit": "10Gi",
}
"""Settings of `mpsConfig`."""


@dataclass(frozen=True)
class CudaView:
    """What a CUDA process sees of its first device.

    Attributes:
        started: The results of cuInit and of the first context.
        multiprocessors: Those that it may use.
        memory_mib: What it may allocate at first.
        allocated: The result of each allocation that it tried.
    """

    started: tuple[int, int]
    multiprocessors: int
    memory_mib: int
    allocated: tuple[int, ...] = ()


HALF_OF_AN_H100 = CudaView((0, 0), multiprocessors=66, memory_mib=10240)
"""What a process sees by `HALF`."""


def install_all(cluster: Cluster, *flags: str) -> None:
    """Install the driver with all its gates, and wait until MIG devices are offered."""
    cluster.install(*flags, *ALL_GATES)
    if cluster.release >= api_versions.PARTITIONS_SINCE:
        cluster.kubectl.wait(
            lambda: None if _offers_mig_devices(cluster) else "none", "partitions to be published"
        )


def apply_claim(pods: Kubectl, name: str, gpu: str) -> None:
    """Create a claim for one GPU, by its UUID, of which each process has half by MPS."""
    request = workloads.gpus("gpu", workloads.is_whole_gpu(gpu))
    pods.apply(workloads.claim(name, request, config=config(**HALF)))


def config(kind: str = "GpuConfig", **settings: Any) -> Manifest:
    """The config of a claim whose devices are shared by MPS, with these settings of `mpsConfig`."""
    return {"kind": kind, "sharing": {"strategy": "MPS", "mpsConfig": settings}}


def python_pod(manifest: Manifest) -> Manifest:
    """The pod with an image in which `cuda_view` can run."""
    spec = manifest["spec"]
    containers = [{**each, "image": workloads.PYTHON_IMAGE} for each in spec["containers"]]
    return {**manifest, "spec": {**spec, "containers": containers}}


def cuda_view(pods: Kubectl, pod: str, *mebibytes: int, container: str = "") -> CudaView:
    """Run a CUDA process in a container to its end.

    Args:
        pods: The namespace of the pod.
        pod: One with Python.
        *mebibytes: What the process tries to allocate, one after another.
        container: The container; the first one by default.
    """
    sizes = map(str, mebibytes)
    said = json.loads(pods.exec(pod, "python3", "-c", CLIENT, *sizes, container=container))
    initialised, created, multiprocessors, memory_mib, *allocated = said
    return CudaView((initialised, created), multiprocessors, memory_mib, tuple(allocated))


def clients(pods: Kubectl, pod: str) -> int:
    """How many CUDA processes are clients of the daemon that a pod reaches."""
    said = pods.exec(pod, "sh", "-c", "echo ps | nvidia-cuda-mps-control")
    return len(said.splitlines()) - 1


def daemon_pods(cluster: Cluster) -> list[dict[str, Any]]:
    """The pods of all daemons that are not being deleted."""
    return workloads.living(cluster.driver_namespace.get("pods", "", "-l", LABEL))


def daemon_uids(cluster: Cluster) -> set[str]:
    """The UIDs of those pods."""
    return {str(each["metadata"]["uid"]) for each in daemon_pods(cluster)}


def deployments(cluster: Cluster) -> list[str]:
    """The names of the Deployments of all daemons."""
    found = cluster.driver_namespace.get("deployments", "", "-l", LABEL)
    return [str(each["metadata"]["name"]) for each in found]


def deployment_of(cluster: Cluster, claim: Mapping[str, Any]) -> str:
    """The name of the Deployment of a claim's one daemon."""
    start = f"mps-control-daemon-{claim['metadata']['uid']}-"
    (name,) = (each for each in deployments(cluster) if each.startswith(start))
    return name


def directories(cluster: Cluster, node: str) -> list[str]:
    """The names of the daemons that have a directory on a node."""
    listing = f"ls {DIRECTORY} 2> /dev/null || true"
    return cluster.exec_on_node(node, "sh", "-c", listing).split()


def mounts(cluster: Cluster, node: str) -> list[str]:
    """What is mounted for daemons on a node."""
    table = cluster.exec_on_node(node, "cat", "/proc/self/mounts")
    places = [line.split()[1] for line in table.splitlines()]
    return [place for place in places if place.startswith(f"{DIRECTORY}/")]


def compute_mode(cluster: Cluster, node: str, gpu: str) -> str:
    """The compute mode of a GPU, by its UUID."""
    shown = json.loads(cluster.simctl(node, "show", "--json"))
    (mode,) = (each["compute_mode"] for each in shown["gpus"] if each["uuid"] == gpu)
    return str(mode)


def wait_started(cluster: Cluster, restarts: int) -> None:
    """Wait until the one daemon's container has been restarted so often, and is ready."""

    def missing() -> str | None:
        (pod,) = daemon_pods(cluster)
        (status,) = pod["status"]["containerStatuses"]
        is_so = status["restartCount"] == restarts and status["started"]
        return None if is_so else str(status)

    cluster.kubectl.wait(missing, "the daemon's container to be restarted", timeout_s=120)


def wait_log(pods: Kubectl, pod: str, word: str) -> None:
    """Wait until a pod has said something."""
    pods.wait(lambda: None if word in pods.logs(pod) else pods.logs(pod), f"{word!r} of pod {pod}")


def wait_gone(cluster: Cluster, node: str) -> None:
    """Wait until nothing of any daemon is left: in the API, and in the files of one node."""

    def left() -> str | None:
        found = (
            deployments(cluster),
            [each["metadata"]["name"] for each in daemon_pods(cluster)],
            directories(cluster, node),
            mounts(cluster, node),
        )
        return str(found) if any(found) else None

    cluster.kubectl.wait(left, "the MPS control daemons to be gone", GONE_S)


def _offers_mig_devices(cluster: Cluster) -> bool:
    """Whether the devices of every node are published, and MIG devices among them."""
    nodes = {each.node for each in cluster.devices() if each.attributes["type"] == "mig"}
    return len(nodes) == len(cluster.nodes())
