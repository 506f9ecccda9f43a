"""Large objects of one tenant delay no other's domains."""

from nvdra_api import names
from nvdra_testing.control_plane.domain_installation import DriverInstallation
from nvdra_testing.polling import wait_until

EXPRESSION = '"' + "<" * 10_200 + '" != ""'
"""Go writes each `<` as six bytes."""


async def test_templates_of_a_tenant_whose_list_is_long(world: DriverInstallation) -> None:
    selectors = [{"cel": {"expression": EXPRESSION}} for _ in range(30)]
    requests = [
        {"name": f"r{each}", "exactly": {"deviceClassName": "a", "selectors": selectors}}
        for each in range(4)
    ]
    path = f"/apis/resource.k8s.io/v1/namespaces/{world.user_namespace}/resourceclaimtemplates"
    for index in range(10):
        world.server.create(
            path,
            {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceClaimTemplate",
                "metadata": {"name": f"large-{index}", "labels": {names.DOMAIN_LABEL: "another"}},
                "spec": {"spec": {"devices": {"requests": requests}}},
            },
        )
    with world.run_controller() as controller:
        await wait_until(controller.is_ready)
        world.create_domain()
        await wait_until(lambda: world.status().get("status"))
