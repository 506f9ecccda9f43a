# SPDX-License-Identifier: Apache-2.0
"""The Deployment of an MPS control daemon. Pure.

As the reference driver's, it is pinned to its node and uses the plugin's own image. What it has in
addition: it tolerates every taint, because the pods that use it do; it has no token of the API
server; and its command is `daemon_command`, which the plugin can stop by a file.
Source: docs/reference/gpu-prepare.md, "MPS".
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath, PurePosixPath
from typing import Final

from nvdra_api.ids import DeviceUUID, NodeName
from nvdra_api.meta import JsonObject

from nvdra_gpu_plugin.devices import mps_layout
from nvdra_gpu_plugin.devices.steps import ShareByMps

PATH: Final = "/apis/apps/v1/namespaces/{namespace}/deployments"
PODS_PATH: Final = "/api/v1/namespaces/{namespace}/pods"
NAME_PREFIX: Final = "mps-control-daemon-"
NODE_LABEL: Final = "gpu.nvidia.com/mps-node"
"""The node, as `node_value`: a node's name may be longer than a label's value."""
RUN_ANNOTATION: Final = "gpu.nvidia.com/mps-run"

_CONTAINER: Final = "mps-control-daemon"
_PROBES: Final = 3600
"""Once a second. A daemon that waits for the plugin after a reboot is not started anew before."""


@dataclass(frozen=True, slots=True)
class DaemonSettings:
    """What the Deployments of a node have in common.

    Attributes:
        node: The node.
        namespace: The driver's namespace.
        image: The plugin's image.
        driver_root: Root of the driver's files on the node.
        grace_period_s: How long a daemon whose pod is deleted may wait for the end of its clients.
        requests: What the scheduler counts for a daemon's container, by resource.
        limits: Its limits. Where it has none, a default of a LimitRange takes its place.
        has_shell: Whether the driver root has a shell, so that programs run inside of it.
        has_shm: Whether it has `/dev/shm`.
    """

    node: NodeName
    namespace: str
    image: str = ""
    pull_policy: str = ""
    pull_secrets: tuple[str, ...] = ()
    service_account: str = ""
    priority_class: str = ""
    grace_period_s: int = 3600
    requests: tuple[tuple[str, str], ...] = ()
    limits: tuple[tuple[str, str], ...] = ()
    driver_root: Path = Path("/")
    has_shell: bool = True
    has_shm: bool = True
    feature_gates: str = ""

    @property
    def root(self) -> PurePosixPath:
        """The root of the driver's programs, as the daemon's container sees it."""
        return mps_layout.DRIVER_ROOT if self.has_shell else PurePosixPath("/")

    @property
    def shm(self) -> PurePosixPath:
        """Where they look for shared memory."""
        return (self.root if self.has_shm else PurePosixPath("/")) / "dev/shm"


def name(daemon_id: str) -> str:
    """The name of a daemon's Deployment, and of the label `app` of its pods."""
    return f"{NAME_PREFIX}{daemon_id}"


def node_value(node: NodeName) -> str:
    """The value of the label for a node."""
    return hashlib.sha256(node.encode()).hexdigest()[:16]


def manifest(
    step: ShareByMps,
    uuids: Sequence[DeviceUUID],
    limits: Mapping[str, int],
    settings: DaemonSettings,
) -> JsonObject:
    """The Deployment of a daemon.

    Args:
        step: The daemon, whose run and directory are known.
        uuids: The devices that it serves, sorted.
        limits: Memory limits, in its mega units, by UUID.
        settings: What all daemons of the node have.
    """
    app = name(Path(step.directory).name)
    labels = {"app": app, NODE_LABEL: node_value(settings.node)}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {
            "name": app,
            "namespace": settings.namespace,
            "labels": labels,
            "annotations": {RUN_ANNOTATION: step.run},
        },
        "spec": {
            "replicas": 1,
            "revisionHistoryLimit": 0,
            # Of two daemons of a claim one waits until the other has ended.
            "strategy": {"type": "Recreate"},
            "selector": {"matchLabels": {"app": app}},
            "template": {
                "metadata": {"labels": labels},
                "spec": _pod(step, uuids, limits, settings),
            },
        },
    }


Volumes = Mapping[str, tuple[PurePath, PurePath]]
"""Name → path on the node, and in the container."""


def _pod(
    step: ShareByMps,
    uuids: Sequence[DeviceUUID],
    limits: Mapping[str, int],
    settings: DaemonSettings,
) -> JsonObject:
    directory = Path(step.directory)
    volumes: Volumes = {
        "driver-root": (settings.driver_root, mps_layout.DRIVER_ROOT),
        "mps-directory": (directory, mps_layout.DIRECTORY),
        "mps-shm-directory": (directory / mps_layout.SHM, settings.shm),
        "mps-pipe-directory": (directory / mps_layout.PIPE, settings.root / mps_layout.DAEMON_PIPE),
        "mps-log-directory": (directory / mps_layout.LOG, settings.root / mps_layout.DAEMON_LOG),
    }
    container = _container(step, uuids, limits, settings, volumes)
    pod: JsonObject = {
        # Not `nodeName`: the kubelet of a full node would reject one pod after another, and the
        # Deployment would make them by the hundred (kubernetes/kubernetes#120160).
        "affinity": _affinity(settings.node),
        "hostPID": True,
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": settings.grace_period_s,
        "tolerations": [{"operator": "Exists"}],
        "containers": [container],
        "volumes": [
            {"name": key, "hostPath": {"path": str(path), "type": "Directory"}}
            for key, (path, _) in volumes.items()
        ],
    }
    if settings.priority_class:
        pod["priorityClassName"] = settings.priority_class
    if settings.service_account:
        pod["serviceAccountName"] = settings.service_account
    if settings.pull_secrets:
        pod["imagePullSecrets"] = [{"name": secret} for secret in settings.pull_secrets]
    return pod


def _container(
    step: ShareByMps,
    uuids: Sequence[DeviceUUID],
    limits: Mapping[str, int],
    settings: DaemonSettings,
    volumes: Volumes,
) -> JsonObject:
    gates = {"FEATURE_GATES": settings.feature_gates} if settings.feature_gates else {}
    environment = {
        "CUDA_VISIBLE_DEVICES": ",".join(uuids),
        "NVIDIA_VISIBLE_DEVICES": "void",
        **gates,
    }
    container: JsonObject = {
        "name": _CONTAINER,
        "image": settings.image,
        "resources": {"requests": dict(settings.requests), "limits": dict(settings.limits)},
        "securityContext": {"privileged": True},
        "command": ["nvdra-gpu-plugin", "mps-daemon"],
        "args": _arguments(step, uuids, limits, settings),
        "env": [{"name": key, "value": value} for key, value in environment.items()],
        "startupProbe": {
            "exec": {"command": ["cat", str(mps_layout.POD_READY)]},
            "initialDelaySeconds": 1,
            "periodSeconds": 1,
            "failureThreshold": _PROBES,
        },
        # What it says last when it ends is what the claim's failure says.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [
            # What the plugin mounts later, after a reboot, must appear here.
            {"name": key, "mountPath": str(path), "mountPropagation": "HostToContainer"}
            for key, (_, path) in volumes.items()
        ],
    }
    if settings.pull_policy:
        container["imagePullPolicy"] = settings.pull_policy
    return container


def _affinity(node: NodeName) -> JsonObject:
    """That of a DaemonSet's pod."""
    field = {"key": "metadata.name", "operator": "In", "values": [node]}
    required = {"nodeSelectorTerms": [{"matchFields": [field]}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}


def _arguments(
    step: ShareByMps,
    uuids: Sequence[DeviceUUID],
    limits: Mapping[str, int],
    settings: DaemonSettings,
) -> list[str]:
    """The flags of the command. The daemon counts its devices as CUDA_VISIBLE_DEVICES does."""
    found = [
        f"--driver-root={mps_layout.DRIVER_ROOT}",
        f"--directory={mps_layout.DIRECTORY}",
        f"--pipe-directory={settings.root / mps_layout.DAEMON_PIPE}",
        f"--log-directory={settings.root / mps_layout.DAEMON_LOG}",
        f"--ready-file={mps_layout.POD_READY}",
        f"--run={step.run}",
        f"--grace-period={settings.grace_period_s}",
    ]
    if step.is_multi_user:
        found.append("--multi-user")
    if step.thread_percentage is not None:
        found.append(f"--thread-percentage={step.thread_percentage}")
    found += [
        f"--memory-limit={index}={limits[uuid]}M"
        for index, uuid in enumerate(uuids)
        if uuid in limits
    ]
    return found
