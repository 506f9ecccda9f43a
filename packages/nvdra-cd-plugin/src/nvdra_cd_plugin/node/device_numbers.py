# SPDX-License-Identifier: Apache-2.0
"""Parses what the kernel module reports about IMEX devices: channel count and device numbers.

Pure; `imex_devices` reads the files below /proc. Source: docs/reference/compute-domain.md, "Device
library".
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

CHANNELS_DRIVER: Final = "nvidia-caps-imex-channels"
"""The name of the channels' driver in `/proc/devices`."""
CAPABILITIES_DRIVER: Final = "nvidia-caps"
"""The name of the capabilities' driver in `/proc/devices`."""
DEFAULT_COUNT: Final = 2048
"""The number of channels if the kernel module does not report it."""

_COUNT: Final = "ImexChannelCount"
_PREFIX: Final = "NVreg_"
_CHANNEL_MODE: Final = 0o666


@dataclass(frozen=True, slots=True)
class DeviceNumbers:
    """A character device for a container; the host need not have a device node for it.

    Attributes:
        path: The path in the container.
        major: The major device number.
        minor: The minor device number.
        mode: Permission bits.
    """

    path: str
    major: int
    minor: int
    mode: int


def channel_count(params: str) -> int:
    """The number of channels of the kernel module, from `/proc/driver/nvidia/params`.

    The module parameter is `NVreg_ImexChannelCount`; the file lists it without the prefix.
    """
    for name, value in _lines(params):
        if name.removeprefix(_PREFIX) == _COUNT and value.isdecimal():
            return int(value)
    return DEFAULT_COUNT


def major(devices: str, driver: str) -> int | None:
    """The major number of a driver of character devices, from `/proc/devices`; None if missing."""
    characters = devices.partition("Block devices:")[0]
    for line in characters.splitlines():
        number, _, name = line.strip().partition(" ")
        if name.strip() == driver and number.isdecimal():
            return int(number)
    return None


def channel(number: int, channels_major: int) -> DeviceNumbers:
    """The device of one channel."""
    path = f"/dev/nvidia-caps-imex-channels/channel{number}"
    return DeviceNumbers(path, channels_major, number, _CHANNEL_MODE)


def capability(text: str, capabilities_major: int) -> DeviceNumbers:
    """The device of a capability file, for example `fabric-imex-mgmt`, with the same mode.

    Raises:
        ValueError: The file lacks the minor number or the mode.
    """
    fields = dict(_lines(text))
    try:
        minor, mode = int(fields["DeviceFileMinor"]), int(fields["DeviceFileMode"])
    except (KeyError, ValueError) as error:
        raise ValueError(f"minor number or mode missing: {text.split()}") from error
    return DeviceNumbers(f"/dev/nvidia-caps/nvidia-cap{minor}", capabilities_major, minor, mode)


def _lines(text: str) -> Iterator[tuple[str, str]]:
    for line in text.splitlines():
        name, _, value = line.partition(":")
        yield name.strip(), value.strip()
