"""The network namespace of a lab and its one link to the host. Effects."""

import json
from pathlib import Path

from nvdra_lab import commands
from nvdra_lab.model import Lab
from nvdra_lab.mounts import mount_points


def host_routes() -> list[str]:
    """The host's IPv4 routes but the default one, as networks."""
    routes = json.loads(commands.run(["ip", "-4", "-json", "route"]))
    return [route["dst"] for route in routes if route["dst"] != "default"]


def create(lab: Lab, namespace: Path) -> None:
    """Make the namespace, the veth into it, and the host's route to the lab's Services.

    The namespace has a default route (kube-apiserver does not start without one) and forwards. What
    pods send to the host goes out under the namespace's own address, since the host has no route to
    pods.
    """
    network, length = lab.network, lab.network.prefix_length
    namespace.touch()
    commands.run(["unshare", f"--net={namespace}", "true"])
    commands.run(
        ["ip", "link", "add", network.link, "type", "veth", "peer", "eth0", "netns", namespace]
    )
    commands.run(["ip", "address", "add", f"{network.host_address}/{length}", "dev", network.link])
    # No IPv6 of its own: it would come seconds later, when nobody expects a change any more.
    commands.run(["ip", "link", "set", network.link, "addrgenmode", "none"])
    commands.run(["ip", "link", "set", network.link, "up"])
    inside = [
        "link set lo up",
        f"address add {network.address}/{length} dev eth0",
        *(f"address add {node.address}/{length} dev eth0" for node in lab.nodes),
        "link set eth0 up",
        f"route add default via {network.host_address}",
    ]
    enter = enter_argv(namespace)
    commands.run([*enter, "ip", "-batch", "-"], stdin="\n".join(inside).encode())
    commands.run([*enter, "sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"])
    masquerade = ["-s", network.pod_cidr, "-o", "eth0", "!", "-d", network.pod_cidr]
    # Not `iptables` from here: the lock file it leaves would be the host's.
    restore = f"*nat\n-A POSTROUTING {' '.join(masquerade)} -j MASQUERADE\nCOMMIT\n"
    commands.run(
        [*enter, "env", "XTABLES_LOCKFILE=/dev/null", "iptables-restore", "--noflush"],
        stdin=restore.encode(),
    )
    commands.run(["ip", "route", "add", network.service_cidr, "via", network.address])


def remove(lab: Lab, namespace: Path) -> None:
    """Undo `create`, however far it came.

    The host's route goes with the link, what is inside with the namespace.
    """
    links = json.loads(commands.run(["ip", "-json", "link"]))
    if any(link["ifname"] == lab.network.link for link in links):
        commands.run(["ip", "link", "delete", lab.network.link])
    if str(namespace) in mount_points():
        commands.run(["umount", namespace])
    namespace.unlink(missing_ok=True)


def enter_argv(namespace: Path) -> list[str]:
    """The words to put before a command that shall run in the namespace.

    Not `ip netns exec`: it mounts /sys anew and so hides the cgroups from the kubelet.
    """
    return ["nsenter", f"--net={namespace}"]
