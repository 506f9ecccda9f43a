"""A node is rebooted while claims are prepared: /var/run/cdi is empty, the hardware may differ.

Kubelets before 1.37 do not prepare such a claim again. So names are looked up in the CDI specs
before any call is made.
"""

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


async def rebooted(rig: Rig, **changes: Any) -> None:
    """Cut the power, and wait until the plugin of the next boot has looked at the hardware."""
    rig.process.stop(signal.SIGKILL)
    driver_installation.reboot(rig.node, **changes)
    await rig.kubelet.restart()
    await rig.start()


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
async def test_a_gpu_that_has_another_minor_number_is_followed_by_its_uuid(rig: Rig) -> None:
    await rig.start()
    claim, before = await prepared(rig, "gpu-0")
    ours, other = uuid_of(rig, "gpu-0"), uuid_of(rig, "gpu-1")
    swapped = {"gpus": [{"index": 0, "minor": 1}, {"index": 1, "minor": 0}]}
    await rebooted(rig, overrides=swapped)
    # The scheduler thinks that gpu-1 is free; it would be told DeviceInUse for as long as the pod
    # runs.
    await rig.wait_until(lambda: "gpu-1" not in rig.devices(), "gpu-1 not to be offered")
    assert uuid_of(rig, "gpu-0") == other
    said = f"gpu-1 ({ours}) is held by a claim that was given it as gpu-0"
    await rig.wait_until(
        lambda: any(said in each["message"] for each in rig.events("DeviceInUse")), "an Event"
    )
    nodes = nodes_of(rig, cdi_names(before))
    assert "/dev/nvidia1" in nodes
    assert "/dev/nvidia0" not in nodes
    assert (await rig.dra.prepare([claim]))[claim.uid] == before
    # A claim may have been allocated before the reboot.
    wanted = rig.create_claim("gpu-1")
    text = await rig.dra.refusal(wanted)
    assert text.startswith("DeviceInUse: gpu-1 is held by claim")
    await prepared(rig, "gpu-0")
    assert not (await rig.dra.unprepare([claim]))[claim.uid].error
    await rig.wait_until(lambda: "gpu-1" in rig.devices(), "gpu-1 to be offered again")
    assert uuid_of(rig, "gpu-1") == ours
    assert not (await rig.dra.prepare([wanted]))[wanted.uid].error


async def test_where_a_board_has_gone_and_the_minors_close_up_no_held_gpu_is_offered_anew(
    rig: Rig,
) -> None:
    await rig.start()
    claim, before = await prepared(rig, "gpu-4")
    ours, gone = uuid_of(rig, "gpu-4"), uuid_of(rig, "gpu-0")
    uuids = [uuid_of(rig, f"gpu-{minor}") for minor in range(8)]
    closed_up = [{"index": index, "uuid": uuids[index + 1]} for index in range(7)]
    await rebooted(rig, overrides={"gpu_count": 7, "gpus": closed_up})
    await rig.wait_until(lambda: "gpu-3" not in rig.devices(), "gpu-3 not to be offered")
    offered = {uuid_of(rig, device) for device in rig.devices()}
    assert offered == {*uuids} - {ours, gone}
    assert (await rig.dra.prepare([claim]))[claim.uid] == before
    # Both are in the API at once: a claim that holds gpu-4, and another GPU that is called so.
    assert uuid_of(rig, "gpu-4") == uuids[5]
    assert not (await rig.dra.unprepare([claim]))[claim.uid].error
    await rig.wait_until(lambda: "gpu-3" in rig.devices(), "gpu-3 to be offered again")
    assert uuid_of(rig, "gpu-3") == ours


@pytest.mark.soak
async def test_a_gpu_that_is_not_there_after_the_reboot_is_unhealthy_until_it_is_back(
    rig: Rig,
) -> None:
    """The next board has its address and its name; a CDI directory on a disk still has its spec."""
    await rig.start()
    claim, before = await prepared(rig, "gpu-6")
    other, others = await prepared(rig, "gpu-5")
    lost, heir = uuid_of(rig, "gpu-6"), uuid_of(rig, "gpu-7")
    shifted = {"gpu_count": 7, "gpus": [{"index": 6, "uuid": heir}]}
    await rebooted(rig, overrides=shifted, is_cdi_kept=True)
    assert uuid_of(rig, "gpu-6") == heir
    assert edits_of(rig, cdi_names(before)) is None, "it would be another claim's GPU"
    assert edits_of(rig, cdi_names(others)) is not None
    text = (await rig.dra.prepare([claim]))[claim.uid].error
    assert text.startswith("DeviceUnhealthy: gpu-6 was ")
    assert lost in text
    assert (await rig.dra.prepare([other]))[other.uid] == others
    heirs, _ = await prepared(rig, "gpu-6")
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
