# SPDX-License-Identifier: Apache-2.0
"""Prepared claims stay prepared when the plugin or the kubelet restarts."""

import signal

import pytest
from nvdra_testing.node.rig import Rig


@pytest.mark.protocol("R3", "P30")
async def test_a_prepared_claim_gives_the_same_devices_after_the_plugin_restarts(rig: Rig) -> None:
    await rig.start()
    claim = rig.create_claim("gpu-0", "gpu-1")
    before = (await rig.dra.prepare([claim]))[claim.uid]
    assert not before.error
    assert rig.process.stop() == 0
    await rig.kubelet.wait_deregistered("gpu.nvidia.com")
    await rig.start()
    after = (await rig.dra.prepare([claim]))[claim.uid]
    assert before.SerializeToString(deterministic=True) == after.SerializeToString(
        deterministic=True
    )


async def test_a_killed_plugin_still_knows_who_holds_a_gpu(rig: Rig) -> None:
    await rig.start()
    held, other = rig.create_claim("gpu-0"), rig.create_claim("gpu-0")
    assert not (await rig.dra.prepare([held]))[held.uid].error
    rig.process.stop(signal.SIGKILL)
    await rig.kubelet.restart()
    await rig.start()
    refused = await rig.dra.refusal(other, timeout_s=5)
    assert refused.startswith(f"DeviceInUse: gpu-0 is held by claim default/{held.name}")
    assert not (await rig.dra.unprepare([held]))[held.uid].error
    assert not (await rig.dra.prepare([other]))[other.uid].error


@pytest.mark.protocol("R2", "P30")
async def test_a_kubelet_that_restarts_gets_the_same_answer(rig: Rig) -> None:
    await rig.start()
    claim = rig.create_claim("gpu-2")
    before = (await rig.dra.prepare([claim]))[claim.uid]
    assert not before.error
    await rig.kubelet.restart()
    rig.dra = await rig.kubelet.wait_registered("gpu.nvidia.com")
    assert (await rig.dra.prepare([claim]))[claim.uid] == before


async def test_a_cdi_spec_that_was_removed_is_there_again_after_a_repeated_prepare(
    rig: Rig,
) -> None:
    await rig.start()
    claim = rig.create_claim("gpu-2")
    await rig.dra.prepare([claim])
    (spec,) = rig.node.cdi.glob("*.yaml")
    content = spec.read_bytes()
    spec.unlink()
    assert not (await rig.dra.prepare([claim]))[claim.uid].error
    assert spec.read_bytes() == content


@pytest.mark.protocol("S4")
async def test_slices_stay_when_the_plugin_stops_and_are_not_written_when_it_starts(
    rig: Rig,
) -> None:
    await rig.start()
    before = [slice_["metadata"] for slice_ in rig.slices()]
    assert rig.process.stop() == 0
    await rig.kubelet.wait_deregistered("gpu.nvidia.com")
    await rig.start()
    assert [slice_["metadata"] for slice_ in rig.slices()] == before


async def test_a_claim_that_is_held_is_answered_without_an_api_server(rig: Rig) -> None:
    await rig.start()
    claim = rig.create_claim("gpu-5")
    before = (await rig.dra.prepare([claim]))[claim.uid]
    assert not before.error
    rig.server.request(
        "DELETE", f"/apis/resource.k8s.io/v1/namespaces/default/resourceclaims/{claim.name}"
    )
    assert (await rig.dra.prepare([claim]))[claim.uid] == before
    assert not (await rig.dra.unprepare([claim]))[claim.uid].error
