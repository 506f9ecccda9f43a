# SPDX-License-Identifier: Apache-2.0
"""What claims that have ended keep from being offered."""

from nvdra_api.ids import ClaimUID, DeviceName, GpuUUID, PciAddress, PoolName
from nvdra_gpu_plugin.devices import released_claims
from nvdra_gpu_plugin.devices.claim_records import GpuClaimRecord, GpuDeviceRecord
from nvdra_gpu_plugin.devices.inventory import Inventory
from nvdra_gpu_plugin.devices.steps import LeaveMigMode, MakeMigDevice, Step
from nvdra_testing.hardware.gpus import h100, in_mig_mode

INVENTORY = Inventory((h100(0), in_mig_mode(1, (19, 6), (9, 0)), h100(2)))
MIG = INVENTORY.by_name[DeviceName("gpu-1-mig-1g10gb-19-6")]
GPU_0, GPU_2 = (INVENTORY.by_name[DeviceName(name)] for name in ("gpu-0", "gpu-2"))


def device(name: str, uuid: str, *, is_admin: bool = False) -> GpuDeviceRecord:
    return GpuDeviceRecord(
        request="gpu",
        pool=PoolName("node-a"),
        device=DeviceName(name),
        pci=PciAddress(""),
        uuid=GpuUUID(uuid),
        is_admin=is_admin,
        cdi_id=f"k8s.gpu.nvidia.com/device={name}-580",
    )


def made(name: str, start: int) -> GpuDeviceRecord:
    return device(name, "").model_copy(update={"memory_slices": (start, 4), "kind": "mig"})


def ended(*devices: GpuDeviceRecord, steps: tuple[Step, ...] = ()) -> GpuClaimRecord:
    return GpuClaimRecord(
        namespace="ml",
        name="a",
        uid=ClaimUID("uid-a"),
        generation="580",
        devices=devices,
        steps=steps,
        is_released=True,
    )


def offered(*records: GpuClaimRecord) -> list[str]:
    return [each.name for each in released_claims.without_held(INVENTORY, records).devices]


def test_without_ended_claims_nothing_is_missing() -> None:
    assert released_claims.without_held(INVENTORY, ()) is INVENTORY


def test_a_gpu_that_was_held_whole_is_missing() -> None:
    found = released_claims.without_held(INVENTORY, [ended(device("gpu-0", GPU_0.uuid))])
    assert [gpu.name for gpu in found.gpus] == ["gpu-1", "gpu-2"]


def test_a_gpu_has_another_name_after_a_reboot_and_a_recovered_record_no_uuid() -> None:
    assert "gpu-2" not in offered(ended(device("gpu-0", GPU_2.uuid)))
    assert "gpu-0" in offered(ended(device("gpu-0", GPU_2.uuid)))
    assert "gpu-0" not in offered(ended(device("gpu-0", "")))


def test_a_mig_device_that_exists_is_missing_alone_and_keeps_its_room() -> None:
    found = released_claims.without_held(INVENTORY, [ended(device(MIG.name, MIG.uuid))])
    assert [each.name for each in found.devices] == ["gpu-0", "gpu-1-mig-3g40gb-9-0", "gpu-2"]
    assert [each.name for each in found.gpus[1].withheld] == [MIG.name]


def test_admin_access_and_a_mode_that_is_left_on_hold_nothing() -> None:
    left = LeaveMigMode(gpu=GpuUUID(GPU_0.uuid), device=DeviceName("gpu-0"), pci=PciAddress(""))
    everything = [each.name for each in INVENTORY.devices]
    assert offered(ended(device("gpu-0", GPU_0.uuid, is_admin=True))) == everything
    assert offered(ended(steps=(left,))) == everything


def test_the_places_of_several_claims_on_one_gpu_are_left() -> None:
    def of(start: int) -> GpuClaimRecord:
        name = DeviceName(f"gpu-0-mig-3g40gb-9-{start}")
        step = MakeMigDevice(
            gpu=GpuUUID(GPU_0.uuid),
            device=name,
            profile_index=2,
            profile_id=9,
            compute_slices=3,
            start=start,
            size=4,
        )
        return ended(made(name, start), steps=(step,))

    found = released_claims.without_held(INVENTORY, [of(0), of(4)])
    assert found.gpus[0].left_places == {(9, 0), (9, 4)}
    assert [gpu.left_places for gpu in found.gpus[1:]] == [frozenset(), frozenset()]
    assert not found.gpus[0].offers_whole
