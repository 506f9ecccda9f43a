# SPDX-License-Identifier: Apache-2.0
"""The CRDs of the reference driver's chart, and API servers with older versions of DRA."""

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from nvdra_cd_controller.crds import definitions
from nvdra_testing.control_plane import apiserver, domain_objects
from nvdra_testing.control_plane.apiserver import ApiServer
from nvdra_testing.control_plane.domain_installation import DriverInstallation
from nvdra_testing.polling import wait_until


def lenient(definition: dict[str, Any]) -> dict[str, Any]:
    """The CRD without validation that the reference driver's CRD does not have."""
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
    """An API server that serves only resource.k8s.io/v1beta1 and has the reference's CRDs."""
    served = ("v1=false", "v1beta2=false", "v1beta1=true")
    config = ",".join(f"resource.k8s.io/{version}" for version in served)
    with apiserver.run_apiserver(tmp_path_factory.mktemp("old"), runtime_config=config) as running:
        for own in definitions.own():
            domain_objects.install_crd(running, lenient(copy.deepcopy(own.document)))
        yield running


@pytest.fixture
def old(old_server: ApiServer, tmp_path: Path) -> DriverInstallation:
    namespaces = (
        domain_objects.create_namespace(old_server, "nvdra"),
        domain_objects.create_namespace(old_server),
    )
    return DriverInstallation(old_server, tmp_path, *namespaces, resource_api_version="v1beta1")


async def test_children_are_written_in_the_servers_api_version(
    old: DriverInstallation,
) -> None:
    with old.run_controller():
        old.create_domain()
        uid = await old.wait_children_ready()
        template = old.get(old.daemon_template_path(uid))
        assert template is not None
        assert template["spec"]["spec"]["devices"]["requests"][0]["deviceClassName"] == (
            "compute-domain-daemon.nvidia.com"
        )
        stored = old.get(old.workload_template_path())
        assert stored is not None
        old.server.request("DELETE", old.workload_template_path())
        await wait_until(lambda: old.get(old.workload_template_path()) not in (None, stored))
        old.delete_domain()
        await wait_until(lambda: old.domain() is None)
        assert old.children(uid) == []


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ({}, "spec.channel is missing"),
        ({"channel": {"resourceClaimTemplate": {"name": "Not_A_Name"}}}, "Not_A_Name"),
    ],
)
async def test_an_invalid_domain_says_why_and_can_be_deleted(
    old: DriverInstallation, spec: dict[str, Any], says: str
) -> None:
    body = domain_objects.domain()
    body["spec"] = spec
    with old.run_controller():
        old.server.create(domain_objects.domains_path(old.user_namespace), body)
        await wait_until(lambda: old.condition("Accepted")[1] == "InvalidConfig")
        assert says in old.condition("Accepted")[2]
        assert old.status()["status"] == "NotReady"
        await wait_until(lambda: old.events())
        assert old.events()[0][:2] == ("Warning", "InvalidConfig")
        old.delete_domain()
        await wait_until(lambda: old.domain() is None)
