# SPDX-License-Identifier: Apache-2.0
"""Objects of one tenant fill the memory of no controller, and delay no other tenant's domains."""

import asyncio
import time
from collections.abc import Callable
from typing import Final

import pytest
from nvdra_api import names
from nvdra_testing.control_plane import domain_objects
from nvdra_testing.control_plane.domain_installation import DriverInstallation, Json
from nvdra_testing.fuzzing.watched_process import Usage
from nvdra_testing.polling import wait_until

DOMAINS: Final = 64
TEMPLATES: Final = 40
STUCK_TEMPLATES: Final = 500

MOST_OF_DOMAINS_KIB: Final = 80 << 10
MOST_OF_CLIQUES_KIB: Final = 40 << 10
"""How much of its limit of 512Mi they may cost the controller: a page of a list, an object for each
of the concurrent writes, and what is kept. With whole objects it was 140 and 85 MiB."""
MOST_OF_STUCK_KIB: Final = 24 << 10
MOST_DELAY_S: Final = 3.0
"""Of another tenant's domain. It was 6 s when all requests of a tenant came first, and is 0.1 s."""

Create = Callable[[DriverInstallation], None]


def long_annotations(number: int) -> Json:
    """As long as the API server accepts, and unlike those of other objects.

    With the first character each of the others takes four bytes in Python.
    """
    return {"example.com/long": f"\N{GRINNING FACE}{number}" + "x" * (250 << 10)}


def create_long_domains(world: DriverInstallation) -> None:
    for number in range(DOMAINS):
        body = domain_objects.domain(f"long-{number}")
        body["metadata"]["annotations"] = long_annotations(number)
        path = domain_objects.domains_path(world.user_namespace)
        uid = world.server.create(path, body)["metadata"]["uid"]
        if number < TEMPLATES:
            annotations = long_annotations(DOMAINS + number)
            create_template(world, f"long-{number}", uid, annotations=annotations)


def create_long_cliques(world: DriverInstallation) -> None:
    """Cliques of deleted domains. Only a daemon may write them, and a stolen token of one."""
    for number in range(64):
        body = domain_objects.clique(f"gone-{number}", domain_objects.clique_entry("node", 0))
        body["metadata"]["annotations"] = long_annotations(number)
        world.server.create(domain_objects.cliques_path(world.driver_namespace), body)


def create_template(world: DriverInstallation, name: str, uid: str, **metadata: object) -> None:
    labels = {names.DOMAIN_LABEL: uid}
    world.server.create(
        world.templates_path(world.user_namespace),
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaimTemplate",
            "metadata": {"name": name, "labels": labels, **metadata},
            "spec": {"spec": {}},
        },
    )


def are_served(world: DriverInstallation) -> bool:
    listed = world.server.request("GET", domain_objects.domains_path(world.user_namespace))
    return all((each.get("status") or {}).get("status") for each in listed["items"])


@pytest.mark.parametrize(
    ("create", "most_kib"),
    [(create_long_domains, MOST_OF_DOMAINS_KIB), (create_long_cliques, MOST_OF_CLIQUES_KIB)],
)
async def test_long_objects_of_a_tenant_cost_little_memory(
    world: DriverInstallation, create: Create, most_kib: int
) -> None:
    with world.run_controller() as controller:
        await wait_until(controller.is_ready)
        idle = Usage.begin(controller.process.pid)
        await asyncio.to_thread(create, world)
        world.create_domain("last")
        await wait_until(lambda: are_served(world), 60)
        assert idle.growth_kib() < most_kib, "when they are created"
    with world.run_controller(name="controller-1") as later:
        await wait_until(later.is_ready)
        world.create_domain("later")
        await wait_until(lambda: are_served(world), 60)
        grown = Usage(later.process.pid, 0.0, idle.began_kib).growth_kib()
        assert grown < most_kib, "when they are listed"


async def test_templates_with_made_up_uids_cost_little_and_delay_no_other_tenant(
    world: DriverInstallation,
) -> None:
    finalizers = [names.DOMAIN_FINALIZER, "example.com/theirs"]
    other = DriverInstallation(
        world.server,
        world.directory,
        world.driver_namespace,
        domain_objects.create_namespace(world.server, "other"),
    )
    with world.run_controller() as controller:
        await wait_until(controller.is_ready)
        idle = Usage.begin(controller.process.pid)

    def create() -> None:
        for number in range(STUCK_TEMPLATES):
            create_template(world, f"stuck-{number}", f"made-up-{number}", finalizers=finalizers)

    await asyncio.to_thread(create)
    try:
        with world.run_controller(name="controller-1") as later:
            await wait_until(later.is_ready)
            began = time.monotonic()
            other.create_domain()
            await wait_until(lambda: other.condition("ChildrenReady")[0] == "True")
            assert time.monotonic() - began < MOST_DELAY_S
            await wait_until(lambda: all(map(is_released, stored_templates(world))), 60)
            grown = Usage(later.process.pid, 0.0, idle.began_kib).growth_kib()
            assert grown < MOST_OF_STUCK_KIB
    finally:
        other.remove_domains_by_force()


def stored_templates(world: DriverInstallation) -> list[Json]:
    listed = world.server.request("GET", world.templates_path(world.user_namespace))
    return list(listed["items"])


def is_released(template: Json) -> bool:
    """Whether it is being deleted, and only the finalizer of another one keeps it."""
    return bool(template["metadata"]["finalizers"] == ["example.com/theirs"])


async def test_a_write_of_the_controller_takes_nothing_of_others_from_an_object(
    world: DriverInstallation,
) -> None:
    theirs = [f"example.com/theirs-{number}" for number in range(40)]
    with world.run_controller() as controller:
        await wait_until(controller.is_ready)
        body = domain_objects.domain("ring")
        metadata = {"annotations": {"example.com/a": "b"}, "labels": {"example.com/c": "d"}}
        body["metadata"] |= {**metadata, "finalizers": theirs}
        world.server.create(domain_objects.domains_path(world.user_namespace), body)
        uid = await world.wait_children_ready()
        domain = world.domain()
        assert domain is not None
        assert domain["metadata"]["finalizers"] == [*theirs, names.DOMAIN_FINALIZER]
        assert domain["metadata"]["labels"] == metadata["labels"]
        assert domain["metadata"]["annotations"].items() >= metadata["annotations"].items()

        node = world.create_labelled_node("a", uid)
        clique = domain_objects.clique(
            uid, domain_objects.clique_entry(node, 0), domain_objects.clique_entry("gone", 1)
        )
        clique["metadata"]["labels"] |= metadata["labels"]
        clique["metadata"] |= {"annotations": metadata["annotations"], "finalizers": theirs}
        world.server.create(domain_objects.cliques_path(world.driver_namespace), clique)
        await wait_until(lambda: world.clique_indexes(uid) == {node: 0})
        path = domain_objects.cliques_path(world.driver_namespace, clique["metadata"]["name"])
        stored = world.get(path)
        assert stored is not None
        assert stored["metadata"]["labels"] == clique["metadata"]["labels"]
        assert stored["metadata"]["annotations"] == metadata["annotations"]
        assert stored["metadata"]["finalizers"] == theirs

        world.delete_domain()
        await wait_until(lambda: (world.domain() or {})["metadata"]["finalizers"] == theirs)
