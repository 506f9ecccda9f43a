"""A cluster whose definition of cliques is the reference's: our additions are dropped."""

import copy
import time
from collections.abc import Iterator

import domains
import pytest
from apiserver import ApiServer
from domains import Json
from imexd import Rack

DEFINITION = (
    "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/"
    "computedomaincliques.resource.nvidia.com"
)


def replace(server: ApiServer, definition: Json, *, keeps: bool) -> None:
    """Put a definition in place, and wait until the API server goes by it."""
    current = server.call("GET", DEFINITION)
    definition["metadata"]["resourceVersion"] = current["metadata"]["resourceVersion"]
    server.call("PUT", DEFINITION, definition)
    probe = domains.clique(
        "11111111-2222-3333-4444-555555555555", domains.entry("a", 0, podUID="u")
    )
    until = time.monotonic() + domains.ESTABLISHED_S
    while keeps != ("podUID" in _tried(server, probe)["daemons"][0]):
        assert time.monotonic() < until, "the definition is not gone by"


def _tried(server: ApiServer, clique: Json) -> Json:
    made: Json = server.create(f"{domains.cliques_path('default')}?dryRun=All", clique)
    return made


@pytest.fixture
def without_additions(server: ApiServer) -> Iterator[None]:
    ours = server.call("GET", DEFINITION)
    theirs = copy.deepcopy(ours)
    schema = theirs["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    for added in ("podUID", "message"):
        del schema["properties"]["daemons"]["items"]["properties"][added]
    replace(server, theirs, keeps=False)
    yield
    replace(server, ours, keeps=True)


@pytest.mark.usefixtures("without_additions")
def test_members_join_get_ready_and_leave_and_write_nothing_twice(rack: Rack) -> None:
    rack.equip("node-a", "node-b")
    first, second = rack.start("node-a"), rack.start("node-b")
    rack.until(lambda: rack.are_ready("node-a", "node-b"), "both to be Ready")
    assert "podUID" not in rack.entries()["node-a"]
    rack.until(lambda: first.names() == second.names() == rack.names(), "the names of both")
    version = rack.clique()["metadata"]["resourceVersion"]
    with pytest.raises(AssertionError, match="waited for a write"):
        rack.until(
            lambda: rack.clique()["metadata"]["resourceVersion"] != version, "a write", timeout_s=4
        )
    assert first.stop() == 0
    assert set(rack.entries()) == {"node-b"}
    again = rack.start("node-a")
    rack.until(lambda: rack.are_ready("node-a", "node-b"), "both to be Ready again")
    assert rack.entries()["node-a"]["ipAddress"] == again.ip
