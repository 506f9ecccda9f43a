# SPDX-License-Identifier: Apache-2.0
"""ComputeDomains as this and the reference driver's controllers write them, and their problems."""

from typing import Any

import pytest
from nvdra_api.ids import CliqueID, DomainUID, NodeName
from nvdra_api.meta import ObjectMeta
from nvdra_api.v1beta1 import ComputeDomain
from nvdra_api.v1beta1.compute_domain import (
    NO_CLIQUE,
    NO_INDEX,
    ComputeDomainChannelSpec,
    ComputeDomainNode,
    ComputeDomainResourceClaimTemplate,
    ComputeDomainSpec,
    ConditionType,
    Readiness,
)

UID = DomainUID("11111111-2222-3333-4444-555555555555")
CLIQUE = CliqueID("2df84740-d3cb-b5ce-4e7e-98352b5a71b5.2")

DOMAIN: dict[str, Any] = {
    "apiVersion": "resource.nvidia.com/v1beta1",
    "kind": "ComputeDomain",
    "metadata": {"name": "ring", "namespace": "team-a", "uid": UID, "resourceVersion": "7"},
    "spec": {"numNodes": 2, "channel": {"resourceClaimTemplate": {"name": "ring-channel"}}},
}


def domain(
    name: str = "ring", template: str = "ring-channel", mode: str = "Single"
) -> ComputeDomain:
    return ComputeDomain(
        metadata=ObjectMeta(name=name, namespace="team-a"),
        spec=ComputeDomainSpec(
            channel=ComputeDomainChannelSpec(
                resource_claim_template=ComputeDomainResourceClaimTemplate(name=template),
                allocation_mode=mode,
            )
        ),
    )


def test_a_new_domain_has_a_spec_and_no_status() -> None:
    read = ComputeDomain.model_validate(DOMAIN)

    assert read.uid == UID
    assert read.spec.num_nodes == 2
    assert read.spec.channel is not None
    assert read.spec.channel.resource_claim_template.name == "ring-channel"
    assert read.spec.channel.allocation_mode == "Single"
    assert read.status.status == ""
    assert read.status.nodes == ()
    assert read.status.condition(ConditionType.READY) is None


def test_a_domain_without_a_spec_can_be_read() -> None:
    bare = {key: value for key, value in DOMAIN.items() if key != "spec"}

    assert ComputeDomain.model_validate(bare).spec.channel is None
    assert ComputeDomain.model_validate({**bare, "spec": {"channel": None}}).spec.channel is None


def test_a_status_of_the_reference_driver_has_no_conditions() -> None:
    nodes = [
        {"name": "node-a", "ipAddress": "10.4.1.7", "cliqueID": CLIQUE, "index": 0},
        {"name": "box", "ipAddress": "10.4.9.3", "cliqueID": "", "index": -1, "status": "Ready"},
    ]
    status = ComputeDomain.model_validate(
        {**DOMAIN, "status": {"status": "NotReady", "nodes": nodes}}
    ).status

    assert status.nodes == (
        ComputeDomainNode(
            name=NodeName("node-a"), ip_address="10.4.1.7", clique_id=CLIQUE, index=0
        ),
        ComputeDomainNode(
            name=NodeName("box"),
            ip_address="10.4.9.3",
            clique_id=NO_CLIQUE,
            index=NO_INDEX,
            status=Readiness.READY,
        ),
    )
    assert status.nodes[0].status == Readiness.NOT_READY
    assert status.conditions == ()


def test_a_condition_is_found_by_its_type() -> None:
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


def test_a_manifest_has_the_fields_that_were_set() -> None:
    assert domain(mode="All").to_manifest() == {
        "apiVersion": "resource.nvidia.com/v1beta1",
        "kind": "ComputeDomain",
        "metadata": {"name": "ring", "namespace": "team-a"},
        "spec": {
            "channel": {
                "resourceClaimTemplate": {"name": "ring-channel"},
                "allocationMode": "All",
            }
        },
    }


def test_a_manifest_of_an_object_that_was_read_is_that_object() -> None:
    newer = {**DOMAIN, "spec": {**DOMAIN["spec"], "topology": {"block": "a"}}}
    assert ComputeDomain.model_validate(newer).to_manifest() == newer


def test_a_valid_domain_has_no_problems() -> None:
    assert domain().problems() == ()
    assert ComputeDomain.model_validate(DOMAIN).problems() == ()


@pytest.mark.parametrize(
    ("invalid", "field", "text"),
    [
        (domain(name=""), "metadata.name", "Required value"),
        (domain(template=""), "spec.channel.resourceClaimTemplate.name", "Required value"),
        (
            domain(template="Ring"),
            "spec.channel.resourceClaimTemplate.name",
            'Invalid value: "Ring": a lowercase RFC 1123 subdomain must consist of lower case '
            "alphanumeric characters, '-' or '.', and must start and end with an alphanumeric "
            "character",
        ),
        (
            domain(template="a" * 254),
            "spec.channel.resourceClaimTemplate.name",
            "Too long: may not be more than 253 bytes",
        ),
        (
            domain(mode="Some"),
            "spec.channel.allocationMode",
            'Unsupported value: "Some": supported values: "All", "Single"',
        ),
        (
            ComputeDomain(metadata=ObjectMeta(generate_name="ring-")),
            "spec.channel",
            "Required value",
        ),
        (
            ComputeDomain.model_validate({**DOMAIN, "spec": {**DOMAIN["spec"], "numNodes": -1}}),
            "spec.numNodes",
            "Invalid value: -1: should be greater than or equal to 0",
        ),
    ],
)
def test_a_problem_names_its_field(invalid: ComputeDomain, field: str, text: str) -> None:
    (problem,) = invalid.problems()
    assert (problem.field, problem.text) == (field, text)
