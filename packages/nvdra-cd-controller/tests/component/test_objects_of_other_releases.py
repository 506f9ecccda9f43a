"""Definitions as the reference driver's chart has them, and servers with older versions of DRA."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apiserver
import domains
import pytest
import yaml
from apiserver import ApiServer
from cd_world import World
from waiting import until


def lenient(definition: dict[str, Any]) -> dict[str, Any]:
    """Without what the reference's definition does not ask for."""
    schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    schema.pop("required", None)
    spec = schema["properties"].get("spec")
    if spec:
        spec.pop("required")
        channel = spec["properties"]["channel"]["properties"]
        channel["resourceClaimTemplate"]["properties"]["name"] = {"type": "string"}
    return definition


@pytest.fixture(scope="module")
def old_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """Serves resource.k8s.io/v1beta1 alone, and has the lenient definitions."""
    served = ("v1=false", "v1beta2=false", "v1beta1=true")
    config = ",".join(f"resource.k8s.io/{version}" for version in served)
    with apiserver.started(tmp_path_factory.mktemp("old"), runtime_config=config) as running:
        for path in sorted(domains.CRDS.glob("*.yaml")):
            domains.establish(running, lenient(yaml.safe_load(path.read_text())))
        yield running


@pytest.fixture
def old(old_server: ApiServer, tmp_path: Path) -> World:
    namespaces = domains.namespace(old_server, "nvdra"), domains.namespace(old_server)
    return World(old_server, tmp_path, *namespaces, dra="v1beta1")


async def test_children_are_written_in_the_version_that_the_server_has(old: World) -> None:
    with old.controlled():
        old.create()
        uid = await old.formed()
        template = old.get(old.daemon_template_path(uid))
        assert template is not None
        assert template["spec"]["spec"]["devices"]["requests"][0]["deviceClassName"] == (
            "compute-domain-daemon.nvidia.com"
        )
        stored = old.get(old.workload_template_path())
        assert stored is not None
        old.server.call("DELETE", old.workload_template_path())
        await until(lambda: old.get(old.workload_template_path()) not in (None, stored))
        old.delete()
        await until(lambda: old.domain() is None)
        assert old.children(uid) == []


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ({}, "spec.channel is missing"),
        ({"channel": {"resourceClaimTemplate": {"name": "Not_A_Name"}}}, "Not_A_Name"),
    ],
)
async def test_a_domain_that_cannot_be_served_says_why_and_can_be_deleted(
    old: World, spec: dict[str, Any], says: str
) -> None:
    body = domains.domain()
    body["spec"] = spec
    with old.controlled():
        old.server.create(domains.domains_path(old.team), body)
        await until(lambda: old.condition("Accepted")[1] == "InvalidConfig")
        assert says in old.condition("Accepted")[2]
        assert old.status()["status"] == "NotReady"
        await until(lambda: old.events())
        assert old.events()[0][:2] == ("Warning", "InvalidConfig")
        old.delete()
        await until(lambda: old.domain() is None)
