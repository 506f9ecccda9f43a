# SPDX-License-Identifier: Apache-2.0
"""What a claim says about where its domain is."""

import pytest
from nvdra_runtime.computedomain import claim_annotations
from nvdra_runtime.computedomain.claim_annotations import NamespacedName


@pytest.mark.parametrize("name", ["ring", "ring.of-18", "0"])
def test_what_the_controller_writes_is_read(name: str) -> None:
    written = claim_annotations.annotations("team-a", name)
    assert claim_annotations.domain_of(written) == NamespacedName("team-a", name)
    assert set(written) == {"nvdra.nvidia.com/domain-namespace", "nvdra.nvidia.com/domain-name"}


def test_a_claim_of_the_reference_drivers_template_says_nothing() -> None:
    assert claim_annotations.domain_of({}) is None
    assert claim_annotations.domain_of({"nvdra.nvidia.com/domain-name": "ring"}) is None
    assert claim_annotations.domain_of({"nvdra.nvidia.com/domain-namespace": "team-a"}) is None


@pytest.mark.parametrize(
    "text", ["", "..", "a/b", "a?b", "a%2fb", "A", "ring\n", "-a", "a..b", "x" * 254]
)
def test_no_text_that_would_change_a_path_is_read(text: str) -> None:
    assert claim_annotations.domain_of(claim_annotations.annotations("team-a", text)) is None
    assert claim_annotations.domain_of(claim_annotations.annotations(text, "ring")) is None
