# SPDX-License-Identifier: Apache-2.0
"""The network namespace of a lab, and its link to the host."""

import json
import shlex
from pathlib import Path

from nvdra_lab import subprocesses
from nvdra_lab.errors import LabError
from nvdra_lab.machines.mounts import mount_points
from nvdra_lab.model import Lab, Node

IMEX_PORT = 50000
"""On which the IMEX daemons of two nodes talk to each other."""


def host_routes() -> list[str]:
    """The host's IPv4 routes except the default route, as networks."""
    routes = json.loads(subprocesses.run(["ip", "-4", "-json", "route"]))
    return [route["dst"] for route in routes if route["dst"] != "default"]


def create(lab: Lab, namespace: Path) -> None:
    """Create the namespace, the veth into it, and the host's route to the lab's Services.

    The namespace has a default route, which kube-apiserver requires, and forwards packets. Packets
    of
    pods to the host get the namespace's own address, because the host has no route to pods.
    """
    network, length = lab.network, lab.network.prefix_length
    namespace.touch()
    subprocesses.run(["unshare", f"--net={namespace}", "true"])
    subprocesses.run(
        ["ip", "link", "add", network.link, "type", "veth", "peer", "eth0", "netns", namespace]
    )
    subprocesses.run(
        ["ip", "address", "add", f"{network.host_address}/{length}", "dev", network.link]
    )
    # No IPv6 address of its own: it would be added seconds later, as an unexpected change.
    subprocesses.run(["ip", "link", "set", network.link, "addrgenmode", "none"])
    subprocesses.run(["ip", "link", "set", network.link, "up"])
    inside = [
        "link set lo up",
        f"address add {network.address}/{length} dev eth0",
        "link set eth0 up",
        *(line for node in lab.nodes for line in _addresses(lab, node, "add")),
        f"route add default via {network.host_address}",
    ]
    enter = enter_argv(namespace)
    _ip(namespace, *inside)
    forward = "echo 1 > /proc/sys/net/ipv4/ip_forward"
    if any(node.ipv6_address for node in lab.nodes):
        forward += "; echo 1 > /proc/sys/net/ipv6/conf/all/forwarding"
    subprocesses.run([*enter, "sh", "-c", forward])
    masquerade = ["-s", network.pod_cidr, "-o", "eth0", "!", "-d", network.pod_cidr]
    # Not `iptables` on the host: it would leave its lock file there.
    restore = f"*nat\n-A POSTROUTING {' '.join(masquerade)} -j MASQUERADE\nCOMMIT\n"
    subprocesses.run(
        [*enter, "env", "XTABLES_LOCKFILE=/dev/null", "iptables-restore", "--noflush"],
        stdin=restore.encode(),
    )
    subprocesses.run(["ip", "route", "add", network.service_cidr, "via", network.address])


def remove(lab: Lab, namespace: Path) -> None:
    """Undo `create`, whatever state it reached.

    The host's route is removed with the link, everything inside with the namespace.
    """
    links = json.loads(subprocesses.run(["ip", "-json", "link"]))
    if any(link["ifname"] == lab.network.link for link in links):
        subprocesses.run(["ip", "link", "delete", lab.network.link])
    if str(namespace) in mount_points():
        subprocesses.run(["umount", namespace])
    namespace.unlink(missing_ok=True)


def disconnect(lab: Lab, node: Node, namespace: Path) -> None:
    """Let nobody answer at the addresses of a node and of its pods: packets to them are lost."""
    _ip(
        namespace,
        *_addresses(lab, node, "del"),
        *(f"route add blackhole {pods}" for pods in node.pod_cidrs),
    )


def connect(lab: Lab, node: Node, namespace: Path) -> None:
    """Undo `disconnect`."""
    _ip(
        namespace,
        *(f"route del blackhole {pods}" for pods in node.pod_cidrs),
        *_addresses(lab, node, "add"),
    )


def is_disconnected(node: Node, namespace: Path) -> bool:
    """Whether a node's power was taken away."""
    routes = json.loads(
        subprocesses.run(
            [*enter_argv(namespace), "ip", "-4", "-json", "route", "list", "type", "blackhole"]
        )
    )
    return any(route["dst"] == node.pod_cidr for route in routes)


def cut_link(one: Node, other: Node, port: int, namespace: Path) -> None:
    """Lose all packets between the pods of two nodes from and to a TCP port.

    Raises:
        LabError: The link is cut already, or the pods talk over IPv6.
    """
    if one.ipv6_pod_cidr:
        raise LabError("a link can be cut in a lab without --ipv6 only")
    if _cuts(one, other, port, namespace):
        raise LabError(f"the link between {one.name} and {other.name} is cut already")
    for rule in cut_rules(one, other, port):
        _iptables(namespace, "--insert", "FORWARD", *rule)


def mend_link(one: Node, other: Node, port: int, namespace: Path) -> None:
    """Undo `cut_link`.

    Raises:
        LabError: The link is not cut.
    """
    rules = _cuts(one, other, port, namespace)
    if not rules:
        raise LabError(f"the link between {one.name} and {other.name} is not cut at port {port}")
    for rule in rules:
        _iptables(namespace, "--delete", "FORWARD", *rule)


def cut_rules(one: Node, other: Node, port: int) -> list[list[str]]:
    """The rules of iptables that cut a link: both directions, requests and answers."""
    return [
        ["-s", source.pod_cidr, "-d", target.pod_cidr, "-p", "tcp", end, str(port),
         "-m", "comment", "--comment", _mark(one, other, port), "-j", "DROP"]
        for source, target in ((one, other), (other, one))
        for end in ("--dport", "--sport")
    ]  # fmt: skip


def enter_argv(namespace: Path) -> list[str]:
    """The command prefix that enters the namespace.

    Not `ip netns exec`: it mounts /sys again, which hides the cgroups from the kubelet.
    """
    return ["nsenter", f"--net={namespace}"]


def _addresses(lab: Lab, node: Node, verb: str) -> list[str]:
    """The commands that add or delete a node's addresses."""
    lines = [f"address {verb} {node.address}/{lab.network.prefix_length} dev eth0"]
    if node.ipv6_address:
        is_usable_at_once = " nodad" if verb == "add" else ""
        lines.append(f"address {verb} {node.ipv6_address}/64 dev eth0{is_usable_at_once}")
    return lines


def _cuts(one: Node, other: Node, port: int, namespace: Path) -> list[list[str]]:
    """The rules in force that cut a link, as `iptables` prints them."""
    lines = _iptables(namespace, "--list-rules", "FORWARD").splitlines()
    rules = [shlex.split(line) for line in lines]
    return [words for _, _, *words in rules if _mark(one, other, port) in words]


def _mark(one: Node, other: Node, port: int) -> str:
    """What marks the rules of one link, in whatever order its nodes are named."""
    return f"lab cut-link {' '.join(sorted((one.name, other.name)))} {port}"


def _iptables(namespace: Path, *arguments: str) -> str:
    program = ["env", "XTABLES_LOCKFILE=/dev/null", "iptables"]
    return subprocesses.run([*enter_argv(namespace), *program, *arguments])


def _ip(namespace: Path, *commands: str) -> None:
    text = "\n".join(commands).encode()
    subprocesses.run([*enter_argv(namespace), "ip", "-batch", "-"], stdin=text)
