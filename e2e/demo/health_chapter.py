# SPDX-License-Identifier: Apache-2.0
"""The chapter about a GPU that falls ill, is tainted and heals."""

import json
from typing import Any

from nvdra_testing.cluster import device_health, workloads
from nvdra_testing.cluster.installation import Cluster, Device
from nvdra_testing.cluster.kubectl import Kubectl

from e2e.demo import next_steps, quickstarts
from e2e.demo.quickstarts import NAMESPACE, SHOWN
from e2e.demo.screen import Screen

XID = 48
"""A double-bit ECC error; the GPU must be reset."""

HEALTH = "'.status.containerStatuses[].allocatedResourcesStatus[].resources[]'"


def run(screen: Screen, cluster: Cluster) -> None:
    """Show the taint, the pod's status, where its successor runs, and that the taint goes."""
    screen.chapter(
        "A GPU that falls ill",
        "The driver hears of errors and asks NVML what a GPU needs. One that must be reset is "
        "tainted: the pod that has it stays, new pods get others, and the taint goes by itself.",
    )
    if cluster.release < device_health.HAS_TAINTS:
        screen.note("Taints of devices need Kubernetes 1.33 or later")
        return
    pods = cluster.kubectl.in_namespace(NAMESPACE)
    (name,) = quickstarts.start(screen, pods, quickstarts.WELL).pods
    ill = _gpu_of(cluster, pods, name)
    sim = f"lab sim{next_steps.name_flag(cluster.lab.name)} {ill.node}"
    screen.heading(f"{ill.name} of {ill.node}, which {name} has, reports XID {XID}")
    screen.commands([f"{sim} xid {ill.uuid} {XID}"])
    with device_health.needs_reset(cluster, ill.node, ill.uuid, xid=XID):
        _show_illness(screen, cluster, pods, name, ill)
        _replace(screen, pods, name)
        new = _gpu_of(cluster, pods, name)
        screen.prose(f"{name} has {new.name} of {new.node} now", indent=6)
        assert (new.node, new.name) != (ill.node, ill.name), "an ill GPU was given to a new pod"
    screen.heading("An administrator resets the GPU; here the simulation is told so")
    screen.commands([f"{sim} recovery {ill.uuid} none"])
    with screen.step(f"{ill.name} of {ill.node} has been well for a while: its taint is gone"):
        device_health.wait_untainted(cluster, ill.node, ill.name)
    pods.delete("pod", name)


def _show_illness(screen: Screen, cluster: Cluster, pods: Kubectl, name: str, ill: Device) -> None:
    """Show the taint, and what the status of the pod says of its GPU."""
    with screen.step(f"{ill.name} of {ill.node} is tainted"):
        device_health.wait_tainted(cluster, ill.node, ill.name)
    screen.prose("What of it is offered as MIG devices is tainted likewise.", style="dim")
    screen.commands([next_steps.taints_of(ill.name)])
    found = device_health.taints(cluster, ill.node, ill.name)
    screen.quote(_as_jq({"name": ill.name, "taints": found}))
    if cluster.release >= device_health.SHOWS_HEALTH:
        told = device_health.wait_health_of_pod(pods, name, "Unhealthy")
        screen.commands([f"kubectl -n {NAMESPACE} get pod {name} -o json | jq {HEALTH}"])
        screen.quote(_as_jq(told))


def _replace(screen: Screen, pods: Kubectl, name: str) -> None:
    """Delete the pod and start it again."""
    file = quickstarts.WELL
    screen.heading(f"{name} still runs; deleted and started again, it gets a GPU that is well")
    screen.commands(
        [
            f"kubectl -n {NAMESPACE} delete pod {name}",
            f"kubectl -n {NAMESPACE} apply -f {SHOWN}/{file}",
        ]
    )
    with screen.step(f"{name}: Running"):
        pods.delete("pod", name)
        pods.apply(quickstarts.FOLDER / file)
        pods.wait_running(name)


def _gpu_of(cluster: Cluster, pods: Kubectl, name: str) -> Device:
    (claim,) = workloads.claims_of(pods, name)
    (device,) = cluster.allocated_devices(claim)
    return device


def _as_jq(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)
