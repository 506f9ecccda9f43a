"""The network namespace of a lab, and its link to the host."""

import json
from pathlib import Path

from nvdra_lab import subprocesses
from nvdra_lab.machines.mounts import mount_points
from nvdra_lab.model import Lab


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
        *(f"address add {node.address}/{length} dev eth0" for node in lab.nodes),
        "link set eth0 up",
        f"route add default via {network.host_address}",
    ]
    enter = enter_argv(namespace)
    subprocesses.run([*enter, "ip", "-batch", "-"], stdin="\n".join(inside).encode())
    subprocesses.run([*enter, "sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"])
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


def enter_argv(namespace: Path) -> list[str]:
    """The command prefix that enters the namespace.

    Not `ip netns exec`: it mounts /sys again, which hides the cgroups from the kubelet.
    """
    return ["nsenter", f"--net={namespace}"]
