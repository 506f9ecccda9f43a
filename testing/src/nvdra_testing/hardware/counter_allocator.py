# SPDX-License-Identifier: Apache-2.0
"""Allocates devices of a pool as the scheduler does, as far as counters decide.

Source: docs/reference/resource-slices.md, "Partitionable devices and consumable capacity", "Rules
for consumers".
"""

from collections.abc import Iterator

from nvdra_api.resource.slices import Device
from nvdra_runtime.resourceslices.pool import Pool


class CounterAllocator:
    """What of a pool is allocated.

    Attributes:
        devices: The pool's devices by name, in the order in which they are considered.
        allocated: The names of those that are allocated.
    """

    def __init__(self, pool: Pool) -> None:
        """Everything is free."""
        content = pool.content
        self.devices = {str(device.name): device for device in content.devices}
        self.allocated: list[str] = []
        self._left = {
            (each.name, name): int(counter.value.amount)
            for each in content.shared_counters
            for name, counter in each.counters.items()
        }
        self._consumed = {name: dict(_amounts(each)) for name, each in self.devices.items()}

    def is_free(self, name: str) -> bool:
        """Whether the device is not allocated, and enough is left of all counters of the pool.

        A counter below zero keeps each device that consumes any from being allocated, also those of
        other counter sets (`checkAvailableCounters` in allocator_stable.go of Kubernetes 1.36).
        """
        if name in self.allocated:
            return False
        consumed = self._consumed[name]
        return all(consumed.get(key, 0) <= left for key, left in self._left.items())

    def allocate(self, name: str) -> None:
        """Allocate a device that is free."""
        assert self.is_free(name)
        self.keep(name)

    def keep(self, name: str) -> None:
        """Count a device that was allocated from an earlier state of the pool."""
        self.allocated.append(name)
        for key, amount in self._consumed[name].items():
            self._left[key] -= amount

    @property
    def overdrawn(self) -> list[tuple[str, str]]:
        """The counters below zero, each by its set and name."""
        return [key for key, left in self._left.items() if left < 0]

    def release(self, name: str) -> None:
        """Release a device that is allocated."""
        self.allocated.remove(name)
        for key, amount in self._consumed[name].items():
            self._left[key] += amount


def _amounts(device: Device) -> Iterator[tuple[tuple[str, str], int]]:
    for consumption in device.consumes_counters:
        for name, counter in consumption.counters.items():
            yield (consumption.counter_set, name), int(counter.value.amount)
