# SPDX-License-Identifier: Apache-2.0
"""Devices that several claims may have at once, and what of them each claim consumes.

The scheduler divides a device by its capacities. A capacity without a policy is taken whole by each
claim that does not ask for an amount, so each capacity has one.

Source: docs/reference/gpu-devices.md, "Consumable shares"; docs/reference/resource-slices.md,
"Partitionable devices and consumable capacity".
"""

from typing import Final

from nvdra_api.quantity import Quantity
from nvdra_api.resource.slices import (
    CapacityRequestPolicy,
    CapacityRequestPolicyRange,
    Device,
    DeviceCapacity,
)

from nvdra_gpu_plugin.devices import device_names
from nvdra_gpu_plugin.share_policy import SharePolicy

_SHARES: Final = "shares"
_MEMORY: Final = "memory"
_MIB: Final = 1024 * 1024


def shared(device: Device, policy: SharePolicy | None) -> Device:
    """The device as it is published under a policy, whatever policy it was published under before.

    A MIG device that is made for the claim that holds it is for that claim alone. A device whose
    memory is not known is not divided by memory. A virtual machine gets a GPU for itself.

    Args:
        device: A whole GPU, a MIG device or a vfio device.
        policy: None if it is for one claim at a time.
    """
    if device_names.is_vfio_name(device.name):
        return device
    capacity = {
        name: DeviceCapacity(value=each.value)
        for name, each in device.capacity.items()
        if name != _SHARES
    }
    if policy is None or _is_made(device) or (policy.is_by_memory and not _mebibytes(capacity)):
        if device.allow_multiple_allocations is None:
            return device
        return device.model_copy(update={"capacity": capacity, "allow_multiple_allocations": None})
    divided = {
        name: _memory(each, policy) if name == _MEMORY else _other(each)
        for name, each in capacity.items()
    }
    if policy.shares is not None:
        divided[_SHARES] = _number_of_shares(policy.shares)
    return device.model_copy(update={"capacity": divided, "allow_multiple_allocations": True})


def _is_made(device: Device) -> bool:
    """Whether it is a part of a GPU that is made when it is prepared."""
    is_part = device_names.parent_name(device.name) != device.name
    return is_part and bool(device.consumes_counters)


def _mebibytes(capacity: dict[str, DeviceCapacity]) -> int:
    """The memory in whole MiB; 0 if it is not known."""
    memory = capacity.get(_MEMORY)
    return 0 if memory is None else int(memory.value.amount) // _MIB


def _memory(capacity: DeviceCapacity, policy: SharePolicy) -> DeviceCapacity:
    """Memory, in steps of 1 MiB."""
    size = int(capacity.value.amount) // _MIB * _MIB
    if size == 0:
        return capacity
    least = _MIB if policy.is_by_memory else 0
    return _limited(
        Quantity.binary(size),
        default=Quantity.binary(size if policy.is_by_memory else 0),
        least=Quantity.binary(least),
        step=Quantity.binary(_MIB),
    )


def _other(capacity: DeviceCapacity) -> DeviceCapacity:
    """A number of engines, of which a claim takes none unless it asks for some."""
    if not capacity.value.amount:
        return capacity
    none, one = Quantity.binary(0), Quantity.binary(1)
    return _limited(capacity.value, default=none, least=none, step=one)


def _number_of_shares(number: int) -> DeviceCapacity:
    one = Quantity.decimal(1)
    return _limited(Quantity.decimal(number), default=one, least=one, step=one)


def _limited(
    value: Quantity, *, default: Quantity, least: Quantity, step: Quantity
) -> DeviceCapacity:
    """A capacity of which a claim takes `default`, or from `least` to all of it in these steps.

    The API server refuses a step that does not fit above `least`, for which there is no use anyway.
    """
    fits = least.amount + step.amount <= value.amount
    found = CapacityRequestPolicyRange(min=least, max=value, step=step if fits else None)
    policy = CapacityRequestPolicy(default=default, valid_range=found)
    return DeviceCapacity(value=value, request_policy=policy)
