# SPDX-License-Identifier: Apache-2.0
"""A domain says why one of its nodes has no pod of a daemon, or none any more."""

from nvdra_testing.control_plane.domain_installation import DriverInstallation
from nvdra_testing.polling import wait_until

WORDS = (
    'Error creating: pods "computedomain-daemon-x-{}" is forbidden: exceeded quota: none, '
    "requested: pods=1, used: pods=0, limited: pods=0"
)
EVICTED = {
    "phase": "Failed",
    "reason": "Evicted",
    "message": "The node was low on resource: memory. ",
}
"""As the kubelet writes it. The DaemonSet has another pod after a second, or up to 15 minutes."""


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


async def test_the_domain_says_that_a_daemons_pod_was_evicted_until_there_is_another(
    world: DriverInstallation,
) -> None:
    with world.run_controller():
        world.create_domain()
        uid = await world.wait_children_ready()
        node = world.create_labelled_node("node-1", uid)
        world.create_pending_daemon_pod(node, uid, EVICTED)

        said = f"{node}: Evicted: The node was low on resource: memory."
        failing = ("True", "DaemonPodsFailing", said)
        await wait_until(lambda: world.condition("Degraded") == failing, 30)
        status, _, text = world.condition("Ready")
        assert status == "False"
        assert text.endswith(said)
        await wait_until(lambda: ("Warning", "DaemonPodsFailing", said) in world.events())

        world.create_running_daemon_pod(node, uid)
        await wait_until(lambda: world.condition("Degraded")[0] == "False", 30)
        assert world.condition("Ready")[2].endswith("its daemon has not joined yet")
