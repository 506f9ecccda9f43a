"""A node as a machine: its files, containerd and kubelet."""

import dataclasses
import ipaddress
import json
from collections.abc import Mapping
from typing import Any

import yaml

from nvdra_lab import layout, model
from nvdra_lab.kubernetes import control_plane
from nvdra_lab.kubernetes.pki import PKI
from nvdra_lab.layout import MachineDir
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

CONTAINERD_SOCKET = "/run/containerd/containerd.sock"
PAUSE_IMAGE = "docker.io/nvdra/pause:1"
WORKLOAD_IMAGE = "docker.io/nvdra/workload:1"
WORKLOAD_ALIAS = (
    "docker.io/library/debian:12-slim"  # manifests use an image that any cluster can pull
)
CNI_PROGRAMS = "/usr/lib/cni"  # of Debian's containernetworking-plugins
RUNC = "/usr/sbin/runc"  # Debian's, also if PATH has another one
NAMESPACE = "--namespace=k8s.io"  # of the kubelet's images, as an argument of ctr
IMPORT = (NAMESPACE, "images", "import")
TAG = (NAMESPACE, "images", "tag", "--force")
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
    """A node's machine: mounts, containerd, simulated hardware, images, kubelet."""
    programs = parts.programs
    hardware = (parts.python, "-m", "nvdra_lab.machines.hardware", str(lab.profile), node.name)
    steps: list[Step] = [
        Cgroup(layout.cgroup(lab.name, node.name)),
        Overlay("/etc", str(folder.etc), str(folder.etc_work)),
        Bind(str(folder.var_log), "/var/log"),
        Bind(str(folder.run), "/run"),
        Bind(str(folder.var_lib), "/var/lib"),  # last: it hides the sources of the other mounts
        Devices("/dev"),
        Start("containerd", (programs["containerd"],)),
        Run("hardware", hardware),
        WaitSocket("containerd", CONTAINERD_SOCKET, START_TIMEOUT_S),
        *(Run("images", (programs["ctr"], *IMPORT, archive)) for archive in parts.archives),
        Run("images", (programs["ctr"], *TAG, WORKLOAD_IMAGE, WORKLOAD_ALIAS)),
        control_plane.ready(lab, "kube-apiserver"),
        Start("kubelet", (programs["kubelet"], *kubelet_flags(node))),
    ]
    return Machine(node.name, dict(parts.environment), tuple(steps), dict(parts.login))


def files(lab: Lab, node: Node) -> dict[str, bytes]:
    """The configuration files of a node, by path; keys come from `pki`."""
    return {
        "/etc/containerd/config.toml": containerd_config().encode(),
        "/etc/cni/net.d/10-lab.conflist": json.dumps(
            cni_config(node, lab.pod_addresses), indent=1
        ).encode(),
        "/etc/kubernetes/resolv.conf": b"# a lab has no way out: names fail at once\n",
        "/var/lib/kubelet/config.yaml": yaml.safe_dump(kubelet_config(lab, node)).encode(),
    }


def kubelet_flags(node: Node) -> tuple[str, ...]:
    """The kubelet's settings that exist only as flags."""
    return (
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
        "containerRuntimeEndpoint": f"unix://{CONTAINERD_SOCKET}",
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


def containerd_config() -> str:
    """Containerd with its default paths and CDI; the same on every node.

    `restrict_oom_score_adj`: in a container the score cannot be lowered. The defaults of the `opt`
    directory and of NRI are in /opt, which belongs to the host.
    """
    return f"""\
version = 3
disabled_plugins = [
  "io.containerd.nri.v1.nri",
  "io.containerd.snapshotter.v1.blockfile",
  "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.devmapper",
  "io.containerd.snapshotter.v1.erofs",
  "io.containerd.snapshotter.v1.zfs",
]

[plugins."io.containerd.internal.v1.opt"]
  path = "/var/lib/containerd/opt"

[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = "{PAUSE_IMAGE}"

[plugins."io.containerd.cri.v1.runtime"]
  enable_cdi = true
  cdi_spec_dirs = ["/etc/cdi", "/var/run/cdi"]
  restrict_oom_score_adj = true

  [plugins."io.containerd.cri.v1.runtime".cni]
    bin_dirs = ["{CNI_PROGRAMS}"]
    conf_dir = "/etc/cni/net.d"

  [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"

    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
      BinaryName = "{RUNC}"
      SystemdCgroup = false
"""


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
