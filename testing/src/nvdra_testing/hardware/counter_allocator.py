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
        """Whether the device is not allocated, and enough is left of what it consumes."""
        if name in self.allocated:
            return False
        return all(amount <= self._left[key] for key, amount in self._consumed[name].items())

    def allocate(self, name: str) -> None:
        """Allocate a device that is free."""
        assert self.is_free(name)
        self.allocated.append(name)
        for key, amount in self._consumed[name].items():
            self._left[key] -= amount

    def release(self, name: str) -> None:
        """Release a device that is allocated."""
        self.allocated.remove(name)
        for key, amount in self._consumed[name].items():
            self._left[key] += amount


def _amounts(device: Device) -> Iterator[tuple[tuple[str, str], int]]:
    for consumption in device.consumes_counters:
        for name, counter in consumption.counters.items():
            yield (consumption.counter_set, name), int(counter.value.amount)
