# SPDX-License-Identifier: Apache-2.0
"""ComputeDomainChannelConfig: the domain ID and the allocation mode."""

from nvdra_api.gates import FeatureGates
from nvdra_api.v1beta1 import ComputeDomainChannelConfig

GATES = FeatureGates()


def test_the_domain_id_must_not_be_empty() -> None:
    (problem,) = ComputeDomainChannelConfig().problems(GATES)
    assert (problem.field, problem.text) == ("domainID", "domainID cannot be empty")


def test_a_domain_id_that_is_no_uuid_is_valid() -> None:
    assert ComputeDomainChannelConfig(domain_id="not-needed-for-test").problems(GATES) == ()


def test_the_default_is_one_channel() -> None:
    normalized = ComputeDomainChannelConfig(domain_id="x").normalized(GATES)
    assert normalized.allocation_mode == "Single"


def test_a_problem_with_the_allocation_mode_names_the_valid_ones() -> None:
    config = ComputeDomainChannelConfig(domain_id="x", allocation_mode="Some")
    (problem,) = config.problems(GATES)
    assert problem.text == (
        "unknown allocation mode: Some, supported allocation modes: Single, All"
    )
