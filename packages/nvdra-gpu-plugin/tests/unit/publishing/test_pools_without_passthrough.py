# SPDX-License-Identifier: Apache-2.0
"""Without vfio devices, slices are those of the release before there were any, byte by byte."""

import json
from pathlib import Path
from typing import Any, Final

import pytest
from nvdra_api.gates import FeatureGates
from nvdra_api.ids import NodeName
from nvdra_gpu_plugin.devices.inventory import Inventory
from nvdra_gpu_plugin.publishing import layout
from nvdra_gpu_plugin.share_policy import SharePolicy
from nvdra_runtime.resourceslices.arrangement import COMBINED, SPLIT
from nvdra_testing.hardware.gpus import divisible, h100, in_mig_mode

GOLDEN: Final = Path(__file__).parents[1] / "golden/pools-before-passthrough.json"
"""Made by the code of cc5bc407, the last commit without vfio devices, with `found` below."""

INVENTORIES: Final = {
    "none": Inventory(),
    "whole": Inventory((h100(0), h100(1))),
    "mixed": Inventory((h100(0), in_mig_mode(1, (9, 0), (19, 4)), divisible(2, (19, 0), (9, 4)))),
}
LIMITS: Final = {"no counters": None, "combined": COMBINED, "split": SPLIT}
POLICIES: Final = {"exclusive": None, "4 shares": SharePolicy(shares=4)}


def found(inventory: str, limits: str, policy: str) -> list[Any]:
    pool = layout.pool(
        INVENTORIES[inventory],
        FeatureGates(),
        NodeName("node-a"),
        limits=LIMITS[limits],
        policy=POLICIES[policy],
    )
    return [
        {
            "devices": [
                each.model_dump(mode="json", by_alias=True, exclude_none=True)
                for each in slice_.devices
            ],
            "sharedCounters": [
                each.model_dump(mode="json", by_alias=True, exclude_none=True)
                for each in slice_.shared_counters
            ],
        }
        for slice_ in pool.slices
    ]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("limits", LIMITS)
@pytest.mark.parametrize("inventory", INVENTORIES)
def test_a_node_without_vfio_devices_publishes_what_it_did_before(
    inventory: str, limits: str, policy: str
) -> None:
    expected = json.loads(GOLDEN.read_text())[f"{inventory}, {limits}, {policy}"]
    assert json.dumps(found(inventory, limits, policy)) == json.dumps(expected)
