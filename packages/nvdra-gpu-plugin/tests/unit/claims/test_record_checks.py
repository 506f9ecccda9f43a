# SPDX-License-Identifier: Apache-2.0
"""Records of an earlier boot and today's hardware: GPUs are known by their UUIDs alone."""

import pytest
from nvdra_api.errors import DriverError, Reason
from nvdra_api.ids import ClaimUID, DeviceName, GpuUUID, PciAddress, PoolName
from nvdra_gpu_plugin.claims import record_checks
from nvdra_gpu_plugin.devices.claim_records import GpuClaimRecord, GpuDeviceRecord
from nvdra_gpu_plugin.devices.claimed_names import ClaimedNames, claimed_names
from nvdra_gpu_plugin.devices.inventory import Inventory
from nvdra_gpu_plugin.devices.spec_generation import SpecGeneration
from nvdra_testing.hardware.gpus import h100

ONE, TWO = GpuUUID("GPU-one"), GpuUUID("GPU-two")
ADDRESSES = PciAddress("0000:1a:00.0"), PciAddress("0000:3b:00.0")
BEFORE = Inventory((h100(0, uuid=ONE, pci=ADDRESSES[0]), h100(1, uuid=TWO, pci=ADDRESSES[1])))
SWAPPED = Inventory((h100(0, uuid=TWO, pci=ADDRESSES[0]), h100(1, uuid=ONE, pci=ADDRESSES[1])))
TODAY = SpecGeneration("590.44.1", {})


def record(
    *minors: int, generation: str = "580.95.05", uid: str = "uid", is_known: bool = True
) -> GpuClaimRecord:
    devices = tuple(
        GpuDeviceRecord(
            request="gpu",
            pool=PoolName("node-a"),
            device=gpu.name,
            pci=gpu.pci if is_known else PciAddress(""),
            uuid=gpu.uuid if is_known else GpuUUID(""),
            cdi_id=f"k8s.gpu.nvidia.com/device={gpu.name}-0123456789",
        )
        for gpu in (BEFORE.gpus[minor] for minor in minors)
    )
    return GpuClaimRecord(
        namespace="ml", name="c", uid=ClaimUID(uid), generation=generation, devices=devices
    )


def test_a_gpu_that_moved_is_followed_and_the_answer_stays() -> None:
    before = record(0)
    again = record_checks.planned_again(before, SWAPPED, TODAY)
    (device,) = again.devices
    assert (device.uuid, device.pci) == (ONE, ADDRESSES[1])
    assert again.generation == "590.44.1"
    assert again.prepare_result() == before.prepare_result()
    (named,) = record_checks.with_present_names(again, SWAPPED)
    assert named.device == DeviceName("gpu-1"), "as it is verified"
    record_checks.check_same_gpus(again, SWAPPED, TODAY)


def test_a_gpu_that_is_gone_is_unhealthy_whoever_has_its_name_now() -> None:
    alone = Inventory((h100(0, uuid=TWO, pci=ADDRESSES[0]),))
    again = record_checks.planned_again(record(0, 1), alone, TODAY)
    assert [device.pci for device in again.devices] == ["", ADDRESSES[0]]
    assert not again.has_all_gpus
    refused = refusal(again, alone)
    assert refused is not None
    assert refused.reason is Reason.DEVICE_UNHEALTHY
    assert "GPU-one" in refused.message
    assert "gpu-0 is another GPU now (GPU-two)" in refused.message
    back = record_checks.planned_again(again, SWAPPED, None)
    assert [device.pci for device in back.devices] == [ADDRESSES[1], ADDRESSES[0]]
    assert back.generation == "590.44.1", "it is planned already"
    assert refusal(back, SWAPPED) is None


def test_a_gpu_that_was_missing_when_its_record_was_recovered_is_found_by_its_name() -> None:
    again = record_checks.planned_again(record(1, is_known=False), BEFORE, None)
    assert [(device.uuid, device.pci) for device in again.devices] == [(TWO, ADDRESSES[1])]


def test_a_gpu_that_moved_is_refused_while_the_spec_of_its_claim_is_an_older_drivers() -> None:
    refused = refusal(record(0), SWAPPED)
    assert refused is not None
    assert refused.reason is Reason.UNKNOWN_DEVICE
    assert "has become gpu-1" in refused.message
    assert refusal(record(0), BEFORE) is None


def test_the_names_of_claims_go_with_their_generation_or_with_the_boot() -> None:
    records = [
        record(0, uid="now"),
        record(1, uid="before"),
        record(0, generation="", uid="unknown", is_known=False),
    ]
    assert claimed_names(records, {ClaimUID("before"), ClaimUID("unknown")}) == ClaimedNames(
        {"580.95.05": {"gpu-0-0123456789": ONE}}, {"gpu-1-0123456789": TWO}
    )


def test_names_of_another_driver_are_not_ours_to_describe() -> None:
    (device,) = record(0).devices
    foreign = device.model_copy(update={"cdi_id": "k8s.gpu.nvidia.com/claim=uid-gpu-0"})
    of_the_reference = record(0).model_copy(update={"generation": "", "devices": (foreign,)})
    assert claimed_names([of_the_reference], set()) == ClaimedNames({"": {}})


@pytest.mark.parametrize("uuid", [ONE, GpuUUID("")])
def test_what_is_not_on_the_node_is_what_may_still_be_described(uuid: GpuUUID) -> None:
    (device,) = record(0).devices
    known = record(0).model_copy(update={"devices": (device.model_copy(update={"uuid": uuid}),)})
    assert record_checks.missing_devices(known, BEFORE) == []
    assert record_checks.missing_devices(known, Inventory()) == list(known.devices)


def refusal(claim: GpuClaimRecord, inventory: Inventory) -> DriverError | None:
    try:
        record_checks.check_same_gpus(claim, inventory, TODAY)
    except DriverError as error:
        return error
    return None
