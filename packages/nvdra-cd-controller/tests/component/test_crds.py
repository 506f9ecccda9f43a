# SPDX-License-Identifier: Apache-2.0
"""Whose CustomResourceDefinitions the cluster has, and what the controller does with them."""

import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from nvdra_cd_controller.crds import definitions
from nvdra_cd_controller.crds.definitions import VERSION_ANNOTATION
from nvdra_testing.control_plane import apiserver, domain_objects, foreign_definitions
from nvdra_testing.control_plane.apiserver import ApiServer
from nvdra_testing.control_plane.controller import ControllerProcess
from nvdra_testing.control_plane.domain_installation import DriverInstallation, Json
from nvdra_testing.polling import wait_until

CLIQUES, DOMAINS = definitions.own()
PATH = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
DRIVER = "nvdra-system"


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """An API server whose definitions the tests make and remove."""
    with apiserver.run_apiserver(tmp_path_factory.mktemp("bare")) as server:
        server.create("/api/v1/namespaces", {"metadata": {"name": DRIVER}})
        yield server


@pytest.fixture
async def world(bare: ApiServer, tmp_path: Path) -> AsyncIterator[DriverInstallation]:
    """An installation in a cluster without definitions."""
    world = DriverInstallation(bare, tmp_path, DRIVER, domain_objects.create_namespace(bare))
    yield world
    if stored(world, DOMAINS.name) is not None:
        domain_objects.remove_all_domains(bare)
    for own in definitions.own():
        if stored(world, own.name) is not None:
            bare.request("DELETE", f"{PATH}/{own.name}")
    await wait_until(lambda: not bare.request("GET", PATH)["items"])


def stored(world: DriverInstallation, name: str) -> Json | None:
    return world.get(f"{PATH}/{name}")


def columns(world: DriverInstallation) -> list[str]:
    found = stored(world, DOMAINS.name)
    assert found is not None
    (version,) = found["spec"]["versions"]
    return [column["name"] for column in version.get("additionalPrinterColumns") or ()]


def install_foreign(world: DriverInstallation) -> None:
    domain_objects.install_crd(world.server, foreign_definitions.computedomaincliques())
    domain_objects.install_crd(world.server, foreign_definitions.computedomains())


def install_former(world: DriverInstallation) -> None:
    """Ours of 0.1.0, which have no number, with something less."""
    for own in definitions.own():
        former = json.loads(json.dumps(own.document))
        del former["metadata"]["annotations"][VERSION_ANNOTATION]
        former["spec"]["versions"][0]["additionalPrinterColumns"] = []
        domain_objects.install_crd(world.server, former)


async def ready(controller: ControllerProcess) -> str:
    """What it says of its state, once it is ready."""
    await wait_until(controller.is_ready)
    return controller.get("/readyz?verbose")


async def test_missing_definitions_are_made_before_domains_are_listed(
    world: DriverInstallation,
) -> None:
    with world.run_controller() as controller:
        assert "[+]crds ok\n" in await ready(controller)
        world.create_domain()
        await world.wait_children_ready()
        assert world.server.request("GET", PATH)["items"][0]["metadata"]["labels"] == {
            "app.kubernetes.io/part-of": "nvdra"
        }
        assert "WARNING" not in controller.log.read_text()


async def test_those_of_another_project_are_left_and_domains_work(
    world: DriverInstallation,
) -> None:
    install_foreign(world)
    before = stored(world, DOMAINS.name)
    with world.run_controller() as controller:
        page = await ready(controller)
        for word in ("status.conditions", "Reason", "spec.numNodes", "crds.install=always"):
            assert word in page, page
        uid = world.create_domain(numNodes=0)["metadata"]["uid"]
        await wait_until(lambda: len(world.children(uid)) == 3)
        node = world.create_labelled_node("a", uid)
        world.write_clique_entries(uid, domain_objects.clique_entry(node, 0, status="Ready"))
        await wait_until(lambda: world.status().get("status") == "Ready")
        assert "conditions" not in world.status()
        await wait_until(lambda: len(events_of_definitions(world)) == 2)
        (event,) = (
            each
            for each in events_of_definitions(world)
            if each["involvedObject"]["name"] == DOMAINS.name
        )
        assert event["reason"] == "FieldsDropped"
        assert "drops the fields status.cliques, status.conditions" in event["message"]
        assert controller.log.read_text().count("A definition lacks what this version has") == 2
    assert stored(world, DOMAINS.name) == before


def events_of_definitions(world: DriverInstallation) -> list[Json]:
    items: list[Json] = world.server.request("GET", "/api/v1/namespaces/default/events")["items"]
    kind = "CustomResourceDefinition"
    uids = {(stored(world, own.name) or {})["metadata"]["uid"] for own in definitions.own()}
    return [
        each
        for each in items
        if each["involvedObject"]["kind"] == kind and each["involvedObject"]["uid"] in uids
    ]


async def test_those_of_another_project_are_taken_over_if_they_are_to_be(
    world: DriverInstallation,
) -> None:
    install_foreign(world)
    with world.run_controller("--crds=always") as controller:
        assert "[+]crds ok\n" in await ready(controller)
        world.create_domain()  # without numNodes
    assert columns(world)[:3] == ["Status", "Ready", "Nodes"]


async def test_ours_with_the_text_of_another_project_are_taken_over_if_they_are_to_be(
    world: DriverInstallation,
) -> None:
    """An apply keeps our annotation with the number of the text."""
    with world.run_controller() as controller:
        await ready(controller)
    for foreign in (
        foreign_definitions.computedomaincliques(),
        foreign_definitions.computedomains(),
    ):
        own = stored(world, foreign["metadata"]["name"])
        assert own is not None
        world.server.request(
            "PUT", f"{PATH}/{foreign['metadata']['name']}", {**own, "spec": foreign["spec"]}
        )
    with world.run_controller() as controller:
        assert "crds.install=always" in await ready(controller)
    assert columns(world)[:3] != ["Status", "Ready", "Nodes"]
    with world.run_controller("--crds=always") as controller:
        assert "[+]crds ok\n" in await ready(controller)
        assert controller.log.read_text().count("Wrote a definition") == 4
    with world.run_controller("--crds=always") as controller:
        assert "[+]crds ok\n" in await ready(controller)
        assert controller.log.read_text().count("Wrote a definition") == 4
    assert columns(world)[:3] == ["Status", "Ready", "Nodes"]


async def test_earlier_ones_of_ours_are_replaced_and_domains_stay(
    world: DriverInstallation,
) -> None:
    install_former(world)
    world.create_domain()
    with world.run_controller() as controller:
        assert "[+]crds ok\n" in await ready(controller)
        await world.wait_children_ready()
    assert columns(world)[:3] == ["Status", "Ready", "Nodes"]


async def test_a_webhook_that_converts_our_objects_is_removed(world: DriverInstallation) -> None:
    """The API server would send every domain to it."""
    server = {"url": "https://192.0.2.1/convert"}
    webhook = {"clientConfig": server, "conversionReviewVersions": ["v1"]}
    for own in definitions.own():
        converted = json.loads(json.dumps(own.document))
        converted["spec"]["conversion"] = {"strategy": "Webhook", "webhook": webhook}
        domain_objects.install_crd(world.server, converted)
    with world.run_controller() as controller:
        assert "[+]crds ok\n" in await ready(controller)
    for own in definitions.own():
        found = stored(world, own.name)
        assert found is not None
        assert found["spec"]["conversion"] == {"strategy": "None"}


async def test_later_ones_of_ours_are_left(world: DriverInstallation) -> None:
    """As in a rollback: the objects may have what only the later one knows."""
    for own in definitions.own():
        later = json.loads(json.dumps(own.document))
        later["metadata"]["annotations"][VERSION_ANNOTATION] = "99"
        later["spec"]["versions"][0]["additionalPrinterColumns"] = []
        domain_objects.install_crd(world.server, later)
    with world.run_controller("--crds=always") as controller:
        await ready(controller)
    assert columns(world) == []


async def test_none_is_written_if_none_is_to_be(world: DriverInstallation) -> None:
    with world.run_controller("--crds=never") as controller:
        await wait_until(lambda: "There is no definition" in controller.log.read_text())
        assert world.server.request("GET", PATH)["items"] == []
        install_former(world)
        await ready(controller)
        assert columns(world) == []


async def test_without_the_right_to_read_them_domains_work(world: DriverInstallation) -> None:
    """As with the roles of the reference driver's chart."""
    for own in definitions.own():
        domain_objects.install_crd(world.server, own.document)
    account = world.server.create(
        f"/api/v1/namespaces/{DRIVER}/serviceaccounts", {"metadata": {"name": "controller"}}
    )["metadata"]["name"]
    rules = [
        {"apiGroups": [group], "resources": ["*"], "verbs": ["*"]}
        for group in ("", "apps", "resource.k8s.io", "resource.nvidia.com", "networking.k8s.io")
    ]
    rbac = "/apis/rbac.authorization.k8s.io/v1"
    world.server.create(f"{rbac}/clusterroles", {"metadata": {"name": "some"}, "rules": rules})
    world.server.create(
        f"{rbac}/clusterrolebindings",
        {
            "metadata": {"name": "some"},
            "roleRef": {
                "apiGroup": "rbac.authorization.k8s.io",
                "kind": "ClusterRole",
                "name": "some",
            },
            "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": DRIVER}],
        },
    )
    token = f"/api/v1/namespaces/{DRIVER}/serviceaccounts/{account}/token"
    secret = world.server.create(token, {"spec": {}})["status"]["token"]
    kubeconfig = world.server.write_token_kubeconfig(secret, "some")
    with world.run_controller(kubeconfig=kubeconfig) as controller:
        assert "[+]crds ok: " in await ready(controller)
        world.create_domain()
        await world.wait_children_ready()
        assert controller.log.read_text().count("A definition cannot be read or written") == 2
