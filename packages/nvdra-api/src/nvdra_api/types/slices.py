"""What we publish: pools of devices, as ResourceSlices carry them (resource.k8s.io/v1).

Values only; `protocol.pools` compares them with what is stored, `protocol.apiversions` writes older
versions of the API.
Source: spec/kubelet-dra-protocol.md §3, spec/gpu-devices.md §§8, 9, 16.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from nvdra_api.types.ids import DeviceName, PoolName
from nvdra_api.types.quantity import Quantity


@dataclass(frozen=True, slots=True)
class Attribute:
    """One attribute value; exactly one type, which is part of the interface users select on."""

    type: Literal["string", "version", "int", "bool", "ints"]
    value: str | int | bool | tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Taint:
    """Keeps claims away from a device; the server adds the time."""

    key: str
    effect: Literal["NoSchedule", "NoExecute", "None"]
    value: str = ""


@dataclass(frozen=True, slots=True)
class CounterSet:
    """What one physical device has to share out, by counter name."""

    name: str
    counters: Mapping[str, Quantity]


@dataclass(frozen=True, slots=True)
class Device:
    """One device of a pool.

    `consumes` maps the name of a counter set to what the device takes from it.
    """

    name: DeviceName
    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    capacity: Mapping[str, Quantity] = field(default_factory=dict)
    consumes: Mapping[str, Mapping[str, Quantity]] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()


@dataclass(frozen=True, slots=True)
class Slice:
    """One ResourceSlice: devices, or (from Kubernetes 1.35 apart from them) counter sets."""

    devices: tuple[Device, ...] = ()
    counter_sets: tuple[CounterSet, ...] = ()


@dataclass(frozen=True, slots=True)
class Pool:
    """Every slice of one pool, in order of preference: the allocator takes the first that fits."""

    name: PoolName
    slices: tuple[Slice, ...]
