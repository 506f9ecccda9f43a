# SPDX-License-Identifier: Apache-2.0
"""Create the MIG instances that a node file requests, in the given order, if they fit.

The rules are those of the hardware (docs/reference/nvml-simulator.md §7.3-7.6).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Literal
from uuid import UUID, uuid5

from nvdra_sim.configuration.file_schema import MigEntry, MigInstanceEntry, MigSection
from nvdra_sim.description import (
    ComputeInstance,
    MigBehaviour,
    MigInstance,
    MigProfile,
    MigTable,
)
from nvdra_sim.errors import ConfigError, Problem

# Compute slices of a GPU instance → possible sizes of its compute instances.
COMPUTE_SIZES = {1: (1,), 2: (1, 2), 3: (1, 2, 3), 4: (1, 2, 4), 7: (1, 2, 3, 4, 7)}
SHARED_ENGINES = ("decoders", "encoders", "jpeg_engines", "ofa_engines")


# Sizes of compute instances → their profile's id.
COMPUTE_PROFILES = {1: 0, 2: 1, 3: 2, 4: 3, 7: 4}
# Instances are numbered by size: whole GPU, half, quarter, eighth of its memory slices.
FIRST_ID = {1: 0, 2: 1, 4: 3, 8: 7}


def resolve(
    entry: MigEntry, table: MigTable, behaviour: MigSection, gpu_uuid: UUID, path: str
) -> tuple[MigInstance, ...]:
    """The MIG instances of one GPU. Raises `ConfigError` for the first that is not possible.

    Args:
        entry: The MIG entry of the GPU in the node file.
        table: The MIG profiles and placements of the GPU.
        behaviour: How instances are numbered and named.
        gpu_uuid: The UUID of the GPU, from which the UUIDs of its MIG devices are derived.
        path: The path of the entry in the file.
    """
    if entry.instances and not entry.mode:
        raise ConfigError([Problem(f"{path}.mode", "instances require MIG mode")])
    made: list[MigInstance] = []
    for place, wanted in enumerate(entry.instances):
        count = sum(1 + len(each.compute) for each in made)
        where = f"{path}.instances.{place}"
        made.append(create(wanted, made, table, behaviour, gpu_uuid, count, where))
    return tuple(made)


def create(
    wanted: MigInstanceEntry,
    existing: Sequence[MigInstance],
    table: MigTable,
    behaviour: MigSection | MigBehaviour,
    gpu_uuid: UUID,
    instances_made: int,
    where: str = "",
) -> MigInstance:
    """One GPU instance with its compute instances. Raises `ConfigError` if it is not possible.

    Args:
        wanted: Its profile, start and compute instances.
        existing: The GPU instances that there are.
        table: The MIG profiles and placements of the GPU.
        behaviour: How instances are numbered and named.
        gpu_uuid: The UUID of the GPU.
        instances_made: How many instances of both kinds were made on the GPU before.
        where: The path of the entry in a file.
    """
    profile = _profile(wanted, table, where)
    _check_fit(profile, wanted.start, existing, table, where)
    id_ = gpu_instance_id(table, profile.placement_size, wanted.start, behaviour.gi_id_order)
    count = itertools.count(instances_made + 1)
    incarnation = next(count)
    compute = tuple(
        ComputeInstance(
            id=number,
            profile_id=COMPUTE_PROFILES[size],
            start=start,
            size=size,
            incarnation=(made_as := next(count)),
            uuid=device_uuid(gpu_uuid, id_, number, made_as, behaviour.uuid),
        )
        for number, (start, size) in enumerate(_compute(wanted, profile, where))
    )
    return MigInstance(
        id=id_,
        profile=profile.name,
        start=wanted.start,
        size=profile.placement_size,
        incarnation=incarnation,
        compute=compute,
    )


def gpu_instance_id(
    table: MigTable, size: int, start: int, order: Literal["normal", "reversed"] = "normal"
) -> int:
    """The id of a GPU instance at a placement (§7.4)."""
    pieces = table.memory_slices // size
    place = start // size
    if order == "reversed" and pieces == 2:
        place = 1 - place
    return FIRST_ID[pieces] + place


def device_uuid(
    gpu_uuid: UUID,
    gpu_instance: int,
    compute_instance: int,
    incarnation: int,
    kind: Literal["stable", "fresh"],
) -> UUID:
    """The UUID of a MIG device. A recreated device has the same one if `kind` is stable (§7.6)."""
    name = f"{gpu_instance}/{compute_instance}"
    return uuid5(gpu_uuid, name if kind == "stable" else f"{name}/{incarnation}")


def compute_starts(size: int, slices: int) -> range:
    """Where compute instances of a size may start in a GPU instance (§7.5).

    1c can start at any slice, 2c at even slices, larger ones at 0 and 4.
    """
    return range(0, slices - size + 1, size if size <= 2 else 4)


def _profile(wanted: MigInstanceEntry, table: MigTable, where: str) -> MigProfile:
    try:
        profile = table.profile(wanted.profile)
    except KeyError:
        known = ", ".join(profile.name for profile in table.profiles)
        problem = Problem(f"{where}.profile", f"{wanted.profile!r} is not one of {known}")
        raise ConfigError([problem]) from None
    if wanted.start not in profile.placement_starts:
        starts = ", ".join(str(start) for start in profile.placement_starts)
        raise ConfigError([Problem(f"{where}.start", f"{profile.name} starts at one of {starts}")])
    return profile


def _check_fit(
    profile: MigProfile, start: int, made: Sequence[MigInstance], table: MigTable, where: str
) -> None:
    """Checks memory slices, compute slices, engines and the maximum number of the profile."""
    others = [table.profile(instance.profile) for instance in made]
    end = start + profile.placement_size
    for instance, other in zip(made, others, strict=True):
        if start < instance.start + other.placement_size and instance.start < end:
            message = f"overlaps {other.name} at {instance.start}"
            raise ConfigError([Problem(f"{where}.start", message)])
    if sum(other.name == profile.name for other in others) >= profile.max_instances:
        message = f"at most {profile.max_instances} instances of {profile.name} are possible"
        raise ConfigError([Problem(f"{where}.profile", message)])
    if sum(other.slices for other in others) + profile.slices > table.compute_slices:
        message = f"more than {table.compute_slices} compute slices"
        raise ConfigError([Problem(f"{where}.profile", message)])
    whole = max(table.profiles, key=lambda one: (one.slices, one.decoders))
    for engine in SHARED_ENGINES:
        used = sum(getattr(other, engine) for other in others) + getattr(profile, engine)
        if used > getattr(whole, engine):
            message = f"more {engine} than the GPU's {getattr(whole, engine)}"
            raise ConfigError([Problem(f"{where}.profile", message)])


def _compute(
    wanted: MigInstanceEntry, profile: MigProfile, where: str
) -> tuple[tuple[int, int], ...]:
    """The start and size of the compute instances, each at the first free place."""
    placed: list[tuple[int, int]] = []
    for place, text in enumerate(wanted.compute):
        digits = text.removesuffix("c")
        if not digits.isdigit() or int(digits) not in COMPUTE_SIZES[profile.slices]:
            known = ", ".join(f"{size}c" for size in COMPUTE_SIZES[profile.slices])
            message = f"{text!r} is not one of {known}"
            raise ConfigError([Problem(f"{where}.compute.{place}", message)])
        size = int(digits)
        free = (
            start
            for start in compute_starts(size, profile.slices)
            if all(start >= end or start + size <= begin for begin, end in _spans(placed))
        )
        start = next(free, None)
        if start is None:
            message = f"no room for {size}c after the previous ones; list larger ones first"
            raise ConfigError([Problem(f"{where}.compute.{place}", message)])
        placed.append((start, size))
    return tuple(placed)


def _spans(placed: list[tuple[int, int]]) -> list[tuple[int, int]]:
    return [(start, start + size) for start, size in placed]
