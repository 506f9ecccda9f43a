# SPDX-License-Identifier: Apache-2.0
"""ComputeDomainDaemonConfig: the domain ID."""

from nvdra_api.gates import FeatureGates
from nvdra_api.v1beta1 import ComputeDomainDaemonConfig

GATES = FeatureGates()


def test_the_domain_id_must_not_be_empty() -> None:
    (problem,) = ComputeDomainDaemonConfig().problems(GATES)
    assert (problem.field, problem.text) == ("domainID", "domainID cannot be empty")


def test_a_config_has_no_implied_defaults() -> None:
    config = ComputeDomainDaemonConfig(domain_id="not-needed-for-test")
    assert config.normalized(GATES) == config
    assert config.problems(GATES) == ()
