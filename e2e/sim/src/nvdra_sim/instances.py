"""MIG instances that a node file asks for: do they exist, and do they fit in the order given?

The rules are those of the hardware (spec/nvml-simulator.md §7.3, §7.5).
"""

from __future__ import annotations

from nvdra_sim.description import MigInstance, MigProfile, MigTable
from nvdra_sim.errors import ConfigError, Problem
from nvdra_sim.nodefile import MigEntry, MigInstanceEntry

# Compute slices of a GPU instance → sizes of compute instances it can hold.
COMPUTE_SIZES = {1: (1,), 2: (1, 2), 3: (1, 2, 3), 4: (1, 2, 4), 7: (1, 2, 3, 4, 7)}
SHARED_ENGINES = ("decoders", "encoders", "jpeg_engines", "ofa_engines")


def resolve(entry: MigEntry, table: MigTable, path: str) -> tuple[MigInstance, ...]:
    """The instances of one board; raises `ConfigError` naming the first that cannot be made."""
    if entry.instances and not entry.mode:
        raise ConfigError([Problem(f"{path}.mode", "instances need MIG mode on")])
    made: list[MigInstance] = []
    for place, wanted in enumerate(entry.instances):
        where = f"{path}.instances.{place}"
        profile = _profile(wanted, table, where)
        _check_fit(profile, wanted.start, made, table, where)
        compute = _compute(wanted, profile, where)
        made.append(MigInstance(profile=profile.name, start=wanted.start, compute=compute))
    return tuple(made)


def _profile(wanted: MigInstanceEntry, table: MigTable, where: str) -> MigProfile:
    try:
        profile = table.profile(wanted.profile)
    except KeyError:
        known = ", ".join(profile.name for profile in table.profiles)
        problem = Problem(f"{where}.profile", f"{wanted.profile!r} is none of {known}")
        raise ConfigError([problem]) from None
    if wanted.start not in profile.placement_starts:
        starts = ", ".join(str(start) for start in profile.placement_starts)
        raise ConfigError([Problem(f"{where}.start", f"{profile.name} starts at one of {starts}")])
    return profile


def _check_fit(
    profile: MigProfile, start: int, made: list[MigInstance], table: MigTable, where: str
) -> None:
    """Room in memory slices, in compute slices, in engines, and below the profile's own maximum."""
    others = [table.profile(instance.profile) for instance in made]
    end = start + profile.placement_size
    for instance, other in zip(made, others, strict=True):
        if start < instance.start + other.placement_size and instance.start < end:
            message = f"overlaps {other.name} at {instance.start}"
            raise ConfigError([Problem(f"{where}.start", message)])
    if sum(other.name == profile.name for other in others) >= profile.max_instances:
        message = f"at most {profile.max_instances} of {profile.name}"
        raise ConfigError([Problem(f"{where}.profile", message)])
    if sum(other.slices for other in others) + profile.slices > table.compute_slices:
        message = f"more than {table.compute_slices} compute slices"
        raise ConfigError([Problem(f"{where}.profile", message)])
    whole = max(table.profiles, key=lambda one: (one.slices, one.decoders))
    for engine in SHARED_ENGINES:
        used = sum(getattr(other, engine) for other in others) + getattr(profile, engine)
        if used > getattr(whole, engine):
            message = f"more {engine} than the board's {getattr(whole, engine)}"
            raise ConfigError([Problem(f"{where}.profile", message)])


def _compute(wanted: MigInstanceEntry, profile: MigProfile, where: str) -> tuple[int, ...]:
    """Sizes of the compute instances, `3c` or `3` meaning three slices."""
    sizes = []
    for place, text in enumerate(wanted.compute):
        digits = text.removesuffix("c")
        if not digits.isdigit() or int(digits) not in COMPUTE_SIZES[profile.slices]:
            known = ", ".join(f"{size}c" for size in COMPUTE_SIZES[profile.slices])
            message = f"{text!r} is none of {known}"
            raise ConfigError([Problem(f"{where}.compute.{place}", message)])
        sizes.append(int(digits))
    if sum(sizes) > profile.slices:
        raise ConfigError([Problem(f"{where}.compute", f"more than {profile.slices} slices")])
    return tuple(sizes)
