# SPDX-License-Identifier: Apache-2.0
"""A node that is lost before its kubelet has found the daemon ready does not count for ever.

The node controller sets no condition of such a pod: Ready is False already.
"""

from typing import Any

import pytest
from nvdra_api import names
from nvdra_cd_controller.lost_nodes import AGAIN_AFTER_S, FIRST_AFTER_S
from nvdra_runtime.computedomain import announcements
from nvdra_runtime.computedomain.announcements import Announcement
from nvdra_testing.control_plane import domain_objects
from nvdra_testing.control_plane.domain_installation import DriverInstallation
from nvdra_testing.polling import wait_until

SILENT = "Kubelet stopped posting node status."
LOST = {"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown", "message": SILENT}
"""As the node controller writes it."""

pytestmark = pytest.mark.usefixtures("controlled")


def set_status(world: DriverInstallation, path: str, **fields: Any) -> None:
    """Write fields of an object's status, as its kubelet or the node controller does."""
    stored = world.server.request("GET", path)
    status = {**(stored.get("status") or {}), **fields}
    world.server.request("PUT", f"{path}/status", {**stored, "status": status})


def not_found_ready(running_since: str) -> dict[str, Any]:
    """The status of a pod whose readiness probe has not passed since its container was started."""
    container = {"name": "compute-domain-daemon", "image": "daemon:1", "imageID": ""}
    state = {"running": {"startedAt": running_since}}
    return {
        "conditions": [{"type": "Ready", "status": "False", "reason": "ContainersNotReady"}],
        "containerStatuses": [{**container, "ready": False, "restartCount": 0, "state": state}],
    }


async def test_a_node_that_is_lost_before_its_daemon_was_found_ready_does_not_count(
    world: DriverInstallation,
) -> None:
    world.create_domain()
    uid = await world.wait_children_ready()
    node = world.create_labelled_node("a", uid)
    clique = {names.CLIQUE_LABEL: domain_objects.CLIQUE}
    pod = world.create_running_daemon_pod(node, uid, 0, **clique)
    pod_path = f"/api/v1/namespaces/{world.driver_namespace}/pods/{pod['metadata']['name']}"
    set_status(world, pod_path, **not_found_ready("2026-11-30T08:00:00Z"))
    says = announcements.annotation(Announcement(pod["status"]["podIP"], is_ready=True))
    world.annotate_pod(pod, {names.DAEMON_ANNOTATION: says})
    await wait_until(lambda: world.status()["readyNodes"] == 1)

    set_status(world, f"/api/v1/nodes/{node}", conditions=[LOST])
    await wait_until(lambda: world.status()["readyNodes"] == 0, FIRST_AFTER_S + 15)
    assert world.condition("Ready")[1:] == (
        "DaemonsNotReady",
        f"0 of 1 node is ready; {node}: its node is lost: {SILENT}",
    )

    set_status(world, f"/api/v1/nodes/{node}", conditions=[{"type": "Ready", "status": "True"}])
    await wait_until(lambda: world.status()["readyNodes"] == 1, AGAIN_AFTER_S + 15)

    set_status(world, f"/api/v1/nodes/{node}", conditions=[LOST])
    await wait_until(lambda: world.status()["readyNodes"] == 0, AGAIN_AFTER_S + 15)
    set_status(world, pod_path, **not_found_ready("2026-11-30T08:05:00Z"))
    await wait_until(lambda: world.status()["readyNodes"] == 1, AGAIN_AFTER_S / 2)
