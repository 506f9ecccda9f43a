# SPDX-License-Identifier: Apache-2.0
"""A node is rebooted while claims are prepared: /var/run/cdi is empty, the hardware may differ.

Kubelets before 1.37 do not prepare such a claim again. So names are looked up in the CDI specs
before any call is made.
"""

import re
import signal
from collections.abc import Sequence
from typing import Any

import pytest
from nvdra_api.resource.claims import ClaimRef
from nvdra_cdi.cache import Cache
from nvdra_cdi.errors import CDIError
from nvdra_cdi.model import ContainerEdits
from nvdra_testing.hardware import driver_installation
from nvdra_testing.node.rig import Rig, cdi_names

NEWER = "590.44.1"
FREE_NAME = "gpu-32"
"""Of the first GPU whose minor number is in the name that a claim holds another GPU by."""
HEALTH = "--feature-gates=NVMLDeviceHealthCheck=true"
DYNAMIC_MIG = "--feature-gates=DynamicMIG=true"
XID = "gpu.nvidia.com/xid"


async def rebooted(rig: Rig, *flags: str, **changes: Any) -> None:
    """Cut the power, and wait until the plugin of the next boot has looked at the hardware."""
    rig.process.stop(signal.SIGKILL)
    driver_installation.reboot(rig.node, **changes)
    await rig.kubelet.restart()
    await rig.start(*flags)


def edits_of(rig: Rig, names: Sequence[str]) -> ContainerEdits | None:
    """What the runtime does for these names; None if it does not know them."""
    try:
        return Cache([str(rig.node.cdi)]).resolve(list(names))
    except CDIError:
        return None


def nodes_of(rig: Rig, names: Sequence[str]) -> set[str]:
    found = edits_of(rig, names)
    return set() if found is None else {node.path for node in found.device_nodes}


def uuid_of(rig: Rig, device: str) -> str:
    return str(rig.devices()[device]["attributes"]["uuid"]["string"])


def uuid_of_gpu(rig: Rig, device: str) -> str:
    """Of the GPU that a device is, or is a part of."""
    attributes = rig.devices()[device]["attributes"]
    return str(attributes.get("parentUUID", attributes.get("uuid"))["string"])


def taint_keys(rig: Rig, device: str) -> set[str]:
    return {each["key"] for each in rig.devices()[device].get("taints") or ()}


async def prepared(rig: Rig, *devices: str, **how: Any) -> tuple[ClaimRef, Any]:
    claim = rig.create_claim(*devices, **how)
    answer = (await rig.dra.prepare([claim]))[claim.uid]
    assert not answer.error
    return claim, answer


async def test_a_held_claim_has_its_answer_and_a_spec_with_the_device_numbers_of_this_boot(
    rig: Rig,
) -> None:
    await rig.start()
    claim, before = await prepared(rig, "gpu-1", "gpu-4", pod_uid="p")
    await rebooted(rig, uvm_major=511)
    found = edits_of(rig, cdi_names(before))
    assert found is not None
    assert {node.path: node.major for node in found.device_nodes}["/dev/nvidia-uvm"] == 511
    assert (await rig.dra.prepare([claim]))[claim.uid] == before
    _, sibling = await prepared(rig, "gpu-2", pod_uid="p")
    assert edits_of(rig, [*cdi_names(before), *cdi_names(sibling)]) is not None
    assert not (await rig.dra.unprepare([claim]))[claim.uid].error


@pytest.mark.soak
async def test_a_held_claim_has_its_answer_and_the_driver_that_was_upgraded_with_the_reboot(
    rig: Rig,
) -> None:
    await rig.start()
    claim, before = await prepared(rig, "gpu-1", pod_uid="p")
    await rebooted(rig, version=NEWER, uvm_major=511)
    found = edits_of(rig, cdi_names(before))
    assert found is not None
    libraries = [mount.container_path for mount in found.mounts if "libcuda.so" in mount.host_path]
    assert libraries
    assert all(NEWER in library for library in libraries)
    assert (await rig.dra.prepare([claim]))[claim.uid] == before
    _, sibling = await prepared(rig, "gpu-2", pod_uid="p")
    assert edits_of(rig, [*cdi_names(before), *cdi_names(sibling)]) is not None
    # Only the first start of a boot finds records of another one; the next starts go on from there.
    await rig.stop()
    await rig.start()
    assert edits_of(rig, cdi_names(before)) == found
    assert (await rig.dra.prepare([claim]))[claim.uid] == before
    assert not (await rig.dra.unprepare([claim]))[claim.uid].error
    await rig.wait_until(lambda: edits_of(rig, cdi_names(before)) is None, "its names to go")


@pytest.mark.soak
async def test_a_held_claim_has_no_spec_without_nvidia_uvm_until_it_is_loaded(rig: Rig) -> None:
    """A container that started without it would find no CUDA; the kubelet repeats its start."""
    await rig.start()
    claim, before = await prepared(rig, "gpu-1")
    await rebooted(rig, uvm_loaded=False)
    assert edits_of(rig, cdi_names(before)) is None
    text = await rig.dra.refusal(claim)
    assert text.startswith("DeviceNodeMissing: gpu-1")
    driver_installation.load_uvm(rig.node, major=511)
    await rig.wait_until(lambda: edits_of(rig, cdi_names(before)) is not None, "its names")
    assert "/dev/nvidia-uvm" in nodes_of(rig, cdi_names(before))
    assert (await rig.dra.prepare([claim]))[claim.uid] == before


@pytest.mark.soak
async def test_a_gpu_that_has_another_minor_number_keeps_the_name_that_a_claim_holds(
    rig: Rig,
) -> None:
    await rig.start(HEALTH)
    claim, before = await prepared(rig, "gpu-0")
    ours, other = uuid_of(rig, "gpu-0"), uuid_of(rig, "gpu-1")
    swapped = {"gpus": [{"index": 0, "minor": 1}, {"index": 1, "minor": 0}]}
    await rebooted(rig, HEALTH, overrides=swapped)
    assert uuid_of(rig, "gpu-0") == ours
    assert uuid_of(rig, FREE_NAME) == other
    assert "gpu-1" not in rig.devices()
    nodes = nodes_of(rig, cdi_names(before))
    assert "/dev/nvidia1" in nodes
    assert "/dev/nvidia0" not in nodes
    assert (await rig.dra.prepare([claim]))[claim.uid] == before
    _, others = await prepared(rig, FREE_NAME)
    assert "/dev/nvidia0" in nodes_of(rig, cdi_names(others))

    # Health and taints reach the pod that has the GPU.
    rig.node.simctl("xid", "0", "48")
    await rig.wait_until(lambda: taint_keys(rig, "gpu-0") == {XID}, "the taint of the claim's GPU")
    assert taint_keys(rig, FREE_NAME) == set()

    # The names last for the boot, also those that no claim holds any more.
    assert not (await rig.dra.unprepare([claim]))[claim.uid].error
    await rig.stop()
    await rig.start(HEALTH)
    assert uuid_of(rig, "gpu-0") == ours
    assert uuid_of(rig, FREE_NAME) == other


async def test_where_a_board_has_gone_and_the_minors_close_up_each_held_gpu_has_its_name(
    rig: Rig,
) -> None:
    await rig.start()
    claim, before = await prepared(rig, "gpu-4")
    uuids = [uuid_of(rig, f"gpu-{minor}") for minor in range(8)]
    closed_up = [{"index": index, "uuid": uuids[index + 1]} for index in range(7)]
    await rebooted(rig, overrides={"gpu_count": 7, "gpus": closed_up})
    assert {device: uuid_of(rig, device) for device in rig.devices()} == {
        "gpu-0": uuids[1],
        "gpu-1": uuids[2],
        "gpu-2": uuids[3],
        "gpu-4": uuids[4],  # held
        FREE_NAME: uuids[5],  # its minor number is 4
        "gpu-5": uuids[6],
        "gpu-6": uuids[7],
    }
    assert "/dev/nvidia3" in nodes_of(rig, cdi_names(before))
    assert (await rig.dra.prepare([claim]))[claim.uid] == before


async def test_a_gpu_with_mig_devices_of_a_claim_is_offered_under_no_other_name(rig: Rig) -> None:
    await rig.start(DYNAMIC_MIG)
    claim, before = await prepared(rig, "gpu-0-mig-3g40gb-9-4")
    ours, other = uuid_of(rig, "gpu-0"), uuid_of(rig, "gpu-1")
    swapped = {"gpus": [{"index": 0, "minor": 1}, {"index": 1, "minor": 0}]}
    await rebooted(rig, DYNAMIC_MIG, overrides=swapped)
    names = {name for name in rig.devices() if uuid_of_gpu(rig, name) == ours}
    assert {name.partition("-mig-")[0] for name in names} == {"gpu-0"}
    assert not [name for name in rig.devices() if re.match("gpu-1(-|$)", name)]
    await rig.wait_until(lambda: edits_of(rig, cdi_names(before)) is not None, "its names")
    assert (await rig.dra.prepare([claim]))[claim.uid] == before
    beside, _ = await prepared(rig, "gpu-0-mig-3g40gb-9-0")
    _, whole = await prepared(rig, FREE_NAME)
    assert uuid_of(rig, FREE_NAME) == other
    assert "/dev/nvidia0" in nodes_of(rig, cdi_names(whole))
    for each in (claim, beside):
        assert not (await rig.dra.unprepare([each]))[each.uid].error
    await rig.wait_until(lambda: "gpu-0" in rig.devices(), "the whole GPU to be offered")
    assert uuid_of(rig, "gpu-0") == ours


@pytest.mark.soak
async def test_a_gpu_that_is_not_there_after_the_reboot_is_unhealthy_until_it_is_back(
    rig: Rig,
) -> None:
    """The next board has its address and number; a CDI directory on a disk still has its spec."""
    await rig.start()
    claim, before = await prepared(rig, "gpu-6")
    other, others = await prepared(rig, "gpu-5")
    lost, heir = uuid_of(rig, "gpu-6"), uuid_of(rig, "gpu-7")
    shifted = {"gpu_count": 7, "gpus": [{"index": 6, "uuid": heir}]}
    await rebooted(rig, overrides=shifted, is_cdi_kept=True)
    assert uuid_of(rig, FREE_NAME) == heir
    assert "gpu-6" not in rig.devices()
    assert edits_of(rig, cdi_names(before)) is None, "it would be another claim's GPU"
    assert edits_of(rig, cdi_names(others)) is not None
    text = (await rig.dra.prepare([claim]))[claim.uid].error
    assert text.startswith("DeviceUnhealthy: gpu-6 was ")
    assert lost in text
    assert (await rig.dra.prepare([other]))[other.uid] == others
    heirs, _ = await prepared(rig, FREE_NAME)
    assert not (await rig.dra.unprepare([heirs]))[heirs.uid].error
    await rebooted(rig)
    assert (await rig.dra.prepare([claim]))[claim.uid] == before
    assert "/dev/nvidia6" in nodes_of(rig, cdi_names(before))


async def test_a_gpu_that_answers_late_after_the_reboot_has_its_claims_names_as_soon_as_it_does(
    rig: Rig,
) -> None:
    await rig.start()
    claim, before = await prepared(rig, "gpu-1")
    rig.process.stop(signal.SIGKILL)
    driver_installation.reboot(rig.node, version=NEWER, uvm_major=511)
    rig.node.simctl("slow", "-1", "--function", "nvmlDevice*", "--gpu", "1")
    await rig.kubelet.restart()
    await rig.start()
    assert edits_of(rig, cdi_names(before)) is None
    text = await rig.dra.refusal(claim)
    assert text.startswith("DeadlineExceeded: ")
    rig.node.simctl("fault", "rm", "all")
    await rig.wait_until(lambda: edits_of(rig, cdi_names(before)) is not None, "its names")
    assert (await rig.dra.prepare([claim]))[claim.uid] == before


async def test_a_claim_whose_pod_went_with_the_reboot_is_unprepared_before_any_gpu_answers(
    rig: Rig,
) -> None:
    await rig.start()
    claim, _ = await prepared(rig, "gpu-1")
    rig.process.stop(signal.SIGKILL)
    driver_installation.reboot(rig.node, version=NEWER)
    rig.node.simctl("slow", "-1", "--function", "nvmlInit*")
    await rig.kubelet.restart()
    await rig.start_without_ready()
    assert not (await rig.dra.unprepare([claim]))[claim.uid].error
    rig.node.simctl("fault", "rm", "all")
    await rig.wait_until(lambda: rig.process.get("/readyz")[0] == 200, "the GPUs")
    assert not rig.recorded_claims(), "nothing is written again for a claim that is gone"
    await prepared(rig, "gpu-1")
