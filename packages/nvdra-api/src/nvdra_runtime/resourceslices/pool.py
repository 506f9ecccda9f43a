# SPDX-License-Identifier: Apache-2.0
"""The pool that a driver publishes (`k8s.io/dynamic-resource-allocation/resourceslice`)."""

from dataclasses import dataclass

from nvdra_api.ids import PoolName
from nvdra_api.resource.slices import CounterSet, Device


@dataclass(frozen=True, slots=True)
class Slice:
    """The content of one ResourceSlice.

    From Kubernetes 1.35 on, a slice has either devices or counter sets.
    """

    devices: tuple[Device, ...] = ()
    shared_counters: tuple[CounterSet, ...] = ()


@dataclass(frozen=True, slots=True)
class Pool:
    """The slices of a pool, in the order in which the allocator considers their devices."""

    name: PoolName
    slices: tuple[Slice, ...]

    @property
    def content(self) -> Slice:
        """The devices and counter sets of all slices."""
        return Slice(
            tuple(device for part in self.slices for device in part.devices),
            tuple(counter for part in self.slices for counter in part.shared_counters),
        )
