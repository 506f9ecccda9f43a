# SPDX-License-Identifier: Apache-2.0
"""The CRDs on a real API server: validation, defaults and printer columns."""

import json
import urllib.error
from typing import Any

import pytest
from nvdra_testing.control_plane import domain_objects
from nvdra_testing.control_plane.apiserver import ApiServer

NOW = "2026-01-01T00:00:00Z"


def refusal(server: ApiServer, verb: str, path: str, body: Any) -> str:
    with pytest.raises(urllib.error.HTTPError) as caught:
        server.request(verb, path, body)
    with caught.value as answer:
        return str(json.loads(answer.read())["message"])


def columns(server: ApiServer, path: str, name: str) -> dict[str, Any]:
    """The columns that kubectl prints of an object."""
    table = server.request("GET", f"{path}?includeObject=None", accept=TABLE)
    titles = [column["name"] for column in table["columnDefinitions"]]
    rows = [dict(zip(titles, row["cells"], strict=True)) for row in table["rows"]]
    return next(row for row in rows if row["Name"] == name)


TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"


def node(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "ipAddress": "10.4.1.7", "cliqueID": "", "index": -1, **more}


def condition(kind: str, **more: Any) -> dict[str, Any]:
    return {
        "type": kind,
        "status": "False",
        "reason": "WaitingForNodes",
        "message": "1 of 2 nodes are ready",
        "lastTransitionTime": NOW,
        **more,
    }


def with_status(made: dict[str, Any], **status: Any) -> dict[str, Any]:
    return {**made, "status": status}


def test_a_domain_needs_a_template_and_gets_the_defaults(server: ApiServer, team: str) -> None:
    made = server.create(domain_objects.domains_path(team), domain_objects.domain())

    assert made["spec"]["numNodes"] == 0
    assert made["spec"]["channel"]["allocationMode"] == "Single"
    assert "status" not in made


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        (None, "spec: Required value"),
        ({}, "spec.channel: Required value"),
        ({"channel": {}}, "spec.channel.resourceClaimTemplate: Required value"),
        ({"channel": {"resourceClaimTemplate": {}}}, "resourceClaimTemplate.name: Required value"),
    ],
)
def test_a_domain_without_a_spec_is_rejected(
    server: ApiServer, team: str, spec: Any, says: str
) -> None:
    body = domain_objects.domain()
    del body["spec"]
    if spec is not None:
        body["spec"] = spec

    assert says in refusal(server, "POST", domain_objects.domains_path(team), body)


@pytest.mark.parametrize(
    "name", ["Ring", "ring_channel", "-ring", "ring.", "r/x", "a b", "r" * 254]
)
def test_an_invalid_template_name_is_rejected(server: ApiServer, team: str, name: str) -> None:
    body = domain_objects.domain(template=name)

    said = refusal(server, "POST", domain_objects.domains_path(team), body)
    assert "spec.channel.resourceClaimTemplate.name" in said


@pytest.mark.parametrize("name", ["r", "ring-channel", "ring.channel.0", "0", "r" * 253])
def test_every_valid_template_name_is_accepted(server: ApiServer, team: str, name: str) -> None:
    assert server.create(domain_objects.domains_path(team), domain_objects.domain(template=name))


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ({"numNodes": -1}, "should be greater than or equal to 0"),
        ({"numNodes": "2"}, "spec.numNodes"),
        (
            {"channel": {"resourceClaimTemplate": {"name": "x"}, "allocationMode": "Some"}},
            'supported values: "All", "Single"',
        ),
    ],
)
def test_an_invalid_value_is_rejected(server: ApiServer, team: str, spec: Any, says: str) -> None:
    assert says in refusal(
        server, "POST", domain_objects.domains_path(team), domain_objects.domain(**spec)
    )


def test_a_spec_cannot_be_changed(server: ApiServer, team: str) -> None:
    made = server.create(domain_objects.domains_path(team), domain_objects.domain())
    changed = {**made, "spec": {**made["spec"], "numNodes": 4}}

    said = refusal(server, "PUT", domain_objects.domains_path(team, "ring"), changed)
    assert "A computeDomain.spec is immutable" in said


def test_labels_and_finalizers_can_be_changed_and_leave_the_status_alone(
    server: ApiServer, team: str
) -> None:
    made = server.create(domain_objects.domains_path(team), domain_objects.domain())
    made["metadata"]["finalizers"] = ["resource.nvidia.com/computeDomain"]
    made["status"] = {"status": "Ready"}

    stored = server.request("PUT", domain_objects.domains_path(team, "ring"), made)
    assert stored["metadata"]["finalizers"] == ["resource.nvidia.com/computeDomain"]
    assert "status" not in stored
    stored["metadata"]["finalizers"] = []
    server.request("PUT", domain_objects.domains_path(team, "ring"), stored)


def test_a_status_of_the_reference_driver_is_accepted_and_gets_defaults(
    server: ApiServer, team: str
) -> None:
    made = server.create(domain_objects.domains_path(team), domain_objects.domain())
    path = f"{domain_objects.domains_path(team, 'ring')}/status"

    nodes = [
        node("node-a"),
        node("node-b", cliqueID=domain_objects.CLIQUE, index=0, status="Ready"),
    ]
    stored = server.request("PUT", path, with_status(made, nodes=nodes))
    assert stored["status"]["status"] == "NotReady"
    assert [each["status"] for each in stored["status"]["nodes"]] == ["NotReady", "Ready"]


@pytest.mark.parametrize(
    ("status", "says"),
    [
        ({"status": "Maybe"}, "status.status"),
        ({"nodes": [node("a"), node("a")]}, "Duplicate value"),
        ({"nodes": [{"name": "a", "ipAddress": "10.4.1.7"}]}, "cliqueID: Required value"),
        ({"nodes": [node(f"n{i}") for i in range(2049)]}, "must have at most 2048 items"),
        ({"conditions": [condition("Ready"), condition("Ready")]}, "Duplicate value"),
        ({"conditions": [condition("Ready", reason="two words")]}, "status.conditions[0].reason"),
        ({"conditions": [condition("Ready", status="No")]}, "status.conditions[0].status"),
        ({"readyNodes": -1}, "status.readyNodes"),
    ],
)
def test_an_invalid_status_is_rejected(
    server: ApiServer, team: str, status: Any, says: str
) -> None:
    made = server.create(domain_objects.domains_path(team), domain_objects.domain())
    path = f"{domain_objects.domains_path(team, 'ring')}/status"

    assert says in refusal(server, "PUT", path, with_status(made, **{"status": "Ready", **status}))


def test_kubectl_shows_readiness_and_the_numbers_of_nodes(server: ApiServer, team: str) -> None:
    made = server.create(domain_objects.domains_path(team), domain_objects.domain())
    status = {
        "status": "NotReady",
        "readyNodes": 1,
        "expectedNodes": 2,
        "cliques": 1,
        "conditions": [condition("Accepted", reason="Served"), condition("Ready")],
    }
    path = domain_objects.domains_path(team, "ring")
    server.request("PUT", f"{path}/status", with_status(made, **status))

    shown = columns(server, domain_objects.domains_path(team), "ring")
    assert shown.pop("Age")
    assert shown == {
        "Name": "ring",
        "Status": "NotReady",
        "Ready": 1,
        "Nodes": 2,
        "Reason": "WaitingForNodes",
        "Cliques": 1,
        "Template": "ring-channel",
        "Message": "1 of 2 nodes are ready",
    }


def test_a_clique_holds_daemons_of_both_drivers(server: ApiServer, team: str) -> None:
    ours = domain_objects.clique_entry(
        "node-a", 0, "NotReady", podUID="0a", message="IMEX is starting"
    )
    theirs = domain_objects.clique_entry("node-b", 1)
    del theirs["status"]

    stored = server.create(
        domain_objects.cliques_path(team), domain_objects.clique("uid", ours, theirs)
    )
    assert stored["daemons"] == [ours, {**theirs, "status": "NotReady"}]
    shown = columns(server, domain_objects.cliques_path(team), f"uid.{domain_objects.CLIQUE}")
    assert (shown["Domain"], shown["Clique"]) == ("uid", domain_objects.CLIQUE)


@pytest.mark.parametrize(
    ("entries", "says"),
    [
        (
            [domain_objects.clique_entry("a", 0), domain_objects.clique_entry("a", 1)],
            "Duplicate value",
        ),
        ([domain_objects.clique_entry("a", -1)], "daemons[0].index"),
        ([domain_objects.clique_entry("a", 0, "Maybe")], "daemons[0].status"),
        ([domain_objects.clique_entry("a", 0, message="x" * 1025)], "daemons[0].message"),
        (
            [domain_objects.clique_entry(f"n{i}", i) for i in range(1025)],
            "must have at most 1024 items",
        ),
    ],
)
def test_an_invalid_clique_is_rejected(
    server: ApiServer, team: str, entries: Any, says: str
) -> None:
    body = domain_objects.clique("uid", *entries)
    assert says in refusal(server, "POST", domain_objects.cliques_path(team), body)
