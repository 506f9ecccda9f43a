# SPDX-License-Identifier: Apache-2.0
"""What is read from the objects of domains."""

from typing import Any

import pytest
from nvdra_api.v1beta1 import ComputeDomain
from nvdra_cd_plugin.domains.domain import domain_of

UID = "11111111-2222-3333-4444-555555555555"


@pytest.mark.parametrize(
    ("spec", "status", "is_large"),
    [
        ({"numNodes": 64}, {}, False),
        ({"numNodes": 65}, {}, True),
        ({}, {"expectedNodes": 64}, False),
        ({}, {"expectedNodes": 65}, True),
        ({}, {"nodes": [{"name": f"node-{number}"} for number in range(65)]}, True),
    ],
)
def test_a_domain_of_more_than_64_nodes_has_a_trace_for_each_member(
    spec: dict[str, Any], status: dict[str, Any], is_large: bool
) -> None:
    stored = {
        "metadata": {"namespace": "team-a", "name": "ring", "uid": UID},
        "spec": spec,
        "status": status,
    }
    assert domain_of(ComputeDomain.model_validate(stored)).has_member_traces is is_large
