# SPDX-License-Identifier: Apache-2.0
"""ResourceSlices: the devices that drivers offer, with the type names of `k8s.io/api/resource/v1`.

The models read v1, v1beta2 and v1beta1, and write v1.
Source: docs/reference/resource-slices.md, "The object", docs/reference/gpu-devices.md,
"Attributes", "Capacities", "Slices of a node".
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from pydantic import Field, model_validator

from nvdra_api.ids import DeviceName, NodeName, PoolName
from nvdra_api.meta import ApiModel, JsonObject, ObjectMeta
from nvdra_api.names import RESOURCE_GROUP
from nvdra_api.quantity import Quantity

AttributeValue = str | int | bool | tuple[str, ...] | tuple[int, ...] | tuple[bool, ...]
"""The value of a device attribute."""


class DeviceAttribute(ApiModel):
    """The value of an attribute. Exactly one field is set.

    The type of an attribute is part of the interface that users' selectors depend on.
    """

    int_value: int | None = Field(default=None, alias="int")
    bool_value: bool | None = Field(default=None, alias="bool")
    string_value: str | None = Field(default=None, alias="string")
    version_value: str | None = Field(default=None, alias="version")
    """A semantic version, such as `580.95.5`."""
    int_values: tuple[int, ...] | None = Field(default=None, alias="ints")
    bool_values: tuple[bool, ...] | None = Field(default=None, alias="bools")
    string_values: tuple[str, ...] | None = Field(default=None, alias="strings")
    version_values: tuple[str, ...] | None = Field(default=None, alias="versions")

    @property
    def value(self) -> AttributeValue | None:
        """The value, whatever its type. None for a type that this release does not know."""
        values = (getattr(self, name) for name in type(self).model_fields)
        return next((value for value in values if value is not None), None)


class CapacityRequestPolicyRange(ApiModel):
    """The amounts that one claim can be given: `min`, and whole steps above it up to `max`."""

    min: Quantity
    max: Quantity | None = None
    """None for the value of the capacity."""
    step: Quantity | None = None
    """None allows every amount from `min` to `max`. `min` and a step fit into the value."""


class CapacityRequestPolicy(ApiModel):
    """How much of a capacity a claim is given, on a device that allows multiple allocations.

    Without a policy, a claim that asks for no amount is given all of it.
    """

    default: Quantity
    """For a claim that does not ask for an amount: `min`, or whole steps above it."""
    valid_range: CapacityRequestPolicyRange | None = None


class DeviceCapacity(ApiModel):
    """One capacity of a device, such as its memory."""

    value: Quantity
    request_policy: CapacityRequestPolicy | None = None
    """Only on a device that allows multiple allocations."""


class Counter(ApiModel):
    """An amount of something that several devices share, such as memory slices."""

    value: Quantity


class CounterSet(ApiModel):
    """What a physical device has to share between its partitions, by counter name."""

    name: str
    counters: Mapping[str, Counter]


class DeviceCounterConsumption(ApiModel):
    """What a device consumes from a counter set while it is allocated."""

    counter_set: str
    counters: Mapping[str, Counter]


class DeviceTaint(ApiModel):
    """A taint keeps claims without a matching toleration away from a device."""

    key: str
    value: str = ""
    effect: str
    """`NoSchedule`, `NoExecute` or `None`."""
    time_added: datetime | None = None
    """Set by the API server if it is missing."""


class Device(ApiModel):
    """One device of a ResourceSlice."""

    name: DeviceName
    attributes: Mapping[str, DeviceAttribute] = Field(default_factory=dict)
    capacity: Mapping[str, DeviceCapacity] = Field(default_factory=dict)
    consumes_counters: tuple[DeviceCounterConsumption, ...] = ()
    taints: tuple[DeviceTaint, ...] = ()
    allow_multiple_allocations: bool | None = None
    """Whether several claims can have it at once, each with a share ID of its own."""

    @model_validator(mode="before")
    @classmethod
    def _from_v1beta1(cls, data: Any) -> Any:
        """Move the fields that v1beta1 has below `basic` to the device itself."""
        if isinstance(data, dict) and "basic" in data:
            basic = data["basic"]
            if not isinstance(basic, dict | None):
                raise ValueError("basic should be an object")  # pydantic passes a TypeError on
            rest = {name: value for name, value in data.items() if name != "basic"}
            return {**rest, **(basic or {})}
        return data


class ResourcePool(ApiModel):
    """The pool of a slice. In a complete pool, all slices have the same generation."""

    name: PoolName
    generation: int = 0
    resource_slice_count: int = 1


class ResourceSliceSpec(ApiModel):
    """`spec` of a slice. Exactly one of the node fields is set."""

    driver: str
    pool: ResourcePool
    node_name: NodeName | None = None
    node_selector: JsonObject | None = None
    all_nodes: bool | None = None
    per_device_node_selection: bool | None = None
    devices: tuple[Device, ...] = ()
    shared_counters: tuple[CounterSet, ...] = ()


class ResourceSlice(ApiModel):
    """A ResourceSlice as the API server returns it."""

    api_version: str = f"{RESOURCE_GROUP}/v1"
    kind: str = "ResourceSlice"
    metadata: ObjectMeta
    spec: ResourceSliceSpec
