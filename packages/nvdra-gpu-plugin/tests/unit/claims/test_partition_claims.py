# SPDX-License-Identifier: Apache-2.0
"""Claims of MIG devices that are made for them: what they exclude, and what their records say."""

from dataclasses import replace
from itertools import product

import pytest
from nvdra_api.errors import DriverError, Reason
from nvdra_api.ids import ClaimUID, GpuUUID, MigUUID, NodeName, PciAddress
from nvdra_api.resource.claims import DeviceRequestAllocationResult, ResourceClaim
from nvdra_api.v1beta1 import MigDeviceConfig
from nvdra_gpu_plugin.claims import plan, record_checks
from nvdra_gpu_plugin.devices.claim_index import GpuClaimIndex
from nvdra_gpu_plugin.devices.claim_records import GpuClaimRecord
from nvdra_gpu_plugin.devices.inventory import Gpu, Inventory
from nvdra_gpu_plugin.devices.spec_generation import SpecGeneration
from nvdra_gpu_plugin.devices.steps import MadeInstance
from nvdra_gpu_plugin.hardware import mig_discovery
from nvdra_runtime.claims.opaque_configs import ConfiguredResult
from nvdra_testing.hardware.gpus import divisible, h100, in_mig_mode, mig_device

NODE = NodeName("node-a")
SMALL_PLACES = [*((19, start) for start in range(7)), *((14, start) for start in (0, 2, 4))]
PLACES = [*SMALL_PLACES, (9, 0), (9, 4)]
GPU = divisible(0, *PLACES)
INVENTORY = Inventory((GPU, divisible(1, (9, 0)), h100(2)))
LARGE, SMALL = "gpu-0-mig-3g40gb-9-4", "gpu-0-mig-1g10gb-19-5"
MADE = MadeInstance(gpu_instance=2, compute_instance=0, uuid=MigUUID("MIG-2"))


def record(
    *devices: str, uid: str = "uid", inventory: Inventory = INVENTORY, admin: bool = False
) -> GpuClaimRecord:
    claim = ResourceClaim.model_validate(
        {"metadata": {"namespace": "ml", "name": uid, "uid": uid}, "spec": {}, "status": {}}
    )
    configured = [
        ConfiguredResult(
            DeviceRequestAllocationResult(
                request="mig",
                driver="gpu.nvidia.com",
                pool=NODE,
                device=device,
                admin_access=admin or None,
            ),
            MigDeviceConfig(),
            None,
        )
        for device in devices
    ]
    names = {name: f"v/c={name}-0123456789" for name in inventory.by_name}
    return plan.make(claim, configured, inventory, SpecGeneration("g", names), NODE)


def is_refused(wanted: GpuClaimRecord, *held: GpuClaimRecord) -> bool:
    index = GpuClaimIndex(held)
    others = (index.conflicting_claim(device, wanted.uid) for device in wanted.devices)
    return any(other is not None for other in others)


def test_the_record_says_what_is_to_be_made_and_where() -> None:
    claim = record(LARGE)
    (device,) = claim.devices
    assert (device.kind, device.profile, device.uuid) == ("mig", "3g.40gb", "")
    assert (device.pci, device.parent_uuid) == (GPU.pci, GPU.uuid)
    assert device.memory_slices == (4, 4)
    assert device.cdi_ids == (f"k8s.gpu.nvidia.com/claim-device=uid-{LARGE}",)
    (step,) = claim.made
    assert (step.gpu, step.device, step.profile_index) == (GPU.uuid, LARGE, 2)
    assert (step.profile_id, step.compute_slices, step.start, step.size) == (9, 3, 4, 4)
    assert not claim.is_foreign
    assert claim.has_own_spec


def test_a_record_with_what_was_made_is_the_same_when_it_is_read_again() -> None:
    claim = record(LARGE, "gpu-2").begun("boot")
    steps = tuple(step.model_copy(update={"made": MADE}) for step in claim.made)
    done = claim.with_steps(steps)
    assert GpuClaimRecord.model_validate_json(done.model_dump_json()) == done
    assert [device.uuid for device in done.devices] == ["MIG-2", "GPU-2"]
    (again,) = done.begun("boot").made
    assert (again.made, again.made_instance) == (None, MADE.gpu_instance)
    assert done.with_steps(tuple(each.anew() for each in done.made)) == claim


def test_devices_exclude_each_other_if_and_only_if_their_slices_overlap() -> None:
    partitions = sorted(GPU.partitions, key=lambda each: each.name)
    assert len(partitions) == len(PLACES)
    for one, other in product(partitions, partitions):
        overlaps = (
            one.placement.start < other.placement.start + other.placement.size
            and other.placement.start < one.placement.start + one.placement.size
        )
        wanted, held = record(one.name, uid="wanted"), record(other.name, uid="held")
        assert is_refused(wanted, held) is overlaps, (one.name, other.name)


def test_a_whole_gpu_and_what_is_made_of_it_exclude_each_other() -> None:
    for wanted, held in ((LARGE, "gpu-0"), ("gpu-0", SMALL)):
        assert is_refused(record(wanted, uid="wanted"), record(held, uid="held"))
    for wanted, held in ((LARGE, "gpu-1-mig-3g40gb-9-0"), ("gpu-1", LARGE)):
        assert not is_refused(record(wanted, uid="wanted"), record(held, uid="held"))


def test_admin_access_to_the_gpu_excludes_nobody_and_to_a_partition_there_is_none() -> None:
    assert not is_refused(record("gpu-0", uid="wanted", admin=True), record(LARGE, uid="held"))
    with pytest.raises(DriverError) as caught:
        record(LARGE, admin=True)
    assert caught.value.reason is Reason.UNKNOWN_DEVICE


def test_what_an_administrator_has_made_is_not_made() -> None:
    existing = replace(GPU, is_mig_enabled=True, mig_devices=(mig_device(GPU, 9, 4),))
    claim = record(LARGE, inventory=Inventory((existing,)))
    assert claim.steps == ()
    assert claim.devices[0].uuid == mig_device(GPU, 9, 4).uuid


def test_held_places_stay_held_under_another_pci_address() -> None:
    moved = divisible(0, *PLACES, pci=PciAddress("0000:99:00.0"))
    wanted = record(LARGE, uid="wanted", inventory=Inventory((moved,)))
    assert is_refused(wanted, record(SMALL, uid="held"))


def test_a_claim_follows_its_gpu_and_says_so_when_that_is_gone() -> None:
    moved = Inventory((divisible(0, *PLACES, pci=PciAddress("0000:99:00.0")),))
    generation = SpecGeneration("new", {})
    again = record_checks.planned_again(record(LARGE), moved, generation)
    assert again.devices[0].pci == "0000:99:00.0"
    assert again.generation == "new"
    assert record_checks.missing_devices(again, moved) == []
    record_checks.check_same_gpus(again, moved, generation)
    empty = Inventory((h100(2),))
    assert record_checks.planned_again(again, empty, None).devices[0].pci == ""
    assert len(record_checks.missing_devices(again, empty)) == 1
    with pytest.raises(DriverError) as caught:
        record_checks.check_same_gpus(again, empty, generation)
    assert caught.value.reason is Reason.DEVICE_UNHEALTHY


def test_the_index_knows_where_devices_are_made() -> None:
    index = GpuClaimIndex([record(LARGE, "gpu-1-mig-3g40gb-9-0")])
    index.put(record("gpu-0-mig-1g10gb-19-0", uid="other"))
    assert index.made_on(GPU.uuid) == {(9, 4), (19, 0)}
    index.remove(ClaimUID("uid"))
    assert index.made_on(GPU.uuid) == {(19, 0)}
    assert index.made_on(GpuUUID("GPU-1")) == frozenset()
    assert index.held_numbers() == {GPU.uuid: 0}


def seen(gpu: Gpu, *made: tuple[int, int]) -> Gpu:
    return mig_discovery.without_made(gpu, frozenset(made))


def test_a_gpu_is_the_same_value_before_during_and_after_a_claim() -> None:
    during = replace(GPU, is_mig_enabled=True, mig_devices=(mig_device(GPU, 9, 4),))
    after = replace(GPU, is_mig_enabled=True)
    assert seen(GPU) == seen(during, (9, 4)) == seen(after) == GPU


def test_a_device_of_an_administrator_is_a_device_of_the_gpu() -> None:
    both = replace(
        GPU, is_mig_enabled=True, mig_devices=(mig_device(GPU, 19, 0), mig_device(GPU, 9, 4))
    )
    found = seen(both, (9, 4))
    assert [mig.name for mig in found.mig_devices] == ["gpu-0-mig-1g10gb-19-0"]
    assert found.is_mig_enabled


def test_without_partitions_mig_mode_is_what_it_is() -> None:
    assert seen(in_mig_mode(0), (9, 4)).is_mig_enabled
    ampere = divisible(0, (9, 4), architecture="Ampere", is_mig_enabled=True)
    assert seen(ampere).is_mig_enabled
