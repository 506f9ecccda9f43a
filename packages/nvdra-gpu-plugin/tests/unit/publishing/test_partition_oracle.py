# SPDX-License-Identifier: Apache-2.0
"""The published counters allow what NVIDIA's documentation allows, and nothing else.

For every GPU, 500 sequences of claims and releases are allocated by the scheduler's rules. At every
step, each device that it considers is also asked of NVIDIA's tables. In half of the sequences an
administrator has made a MIG device before, or a GPU instance alone.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from random import Random
from typing import Final

import pytest
from nvdra_api.gates import FeatureGates
from nvdra_api.ids import MigUUID, NodeName
from nvdra_gpu_plugin.devices.inventory import (
    Gpu,
    GpuInstance,
    Inventory,
    MigDevice,
    MigPartition,
)
from nvdra_gpu_plugin.publishing import layout
from nvdra_runtime.resourceslices import arrangement
from nvdra_runtime.resourceslices.pool import Pool
from nvdra_testing.hardware import mig_oracle
from nvdra_testing.hardware.counter_allocator import CounterAllocator
from nvdra_testing.hardware.mig_oracle import MigOracle, Place

SEQUENCES: Final = 500
STEPS: Final = 25
OVERTAKEN_SEQUENCES: Final = 40
LIKE: Final = {"h100-94": "h100"}
"""A GPU that is not simulated, and one with the same profiles except for their memory."""

MEMORY_GIB: Final = {
    "h100-94": {"1g.10gb": 10.75, "1g.20gb": 21.62, "2g.20gb": 21.62, "3g.40gb": 46.38}
    | {"4g.40gb": 46.38, "7g.80gb": 93.12, "1g.10gb+me": 10.75}
}
"""Source: NVIDIA/gpu-operator, pull request 900: `nvidia-smi mig -lgip` of an H100 NVL."""


def gpu_of(describe: Callable[..., Gpu], model: str) -> Gpu:
    """The GPU, in MIG mode, with the names of its own profiles."""
    found = describe(LIKE.get(model, model), mig={"mode": True})
    if model not in LIKE:
        return found
    ours, theirs = MigOracle.of(model).profiles, MigOracle.of(LIKE[model]).profiles
    names = dict(zip(theirs, ours, strict=True))
    sizes = MEMORY_GIB[model]

    def renamed(each: MigPartition) -> MigPartition:
        name = each.profile.name
        size = int(sizes[name] * 2**30)
        return replace(each, profile=replace(each.profile, name=names[name], memory_bytes=size))

    return replace(found, partitions=tuple(map(renamed, found.partitions)))


def with_device(gpu: Gpu, made: MigPartition) -> Gpu:
    """The GPU with a MIG device that an administrator has made there."""
    device = MigDevice(
        uuid=MigUUID("MIG-theirs"),
        parent_uuid=gpu.uuid,
        parent_number=gpu.minor,
        pci=gpu.pci,
        profile=made.profile,
        placement=made.placement,
        gpu_instance=1,
        compute_instance=0,
        compute_start=0,
        compute_slices=made.profile.slices,
        multiprocessors=made.profile.multiprocessors,
    )
    return replace(gpu, mig_devices=(device,))


def with_bare_instance(gpu: Gpu, made: MigPartition) -> Gpu:
    """The GPU with a GPU instance without a compute instance that an administrator has made."""
    return replace(gpu, bare_instances=(GpuInstance(1, made.profile, made.placement),))


def pool_of(gpu: Gpu) -> Pool:
    inventory = Inventory((gpu,))
    limits = arrangement.SPLIT
    return layout.pool(inventory, FeatureGates(), NodeName("node-a"), limits=limits)


def place_of(partition: MigPartition) -> Place:
    return Place(partition.profile.name, partition.placement.start)


class History:
    """One sequence of claims and releases on one GPU."""

    def __init__(self, oracle: MigOracle, gpu: Gpu, pool: Pool, random: Random) -> None:
        self.allocator = CounterAllocator(pool)
        self._random = random
        self._has_room = cache(oracle.has_room)
        self._places = {str(each.name): place_of(each) for each in gpu.partitions}
        self._whole = str(gpu.name)
        existing: tuple[MigDevice | GpuInstance, ...] = (*gpu.mig_devices, *gpu.bare_instances)
        self._theirs = [Place(each.profile.name, each.placement.start) for each in existing]
        theirs = {str(each.name) for each in gpu.mig_devices}
        names = [name for name in self._places if name not in theirs]
        by_profile = [
            [name for name in names if self._places[name].profile == profile]
            for profile in sorted({self._places[name].profile for name in names})
        ]
        self._requests: Sequence[Sequence[str]] = [*by_profile, names, [self._whole]]

    def run(self) -> None:
        for _ in range(STEPS):
            if self.allocator.allocated and self._random.random() < 0.35:
                self.allocator.release(self._random.choice(self.allocator.allocated))
            else:
                self._claim(self._random.choice(self._requests))

    def _claim(self, candidates: Sequence[str]) -> None:
        """Allocate the first device that is free."""
        for name in candidates:
            is_free = name in self.allocator.devices and self.allocator.is_free(name)
            assert is_free == self._is_allowed(name), (name, self.allocator.allocated, self._theirs)
            if is_free:
                self.allocator.allocate(name)
                return

    def _is_allowed(self, name: str) -> bool:
        if self._whole in self.allocator.allocated:
            return False
        existing = frozenset(
            [*self._theirs, *(self._places[each] for each in self.allocator.allocated)]
        )
        if name == self._whole:
            return not existing and self._whole in self.allocator.devices
        return self._has_room(existing, self._places[name])


@pytest.mark.parametrize("model", mig_oracle.gpus())
def test_the_counters_allow_what_the_hardware_allows(
    describe: Callable[..., Gpu], model: str
) -> None:
    oracle = MigOracle.of(model)
    empty = gpu_of(describe, model)

    @cache
    def variant(theirs: int | None, has_device: bool) -> tuple[Gpu, Pool]:
        make = with_device if has_device else with_bare_instance
        gpu = empty if theirs is None else make(empty, empty.partitions[theirs])
        return gpu, pool_of(gpu)

    for seed in range(SEQUENCES):
        random = Random(f"{model}/{seed}")
        theirs = random.randrange(len(empty.partitions)) if seed % 2 else None
        History(oracle, *variant(theirs, seed % 4 == 1), random).run()


@pytest.mark.parametrize("model", mig_oracle.gpus())
def test_what_is_not_published_could_not_be_made(describe: Callable[..., Gpu], model: str) -> None:
    oracle = MigOracle.of(model)
    empty = gpu_of(describe, model)
    assert {place_of(each) for each in empty.partitions} == oracle.places
    for made in empty.partitions:
        names = CounterAllocator(pool_of(with_device(empty, made))).devices
        withheld = {place_of(each) for each in empty.partitions if each.name not in names}
        assert withheld - {place_of(made)} == {
            place
            for place in oracle.places - {place_of(made)}
            if not oracle.has_room([place_of(made)], place)
        }
        pool = pool_of(with_bare_instance(empty, made))
        alone = CounterAllocator(pool).devices
        assert set(alone) == set(names) - {str(empty.name), str(made.name)}


@pytest.mark.parametrize("model", mig_oracle.gpus())
def test_no_counter_falls_below_zero_whatever_is_made_beside_claims(
    describe: Callable[..., Gpu], model: str
) -> None:
    """Some claims are prepared: beside these the hardware has room for what an administrator makes.

    The others are only allocated, perhaps where there is no room any more. Their devices are not
    published any longer, so that Kubernetes does not count them.
    """
    oracle, empty = MigOracle.of(model), gpu_of(describe, model)
    places = {str(each.name): place_of(each) for each in empty.partitions}
    for seed in range(OVERTAKEN_SEQUENCES):
        random = Random(f"{model}/{seed}")
        before = CounterAllocator(pool_of(empty))
        for _ in range(random.randrange(1, 8)):
            if not (free := [name for name in places if before.is_free(name)]):
                break
            before.allocate(random.choice(free))
        prepared = random.sample(before.allocated, random.randint(0, len(before.allocated)))
        held, made = [places[each] for each in prepared], list[GpuInstance]()
        for _ in range(random.randrange(1, 5)):
            room = [each for each in empty.partitions if oracle.has_room(held, place_of(each))]
            if not room:
                break
            chosen = random.choice(room)
            held.append(place_of(chosen))
            made.append(GpuInstance(len(made), chosen.profile, chosen.placement))
        after = CounterAllocator(pool_of(replace(empty, bare_instances=tuple(made))))
        for name in before.allocated:
            if name in after.devices:
                after.keep(name)
        assert not after.overdrawn, (before.allocated, prepared, made)


@pytest.mark.parametrize("model", mig_oracle.gpus())
def test_the_placement_that_is_listed_first_leaves_most_to_each_other_profile(
    describe: Callable[..., Gpu], model: str
) -> None:
    """The scheduler takes the first that fits."""
    oracle, gpu = MigOracle.of(model), gpu_of(describe, model)
    places = {str(each.name): place_of(each) for each in gpu.partitions}
    listed = [places[each.name] for each in pool_of(gpu).content.devices if each.name in places]
    assert set(listed) == set(places.values())

    def left(made: Place, profile: str) -> int:
        others = [each for each in oracle.places if each.profile == profile]
        return sum(oracle.has_room([made], each) for each in others)

    for first in oracle.profiles:
        candidates = [each for each in listed if each.profile == first]
        for other in oracle.profiles:
            counts = [left(each, other) for each in candidates]
            assert counts[0] == max(counts), (candidates, other, counts)


def test_two_small_devices_of_an_h100_leave_room_for_its_only_4g(
    describe: Callable[..., Gpu],
) -> None:
    gpu = gpu_of(describe, "h100")
    allocator = CounterAllocator(pool_of(gpu))
    profiles = {str(each.name): each.profile.name for each in gpu.partitions}

    def allocate(profile: str) -> bool:
        """Allocate the first device that fits, as the scheduler does."""
        for name in allocator.devices:
            if profiles.get(name) == profile and allocator.is_free(name):
                allocator.allocate(name)
                return True
        return False

    assert [allocate(each) for each in ("1g.10gb", "1g.10gb", "4g.40gb")] == [True] * 3
