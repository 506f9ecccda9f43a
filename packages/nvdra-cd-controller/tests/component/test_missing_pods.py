# SPDX-License-Identifier: Apache-2.0
"""A domain says why its DaemonSet could not make the pod of a daemon."""

from nvdra_testing.control_plane.domain_installation import DriverInstallation
from nvdra_testing.polling import wait_until

WORDS = (
    'Error creating: pods "computedomain-daemon-x-{}" is forbidden: exceeded quota: none, '
    "requested: pods=1, used: pods=0, limited: pods=0"
)


async def test_the_domain_says_why_its_daemonset_cannot_make_a_pod(
    world: DriverInstallation,
) -> None:
    with world.run_controller():
        world.create_domain()
        uid = await world.wait_children_ready()
        world.create_labelled_node("node-1", uid)
        stored = world.get(world.daemonset_path(uid))
        assert stored is not None
        metadata = stored["metadata"]
        event = {
            "metadata": {"name": "failed-create"},
            "involvedObject": {
                "kind": "DaemonSet",
                "apiVersion": "apps/v1",
                "name": metadata["name"],
                "namespace": metadata["namespace"],
                "uid": metadata["uid"],
            },
            "reason": "FailedCreate",
            "message": WORDS.format("x7k2p"),
            "type": "Warning",
            "lastTimestamp": "2026-01-01T00:00:00Z",
        }
        world.server.create(f"/api/v1/namespaces/{metadata['namespace']}/events", event)

        def degraded() -> str:
            conditions = (world.domain() or {}).get("status", {}).get("conditions", ())
            return next((c["message"] for c in conditions if c["type"] == "Degraded"), "")

        await wait_until(lambda: "pods is forbidden: exceeded quota: none" in degraded(), 30)
