# SPDX-License-Identifier: Apache-2.0
"""A node as a machine: its files, container runtime and kubelet."""

import dataclasses
import ipaddress
import json
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

import yaml

from nvdra_lab import layout, model
from nvdra_lab.kubernetes import control_plane
from nvdra_lab.kubernetes.pki import PKI
from nvdra_lab.kubernetes.platforms import PLATFORMS, Platform
from nvdra_lab.kubernetes.runtimes import RUNTIMES
from nvdra_lab.layout import MachineDir
from nvdra_lab.machines import passthrough
from nvdra_lab.machines.machine_spec import (
    Bind,
    Cgroup,
    Devices,
    Machine,
    Overlay,
    Run,
    Start,
    Step,
    WaitSocket,
)
from nvdra_lab.model import Lab, Node

WORKLOAD_IMAGE = "docker.io/nvdra/workload:1"
WORKLOAD_ALIAS = (
    "docker.io/library/debian:12-slim"  # manifests use an image that any cluster can pull
)
START_TIMEOUT_S = 60.0


@dataclasses.dataclass(frozen=True)
class Parts:
    """What a node needs besides its configuration.

    Attributes:
        programs: Program name → path.
        environment: The environment of every process on the node.
        login: Additional environment for those who enter the node.
        python: The interpreter in which the simulator is installed.
        archives: The images that the node has from the start.
    """

    programs: Mapping[str, str]
    environment: Mapping[str, str]
    login: Mapping[str, str]
    python: str
    archives: tuple[str, ...]


def machine(lab: Lab, node: Node, folder: MachineDir, parts: Parts) -> Machine:
    """A node's machine: mounts, container runtime, simulated hardware, images, kubelet."""
    programs = parts.programs
    runtime = RUNTIMES[lab.runtime]
    platform = PLATFORMS[lab.platform]
    steps: list[Step] = [
        Cgroup(layout.cgroup(lab.name, node.name)),
        Overlay("/etc", str(folder.etc), str(folder.etc_work)),
        *_overlaid(platform, folder),
        *(passthrough.mounts(folder) if lab.has_passthrough else ()),
        Bind(str(folder.var_log), "/var/log"),
        Bind(str(folder.run), "/run"),
        Bind(str(folder.var_lib), "/var/lib"),  # last: it hides the sources of the other mounts
        Devices("/dev"),
        Start(runtime.name, runtime.start(programs)),
        *_hardware(lab, node, parts.python),
        *_driver_root(platform),
        *_read_only(platform),
        WaitSocket(runtime.name, runtime.socket, START_TIMEOUT_S),
        *(Run("images", runtime.import_image(programs, archive)) for archive in parts.archives),
        Run("images", runtime.tag_image(programs, WORKLOAD_IMAGE, WORKLOAD_ALIAS)),
        control_plane.ready(lab, "kube-apiserver"),
        Start("kubelet", (programs["kubelet"], *kubelet_flags(node, platform))),
    ]
    return Machine(node.name, dict(parts.environment), tuple(steps), dict(parts.login))


def files(lab: Lab, node: Node, programs: Mapping[str, str]) -> dict[str, bytes]:
    """The configuration files of a node, by path; keys come from `pki`."""
    of_runtime = RUNTIMES[lab.runtime].files(programs)
    return {
        **{path: content.encode() for path, content in of_runtime.items()},
        "/etc/cni/net.d/10-lab.conflist": json.dumps(
            cni_config(node, lab.pod_addresses), indent=1
        ).encode(),
        "/etc/kubernetes/resolv.conf": b"# a lab has no way out: names fail at once\n",
        "/var/lib/kubelet/config.yaml": yaml.safe_dump(kubelet_config(lab, node)).encode(),
    }


def _hardware(lab: Lab, node: Node, python: str) -> tuple[Step, ...]:
    profile = str(lab.profile)
    if lab.has_passthrough:
        return passthrough.steps(python, profile, node.name)
    return (Run("hardware", (python, "-m", "nvdra_lab.machines.hardware", profile, node.name)),)


def _overlaid(platform: Platform, folder: MachineDir) -> tuple[Step, ...]:
    """A directory of the host in which the node can have the driver's root of a platform."""
    if platform.overlaid is None:
        return ()
    return (Overlay(platform.overlaid, str(folder.platform), str(folder.platform_work)),)


def _driver_root(platform: Platform) -> tuple[Step, ...]:
    """The driver's files where the platform has them.

    They are copied into a directory that has files of others, for which mounts have no room.
    """
    if platform.overlaid is None:
        return ()
    script = (
        'if [ -d "$1" ]; then cp -a "$0/." "$1"; else mkdir -p "$1" && mount --bind "$0" "$1"; fi'
    )
    root = PurePosixPath(platform.driver_root)
    return tuple(
        Run(
            "driver-root",
            ("sh", "-c", script, f"{model.DRIVER_ROOT}/{inside}", str(root / there)),
        )
        for inside, there in platform.driver_files.items()
    )


def _read_only(platform: Platform) -> tuple[Step, ...]:
    return tuple(
        Run("read-only", ("mount", "-o", "remount,bind,ro", directory))
        for directory in platform.read_only
    )


def kubelet_flags(node: Node, platform: Platform) -> tuple[str, ...]:
    """The kubelet's settings that exist only as flags."""
    return (
        f"--root-dir={platform.kubelet_root}",
        "--kubeconfig=/etc/kubernetes/kubelet.conf",
        "--config=/var/lib/kubelet/config.yaml",
        f"--hostname-override={node.name}",
        f"--node-ip={','.join(node.addresses)}",
        f"--node-labels={model.GPU_NODE_LABEL}",
    )


def kubelet_config(lab: Lab, node: Node) -> dict[str, Any]:
    """A kubelet that authenticates its callers and does not change the machine it runs on.

    Several kubelets share one machine's memory and disk, so nothing is reserved or evicted and no
    image
    is removed. The default volume plugin directory is in /usr, which belongs to the host.
    """
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": node.addresses[0],
        "healthzBindAddress": node.address,
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": f"{PKI}/ca.crt"},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": f"{PKI}/kubelet.crt",
        "tlsPrivateKeyFile": f"{PKI}/kubelet.key",
        "containerRuntimeEndpoint": f"unix://{RUNTIMES[lab.runtime].socket}",
        "clusterDNS": [lab.network.dns_service],
        "clusterDomain": "cluster.local",
        "resolvConf": "/etc/kubernetes/resolv.conf",
        "volumePluginDir": "/var/lib/kubelet/volumeplugins",
        "failCgroupV1": False,
        "cgroupDriver": "cgroupfs",
        "cgroupsPerQOS": False,
        "enforceNodeAllocatable": [],
        "failSwapOn": False,
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        "evictionHard": {
            "memory.available": "0%",
            "nodefs.available": "0%",
            "nodefs.inodesFree": "0%",
            "imagefs.available": "0%",
            "imagefs.inodesFree": "0%",
        },
        "featureGates": lab.gates,
    }


def cni_config(node: Node, addresses: int | None) -> dict[str, Any]:
    """A point-to-point link per pod, routed through the cluster's network namespace.

    Args:
        node: The node.
        addresses: How many addresses its pods have; None for all of its range.
    """
    ranges = [{"subnet": pods} for pods in node.pod_cidrs]
    if addresses is not None:
        ranges = [
            {**each, "rangeEnd": str(ipaddress.ip_network(each["subnet"])[1 + addresses])}
            for each in ranges
        ]
    return {
        "cniVersion": "1.0.0",
        "name": "lab",
        "plugins": [
            {
                "type": "ptp",
                "ipMasq": False,
                "ipam": {
                    "type": "host-local",
                    "ranges": [[each] for each in ranges],
                    "routes": [
                        {"dst": "::/0" if ":" in pods else "0.0.0.0/0"} for pods in node.pod_cidrs
                    ],
                },
            },
            {"type": "portmap", "capabilities": {"portMappings": True}},
        ],
    }
