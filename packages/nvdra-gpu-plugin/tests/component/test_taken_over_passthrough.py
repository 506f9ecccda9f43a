# SPDX-License-Identifier: Apache-2.0
"""A virtual machine that the reference driver has given a GPU lives on, and gives it back."""

import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from uuid import uuid4

import pytest_asyncio
from nvdra_testing.control_plane.apiserver import ApiServer
from nvdra_testing.kubelet.checkpoint_file import CheckpointFile
from nvdra_testing.node import passthrough_rig, reference_claims
from nvdra_testing.node.passthrough_rig import PassthroughRig
from nvdra_testing.node.rig import cdi_names

VFIO = "vfio-pci"


@pytest_asyncio.fixture
async def rig(server: ApiServer) -> AsyncIterator[PassthroughRig]:
    async with passthrough_rig.open_rig(server, f"node-{uuid4().hex[:6]}") as rig:
        yield rig


def bind_as_the_reference(rig: PassthroughRig, index: int, override: str) -> None:
    """Bind a GPU to vfio-pci by the writes of `nvpassthrough`; `override` empty: by its ids."""
    subprocess.run([*rig.served.kmod("modprobe"), "vfio-pci"], check=True)
    address, drivers = rig.served.address(index), rig.served.sys / "bus/pci/drivers"
    device = rig.served.device(index)
    (device / "driver_override").write_text(VFIO)
    (drivers / "nvidia/unbind").write_text(address)
    (drivers / VFIO / "bind").write_text(address)
    (device / "driver_override").write_text(override or "\n")


@contextmanager
def machine_of(rig: PassthroughRig, index: int) -> Iterator[subprocess.Popen[bytes]]:
    """The stand-in of a virtual machine that has a GPU open."""
    group = (rig.served.device(index) / "iommu_group").readlink().name
    command = (*rig.served.vmm, "device", group, rig.served.address(index))
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as machine:
        assert machine.stdout is not None
        assert machine.stdout.readline()
        yield machine


async def test_a_gpu_that_the_reference_has_bound_goes_back_to_the_driver_when_its_machine_ends(
    rig: PassthroughRig,
) -> None:
    """Case 29."""
    bind_as_the_reference(rig, 1, VFIO)
    kubelet = CheckpointFile(rig.node.kubelet)
    claim = reference_claims.hold(rig, kubelet, "gpu-vfio-1")
    with machine_of(rig, 1) as machine:
        await rig.start_passing()
        await rig.wait_until(lambda: len(rig.recorded_claims()) == 1, "the record")
        again = (await rig.dra.prepare([claim]))[claim.uid]
        assert not again.error
        kind, name = reference_claims.KIND, reference_claims.name_of(claim, "gpu-vfio-1")
        assert list(cdi_names(again)) == [f"{kind}={name}"]
        refused = (await rig.dra.unprepare([claim]))[claim.uid].error
        assert refused.startswith("VfioDeviceBusy: "), refused
        assert f"(pid {machine.pid})" in refused
        assert rig.driver_of(1) == VFIO
        machine.terminate()
    assert not (await rig.dra.unprepare([claim]))[claim.uid].error
    assert rig.driver_of(1) == "nvidia"
    assert rig.override_of(1) == "(null)"
    await rig.wait_until(lambda: "gpu-1" in rig.devices(), "the GPU to be offered")


async def test_a_gpu_that_was_bound_at_boot_stays_on_vfio_when_its_claim_ends(
    rig: PassthroughRig,
) -> None:
    """Cases 14 and 29."""
    bind_as_the_reference(rig, 2, "")
    kubelet = CheckpointFile(rig.node.kubelet)
    claim = reference_claims.hold(rig, kubelet, "gpu-vfio-2")
    await rig.start_passing()
    await rig.wait_until(lambda: len(rig.recorded_claims()) == 1, "the record")
    assert not (await rig.dra.unprepare([claim]))[claim.uid].error
    assert rig.driver_of(2) == VFIO
    assert {"gpu-vfio-2"} == {name for name in rig.devices() if name.endswith("-2")}
