# SPDX-License-Identifier: Apache-2.0
"""The health of a driver's devices, as the kubelet shows it in the status of pods."""

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from nvdra_api.ids import DeviceName, PoolName


class HealthStatus(enum.Enum):
    """What the kubelet knows: `Unknown`, `Healthy`, `Unhealthy`."""

    UNKNOWN = 0
    HEALTHY = 1
    UNHEALTHY = 2


@dataclass(frozen=True, slots=True)
class DeviceHealth:
    """The health of one device.

    Attributes:
        pool: The pool of the device.
        device: Its name in the ResourceSlice.
        status: Its health.
        since: Since when it is so.
        message: Why it is not healthy, for those who read the status of the pod.
    """

    pool: PoolName
    device: DeviceName
    status: HealthStatus
    since: datetime
    message: str = ""


class HealthSource(Protocol):
    """What a driver knows of its devices."""

    @property
    def devices(self) -> Sequence[DeviceHealth] | None:
        """The health of all devices; None if nothing is known yet."""
        ...

    def on_change(self, notify: Callable[[], None]) -> None:
        """Call `notify` whenever `devices` has changed."""
        ...
