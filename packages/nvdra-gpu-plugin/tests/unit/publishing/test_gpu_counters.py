# SPDX-License-Identifier: Apache-2.0
"""A GPU and its vfio device in slices: what keeps them apart, and that nothing else changes."""

from collections.abc import Mapping
from dataclasses import replace
from random import Random
from typing import Final

import pytest
from nvdra_api.gates import FeatureGates
from nvdra_api.ids import DeviceName, NodeName, PciAddress
from nvdra_api.resource.slices import Device, DeviceTaint
from nvdra_gpu_plugin.devices import device_names, gpu_forms
from nvdra_gpu_plugin.devices.gpu_forms import Candidate, Hold, Prebound
from nvdra_gpu_plugin.devices.inventory import Gpu, Inventory
from nvdra_gpu_plugin.publishing import layout
from nvdra_gpu_plugin.share_policy import SharePolicy
from nvdra_runtime.resourceslices.arrangement import COMBINED, SPLIT, SliceLimits
from nvdra_runtime.resourceslices.pool import Pool, Slice
from nvdra_testing.hardware.counter_allocator import CounterAllocator
from nvdra_testing.hardware.gpus import divisible, h100, in_mig_mode, vfio_h100

NODE: Final = NodeName("node-a")
PLACES: Final = ((19, 0), (19, 6), (14, 4), (9, 0), (9, 4), (0, 0))
SEQUENCES: Final = 30
STEPS: Final = 25


def published(
    inventory: Inventory,
    limits: SliceLimits | None = SPLIT,
    awaited: Slice = layout.NOTHING,
    taints: layout.Taints | None = None,
    policy: SharePolicy | None = None,
) -> Pool:
    return layout.pool(
        inventory, FeatureGates(), NODE, awaited, taints or {}, limits=limits, policy=policy
    )


def consumed(device: Device) -> dict[tuple[str, str], int]:
    return {
        (each.counter_set, name): int(counter.value.amount)
        for each in device.consumes_counters
        for name, counter in each.counters.items()
    }


def by_name(pool: Pool) -> dict[str, Device]:
    return {str(device.name): device for device in pool.content.devices}


@pytest.mark.parametrize("limits", [SPLIT, COMBINED])
def test_a_gpu_without_partitions_shares_one_counter_with_its_vfio_device(
    limits: SliceLimits,
) -> None:
    pool = published(Inventory((h100(0), h100(1)), (vfio_h100(0), vfio_h100(1))), limits)
    assert [(name, consumed(device)) for name, device in by_name(pool).items()] == [
        ("gpu-0", {("gpu-0-counter-set", "gpu"): 1}),
        ("gpu-vfio-0", {("gpu-0-counter-set", "gpu"): 1}),
        ("gpu-1", {("gpu-1-counter-set", "gpu"): 1}),
        ("gpu-vfio-1", {("gpu-1-counter-set", "gpu"): 1}),
    ]
    assert [
        (found.name, [(name, int(value.value.amount)) for name, value in found.counters.items()])
        for found in pool.content.shared_counters
    ] == [("gpu-0-counter-set", [("gpu", 1)]), ("gpu-1-counter-set", [("gpu", 1)])]


def test_with_partitions_the_vfio_device_consumes_what_the_whole_gpu_does() -> None:
    found = by_name(published(Inventory((divisible(0, *PLACES),), (vfio_h100(0),))))
    assert consumed(found["gpu-vfio-0"]) == consumed(found["gpu-0"])
    assert len(consumed(found["gpu-0"])) == 15
    assert list(found)[-1] == "gpu-vfio-0", "what leaves most to others comes first"


def test_the_names_need_not_have_the_same_number() -> None:
    gpu = h100(3, pci=PciAddress("0000:0a:00.0"))
    vfio = vfio_h100(0, pci=PciAddress("0000:0a:00.0"))
    found = by_name(published(Inventory((gpu,), (vfio,))))
    assert consumed(found["gpu-vfio-0"]) == {("gpu-3-counter-set", "gpu"): 1}


def test_a_gpu_in_one_form_has_no_counters() -> None:
    for inventory in (Inventory((h100(0),)), Inventory((), (vfio_h100(0),))):
        pool = published(inventory)
        assert pool.content.shared_counters == ()
        assert [device.consumes_counters for device in pool.content.devices] == [()]


def test_without_counters_both_forms_look_independent() -> None:
    gpu = divisible(0, *PLACES)
    pool = published(Inventory((gpu,), (vfio_h100(0),)), limits=None)
    assert {name: consumed(device) for name, device in by_name(pool).items()} == {
        "gpu-0": {},
        "gpu-vfio-0": {},
    }


def test_beside_mig_devices_without_counters_no_vfio_device_is_published() -> None:
    gpu = in_mig_mode(0, (19, 0))
    pool = published(Inventory((gpu,), (vfio_h100(0),)))
    assert list(by_name(pool)) == ["gpu-0-mig-1g10gb-19-0"]


def test_a_gpu_that_has_not_described_itself_yet_keeps_its_vfio_device_apart() -> None:
    for gpu in (h100(0), divisible(0, *PLACES)):
        whole = Inventory((gpu,), (vfio_h100(0, parent_uuid=gpu.uuid),))
        before = published(whole)
        known = Inventory((), whole.vfio)
        awaited = layout.still_awaited(before.content, known, [DeviceName("gpu-0")], ())
        assert "gpu-vfio-0" not in [device.name for device in awaited.devices]
        assert published(known, awaited=awaited) == before


def test_a_vfio_device_of_a_former_process_does_not_stay_without_the_gate() -> None:
    before = published(Inventory((), (vfio_h100(0),)))
    assert layout.still_awaited(before.content, Inventory(), [None], ()) == Slice(
        (), before.content.shared_counters
    )


def test_the_gpus_of_a_former_process_are_not_named_after_their_vfio_devices() -> None:
    gpu = h100(0)
    before = published(Inventory((gpu,), (vfio_h100(0, parent_uuid=gpu.uuid),)))
    assert layout.gpus_among(before.content, {gpu.uuid}) == {"gpu-0"}


def test_a_vfio_device_has_its_gpus_taints_and_its_own() -> None:
    gpu, vfio = h100(0), vfio_h100(0, parent_uuid=h100(0).uuid)
    xid = DeviceTaint(key="gpu.nvidia.com/xid", value="79", effect="NoExecute")
    busy = DeviceTaint(key="gpu.nvidia.com/passthrough-busy", value="dcgm", effect="NoSchedule")
    taints: layout.Taints = {gpu.uuid: (xid,), vfio.uuid: (busy,)}
    found = by_name(published(Inventory((gpu,), (vfio,)), taints=taints))
    assert found["gpu-0"].taints == (xid,)
    assert found["gpu-vfio-0"].taints == (xid, busy)


def test_a_virtual_machine_shares_its_gpu_with_no_other_claim() -> None:
    pool = published(Inventory((h100(0),), (vfio_h100(0),)), policy=SharePolicy(shares=4))
    found = by_name(pool)
    assert found["gpu-0"].allow_multiple_allocations
    assert found["gpu-vfio-0"].allow_multiple_allocations is None
    assert set(found["gpu-vfio-0"].capacity) == {"addressableMemory"}
    assert consumed(found["gpu-0"]) == consumed(found["gpu-vfio-0"])


def node_of(random: Random) -> dict[PciAddress, Gpu]:
    made = (
        divisible(number, *PLACES) if random.random() < 0.5 else h100(number) for number in range(3)
    )
    return {gpu.pci: gpu for gpu in made}


def candidate(gpu: Gpu, *, is_on_vfio: bool) -> Candidate:
    return Candidate(vfio_h100(gpu.minor), is_on_vfio=is_on_vfio, can_be_passed=True)


def offer(gpus: Mapping[PciAddress, Gpu], held: Mapping[PciAddress, Hold]) -> Pool:
    """What is published while these claims are held: NVML lists the GPUs of the others only."""
    on_vfio = {pci for pci, hold in held.items() if hold is Hold.VFIO}
    found = gpu_forms.find(
        [gpu for pci, gpu in gpus.items() if pci not in on_vfio],
        gpus,
        [candidate(gpu, is_on_vfio=pci in on_vfio) for pci, gpu in gpus.items()],
        held,
        keeps_counters=True,
        prebound=Prebound.OFFER,
    )
    return published(gpu_forms.inventory(found))


@pytest.mark.parametrize("seed", range(SEQUENCES))
def test_no_gpu_is_ever_allocated_in_both_forms_and_no_claim_changes_the_slice(seed: int) -> None:
    random = Random(seed)
    gpus = node_of(random)
    first = offer(gpus, {})
    scheduler = CounterAllocator(first)
    pci_of = {
        name: str(device.attributes["resource.kubernetes.io/pciBusID"].string_value)
        for name, device in scheduler.devices.items()
    }
    for _ in range(STEPS):
        free = [name for name in scheduler.devices if scheduler.is_free(name)]
        if free and random.random() < 0.6:
            scheduler.allocate(random.choice(free))
        elif scheduler.allocated:
            scheduler.release(random.choice(scheduler.allocated))
        vfio = {pci_of[each] for each in scheduler.allocated if device_names.is_vfio_name(each)}
        others = [pci_of[each] for each in scheduler.allocated if pci_of[each] not in vfio]
        assert len(vfio) + len(others) == len(scheduler.allocated), scheduler.allocated
        held = {PciAddress(pci): Hold.VFIO for pci in vfio}
        held |= {PciAddress(pci): Hold.GPU for pci in others}
        assert offer(gpus, held) == first


def test_a_free_gpu_can_be_had_in_either_form() -> None:
    """Without this the property above would hold for a pool that nothing is allocated from."""
    for name in ("gpu-0", "gpu-vfio-0"):
        scheduler = CounterAllocator(offer({h100(0).pci: h100(0)}, {}))
        scheduler.allocate(name)
        assert not any(map(scheduler.is_free, scheduler.devices))


def test_a_gpu_whose_other_form_is_withdrawn_needs_no_counter() -> None:
    gpu = replace(h100(0), kept_mode=None)
    assert published(Inventory((gpu,))) == published(Inventory((gpu,)), limits=None)
