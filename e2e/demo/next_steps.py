# SPDX-License-Identifier: Apache-2.0
"""The commands that a user can run next, after the demo or after a failure."""

from collections.abc import Iterable, Sequence

from nvdra_testing.cluster.installation import NAMESPACE as DRIVERS
from nvdra_testing.cluster.installation import RELEASE, Cluster, Device

from e2e.demo.quickstarts import NAMESPACE
from e2e.demo.screen import Screen


def show(screen: Screen, cluster: Cluster, devices: Sequence[Device]) -> None:
    """Show what to try, and how to stop the lab."""
    flag = name_flag(cluster.lab.name)
    screen.chapter("Your turn", f"All of this took {screen.elapsed_s:.0f} s. The cluster stays.")
    show_commands(screen, "Talk to it:", [f'PATH=$PWD/.venv/bin:$PATH; eval "$(lab env{flag})"'])
    show_commands(
        screen,
        "Look around: pods, devices, a container's GPU, a node's GPUs and its hardware, processes:",
        [
            f"kubectl -n {NAMESPACE} get pods,resourceclaims -o wide",
            "kubectl get resourceslices",
            f"kubectl -n {NAMESPACE} exec own-gpu-a -- nvidia-smi",
            f"lab exec{flag} node-1 -- nvidia-smi",
            f"lab sim{flag} node-1 show",
            f"lab status{flag}",
        ],
    )
    victim = next_allocated(devices, _allocated_devices(cluster))
    if victim:
        _show_gpu_loss(screen, victim, flag)
    show_commands(
        screen, "Stop it; only what was built stays, in the cache:", [stop(cluster.lab.name)]
    )


def where_to_look(screen: Screen, lab: str) -> None:
    """Show where to look after a failure, while a cluster runs."""
    flag, log = name_flag(lab), f"-n {DRIVERS} logs -l app.kubernetes.io/instance={RELEASE}"
    show_commands(
        screen,
        "What is not well; all logs; a component's; the driver's; the pods; and how to stop:",
        [
            f".venv/bin/lab status{flag}",
            f".venv/bin/lab logs{flag}",
            f".venv/bin/lab logs{flag} node-1/kubelet",
            f".venv/bin/lab kubectl{flag} {log}",
            f".venv/bin/lab kubectl{flag} -n {NAMESPACE} describe pods",
            stop(lab),
        ],
    )


def next_allocated(devices: Sequence[Device], taken: Iterable[tuple[str, str]]) -> Device | None:
    """The first free GPU: the scheduler allocates devices in the order in which they are published.

    Args:
        devices: All that are published, by node in the order of the slices.
        taken: Node and device name of those that claims hold.
    """
    held = set(taken)
    return next((one for one in devices if (one.node, one.name) not in held), None)


def taints_of(device: str) -> str:
    """The command that shows the taints of a device, of each node where it has some."""
    wanted = f'select(.taints and .name == "{device}") | {{name, taints}}'
    return f"kubectl get resourceslices -o json | jq '.items[].spec.devices[]? | {wanted}'"


def _show_gpu_loss(screen: Screen, victim: Device, flag: str) -> None:
    sim = f"lab sim{flag} {victim.node} gpu"
    which = victim.attributes["pcieBusID"]
    show_commands(
        screen,
        f"Lose {victim.name} of {victim.node}; no new pod gets it, and the slice says why:",
        [
            f"{sim} lose {which}",
            f"sleep 5; {taints_of(victim.name)}",
        ],
    )
    show_commands(
        screen, "Give it back; the taint goes after some seconds:", [f"{sim} restore {which}"]
    )


def _allocated_devices(cluster: Cluster) -> list[tuple[str, str]]:
    claims = cluster.kubectl.get("resourceclaims", "", "-A")
    allocations = [claim.get("status", {}).get("allocation", {}) for claim in claims]
    results = [each.get("devices", {}).get("results", []) for each in allocations]
    return [(result["pool"], result["device"]) for some in results for result in some]


def show_commands(screen: Screen, about: str, commands: Sequence[str]) -> None:
    """Show commands to paste, and what they are for."""
    screen.blank()
    screen.prose(about)
    screen.pastable(commands)


def name_flag(lab: str) -> str:
    """The flag that chooses a lab, for commands after `lab VERB`."""
    return "" if lab == "lab" else f" --name {lab}"


def stop(lab: str) -> str:
    """The command that stops a lab."""
    return "make cluster-down" if lab == "lab" else f".venv/bin/lab down --name {lab}"
