# SPDX-License-Identifier: Apache-2.0
"""A lab as data: its nodes, its addresses and the versions it runs.

Labs differ by their name, and on the network by their index: lab `i` uses addresses that contain
`i`, so that several labs run on one machine independently.
"""

import ipaddress
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Literal

from pydantic import BaseModel, ConfigDict

from nvdra_lab import versions
from nvdra_lab.errors import LabError

MAX_LABS = 16
MAX_NODES = 200
MAX_POD_ADDRESSES = 253
"""A /24 without its network, its broadcast address and the gateway, which is the first one."""
API_PORT = 6443
GPU_NODE_LABEL = "nvidia.com/gpu.present=true"

# The paths of a node's simulated driver, procfs and sysfs. They are the same on every node of every
# lab, so that one chart release with the same values works for all.
DRIVER_ROOT = "/run/nvidia/driver"
PROC_ROOT = "/run/nvidia/proc"
SYS_ROOT = "/run/nvidia/sys"
DEV_ROOT = "/dev"

_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,18}[a-z0-9])?")


class Node(BaseModel):
    """One node: its name, its own address in the cluster's network, the range of its pods.

    In a lab with IPv6 it has an address and a range of that kind besides, and they come first.
    """

    model_config = ConfigDict(frozen=True)

    name: str
    address: str
    pod_cidr: str
    ipv6_address: str = ""
    ipv6_pod_cidr: str = ""

    @property
    def addresses(self) -> tuple[str, ...]:
        """All its addresses, the preferred one first."""
        return (self.ipv6_address, self.address) if self.ipv6_address else (self.address,)

    @property
    def pod_cidrs(self) -> tuple[str, ...]:
        """The ranges of its pods; each pod has an address of every one."""
        return (self.ipv6_pod_cidr, self.pod_cidr) if self.ipv6_pod_cidr else (self.pod_cidr,)


class Network(BaseModel):
    """The addresses of one lab. `link` is the host's end of the veth, at most 15 characters."""

    model_config = ConfigDict(frozen=True)

    link: str
    host_address: str
    address: str
    prefix_length: int
    pod_cidr: str
    service_cidr: str
    kubernetes_service: str
    dns_service: str


class Lab(BaseModel):
    """All decisions of a lab's start; stored in its state as `lab.json`.

    `gates` are set on every component of Kubernetes; other gates have their defaults. A node has
    `pod_addresses` for its pods, or its whole range, and the container runtime of that name. The
    lab is like the platform of that name, or like none.
    """

    model_config = ConfigDict(frozen=True)

    name: str
    provider: Literal["local", "kind", "existing"]
    index: int
    profile: str | None
    kubernetes: str
    gates: dict[str, bool] = {}
    has_audit_log: bool = False
    has_passthrough: bool = False
    pod_addresses: int | None = None
    runtime: str = versions.DEFAULT_RUNTIME
    platform: str = ""
    nodes: tuple[Node, ...]

    @property
    def api_server(self) -> str:
        """The address of a local lab's API server, reachable from the host, nodes and pods."""
        return f"https://{self.network.address}:{API_PORT}"

    @property
    def network(self) -> Network:
        """The network of a local lab; an existing cluster has none."""
        return network(self.index)

    def node(self, name: str) -> Node:
        """The node of that name.

        Raises:
            LabError: There is none; the message lists those there are.
        """
        for node in self.nodes:
            if node.name == name:
                return node
        known = ", ".join(node.name for node in self.nodes) or "none"
        raise LabError(f"lab {self.name} has no node {name!r}; its nodes: {known}")


def plan(
    name: str,
    index: int,
    node_count: int,
    profile: str,
    kubernetes: str,
    gates: Mapping[str, bool],
    *,
    has_ipv6: bool = False,
    has_audit_log: bool = False,
    has_passthrough: bool = False,
    pod_addresses: int | None = None,
    runtime: str = versions.DEFAULT_RUNTIME,
    platform: str = "",
) -> Lab:
    """A local lab: names and addresses for everything in it.

    Args:
        name: Of the lab.
        index: Its number among the labs of this machine.
        node_count: How many nodes it has.
        profile: The hardware of each.
        kubernetes: The patch release.
        gates: The feature gates that the user asks for, besides those that the release needs.
        has_ipv6: Whether nodes and pods have IPv6 addresses, which come first, beside IPv4.
        has_audit_log: Whether the API server writes down who asked it for what.
        has_passthrough: Whether the drivers of its GPUs can be changed by sysfs.
        pod_addresses: How many addresses each node has for pods, so that they are given again
            soon; None for all of its range.
        runtime: The name of its container runtime, of `runtimes.RUNTIMES`.
        platform: The name of what it is like, of `platforms.PLATFORMS`.

    Raises:
        LabError: The name or one of the numbers cannot be used.
    """
    check_name(name)
    if not 1 <= node_count <= MAX_NODES:
        raise LabError(f"--nodes {node_count}: a lab has 1 to {MAX_NODES} nodes")
    if pod_addresses is not None and not 1 <= pod_addresses <= MAX_POD_ADDRESSES:
        raise LabError(
            f"--pod-addresses {pod_addresses}: a node has 1 to {MAX_POD_ADDRESSES} for its pods"
        )
    return Lab(
        name=name,
        provider="local",
        index=index,
        profile=profile,
        kubernetes=kubernetes,
        gates=versions.gates(kubernetes, gates),
        has_audit_log=has_audit_log,
        has_passthrough=has_passthrough,
        pod_addresses=pod_addresses,
        runtime=runtime,
        platform=platform,
        nodes=tuple(_node(index, number, has_ipv6=has_ipv6) for number in range(1, node_count + 1)),
    )


def check_name(name: str) -> None:
    """Check that a lab's name is a short DNS label, because it is used in paths and cgroups.

    Raises:
        LabError: It is not one.
    """
    if not _NAME.fullmatch(name):
        raise LabError(
            f"--name {name!r}: lower-case letters, digits and '-', at most 20 characters, "
            "beginning and ending with a letter or digit"
        )


def network(index: int) -> Network:
    """The network of lab `index` (0 to 15)."""
    return Network(
        link=f"nvdra-lab{index}",
        host_address=f"10.95.{index}.1",
        address=f"10.95.{index}.2",
        prefix_length=24,
        pod_cidr=f"10.{128 + index}.0.0/16",
        service_cidr=f"10.{96 + index}.0.0/16",
        kubernetes_service=f"10.{96 + index}.0.1",
        dns_service=f"10.{96 + index}.0.10",
    )


def free_index(taken: Collection[int], routes: Iterable[str]) -> int:
    """The first index that no lab has and whose addresses the host does not route elsewhere.

    Args:
        taken: Indices of the labs on this machine.
        routes: The host's routes as networks, "10.0.0.0/8"; "default" is not one.

    Raises:
        LabError: None is left.
    """
    routed = [ipaddress.ip_network(route, strict=False) for route in routes]
    for index in range(MAX_LABS):
        if index in taken:
            continue
        ours = [ipaddress.ip_network(cidr) for cidr in _networks(index)]
        if not any(mine.overlaps(theirs) for mine in ours for theirs in routed):
            return index
    raise LabError(
        f"no address range is left for another lab: {len(taken)} labs exist, and the host's own "
        "routes use the rest of the ranges 10.95-10.111/16 and 10.128-10.143/16"
    )


def _networks(index: int) -> tuple[str, ...]:
    lab = network(index)
    return (f"10.95.{index}.0/24", lab.pod_cidr, lab.service_cidr)


def _node(index: int, number: int, *, has_ipv6: bool) -> Node:
    return Node(
        name=f"node-{number}",
        address=f"10.95.{index}.{10 + number}",
        pod_cidr=f"10.{128 + index}.{number}.0/24",
        ipv6_address=f"fd95:{index:x}::{10 + number}" if has_ipv6 else "",
        ipv6_pod_cidr=f"fd96:{index:x}:{number:x}::/64" if has_ipv6 else "",
    )
