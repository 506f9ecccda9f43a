# SPDX-License-Identifier: Apache-2.0
"""What GPUs and slices must be, for the property test."""

from collections.abc import Iterable
from pathlib import Path

import pytest
from nvdra_api.ids import ClaimUID
from nvdra_api.resource.claims import ClaimRef
from nvdra_sim.installation import Roots
from nvdra_testing.crash_campaigns import node_agreement
from nvdra_testing.crash_campaigns.claim_model import ModelClaim
from nvdra_testing.crash_campaigns.gpu_incidents import LOST, XID, GpuIncidents, Incident
from nvdra_testing.crash_campaigns.node_agreement import GpuModes
from nvdra_testing.node.plugin import Node

DEVICES = {"gpu-0", "gpu-1", "gpu-1-mig-1g10gb-19-0"}


def claim(*devices: str, **asked: object) -> ModelClaim:
    made = tuple(each for each in devices if "-mig-" in each)
    ref = ClaimRef("default", "a", ClaimUID("uid"))
    found = ModelClaim(ref, devices, is_admin=False, made=made)
    for name, value in asked.items():
        setattr(found, name, value)
    return found


def test_a_gpu_has_the_instances_of_its_claims_and_those_of_an_administrator() -> None:
    prepared = [claim("gpu-0-mig-1g10gb-19-0", "gpu-1"), claim("gpu-2", interval="Long")]
    static = ["gpu-0-mig-3g40gb-9-4"]
    assert node_agreement.wanted_modes("gpu-0", prepared, static) == GpuModes(
        frozenset({("1g.10gb", 0), ("3g.40gb", 4)}), is_in_mig_mode=True
    )
    assert node_agreement.wanted_modes("gpu-1", prepared, static) == GpuModes()
    assert node_agreement.wanted_modes("gpu-2", prepared, static) == GpuModes(time_slice="Long")


def test_a_whole_gpu_with_a_daemon_is_exclusive_and_one_that_is_watched_is_not() -> None:
    daemon, watched = claim("gpu-0", has_daemon=True), claim("gpu-1", is_admin=True)
    assert node_agreement.wanted_modes("gpu-0", [daemon], ()) == GpuModes(is_exclusive=True)
    assert node_agreement.wanted_modes("gpu-1", [watched], ()) == GpuModes()


def offered(devices: Iterable[str], *taints: str) -> dict[str, set[str]]:
    return {device: set(taints) for device in devices}


@pytest.fixture
def incidents(tmp_path: Path) -> GpuIncidents:
    return GpuIncidents(Node("node", Roots.below(tmp_path), tmp_path, tmp_path))


def test_the_slices_of_a_node_whose_gpus_are_well_have_all_devices_and_no_taint(
    incidents: GpuIncidents,
) -> None:
    assert not incidents.find_problem(offered(DEVICES), DEVICES)
    assert "lack" in incidents.find_problem({"gpu-0": set()}, DEVICES)
    tainted = {**offered(DEVICES), "gpu-0": {XID}}
    assert "has the taints" in incidents.find_problem(tainted, DEVICES)


def test_a_gpu_that_is_unplugged_is_not_offered_and_a_lost_one_is_tainted(
    incidents: GpuIncidents,
) -> None:
    incidents.present = {"gpu-0": Incident.UNPLUGGED, "gpu-1": Incident.LOSS}
    of_gpu_1 = DEVICES - {"gpu-0"}
    assert not incidents.find_problem(offered(of_gpu_1, LOST), DEVICES)
    assert not incidents.find_problem({}, DEVICES), "it was never described"
    assert "has the taints" in incidents.find_problem(offered(of_gpu_1), DEVICES)
    assert "have" in incidents.find_problem(offered(DEVICES, LOST), DEVICES)
