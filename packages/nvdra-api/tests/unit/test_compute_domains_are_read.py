"""ComputeDomains and cliques as the API server returns them, ours and the reference driver's."""

from nvdra_api.types import names
from nvdra_api.types.domains import (
    NO_CLIQUE,
    NO_INDEX,
    CliqueDaemon,
    ComputeDomain,
    ComputeDomainClique,
    ConditionType,
    DomainNode,
    Readiness,
)
from nvdra_api.types.ids import CliqueID, DomainUID, NodeName, PodUID

UID = DomainUID("11111111-2222-3333-4444-555555555555")
CLIQUE = CliqueID("2df84740-d3cb-b5ce-4e7e-98352b5a71b5.2")

DOMAIN = {
    "apiVersion": "resource.nvidia.com/v1beta1",
    "kind": "ComputeDomain",
    "metadata": {"name": "ring", "namespace": "team-a", "uid": UID, "resourceVersion": "7"},
    "spec": {"numNodes": 2, "channel": {"resourceClaimTemplate": {"name": "ring-channel"}}},
}


def entry(node, index, **more):
    return {
        "nodeName": node,
        "ipAddress": "10.4.1.7",
        "cliqueID": CLIQUE,
        "index": index,
        **more,
    }


def test_a_new_domain_has_a_spec_and_no_status():
    domain = ComputeDomain.model_validate(DOMAIN)

    assert domain.uid == UID
    assert domain.spec.num_nodes == 2
    assert domain.spec.channel is not None
    assert domain.spec.channel.resource_claim_template.name == "ring-channel"
    assert domain.spec.channel.allocation_mode == "Single"
    assert domain.status.status == ""
    assert domain.status.nodes == ()
    assert domain.status.condition(ConditionType.READY) is None


def test_a_domain_that_was_let_through_without_a_spec_can_be_read():
    bare = {key: value for key, value in DOMAIN.items() if key != "spec"}

    assert ComputeDomain.model_validate(bare).spec.channel is None
    assert ComputeDomain.model_validate({**bare, "spec": {"channel": None}}).spec.channel is None


def test_a_status_of_the_reference_is_read_with_no_conditions():
    nodes = [
        {"name": "node-a", "ipAddress": "10.4.1.7", "cliqueID": CLIQUE, "index": 0},
        {"name": "box", "ipAddress": "10.4.9.3", "cliqueID": "", "index": -1, "status": "Ready"},
    ]
    status = ComputeDomain.model_validate(
        {**DOMAIN, "status": {"status": "NotReady", "nodes": nodes}}
    ).status

    assert status.nodes == (
        DomainNode(name=NodeName("node-a"), ip_address="10.4.1.7", clique_id=CLIQUE, index=0),
        DomainNode(
            name=NodeName("box"),
            ip_address="10.4.9.3",
            clique_id=NO_CLIQUE,
            index=NO_INDEX,
            status=Readiness.READY,
        ),
    )
    assert status.nodes[0].status == Readiness.NOT_READY
    assert status.conditions == ()


def test_the_condition_asked_for_is_found_by_its_type():
    conditions = [
        {"type": "Accepted", "status": "True", "reason": "Valid"},
        {"type": "Ready", "status": "False", "reason": "NodesMissing", "message": "1 of 2"},
    ]
    status = ComputeDomain.model_validate(
        {**DOMAIN, "status": {"status": "NotReady", "conditions": conditions}}
    ).status

    ready = status.condition(ConditionType.READY)
    assert ready is not None
    assert (ready.status, ready.reason, ready.message) == ("False", "NodesMissing", "1 of 2")
    assert status.condition(ConditionType.DEGRADED) is None


def test_a_clique_may_hold_daemons_of_both_drivers():
    ours = entry("node-a", 0, status="NotReady", podUID="0a", message="IMEX is starting")
    clique = ComputeDomainClique.model_validate(
        {"metadata": {"name": f"{UID}.{CLIQUE}"}, "daemons": [ours, entry("node-b", 1)]}
    )

    assert clique.daemons[0] == CliqueDaemon(
        node_name=NodeName("node-a"),
        ip_address="10.4.1.7",
        clique_id=CLIQUE,
        index=0,
        pod_uid=PodUID("0a"),
        message="IMEX is starting",
    )
    assert clique.daemons[1].pod_uid is None
    assert clique.daemons[1].status == Readiness.NOT_READY


def test_a_clique_without_daemons_is_empty():
    assert ComputeDomainClique.model_validate({"metadata": {"name": "x"}}).daemons == ()


def test_names_are_made_from_the_domains_uid():
    assert names.daemon_name(UID) == f"computedomain-daemon-{UID}"
    assert names.clique_name(UID, CLIQUE) == f"{UID}.{CLIQUE}"
