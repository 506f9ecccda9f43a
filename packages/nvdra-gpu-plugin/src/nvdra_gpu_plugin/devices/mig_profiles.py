# SPDX-License-Identifier: Apache-2.0
"""Profiles of MIG devices, and how they are called.

Source: docs/reference/gpu-devices.md, "MIG profiles".
"""

from dataclasses import dataclass
from typing import Final

_SUFFIXES: Final = (
    *([""] * 7),
    *("+me", "+me", "", "+gfx", "+gfx", "+gfx", "-me", "-me", "+me.all", "+me.all", "+gfx"),
)
"""By the index that NVML is asked for, `NVML_GPU_INSTANCE_PROFILE_…`."""

_GIB: Final = 1 << 30


@dataclass(frozen=True, slots=True)
class MigProfile:
    """What a GPU instance has.

    Attributes:
        name: Such as `3g.20gb` or `1g.10gb+me`.
        id: The id that `nvidia-smi mig -lgip` shows.
        index: The number that NVML is asked for, `NVML_GPU_INSTANCE_PROFILE_…`.
        slices: Compute slices.
    """

    name: str
    id: int
    index: int
    slices: int
    multiprocessors: int
    copy_engines: int
    decoders: int
    encoders: int
    jpeg_engines: int
    ofa_engines: int
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class Placement:
    """The memory slices of a GPU instance, from `start` on."""

    start: int
    size: int


def profile_name(
    index: int, slices: int, memory_bytes: int, total_bytes: int | None, nvml_name: str = ""
) -> str:
    """The name of a profile, by its share of the GPU's memory: `1g.5gb`.

    Args:
        index: NVML's index of the profile.
        slices: Its compute slices.
        memory_bytes: Its memory.
        total_bytes: The memory of the GPU; None if it reports none.
        nvml_name: What NVML calls it, for an index that is newer than this program, and for a GPU
            that reports no memory.
    """
    if nvml_name and (total_bytes is None or index >= len(_SUFFIXES)):
        return nvml_name
    suffix = _SUFFIXES[index] if index < len(_SUFFIXES) else ""
    return f"{slices}g.{_gigabytes(memory_bytes, total_bytes or memory_bytes)}gb{suffix}"


def part_name(profile: str, compute_slices: int) -> str:
    """The name of a compute instance that does not cover its GPU instance: `1c.3g.20gb`."""
    return f"{compute_slices}c.{profile}"


def _gigabytes(memory_bytes: int, total_bytes: int) -> int:
    """The memory in eighths of the GPU, rounded up, of its size in GiB; halves are rounded up."""
    eighths = -(-8 * memory_bytes // total_bytes)
    total = -(-total_bytes // _GIB)
    return (eighths * total + 4) // 8
