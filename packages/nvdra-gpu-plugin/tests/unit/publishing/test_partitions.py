# SPDX-License-Identifier: Apache-2.0
"""What can be made of a GPU → devices, and what keeps them apart."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from nvdra_api.gates import FeatureGates
from nvdra_api.ids import DeviceName, GpuUUID, NodeName, PciAddress
from nvdra_api.resource.slices import Device, DeviceTaint
from nvdra_gpu_plugin.devices.inventory import Fault, Gpu, Inventory, MigPartition
from nvdra_gpu_plugin.devices.mig_profiles import Placement
from nvdra_gpu_plugin.publishing import layout
from nvdra_runtime.resourceslices import pool_diff
from nvdra_runtime.resourceslices.arrangement import COMBINED, SPLIT, SliceLimits
from nvdra_runtime.resourceslices.pool import Pool, Slice
from nvdra_testing.hardware import gpus
from nvdra_testing.hardware.gpus import PROFILES, h100

NODE = NodeName("node-a")
PLACES = {19: ((0, 6), 1), 14: ((0, 4), 2), 9: ((0, 4), 4), 0: ((0,), 8)}
"""Some of an H100's placements by profile id: first memory slices, and their number."""

PARTS = [
    "gpu-0-mig-1g10gb-19-0",
    "gpu-0-mig-1g10gb-19-6",
    "gpu-0-mig-2g20gb-14-0",
    "gpu-0-mig-2g20gb-14-4",
    "gpu-0-mig-3g40gb-9-0",
    "gpu-0-mig-3g40gb-9-4",
    "gpu-0-mig-7g80gb-0-0",
]


def parted(gpu: Gpu) -> Gpu:
    """The GPU with some partitions."""
    found = [
        MigPartition(gpu.uuid, gpu.minor, gpu.pci, PROFILES[number], Placement(start, size))
        for number, (starts, size) in PLACES.items()
        for start in starts
    ]
    return replace(gpu, partitions=tuple(sorted(found, key=lambda each: each.name)))


def cut(*cuts: tuple[int, int], **overrides: object) -> Gpu:
    """A GPU with partitions on which an administrator has made MIG devices."""
    return parted(gpus.in_mig_mode(0, *cuts, **overrides))


def pool(*found: Gpu, limits: SliceLimits | None = SPLIT, awaited: Slice = layout.NOTHING) -> Pool:
    return layout.pool(Inventory(found), FeatureGates(), NODE, awaited, limits=limits)


def names(made: Pool) -> list[str]:
    """Sorted: `test_partition_oracle` is about the order."""
    return sorted(str(each.name) for each in made.content.devices)


def left(made: Pool) -> dict[str, int]:
    (only,) = made.content.shared_counters
    return {name: int(counter.value.amount) for name, counter in only.counters.items()}


def device(made: Pool, name: str) -> Device:
    return next(each for each in made.content.devices if each.name == name)


def consumed(found: Device) -> dict[str, int]:
    (only,) = found.consumes_counters
    return {name: int(counter.value.amount) for name, counter in only.counters.items()}


def test_a_gpu_that_cannot_be_switched_offers_what_its_mode_allows() -> None:
    gpu, other = parted(h100(0)), parted(h100(1))
    found = Inventory((gpu, other))
    for mode, expected in ((False, ["gpu-0"]), (True, PARTS)):
        made = layout.pool(
            found.keeping_modes({gpu.uuid: mode}), FeatureGates(), NODE, limits=SPLIT
        )
        of_first = [name for name in names(made) if name.startswith("gpu-0")]
        assert of_first == expected
        assert len(names(made)) - len(of_first) == 1 + len(PARTS), "those of the other GPU"
        assert len(made.content.shared_counters) == 2
    assert found.keeping_modes({}) is found


def test_the_place_that_an_ended_claim_has_left_is_missing_with_all_that_overlaps_it() -> None:
    made = pool(replace(parted(h100(0)), left_places=frozenset({(14, 4)})))
    assert names(made) == [
        "gpu-0-mig-1g10gb-19-0",
        "gpu-0-mig-1g10gb-19-6",
        "gpu-0-mig-2g20gb-14-0",
        "gpu-0-mig-3g40gb-9-0",
    ]
    whole = left(pool(parted(h100(0))))
    assert left(made)["multiprocessors"] == whole["multiprocessors"] - 32
    assert [left(made)[f"memory-slice-{number}"] for number in range(3, 7)] == [1, 0, 0, 1]
    assert names(pool(replace(h100(0), left_places=frozenset({(14, 4)})))) == [], "no partitions"


def test_a_gpu_is_offered_whole_and_in_parts_that_share_its_counters() -> None:
    made = pool(parted(h100(0)))
    assert names(made) == ["gpu-0", *PARTS]
    assert [each.name for each in made.content.shared_counters] == ["gpu-0-counter-set"]
    assert left(made) == {
        "multiprocessors": 132,
        "copy-engines": 8,
        "decoders": 7,
        "encoders": 0,
        "jpeg-engines": 7,
        "ofa-engines": 1,
        "memory": 81152 << 20,
        **{f"memory-slice-{number}": 1 for number in range(8)},
    }
    assert consumed(device(made, "gpu-0")) == left(made)
    assert consumed(device(made, "gpu-0-mig-2g20gb-14-4")) == {
        "multiprocessors": 32,
        "copy-engines": 2,
        "decoders": 2,
        "encoders": 0,
        "jpeg-engines": 2,
        "ofa-engines": 0,
        "memory": 20096 << 20,
        "memory-slice-4": 1,
        "memory-slice-5": 1,
    }


def test_a_partition_has_what_is_known_before_it_is_made() -> None:
    made = pool(parted(h100(0)))
    part, whole = device(made, "gpu-0-mig-3g40gb-9-4"), device(made, "gpu-0")
    assert "uuid" not in part.attributes
    assert part.attributes["parentUUID"] == whole.attributes["uuid"]
    assert part.attributes["type"].string_value == "mig"
    assert part.attributes["profile"].string_value == "3g.40gb"
    only_whole = set(whole.attributes) - set(part.attributes)
    assert only_whole == {"uuid"}
    assert {name: int(each.value.amount) for name, each in part.capacity.items()} == {
        "multiprocessors": 60,
        "copyEngines": 3,
        "decoders": 3,
        "encoders": 0,
        "jpegEngines": 3,
        "ofaEngines": 0,
        "memory": 40448 << 20,
    }
    assert {name: int(each.value.amount) for name, each in whole.capacity.items()} == {
        "multiprocessors": 132,
        "copyEngines": 8,
        "decoders": 7,
        "encoders": 0,
        "jpegEngines": 7,
        "ofaEngines": 1,
        "memory": 81152 << 20,
    }


def test_in_mig_mode_it_is_the_same_because_claims_switch_the_mode() -> None:
    assert pool(parted(h100(0, is_mig_enabled=True))) == pool(parted(h100(0)))


def test_a_gpu_that_needs_a_reset_for_that_is_offered_in_parts_only() -> None:
    ampere = parted(h100(0, architecture="Ampere", is_mig_enabled=True))
    assert names(pool(ampere)) == PARTS
    assert left(pool(ampere)) == left(pool(parted(h100(0))))


def test_what_an_administrator_has_made_stays_and_is_subtracted() -> None:
    made = pool(cut((9, 4)))
    assert names(made) == [
        "gpu-0-mig-1g10gb-19-0",
        "gpu-0-mig-2g20gb-14-0",
        "gpu-0-mig-3g40gb-9-0",
        "gpu-0-mig-3g40gb-9-4",
    ]
    theirs = device(made, "gpu-0-mig-3g40gb-9-4")
    assert theirs.consumes_counters == ()
    assert theirs.attributes["uuid"].string_value == "MIG-0-2-0"
    assert left(made) == {
        "multiprocessors": 72,
        "copy-engines": 5,
        "decoders": 4,
        "encoders": 0,
        "jpeg-engines": 4,
        "ofa-engines": 1,
        "memory": 40704 << 20,
        **{f"memory-slice-{number}": int(number < 4) for number in range(8)},
    }


def test_two_compute_instances_of_one_gpu_instance_are_subtracted_once() -> None:
    gpu = cut((9, 4))
    (one,) = gpu.mig_devices
    other = replace(one, compute_instance=1, compute_start=2, compute_slices=1)
    both = replace(gpu, mig_devices=(replace(one, compute_slices=2), other))
    assert left(pool(both)) == left(pool(gpu))


def test_what_an_administrator_has_made_takes_room_even_if_it_is_not_offered() -> None:
    """Its capability's device node is missing, or a claim holds it under a former name."""
    gpu = cut((9, 4))
    (theirs,) = gpu.mig_devices
    inventory = Inventory((gpu,)).without([Fault(theirs.name, "no device node")])
    made = layout.pool(inventory, FeatureGates(), NODE, limits=SPLIT)
    assert names(made) == [name for name in names(pool(gpu)) if name != theirs.name]
    assert left(made) == left(pool(gpu))


def test_a_gpu_without_room_for_a_partition_has_no_counters() -> None:
    made = pool(cut((0, 0)))
    assert names(made) == ["gpu-0-mig-7g80gb-0-0"]
    assert made.content.shared_counters == ()


def test_a_device_that_needs_an_engine_that_is_gone_is_not_offered() -> None:
    """A media extension that an administrator has used up."""
    media = replace(PROFILES[19], id=20, name="1g.10gb+me", ofa_engines=1)
    gpu = cut((19, 6))
    part = replace(gpu.partitions[0], profile=media, placement=Placement(3, 1))
    theirs = replace(gpu.mig_devices[0], profile=media)
    used = replace(gpu, partitions=(*gpu.partitions, part), mig_devices=(theirs,))
    assert part.name == "gpu-0-mig-1g10gb-me-20-3"
    assert part.name not in names(pool(used))
    assert part.name in names(pool(replace(used, mig_devices=())))


def test_where_counters_are_not_kept_it_is_as_without_partitions() -> None:
    for gpu in (h100(0), gpus.in_mig_mode(0, (9, 4)), h100(0, is_mig_enabled=True)):
        assert pool(parted(gpu), limits=None) == pool(gpu, limits=None)


def test_the_taints_of_a_gpu_are_those_of_its_parts() -> None:
    taint = DeviceTaint(key="gpu.nvidia.com/xid", value="48", effect="NoSchedule")
    taints: layout.Taints = {h100(0).uuid: (taint,)}
    inventory = Inventory((parted(h100(0)), parted(h100(1))))
    made = layout.pool(inventory, FeatureGates(), NODE, taints=taints, limits=SPLIT)
    tainted = sorted(str(each.name) for each in made.content.devices if each.taints)
    assert tainted == ["gpu-0", *PARTS]


def test_a_gpu_that_may_still_be_starting_keeps_its_parts_and_their_counters() -> None:
    both = pool(parted(h100(0)), parted(h100(1)))
    known = Inventory((parted(h100(1)),))
    awaited = layout.still_awaited(both.content, known, (DeviceName("gpu-0"),), ())
    assert pool(parted(h100(1)), awaited=awaited) == both
    assert names(pool(parted(h100(1)), awaited=awaited, limits=None)) == ["gpu-0", "gpu-1"]
    without_sets = Slice(awaited.devices)
    alone = pool(parted(h100(1)), awaited=without_sets)
    assert names(alone)[:2] == ["gpu-0", "gpu-1"], "parts without counters would overlap"
    assert device(alone, "gpu-0").consumes_counters == ()


def many(describe: Callable[..., Gpu], model: str) -> list[Gpu]:
    one = describe(model, mig={"mode": True})
    return [
        replace(
            one,
            uuid=GpuUUID(f"GPU-{minor}"),
            minor=minor,
            pci=PciAddress(f"0000:{minor:02x}:00.0"),
            partitions=tuple(
                replace(each, parent_number=minor, parent_uuid=GpuUUID(f"GPU-{minor}"))
                for each in one.partitions
            ),
        )
        for minor in range(16)
    ]


@pytest.mark.parametrize("model", ["a30", "a100-40", "h100", "gb200", "rtx-pro-6000"])
@pytest.mark.parametrize("limits", [SPLIT, COMBINED], ids=["split", "combined"])
def test_sixteen_gpus_are_within_the_limits(
    describe: Callable[..., Gpu], model: str, limits: SliceLimits
) -> None:
    made = pool(*many(describe, model), limits=limits)
    assert pool_diff.problems(made) == ()
    for part in made.slices:
        consumptions = [one for each in part.devices for one in each.consumes_counters]
        assert len(part.devices) <= limits.devices
        assert max([len(one.counters) for one in consumptions], default=0) <= 32
        assert max([len(each.attributes) + len(each.capacity) for each in part.devices] or [0]) < 32
        counted = [len(each.counters) for each in part.shared_counters]
        if limits.is_split:
            assert not (part.devices and part.shared_counters)
            assert len(counted) <= 8
            assert max(counted, default=0) <= 32
        else:
            assert sum(counted) <= 32
            assert sum(len(one.counters) for one in consumptions) <= 1024
            own = {each.name for each in part.shared_counters}
            assert {one.counter_set for one in consumptions} <= own


def test_a_change_of_one_gpu_changes_one_slice() -> None:
    before = pool(*(parted(h100(minor)) for minor in range(16)))
    xid = DeviceTaint(key="gpu.nvidia.com/xid", value="48", effect="NoSchedule")
    after = layout.pool(
        Inventory(tuple(parted(h100(minor)) for minor in range(16))),
        FeatureGates(),
        NODE,
        taints={h100(9).uuid: (xid,)},
        limits=SPLIT,
    )
    changed = [one != other for one, other in zip(before.slices, after.slices, strict=True)]
    assert sum(changed) == 1


def test_beside_gpus_with_parts_others_share_nothing() -> None:
    made = pool(parted(h100(0)), h100(1))
    assert device(made, "gpu-1").consumes_counters == ()
    assert device(made, "gpu-1") == device(pool(h100(1)), "gpu-1")
