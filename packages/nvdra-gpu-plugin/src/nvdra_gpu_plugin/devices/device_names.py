# SPDX-License-Identifier: Apache-2.0
"""Names of devices in ResourceSlices (docs/reference/gpu-devices.md, "Device names")."""

import re
from typing import Final, NamedTuple

from nvdra_api.ids import DeviceName

_GPU: Final = re.compile(r"gpu-(\d+)(-mig-.+)?$")
_MIG: Final = re.compile(r"gpu-(\d+)-mig-(.+)-(\d+)-(\d+)")
_VFIO: Final = re.compile(r"gpu-vfio-\d+")
_NOT_IN_NAMES: Final = re.compile(r"[^a-z0-9-]")


class MigName(NamedTuple):
    """What the name of a MIG device says.

    Attributes:
        number: Of its GPU.
        profile: As it is written in names: `1g10gb-me`.
        profile_id: Of the GPU instance's profile.
        start: First memory slice of the GPU instance.
    """

    number: int
    profile: str
    profile_id: int
    start: int


def gpu_name(number: int) -> DeviceName:
    """The device name of a whole GPU."""
    return DeviceName(f"gpu-{number}")


def vfio_name(index: int) -> DeviceName:
    """The device name of a GPU that is passed to a virtual machine: `gpu-vfio-0`.

    Args:
        index: From `vfio_devices.indexes`. It is neither the minor number nor NVML's index.
    """
    return DeviceName(f"gpu-vfio-{index}")


def is_vfio_name(name: str) -> bool:
    """Whether it is the name of a vfio device."""
    return _VFIO.fullmatch(name) is not None


def mig_name(
    number: int, profile: str, profile_id: int, start: int, compute_start: int | None = None
) -> DeviceName:
    """The device name of a MIG device: `gpu-0-mig-1g5gb-19-4`.

    Args:
        number: Of its GPU.
        profile: Such as `1g.10gb+me`.
        profile_id: Of the GPU instance's profile.
        start: First memory slice of the GPU instance.
        compute_start: First compute slice within the GPU instance, if the device is only a part of
            one. It tells such parts of one GPU instance apart.
    """
    text = _NOT_IN_NAMES.sub("-", profile.lower().replace(".", "")).strip("-")
    part = "" if compute_start is None else f"-c{compute_start}"
    return DeviceName(f"{gpu_name(number)}-mig-{text}{part}-{profile_id}-{start}")


def parse_mig_name(name: str) -> MigName | None:
    """What the name of a MIG device says; None for a name of another kind."""
    match = _MIG.fullmatch(name)
    if match is None:
        return None
    return MigName(int(match[1]), match[2], int(match[3]), int(match[4]))


def parent_name(name: DeviceName) -> DeviceName:
    """The device name of the GPU that a device is, or is a part of."""
    parsed = parse_mig_name(name)
    return name if parsed is None else gpu_name(parsed.number)


def gpu_number(name: str) -> int | None:
    """The number of the GPU that a device is, or is a part of; None for another name."""
    match = _GPU.match(name)
    return None if match is None else int(match[1])
