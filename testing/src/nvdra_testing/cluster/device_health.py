# SPDX-License-Identifier: Apache-2.0
"""GPUs that fall ill: how a test makes one ill, and where its users see that."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from nvdra_testing.cluster import api_versions
from nvdra_testing.cluster.installation import DRIVER, Cluster
from nvdra_testing.cluster.kubectl import Kubectl

HAS_TAINTS = (1, 33)
"""The first release of Kubernetes with taints of devices."""
SHOWS_HEALTH = (1, 35)
"""The first release whose kubelet says how the devices of a claim from a template are: that of 1.34
looks for a claim of which the pod's name is the claim's own."""
HEALED_S = 40
"""The plugin waits 10 s before it calls a GPU well."""


@contextmanager
def needs_reset(cluster: Cluster, node: str, gpu: str, *, xid: int) -> Iterator[None]:
    """A GPU reports an XID, and NVML asks for its reset until the block ends.

    Args:
        cluster: The cluster.
        node: The node of the GPU.
        gpu: Its index or UUID.
        xid: The XID.
    """
    cluster.simctl(node, "xid", gpu, str(xid))
    try:
        yield
    finally:
        cluster.simctl(node, "recovery", gpu, "none")


def published(cluster: Cluster, node: str) -> dict[str, dict[str, Any]]:
    """The published devices of a node, by name."""
    slices = cluster.kubectl.get("resourceslices", "", f"--field-selector=spec.driver={DRIVER}")
    return {
        device["name"]: dict(api_versions.device_as_v1(device))
        for each in slices
        if each["spec"]["nodeName"] == node
        for device in each["spec"].get("devices") or []
    }


def taints(cluster: Cluster, node: str, device: str) -> list[dict[str, Any]]:
    """The taints of a published device."""
    return list(published(cluster, node)[device].get("taints", []))


def wait_tainted(cluster: Cluster, node: str, device: str, wanted: str = "") -> None:
    """Wait until a published device has a taint, such as `KEY=VALUE:EFFECT` if that is wanted."""

    def well() -> str | None:
        found = published(cluster, node).get(device)
        if found is None:
            return "it is not published"
        said = [
            f"{each['key']}={each.get('value', '')}:{each['effect']}"
            for each in found.get("taints") or []
        ]
        return None if wanted in said or (said and not wanted) else f"it has {said}"

    cluster.kubectl.wait(well, f"a taint of {device}", HEALED_S)


def wait_untainted(cluster: Cluster, node: str, device: str) -> None:
    """Wait until a published device has no taint."""

    def ill() -> str | None:
        found = published(cluster, node).get(device)
        return "it is not published" if found is None else str(found.get("taints") or "") or None

    cluster.kubectl.wait(ill, f"{device} to be well", HEALED_S)


def of_pod(pods: Kubectl, name: str) -> list[dict[str, Any]]:
    """What the status of a pod says of the devices of its only container."""
    (container,) = pods.get("pod", name)["status"]["containerStatuses"]
    return [
        device
        for resource in container.get("allocatedResourcesStatus", [])
        for device in resource["resources"]
    ]


def wait_health_of_pod(pods: Kubectl, name: str, expected: str) -> dict[str, Any]:
    """Wait until the status of a pod says this of its only GPU, and return it."""

    def missing() -> str | None:
        found = of_pod(pods, name)
        return None if [each["health"] for each in found] == [expected] else str(found)

    pods.wait(missing, f"the GPU of pod {name} to be {expected}", timeout_s=HEALED_S)
    (only,) = of_pod(pods, name)
    return only
