# SPDX-License-Identifier: Apache-2.0
"""A GPU that cannot go to a virtual machine: the answer has the device, the cause and the remedy.

Case 35 of the acceptance cases. Such devices are not offered, but a claim may have been allocated
one before. `tests/unit/passthrough/test_boards.py` has all causes.
"""

import pytest
from nvdra_sim.testing import passthrough_fixtures
from nvdra_testing.node import device_holders
from nvdra_testing.node.passthrough_rig import PassthroughRig

VFIO, NVIDIA, AUDIO = "vfio-pci", "nvidia", "snd_hda_intel"
IMPOSSIBLE = "VfioNotPossible: "
BUSY = "VfioDeviceBusy: "

_PAIR = passthrough_fixtures.PAIR_BEHIND_A_SWITCH
_WITH_AUDIO = {"index": 1, "companions": ["audio"]}
PAIR_AND_AUDIO = {**_PAIR, "overrides": {"gpus": [_WITH_AUDIO, *_PAIR["overrides"]["gpus"]]}}
"""With a board that has a further function, and so a driver that has nothing to do with GPUs."""
IN_MIG_MODE = {"overrides": {"gpus": [{"index": 1, "mig": {"mode": True}}]}}


async def refusal(rig: PassthroughRig, device: str) -> str:
    """Why a claim of a device is not prepared. Nothing is left of it."""
    claim = rig.create_claim(device)
    error = str((await rig.dra.prepare([claim]))[claim.uid].error)
    assert claim.uid not in rig.recorded_claims()
    return error


def write(rig: PassthroughRig, control: str, text: str) -> None:
    """Write to a control below the PCI bus."""
    (rig.served.sys / "bus/pci" / control).write_text(text)


@pytest.mark.parametrize("vfio_rig", [("t4", PAIR_AND_AUDIO)], indirect=True)
async def test_a_gpu_is_refused_for_what_has_it_or_is_beside_it(vfio_rig: PassthroughRig) -> None:
    rig = vfio_rig
    pci = rig.served.address
    for index in (0, 1):  # before NVML is open, which would keep them
        write(rig, f"drivers/{NVIDIA}/unbind", pci(index))
    write(rig, f"devices/{pci(0)}/driver_override", AUDIO)
    write(rig, f"drivers/{AUDIO}/bind", pci(0))
    await rig.start_passing()
    foreign = await refusal(rig, "gpu-vfio-0")
    assert foreign.startswith(f"{IMPOSSIBLE}gpu-vfio-0: GPU {pci(0)} cannot be passed through: ")
    assert f"the driver {AUDIO} has it" in foreign
    assert "keep that driver from loading" in foreign
    free = await refusal(rig, "gpu-vfio-1")
    assert free.startswith(f"{IMPOSSIBLE}gpu-vfio-1: GPU {pci(1)} cannot be passed through: ")
    assert "no driver has it" in free
    assert "load the NVIDIA driver" in free
    shared = await refusal(rig, "gpu-vfio-2")
    assert shared.startswith(f"{IMPOSSIBLE}gpu-vfio-2: GPU {pci(2)} cannot be passed through: ")
    assert f"has {pci(3)} (nvidia), too" in shared
    assert "enable ACS" in shared
    assert [rig.driver_of(index) for index in range(4)] == [AUDIO, None, NVIDIA, NVIDIA]


@pytest.mark.parametrize(
    ("vfio_rig", "cause", "remedy"),
    [
        (
            ("t4", {"node": {"iommu": {"enabled": False}}}),
            "the node has no IOMMU groups",
            "enable the IOMMU in the firmware",
        ),
        (
            ("t4", {"node": {"vfio": {"missing": ["vfio_pci"]}}}),
            "the kernel has no module that drives it for vfio",
            "install the module vfio-pci for the running kernel",
        ),
    ],
    indirect=["vfio_rig"],
    ids=["no-iommu", "no-module"],
)
async def test_a_gpu_is_refused_for_what_the_node_lacks(
    vfio_rig: PassthroughRig, cause: str, remedy: str
) -> None:
    rig = vfio_rig
    await rig.start_passing()
    error = await refusal(rig, "gpu-vfio-1")
    name = f"gpu-vfio-1: GPU {rig.served.address(1)}"
    assert error.startswith(f"{IMPOSSIBLE}{name} cannot be passed through: {cause}")
    assert remedy in error


@pytest.mark.parametrize("vfio_rig", [("dgx-h100", IN_MIG_MODE)], indirect=True)
async def test_a_gpu_in_mig_mode_is_refused_where_the_driver_does_not_switch_it(
    vfio_rig: PassthroughRig,
) -> None:
    rig = vfio_rig
    await rig.start_passing()
    error = await refusal(rig, "gpu-vfio-1")
    assert error.startswith(f"{IMPOSSIBLE}gpu-vfio-1: ")
    assert "it is in MIG mode, or has MIG devices" in error
    assert "enable the gate DynamicMIG" in error
    assert rig.driver_of(1) == NVIDIA


@pytest.mark.parametrize("vfio_rig", [("t4", {"node": {"vfio": {"loaded": True}}})], indirect=True)
async def test_a_gpu_that_another_programs_machine_has_is_refused_with_its_process(
    vfio_rig: PassthroughRig,
) -> None:
    rig = vfio_rig
    pci = rig.served.address(1)
    write(rig, f"drivers/{NVIDIA}/unbind", pci)
    write(rig, f"devices/{pci}/driver_override", VFIO)
    write(rig, f"drivers/{VFIO}/bind", pci)
    await rig.start_passing()
    group = (rig.served.device(1) / "iommu_group").readlink().name
    with device_holders.holding((*rig.served.vmm, "device", group, pci)) as pid:
        error = await refusal(rig, "gpu-vfio-1")
    assert error.startswith(f"{BUSY}gpu-vfio-1: GPU {pci} is in use on the node: ")
    assert f"(pid {pid})" in error
    claim = rig.create_claim("gpu-vfio-1")
    assert not (await rig.dra.prepare([claim]))[claim.uid].error
    assert not (await rig.dra.unprepare([claim]))[claim.uid].error
    assert (rig.driver_of(1), rig.override_of(1)) == (VFIO, VFIO)
