# SPDX-License-Identifier: Apache-2.0
"""GPUs go to virtual machines and come back; the numbers are those of the acceptance cases."""

import asyncio
import signal
from collections.abc import AsyncIterator
from uuid import uuid4

import pytest_asyncio
import yaml
from nvdra_api.ids import PciAddress
from nvdra_gpu_plugin.driver import persistenced
from nvdra_runtime.node.host import Host
from nvdra_testing.control_plane.apiserver import ApiServer
from nvdra_testing.node import passthrough_rig
from nvdra_testing.node.passthrough_rig import PassthroughRig

VFIO = "vfio-pci"
NVIDIA = "nvidia"


@pytest_asyncio.fixture
async def rig(server: ApiServer) -> AsyncIterator[PassthroughRig]:
    async with passthrough_rig.open_rig(server, f"node-{uuid4().hex[:6]}") as rig:
        yield rig


async def test_a_gpu_is_offered_in_both_forms_on_one_counter_set(rig: PassthroughRig) -> None:
    """Case 1."""
    await rig.start_passing()
    devices = rig.devices()
    assert sorted(devices) == [
        *(f"gpu-{number}" for number in range(4)),
        *(f"gpu-vfio-{number}" for number in range(4)),
    ]
    for number in range(4):
        whole, vfio = devices[f"gpu-{number}"], devices[f"gpu-vfio-{number}"]
        assert whole["consumesCounters"] == vfio["consumesCounters"]


async def test_a_gpu_goes_to_vfio_and_comes_back(rig: PassthroughRig) -> None:
    """Case 2."""
    await rig.start_passing()
    claim = rig.create_claim("gpu-vfio-1")
    result = (await rig.dra.prepare([claim]))[claim.uid]
    assert not result.error, result.error
    assert rig.driver_of(1) == VFIO
    (spec,) = rig.node.cdi.glob(f"*{claim.uid}*")
    (device,) = yaml.safe_load(spec.read_text())["devices"]
    nodes = [node["path"] for node in device["containerEdits"]["deviceNodes"]]
    assert nodes == [f"/dev/vfio/{rig.devices()['gpu-vfio-1']['attributes']['iommuGroup']['int']}"]
    assert not (await rig.dra.unprepare([claim]))[claim.uid].error
    assert rig.driver_of(1) == NVIDIA
    assert rig.override_of(1) == "(null)"
    assert not rig.recorded_claims()
    whole = rig.create_claim("gpu-1")
    assert not (await rig.dra.prepare([whole]))[whole.uid].error


async def test_a_gpu_that_nvidia_persistenced_keeps_goes_to_vfio_and_is_kept_afterwards(
    rig: PassthroughRig,
) -> None:
    with rig.served.persistenced():
        await rig.start_passing()
        claim = rig.create_claim("gpu-vfio-1")
        prepared = (await rig.dra.prepare([claim]))[claim.uid]
        assert not prepared.error, prepared.error
        assert rig.driver_of(1) == VFIO
        assert not (await rig.dra.unprepare([claim]))[claim.uid].error
        assert rig.driver_of(1) == NVIDIA
        host = Host(driver_root=rig.served.roots.driver)
        assert persistenced.is_keeping(host, PciAddress(rig.served.address(1)))
        assert not rig.served.state.snapshot().gpus[1].drained


async def test_what_is_published_is_the_same_while_a_gpu_is_on_vfio_and_after_a_restart(
    rig: PassthroughRig,
) -> None:
    """Case 30."""
    await rig.start_passing()
    before = rig.slices()
    claim = rig.create_claim("gpu-vfio-1")
    first = (await rig.dra.prepare([claim]))[claim.uid]
    assert not first.error
    await asyncio.sleep(6)
    assert rig.slices() == before
    rig.process.stop(signal.SIGKILL)
    await rig.kubelet.restart()
    await rig.start_passing()
    assert rig.slices() == before
    assert (await rig.dra.prepare([claim]))[claim.uid] == first
    assert rig.driver_of(1) == VFIO
    assert not (await rig.dra.unprepare([claim]))[claim.uid].error
    assert rig.driver_of(1) == NVIDIA
    await asyncio.sleep(6)
    assert rig.slices() == before
