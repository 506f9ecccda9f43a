# SPDX-License-Identifier: Apache-2.0
"""What claims of GPUs for virtual machines get, and leave behind.

The numbers are those of the acceptance cases.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from nvdra_api.resource.claims import ClaimRef
from nvdra_cdi.cache import Cache
from nvdra_cdi.model import ContainerEdits
from nvdra_testing.node import device_holders, plugin
from nvdra_testing.node import rig as rigs
from nvdra_testing.node.passthrough_rig import GATE, PassthroughRig

VFIO, NVIDIA = "vfio-pci", "nvidia"
AUDIO, USB = "snd_hda_intel", "xhci_hcd"
COMPANIONS = {"overrides": {"gpus": [{"index": 1, "companions": ["audio", "usb", "ucsi"]}]}}
LOADED = {"vfio": {"loaded": True}}


def iommu_config(**iommu: Any) -> list[dict[str, Any]]:
    """The config of a claim of vfio devices."""
    kind = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "VfioDeviceConfig"}
    return [plugin.opaque_config({**kind, "iommu": iommu})]


PREFER_IOMMUFD = iommu_config(backendPolicy="PreferIommuFD")
WITH_CONTROL_NODE = iommu_config(backendPolicy="LegacyOnly", enableAPIDevice=True)


async def prepared(rig: PassthroughRig, claim: ClaimRef) -> Sequence[str]:
    """Prepare a claim, which must succeed. The names of its CDI devices."""
    return rigs.cdi_names((await rig.dra.prepare([claim]))[claim.uid])


async def unprepared(rig: PassthroughRig, *claims: ClaimRef) -> None:
    """Unprepare claims, which must succeed."""
    for claim in claims:
        answer = (await rig.dra.unprepare([claim]))[claim.uid]
        assert not answer.error, answer.error


def resolved(rig: PassthroughRig, *names: str) -> ContainerEdits:
    """What a container runtime finds for CDI names."""
    return Cache([rig.node.cdi]).resolve(names)


def nodes_of(rig: PassthroughRig, *names: str) -> list[str]:
    """The device nodes of CDI names, as in the container."""
    return [node.path for node in resolved(rig, *names).device_nodes]


def group_node(rig: PassthroughRig, index: int) -> str:
    """The node of a GPU's IOMMU group."""
    return f"/dev/vfio/{(rig.served.device(index) / 'iommu_group').readlink().name}"


def device_node(rig: PassthroughRig, index: int) -> str:
    """The node of a GPU's vfio device, whose number is another one after each bind."""
    (entry,) = (rig.served.device(index) / "vfio-dev").iterdir()
    return f"/dev/vfio/devices/{entry.name}"


def is_untouched(rig: PassthroughRig, index: int) -> bool:
    """Whether a GPU is as it was before all claims."""
    return (rig.driver_of(index), rig.override_of(index)) == (NVIDIA, "(null)")


def companions_of(rig: PassthroughRig, index: int) -> Mapping[str, tuple[str | None, str]]:
    """The driver and the override of the functions beside a GPU, by the end of the address."""
    gpu = rig.served.device(index)
    found = {}
    for number in "123":
        function = gpu.with_name(f"{gpu.name[:-1]}{number}")
        link = function / "driver"
        driver = link.readlink().name if link.is_symlink() else None
        found[number] = (driver, (function / "driver_override").read_text().strip())
    return found


@pytest.mark.parametrize("vfio_rig", [("t4", COMPANIONS)], indirect=True)
async def test_the_functions_beside_a_gpu_go_with_it_and_the_gpu_is_the_last_to_be_unbound(
    vfio_rig: PassthroughRig,
) -> None:
    """Case 11."""
    rig = vfio_rig
    await rig.start_passing()
    native = {"1": (AUDIO, "(null)"), "2": (USB, "(null)"), "3": (None, "(null)")}
    assert companions_of(rig, 1) == native
    claim = rig.create_claim("gpu-vfio-1")
    assert nodes_of(rig, *await prepared(rig, claim)) == [group_node(rig, 1)]
    assert companions_of(rig, 1) == dict.fromkeys("123", (VFIO, VFIO))
    writes = [span["name"] for span in rig.spans(claim, "unbind")]
    assert len(writes) == 3, "audio, USB, GPU; UCSI has no driver"
    last = rig.spans(claim, "unbind")[-1]["attributes"]["nvdra.pci"]
    assert last == rig.served.address(1)
    assert rig.spans(claim, "bind")[-1]["attributes"]["nvdra.pci"] == rig.served.address(1)
    await unprepared(rig, claim)
    assert companions_of(rig, 1) == native
    assert is_untouched(rig, 1)


async def test_of_two_gpus_the_first_is_back_before_the_answer_if_the_second_fails(
    vfio_rig: PassthroughRig,
) -> None:
    """Case 17."""
    rig = vfio_rig
    await rig.start_passing()
    fault = ("pci", "fault", rig.served.address(2))
    rig.node.simctl(*fault, "--driver=vfio-pci", "--bind-error=EIO")
    claim = rig.create_claim("gpu-vfio-1", "gpu-vfio-2")
    error = (await rig.dra.prepare([claim]))[claim.uid].error
    assert error.startswith("VfioBindFailed: gpu-vfio-2: ")
    assert is_untouched(rig, 1)
    assert is_untouched(rig, 2)
    assert not rig.recorded_claims()
    assert not list(rig.node.cdi.glob(f"*{claim.uid}*"))
    rig.node.simctl(*fault)
    names = await prepared(rig, claim)
    assert nodes_of(rig, *names) == [group_node(rig, 1), group_node(rig, 2)]
    await unprepared(rig, claim)
    assert is_untouched(rig, 1)
    assert is_untouched(rig, 2)


@pytest.mark.parametrize("vfio_rig", [("dgx-h100", {})], indirect=True)
async def test_a_claim_of_a_gpu_a_mig_device_and_a_vfio_device_gets_all_of_them(
    vfio_rig: PassthroughRig,
) -> None:
    """Case 18."""
    rig = vfio_rig
    rig.gates = (GATE, "DynamicMIG=true")
    await rig.start_passing()
    claim = rig.create_claim("gpu-0", "gpu-1-mig-1g10gb-19-0", "gpu-vfio-2")
    names = await prepared(rig, claim)
    edits = resolved(rig, *names)
    paths = {node.path for node in edits.device_nodes}
    assert {"/dev/nvidia0", "/dev/nvidia1", "/dev/nvidiactl", group_node(rig, 2)} <= paths
    assert "/dev/nvidia2" not in paths
    assert any("libcuda.so" in mount.container_path for mount in edits.mounts)
    assert rig.driver_of(2) == VFIO
    await unprepared(rig, claim)
    assert is_untouched(rig, 2)


@pytest.mark.parametrize(
    ("vfio_rig", "has_device_node"),
    [
        (("t4", {"node": {"iommu": {"iommufd": True, "cdev": True}, **LOADED}}), True),
        (("t4", {"node": {"iommu": {"iommufd": True, "cdev": False}, **LOADED}}), False),
        (("t4", {"node": {"iommu": {"iommufd": False}, **LOADED}}), False),
    ],
    indirect=["vfio_rig"],
    ids=["iommufd", "no-device-nodes", "no-iommufd"],
)
async def test_iommufd_is_used_where_the_kernel_has_all_of_it(
    vfio_rig: PassthroughRig, has_device_node: bool
) -> None:
    """Case 19."""
    rig = vfio_rig
    await rig.start_passing()
    config = iommu_config(backendPolicy="PreferIommuFD", enableAPIDevice=True)
    claim = rig.create_claim("gpu-vfio-0", "gpu-vfio-1", config=config)
    found = nodes_of(rig, *await prepared(rig, claim))
    if has_device_node:
        nodes = {"/dev/iommu", device_node(rig, 0), device_node(rig, 1)}
    else:
        nodes = {"/dev/vfio/vfio", group_node(rig, 0), group_node(rig, 1)}
    assert set(found) == nodes
    assert all((rig.served.roots.dev.parent / path.lstrip("/")).exists() for path in found)
    await unprepared(rig, claim)


@pytest.mark.parametrize("vfio_rig", [("t4", {"node": LOADED})], indirect=True)
async def test_the_names_of_a_claim_lead_to_its_gpu_after_numbers_were_swapped(
    vfio_rig: PassthroughRig,
) -> None:
    """Case 21."""
    rig = vfio_rig
    await rig.start_passing()
    claims = [rig.create_claim(f"gpu-vfio-{n}", config=PREFER_IOMMUFD) for n in (0, 1)]
    names = [await prepared(rig, claim) for claim in claims]
    before = [device_node(rig, index) for index in (0, 1)]
    assert [nodes_of(rig, *each) for each in names] == [[node] for node in before]
    await rig.stop()
    driver = rig.served.sys / "bus/pci/drivers" / VFIO
    for control, order in (("unbind", (0, 1)), ("bind", (1, 0))):
        for index in order:
            await asyncio.to_thread((driver / control).write_text, rig.served.address(index))
    after = [device_node(rig, index) for index in (0, 1)]
    assert after == before[::-1]
    await rig.start_passing()
    for index, claim in enumerate(claims):
        assert await prepared(rig, claim) == names[index]
        assert nodes_of(rig, *names[index]) == [after[index]]
    await unprepared(rig, *claims)


async def test_a_gpu_comes_back_though_the_gate_was_switched_off_while_it_was_in_use(
    vfio_rig: PassthroughRig,
) -> None:
    """Case 25."""
    rig = vfio_rig
    await rig.start_passing()
    claim = rig.create_claim("gpu-vfio-1")
    names = await prepared(rig, claim)
    group = group_node(rig, 1).rpartition("/")[2]
    vmm = (*rig.served.vmm, "device", group, rig.served.address(1))
    with device_holders.holding(vmm):
        await rig.stop()
        rig.gates = ()
        await rig.start(*rig.flags()[1:], environ=rig.environ)
        assert rig.driver_of(1) == VFIO
        assert await prepared(rig, claim) == names, "the kubelet has been restarted"
        assert not [name for name in rig.devices() if "vfio" in name]
    await unprepared(rig, claim)
    assert is_untouched(rig, 1)
    assert not rig.recorded_claims()
    await rig.wait_until(lambda: "gpu-1" in rig.devices(), "the GPU to be offered again")
    await prepared(rig, rig.create_claim("gpu-1"))


async def test_each_name_leads_to_one_node_of_vfio_and_a_control_node_only_if_asked_for(
    vfio_rig: PassthroughRig,
) -> None:
    """Case 28: Kata Containers takes the names from the kubelet and resolves each."""
    rig = vfio_rig
    await rig.start_passing()
    claim = rig.create_claim("gpu-vfio-0", "gpu-vfio-1")
    names = await prepared(rig, claim)
    assert [nodes_of(rig, name) for name in names] == [[group_node(rig, 0)], [group_node(rig, 1)]]
    assert set(resolved(rig, *names).env) == {"NVIDIA_VISIBLE_DEVICES=void"}
    asked = rig.create_claim("gpu-vfio-2", config=WITH_CONTROL_NODE)
    (name,) = await prepared(rig, asked)
    assert sorted(nodes_of(rig, name)) == sorted(["/dev/vfio/vfio", group_node(rig, 2)])
    await unprepared(rig, claim, asked)


async def test_the_parts_of_a_switch_are_steps_of_the_claims_trace(
    vfio_rig: PassthroughRig,
) -> None:
    """Case 34."""
    rig = vfio_rig
    await rig.start_passing()
    claim = rig.create_claim("gpu-vfio-1")
    await prepared(rig, claim)
    assert parts(rig, claim, "prepare") == [
        "preflight",
        "wait free",
        "close sessions",
        "wait free",
        "unbind",
        "bind",
        "reopen sessions",
        "write cdi",
    ]
    await unprepared(rig, claim)
    assert parts(rig, claim, "unprepare") == ["wait free", "unbind", "bind"]
    with device_holders.opened(rig.served.roots.dev / "nvidia1") as pid:
        refused = rig.create_claim("gpu-vfio-1")
        assert (await rig.dra.prepare([refused]))[refused.uid].error
    (step,) = rig.spans(refused, "wait free")
    (event,) = step["events"]
    assert event["attributes"]["process.pid"] == pid
    assert event["attributes"]["nvdra.uses"] == ["/dev/nvidia1"]


PARTS = frozenset(
    {
        "preflight",
        "wait free",
        "close sessions",
        "unbind",
        "bind",
        "reopen sessions",
        "write cdi",
    }
)


def parts(rig: PassthroughRig, claim: ClaimRef, operation: str) -> list[str]:
    """The parts of a switch below an operation of a claim, in the order of time."""
    (found,) = rig.spans(claim, operation)
    below = list(rigs.flatten_spans(found["children"]))
    below.sort(key=lambda span: span["offset_ms"])
    return [span["name"] for span in below if span["name"] in PARTS]
