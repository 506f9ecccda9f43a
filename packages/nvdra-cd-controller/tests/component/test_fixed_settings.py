# SPDX-License-Identifier: Apache-2.0
"""A limit or a gate of the controller changes while domains run: their daemons keep theirs."""

from typing import Any

from nvdra_testing.control_plane.domain_installation import DriverInstallation
from nvdra_testing.polling import wait_until

SMALL = ("--max-nodes-per-imex-domain=4", "--feature-gates=IMEXDaemonsWithDNSNames=true")
LARGE = (
    "--max-nodes-per-imex-domain=36",
    "--feature-gates=ComputeDomainCliques=false,IMEXDaemonsWithDNSNames=false",
    "--image-name=registry.example.com/daemon:2",
)


def daemon(world: DriverInstallation, uid: str) -> dict[str, Any]:
    """Image, limit and gates of a domain's DaemonSet; empty if it has none."""
    stored = world.get(world.daemonset_path(uid))
    if stored is None or "deletionTimestamp" in stored["metadata"]:
        return {}
    container = stored["spec"]["template"]["spec"]["containers"][0]
    values = {each["name"]: each.get("value") for each in container["env"]}
    kept = ("MAX_NODES_PER_IMEX_DOMAIN", "FEATURE_GATES")
    return {"image": container["image"], **{name: values[name] for name in kept}}


async def test_running_domains_keep_limit_and_gates_and_follow_the_image(
    world: DriverInstallation,
) -> None:
    with world.run_controller(*SMALL):
        world.create_domain()
        uid = await world.wait_children_ready()
    made = daemon(world, uid)
    assert made["MAX_NODES_PER_IMEX_DOMAIN"] == "4"
    with world.run_controller(*LARGE, name="controller-1"):
        replaced = {**made, "image": "registry.example.com/daemon:2"}
        await wait_until(lambda: daemon(world, uid).get("image") == replaced["image"])
        assert daemon(world, uid) == replaced

        world.server.request("DELETE", world.daemonset_path(uid))
        await wait_until(lambda: daemon(world, uid) == replaced)

        world.create_domain("later", "later-channel")
        later = await world.wait_children_ready("later")
        assert daemon(world, later)["MAX_NODES_PER_IMEX_DOMAIN"] == "36"
        assert "ComputeDomainCliques=false" in daemon(world, later)["FEATURE_GATES"]


async def test_a_domain_of_an_earlier_release_keeps_what_its_daemonset_runs_with(
    world: DriverInstallation,
) -> None:
    with world.run_controller(*SMALL):
        world.create_domain()
        uid = await world.wait_children_ready()
    made, stored = daemon(world, uid), world.domain()
    assert stored is not None
    del stored["metadata"]["annotations"]  # earlier releases wrote none
    path = f"/apis/resource.nvidia.com/v1beta1/namespaces/{world.user_namespace}/computedomains"
    world.server.request("PUT", f"{path}/ring", stored)
    with world.run_controller(*LARGE, name="controller-1"):
        await wait_until(lambda: "annotations" in (world.domain() or {})["metadata"])
        world.server.request("DELETE", world.daemonset_path(uid))
        await wait_until(lambda: not daemon(world, uid))
        await wait_until(lambda: bool(daemon(world, uid)))
    assert daemon(world, uid) == {**made, "image": "registry.example.com/daemon:2"}
