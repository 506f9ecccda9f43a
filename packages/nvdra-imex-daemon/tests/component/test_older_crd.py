# SPDX-License-Identifier: Apache-2.0
"""A cluster with the reference driver's CRD of cliques, which drops our additional fields."""

import copy
import time
from collections.abc import Iterator

import pytest
from nvdra_testing.control_plane import domain_objects
from nvdra_testing.control_plane.apiserver import ApiServer
from nvdra_testing.control_plane.domain_objects import Json
from nvdra_testing.node.imex_daemons import Rack

DEFINITION = (
    "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/"
    "computedomaincliques.resource.nvidia.com"
)


def replace(server: ApiServer, definition: Json, *, keeps: bool) -> None:
    """Replace the CRD, and wait until the API server uses it."""
    current = server.request("GET", DEFINITION)
    definition["metadata"]["resourceVersion"] = current["metadata"]["resourceVersion"]
    server.request("PUT", DEFINITION, definition)
    probe = domain_objects.clique(
        "11111111-2222-3333-4444-555555555555", domain_objects.clique_entry("a", 0, podUID="u")
    )
    until = time.monotonic() + domain_objects.CRD_TIMEOUT_S
    while keeps != ("podUID" in _tried(server, probe)["daemons"][0]):
        assert time.monotonic() < until, "the definition is not gone by"


def _tried(server: ApiServer, clique: Json) -> Json:
    made: Json = server.create(f"{domain_objects.cliques_path('default')}?dryRun=All", clique)
    return made


@pytest.fixture
def without_additions(server: ApiServer) -> Iterator[None]:
    ours = server.request("GET", DEFINITION)
    theirs = copy.deepcopy(ours)
    schema = theirs["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    for added in ("podUID", "message"):
        del schema["properties"]["daemons"]["items"]["properties"][added]
    replace(server, theirs, keeps=False)
    yield
    replace(server, ours, keeps=True)


@pytest.mark.usefixtures("without_additions")
def test_members_work_with_a_crd_that_drops_fields(rack: Rack) -> None:
    rack.install_driver("node-a", "node-b")
    first, second = rack.start_pod("node-a"), rack.start_pod("node-b")
    rack.wait_until(lambda: rack.are_ready("node-a", "node-b"), "both to be Ready")
    assert "podUID" not in rack.entries()["node-a"]
    rack.wait_until(
        lambda: first.hosts_entries() == second.hosts_entries() == rack.expected_hosts_entries(),
        "the names of both",
    )
    version = rack.clique()["metadata"]["resourceVersion"]
    with pytest.raises(AssertionError, match="waited for a write"):
        rack.wait_until(
            lambda: rack.clique()["metadata"]["resourceVersion"] != version, "a write", timeout_s=4
        )
    assert first.stop() == 0
    assert set(rack.entries()) == {"node-b"}
    again = rack.start_pod("node-a")
    rack.wait_until(lambda: rack.are_ready("node-a", "node-b"), "both to be Ready again")
    assert rack.entries()["node-a"]["ipAddress"] == again.ip
