"""What the kernel module says of IMEX's devices: how many channels, which numbers they have.

Texts of files below /proc; `node_devices` reads them. Source: spec/compute-domain.md §7.3.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

CHANNELS_DRIVER: Final = "nvidia-caps-imex-channels"
"""What `/proc/devices` calls the driver of channels."""
CAPABILITIES_DRIVER: Final = "nvidia-caps"
DEFAULT_COUNT: Final = 2048
"""Channels of a node whose module does not say how many it has."""

_COUNT: Final = "ImexChannelCount"
_PREFIX: Final = "NVreg_"
_CHANNEL_MODE: Final = 0o666


@dataclass(frozen=True, slots=True)
class DeviceNumbers:
    """A character device as a container gets it; the host need not have a node for it.

    Attributes:
        path: In the container.
        major: Device number.
        minor: Device number.
        mode: Permission bits.
    """

    path: str
    major: int
    minor: int
    mode: int


def count(params: str) -> int:
    """How many channels the module has, from `/proc/driver/nvidia/params`.

    Its parameter is `NVreg_ImexChannelCount`; the file leaves the prefix out.
    """
    for name, value in _lines(params):
        if name.removeprefix(_PREFIX) == _COUNT and value.isdecimal():
            return int(value)
    return DEFAULT_COUNT


def major(devices: str, driver: str) -> int | None:
    """Major number of a driver of character devices, from `/proc/devices`; None without it."""
    characters = devices.partition("Block devices:")[0]
    for line in characters.splitlines():
        number, _, name = line.strip().partition(" ")
        if name.strip() == driver and number.isdecimal():
            return int(number)
    return None


def channel(number: int, channels_major: int) -> DeviceNumbers:
    """One channel."""
    path = f"/dev/nvidia-caps-imex-channels/channel{number}"
    return DeviceNumbers(path, channels_major, number, _CHANNEL_MODE)


def capability(text: str, capabilities_major: int) -> DeviceNumbers:
    """The device behind a capability file, `fabric-imex-mgmt` for instance; its mode is copied.

    Raises:
        ValueError: the file does not say which.
    """
    facts = dict(_lines(text))
    try:
        minor, mode = int(facts["DeviceFileMinor"]), int(facts["DeviceFileMode"])
    except (KeyError, ValueError) as error:
        raise ValueError(f"it does not say minor number and mode: {text.split()}") from error
    return DeviceNumbers(f"/dev/nvidia-caps/nvidia-cap{minor}", capabilities_major, minor, mode)


def _lines(text: str) -> Iterator[tuple[str, str]]:
    for line in text.splitlines():
        name, _, value = line.partition(":")
        yield name.strip(), value.strip()
