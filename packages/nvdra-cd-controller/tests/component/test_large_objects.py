# SPDX-License-Identifier: Apache-2.0
"""Large and odd objects of one tenant delay no other's domains."""

import json

import pytest
from nvdra_api import names
from nvdra_api.meta import JsonObject
from nvdra_testing.control_plane.domain_installation import DriverInstallation
from nvdra_testing.fuzzing.watched_process import Usage
from nvdra_testing.polling import wait_until

EXPRESSION = '"' + "<" * 10_200 + '" != ""'
"""Go writes each `<` as six bytes."""

DEEP = f"[{','.join('[' * 201 + ']' * 201 for _ in range(24))}]"
"""Parameters for a driver that is not ours; the API server keeps any JSON."""


MOST_CPU_S = 3.0
"""Of two domains and everything that the tenant writes. It was 23 s when specs were received."""


def long_texts() -> JsonObject:
    selectors = [{"cel": {"expression": EXPRESSION}} for _ in range(30)]
    requests = [
        {"name": f"r{each}", "exactly": {"deviceClassName": "a", "selectors": selectors}}
        for each in range(4)
    ]
    return {"requests": requests}


def nested_deeply() -> JsonObject:
    opaque = {"driver": "other.example.com", "parameters": {"deep": json.loads(DEEP)}}
    return {"config": [{"opaque": opaque} for _ in range(30)]}


@pytest.mark.parametrize("devices", [long_texts, nested_deeply])
async def test_templates_of_a_tenant_with_a_domains_label(
    world: DriverInstallation, devices: object
) -> None:
    assert callable(devices)
    path = f"/apis/resource.k8s.io/v1/namespaces/{world.user_namespace}/resourceclaimtemplates"

    def write(name: str) -> None:
        world.server.create(
            path,
            {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceClaimTemplate",
                "metadata": {"name": name, "labels": {names.DOMAIN_LABEL: "another"}},
                "spec": {"spec": {"devices": devices()}},
            },
        )

    for index in range(5):
        write(f"large-{index}")
    with world.run_controller() as controller:
        await wait_until(controller.is_ready)
        usage = Usage.begin(controller.process.pid)
        world.create_domain()
        await wait_until(lambda: world.status().get("status"))
        for index in range(5):
            write(f"later-{index}")
        world.create_domain("seen")
        await wait_until(lambda: world.status("seen").get("status"))
        assert usage.cpu_s() < MOST_CPU_S
