"""A record of an earlier prepare describes the node only while each device is the GPU it was."""

import pytest
from nvdra_api.errors import PermanentError, Reason
from nvdra_api.ids import ClaimUID, DeviceName, GpuUUID, PciAddress, PoolName
from nvdra_gpu_plugin.claims import record_checks
from nvdra_gpu_plugin.devices.claim_records import GpuClaimRecord, GpuDeviceRecord
from nvdra_gpu_plugin.devices.inventory import Gpu, Inventory
from nvdra_testing.hardware.gpus import h100


def device(gpu: Gpu, **changes: object) -> GpuDeviceRecord:
    made = GpuDeviceRecord(
        request="gpu",
        pool=PoolName("node-a"),
        device=gpu.name,
        pci=gpu.pci,
        uuid=gpu.uuid,
        cdi_id=f"vendor/device={gpu.name}-g1",
    )
    return made.model_copy(update=changes)


def record(*devices: GpuDeviceRecord) -> GpuClaimRecord:
    return GpuClaimRecord(
        namespace="ml", name="train", uid=ClaimUID("uid-1"), generation="g1", devices=devices
    )


RECORD = record(device(h100(0)), device(h100(1)))


def test_the_same_gpus_pass_wherever_they_are_on_the_bus() -> None:
    moved = h100(1, pci=PciAddress("0000:7f:00.0"))
    record_checks.check_same_gpus(RECORD, Inventory((h100(0), moved, h100(2))))


@pytest.mark.parametrize(
    ("inventory", "now"),
    [
        (Inventory((h100(0),)), "not on the node"),
        (Inventory((h100(0), h100(1, uuid=GpuUUID("GPU-9")))), r"another GPU now \(GPU-9\)"),
    ],
    ids=["gone", "replaced"],
)
def test_a_device_that_is_another_gpu_now_is_refused_by_its_name(
    inventory: Inventory, now: str
) -> None:
    with pytest.raises(
        PermanentError, match=f"gpu-1 was GPU-1 when the claim was prepared and is {now}"
    ) as caught:
        record_checks.check_same_gpus(RECORD, inventory)
    assert caught.value.reason is Reason.UNKNOWN_DEVICE
    assert caught.value.facts["device"] == "gpu-1"


def test_a_recovered_record_gets_the_ids_of_gpus_that_came_back_and_no_others() -> None:
    nameless = {"uuid": GpuUUID(""), "pci": PciAddress("")}
    lost = record(device(h100(0), **nameless), device(h100(1)), device(h100(5), **nameless))
    other = h100(1, uuid=GpuUUID("GPU-9"))
    completed = record_checks.with_gpu_ids(lost, Inventory((h100(0), other)))
    assert completed == record(device(h100(0)), device(h100(1)), device(h100(5), **nameless))


def test_a_gpu_that_is_still_unknown_is_refused() -> None:
    lost = record(device(h100(0), uuid=GpuUUID(""), device=DeviceName("gpu-0")))
    with pytest.raises(PermanentError, match="gpu-0 was not known when the claim was prepared"):
        record_checks.check_same_gpus(lost, Inventory((h100(0),)))
