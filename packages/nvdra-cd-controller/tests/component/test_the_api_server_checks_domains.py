"""The definitions: what a real API server takes, refuses, fills in and shows."""

import json
import urllib.error
from typing import Any

import domains
import pytest
from apiserver import ApiServer

NOW = "2026-01-01T00:00:00Z"


def refusal(server: ApiServer, verb: str, path: str, body: Any) -> str:
    with pytest.raises(urllib.error.HTTPError) as caught:
        server.call(verb, path, body)
    with caught.value as answer:
        return str(json.loads(answer.read())["message"])


def columns(server: ApiServer, path: str, name: str) -> dict[str, Any]:
    """What kubectl shows of one object, by column."""
    table = server.call("GET", f"{path}?includeObject=None", accept=TABLE)
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
    made = server.create(domains.domains_path(team), domains.domain())

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
def test_a_domain_without_its_spec_is_refused(
    server: ApiServer, team: str, spec: Any, says: str
) -> None:
    body = domains.domain()
    del body["spec"]
    if spec is not None:
        body["spec"] = spec

    assert says in refusal(server, "POST", domains.domains_path(team), body)


@pytest.mark.parametrize(
    "name", ["Ring", "ring_channel", "-ring", "ring.", "r/x", "a b", "r" * 254]
)
def test_a_template_must_have_a_name_that_a_template_can_have(
    server: ApiServer, team: str, name: str
) -> None:
    body = domains.domain(template=name)

    said = refusal(server, "POST", domains.domains_path(team), body)
    assert "spec.channel.resourceClaimTemplate.name" in said


@pytest.mark.parametrize("name", ["r", "ring-channel", "ring.channel.0", "0", "r" * 253])
def test_any_name_of_a_template_will_do(server: ApiServer, team: str, name: str) -> None:
    assert server.create(domains.domains_path(team), domains.domain(template=name))


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
def test_a_field_with_a_wrong_value_is_refused(
    server: ApiServer, team: str, spec: Any, says: str
) -> None:
    assert says in refusal(server, "POST", domains.domains_path(team), domains.domain(**spec))


def test_a_spec_cannot_be_changed(server: ApiServer, team: str) -> None:
    made = server.create(domains.domains_path(team), domains.domain())
    changed = {**made, "spec": {**made["spec"], "numNodes": 4}}

    said = refusal(server, "PUT", domains.domains_path(team, "ring"), changed)
    assert "A computeDomain.spec is immutable" in said


def test_labels_and_finalizers_can_be_changed_and_leave_the_status_alone(
    server: ApiServer, team: str
) -> None:
    made = server.create(domains.domains_path(team), domains.domain())
    made["metadata"]["finalizers"] = ["resource.nvidia.com/computeDomain"]
    made["status"] = {"status": "Ready"}

    stored = server.call("PUT", domains.domains_path(team, "ring"), made)
    assert stored["metadata"]["finalizers"] == ["resource.nvidia.com/computeDomain"]
    assert "status" not in stored
    stored["metadata"]["finalizers"] = []
    server.call("PUT", domains.domains_path(team, "ring"), stored)


def test_a_status_of_the_reference_driver_is_taken_and_filled_in(
    server: ApiServer, team: str
) -> None:
    made = server.create(domains.domains_path(team), domains.domain())
    path = f"{domains.domains_path(team, 'ring')}/status"

    nodes = [node("node-a"), node("node-b", cliqueID=domains.CLIQUE, index=0, status="Ready")]
    stored = server.call("PUT", path, with_status(made, nodes=nodes))
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
def test_a_status_that_makes_no_sense_is_refused(
    server: ApiServer, team: str, status: Any, says: str
) -> None:
    made = server.create(domains.domains_path(team), domains.domain())
    path = f"{domains.domains_path(team, 'ring')}/status"

    assert says in refusal(server, "PUT", path, with_status(made, **{"status": "Ready", **status}))


def test_kubectl_shows_whether_a_domain_is_up_and_how_many_of_how_many(
    server: ApiServer, team: str
) -> None:
    made = server.create(domains.domains_path(team), domains.domain())
    status = {
        "status": "NotReady",
        "readyNodes": 1,
        "expectedNodes": 2,
        "cliques": 1,
        "conditions": [condition("Accepted", reason="Served"), condition("Ready")],
    }
    path = domains.domains_path(team, "ring")
    server.call("PUT", f"{path}/status", with_status(made, **status))

    shown = columns(server, domains.domains_path(team), "ring")
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
    ours = domains.entry("node-a", 0, "NotReady", podUID="0a", message="IMEX is starting")
    theirs = domains.entry("node-b", 1)
    del theirs["status"]

    stored = server.create(domains.cliques_path(team), domains.clique("uid", ours, theirs))
    assert stored["daemons"] == [ours, {**theirs, "status": "NotReady"}]
    shown = columns(server, domains.cliques_path(team), f"uid.{domains.CLIQUE}")
    assert (shown["Domain"], shown["Clique"]) == ("uid", domains.CLIQUE)


@pytest.mark.parametrize(
    ("entries", "says"),
    [
        ([domains.entry("a", 0), domains.entry("a", 1)], "Duplicate value"),
        ([domains.entry("a", -1)], "daemons[0].index"),
        ([domains.entry("a", 0, "Maybe")], "daemons[0].status"),
        ([domains.entry("a", 0, message="x" * 1025)], "daemons[0].message"),
        ([domains.entry(f"n{i}", i) for i in range(1025)], "must have at most 1024 items"),
    ],
)
def test_a_clique_that_makes_no_sense_is_refused(
    server: ApiServer, team: str, entries: Any, says: str
) -> None:
    body = domains.clique("uid", *entries)
    assert says in refusal(server, "POST", domains.cliques_path(team), body)
