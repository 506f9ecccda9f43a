# SPDX-License-Identifier: Apache-2.0
"""The claims of a domain say where it is, so that nodes need not search for it."""

import copy
from typing import Any

from nvdra_testing.control_plane.domain_installation import DriverInstallation
from nvdra_testing.polling import wait_until


def templates(world: DriverInstallation, uid: str) -> list[Any]:
    return [world.get(world.workload_template_path()), world.get(world.daemon_template_path(uid))]


async def test_both_claim_templates_say_where_the_domain_is(world: DriverInstallation) -> None:
    with world.run_controller():
        world.create_domain()
        uid = await world.wait_children_ready()
        for template in templates(world, uid):
            assert template["spec"]["metadata"]["annotations"] == {
                "nvdra.nvidia.com/domain-namespace": world.user_namespace,
                "nvdra.nvidia.com/domain-name": "ring",
            }


async def test_templates_of_an_earlier_release_stay_as_they_are(world: DriverInstallation) -> None:
    with world.run_controller() as first:
        world.create_domain()
        uid = await world.wait_children_ready()
        await first.stop()
    paths = [world.workload_template_path(), world.daemon_template_path(uid)]
    for path, template in zip(paths, templates(world, uid), strict=True):
        world.server.request("PUT", path, {**template, "metadata": unprotected(template)})
        world.server.request("DELETE", path)
        earlier = copy.deepcopy(template)
        earlier["spec"].pop("metadata", None)
        for field in ("uid", "resourceVersion", "creationTimestamp"):
            earlier["metadata"].pop(field)
        world.server.create(path.rpartition("/")[0], earlier)
    before = templates(world, uid)

    with world.run_controller(name="controller-1") as second:
        path = world.daemon_template_path(uid)
        changed = world.get(path)
        assert changed is not None
        world.server.request("PUT", path, {**changed, "metadata": unprotected(changed)})
        await wait_until(second.is_ready)
        await wait_until(lambda: templates(world, uid)[1]["metadata"].get("finalizers"))
        await wait_until(lambda: second.metric('nvdra_compute_domain_info{status="Ready"}') == 1)
        await second.stop()
    for earlier, now in zip(before, templates(world, uid), strict=True):
        assert now["metadata"]["uid"] == earlier["metadata"]["uid"]
        assert now["spec"] == earlier["spec"]


def unprotected(obj: Any) -> Any:
    """The object's metadata without finalizers."""
    return {**obj["metadata"], "finalizers": []}
