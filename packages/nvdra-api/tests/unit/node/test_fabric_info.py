# SPDX-License-Identifier: Apache-2.0
"""What the health mask of an NVLink fabric says."""

from uuid import UUID

import pytest
from nvdra_runtime.node.nvml import FabricInfo


def told(mask: int) -> set[str]:
    """What is wrong, by the mask of a GPU whose fabric is up."""
    info = FabricInfo(state=3, status=0, cluster=UUID(int=1), clique=1, health_mask=mask)
    facts = {
        "bandwidth": info.is_bandwidth_degraded,
        "route": info.is_route_unhealthy,
        "access": info.is_access_timeout,
        "configuration": info.is_configured_incorrectly,
    }
    return {name for name, is_wrong in facts.items() if is_wrong}


@pytest.mark.parametrize(
    ("mask", "expected"),
    [
        (0, set()),  # an HGX H100
        (0x80, set()),  # an HGX B200
        (0xAA, set()),  # a GB200
        (0x1AA, set()),  # a GB300
        (0x1A9, {"bandwidth"}),
        (0x19A, {"route"}),
        (0x1BA, {"route"}),  # and it needs a reset
        (0x16A, {"access"}),
        (0x2AA, {"configuration"}),
        (0x4AA, set()),  # it has no partition yet
        (0x8AA, {"configuration"}),
        (0x359, {"bandwidth", "route", "access", "configuration"}),
    ],
)
def test_what_is_wrong_follows_from_the_bits(mask: int, expected: set[str]) -> None:
    assert told(mask) == expected
