# SPDX-License-Identifier: Apache-2.0
"""GPUs whose MIG mode an administrator switches while the plugin runs."""

import pytest
from nvdra_testing.node.rig import Rig

ALL = {f"gpu-{minor}" for minor in range(8)}


async def offered(rig: Rig, devices: set[str]) -> None:
    await rig.wait_until(lambda: set(rig.devices()) == devices, f"{sorted(devices)}")


async def test_a_board_that_was_turned_to_mig_mode_is_not_handed_out_whole(rig: Rig) -> None:
    await rig.start()
    held, claim, other = (rig.create_claim(f"gpu-{minor}") for minor in (2, 3, 4))
    before = (await rig.dra.prepare([held]))[held.uid]
    for index in ("2", "3"):
        assert "Enabled MIG Mode" in rig.node.nvidia_smi("-i", index, "-mig", "1")
    text = (await rig.dra.prepare([claim]))[claim.uid].error
    assert text.startswith("UnknownDevice: ")
    assert "in MIG mode" in text
    assert claim.uid not in rig.recorded_claims()
    text = (await rig.dra.prepare([held]))[held.uid].error
    assert text.startswith("UnknownDevice: gpu-2")
    assert not (await rig.dra.prepare([other]))[other.uid].error
    await offered(rig, ALL - {"gpu-2", "gpu-3"})
    for index in ("2", "3"):
        rig.node.nvidia_smi("-i", index, "-mig", "0")
    await offered(rig, ALL)
    assert (await rig.dra.prepare([held]))[held.uid] == before
    assert not (await rig.dra.prepare([claim]))[claim.uid].error


async def test_a_switch_of_the_mig_mode_that_no_claim_meets_is_published(rig: Rig) -> None:
    await rig.start()
    rig.node.nvidia_smi("-i", "5", "-mig", "1")
    await offered(rig, ALL - {"gpu-5"})
    assert "gpu-5" in rig.process.log.read_text().split("A GPU in MIG mode has no MIG device")[1]


@pytest.mark.parametrize("rig", ["dgx-a100"], indirect=True)
async def test_a_board_that_changes_its_mode_with_the_next_reset_is_whole_until_then(
    rig: Rig,
) -> None:
    await rig.start()
    assert "pending enable state" in rig.node.nvidia_smi("-i", "3", "-mig", "1")
    claim = rig.create_claim("gpu-3")
    assert not (await rig.dra.prepare([claim]))[claim.uid].error
    assert set(rig.devices()) == ALL
