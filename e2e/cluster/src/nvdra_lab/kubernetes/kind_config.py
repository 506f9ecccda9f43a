# SPDX-License-Identifier: Apache-2.0
"""The configuration of a cluster that kind creates, and the commands that create and use it.

Pure: what to write and what to run follows from the lab. Each GPU node is a container with the
folder of its simulated hardware at /run/nvidia, so that the chart needs the same values as in a
local lab.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from nvdra_lab import model, versions
from nvdra_lab.model import Lab, Node

HARDWARE: Final = "/run/nvidia"
"""Where a node has the driver root, procfs, sysfs and device nodes of its simulated hardware."""

CREATE_TIMEOUT: Final = "180s"

NODE_IMAGES: Final[Mapping[tuple[int, ...], str]] = {
    (1, 34): "v1.34.11@sha256:44e222ee2132dab25ff87301682f89eb82c7880ea3a1bf543bfe9708fd08d67d",
    (1, 35): "v1.35.8@sha256:07b2536e30b803ed61d1677a79df6115f798ce64c80f9e22f6ed45afd09323c0",
    (1, 36): "v1.36.4@sha256:099e049362a1526b2db71494e1947aae99bd16290d7c895f2b7ea312e3cbfaed",
    (1, 37): "v1.37.0@sha256:a1ed56cfb0e7b93589bdf97c8cd566405a265939e3620fc4f5de89adff580ae5",
}
"""Those of kind 0.33.0, by release of Kubernetes. Source: the notes of that release."""

# Version 2 of containerd's configuration, which kind's nodes have; containerd 2 reads it, too.
_CDI: Final = """\
[plugins."io.containerd.grpc.v1.cri"]
  enable_cdi = true
  cdi_spec_dirs = ["/etc/cdi", "/var/run/cdi"]
"""

# A container has its own /dev. Nodes that are gone from the hardware go; the others are replaced,
# because a driver that is loaded again may have another major.
_SYNC_DEVICES: Final = f"""\
find /dev -path '/dev/nvidia*' | while read -r path; do
  test -e "{HARDWARE}$path" || rm -rf "$path"
done
cp -a --remove-destination {HARDWARE}/dev/nvidia* /dev/"""


def plan(
    name: str, node_count: int, profile: str, kubernetes: str, gates: Mapping[str, bool]
) -> Lab:
    """A lab on kind. Its nodes have the names that kind gives them.

    Args:
        name: Of the lab.
        node_count: How many GPU nodes it has, besides the control plane.
        profile: The hardware of each.
        kubernetes: The patch release.
        gates: The feature gates that the user asks for, besides those that the release needs.

    Raises:
        LabError: The name or the number of nodes cannot be used.
    """
    local = model.plan(name, 0, node_count, profile, kubernetes, gates)
    nodes = (
        Node(name=_worker(name, number), address="", pod_cidr="")
        for number in range(1, node_count + 1)
    )
    return local.model_copy(update={"provider": "kind", "index": -1, "nodes": tuple(nodes)})


def cluster_name(lab: Lab) -> str:
    """The name of the cluster for kind, from which the names of the containers follow."""
    return _cluster(lab.name)


def config(lab: Lab, hardware: Mapping[str, Path], image: str = "") -> dict[str, Any]:
    """The configuration file of `kind create cluster`.

    Args:
        lab: The lab.
        hardware: The folder on the host with the simulated hardware, by node.
        image: The image of the nodes; empty for kind's own of this release.
    """
    minor = versions.numbers(lab.kubernetes)[:2]
    image = image or f"kindest/node:{NODE_IMAGES.get(minor, f'v{lab.kubernetes}')}"
    served = versions.runtime_config(lab.kubernetes, lab.gates)
    found: dict[str, Any] = {
        "kind": "Cluster",
        "apiVersion": "kind.x-k8s.io/v1alpha4",
        "name": cluster_name(lab),
        "featureGates": dict(lab.gates),
        "runtimeConfig": dict.fromkeys(served, "true"),
        "containerdConfigPatches": [_CDI],
        "nodes": [
            {"role": "control-plane", "image": image},
            *(_worker_config(hardware[node.name], image) for node in lab.nodes),
        ],
    }
    return {key: value for key, value in found.items() if value}


def create_command(lab: Lab, file: Path, kubeconfig: Path) -> Sequence[str]:
    """The command that creates the cluster and waits for its control plane."""
    return (
        "kind", "create", "cluster", f"--name={cluster_name(lab)}", f"--config={file}",
        f"--kubeconfig={kubeconfig}", f"--wait={CREATE_TIMEOUT}",
    )  # fmt: skip


def delete_command(lab: Lab, kubeconfig: Path) -> Sequence[str]:
    """The command that removes the cluster; it succeeds if there is none."""
    return (
        "kind", "delete", "cluster", f"--name={cluster_name(lab)}", f"--kubeconfig={kubeconfig}",
    )  # fmt: skip


def load_command(lab: Lab, archive: Path) -> Sequence[str]:
    """The command that imports an archive of images into every node."""
    return ("kind", "load", "image-archive", str(archive), f"--name={cluster_name(lab)}")


def sync_devices_command(node: Node) -> Sequence[str]:
    """The command that makes a node's /dev have the device nodes of its hardware."""
    return ("docker", "exec", node.name, "sh", "-c", _SYNC_DEVICES)


def exec_command(
    node: str, variables: Mapping[str, str], command: Sequence[str], *, has_terminal: bool
) -> Sequence[str]:
    """The command that runs another one on a node."""
    settings = (f"--env={name}={value}" for name, value in variables.items())
    terminal = ("--tty",) if has_terminal else ()
    return ("docker", "exec", "--interactive", *terminal, *settings, node, *command)


def _cluster(lab: str) -> str:
    return f"nvdra-{lab}"


def _worker(lab: str, number: int) -> str:
    """The name that kind gives its worker: without a number for the first one."""
    return f"{_cluster(lab)}-worker{number if number > 1 else ''}"


def _worker_config(hardware: Path, image: str) -> dict[str, Any]:
    label, _, value = model.GPU_NODE_LABEL.partition("=")
    return {
        "role": "worker",
        "image": image,
        "labels": {label: value},
        "extraMounts": [{"hostPath": str(hardware), "containerPath": HARDWARE}],
    }
