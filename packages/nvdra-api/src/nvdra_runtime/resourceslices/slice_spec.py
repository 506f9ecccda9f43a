# SPDX-License-Identifier: Apache-2.0
"""Converts slices to the spec of a ResourceSlice, and compares specs.

Specs are equal if they mean the same: null is the same as empty, quantities are compared by value,
and the times of taints are ignored, because the API server sets them. Source:
docs/reference/resource-slices.md, "Spec fields", "Reconciliation of a pool", "Server behaviour".
"""

from typing import Any, Final

from nvdra_api.meta import ApiModel, JsonObject
from nvdra_api.quantity import Quantity

from nvdra_runtime.resourceslices.pool import Slice

TAINTS_GATE: Final = "DRADeviceTaints"

COUNTERS_GATE: Final = "DRAPartitionableDevices"

SHARES_GATE: Final = "DRAConsumableCapacity"

_GATES = {
    "taints": TAINTS_GATE,
    "allowMultipleAllocations": SHARES_GATE,
    "requestPolicy": SHARES_GATE,
    "consumesCounters": COUNTERS_GATE,
    "sharedCounters": COUNTERS_GATE,
    "ints": "DRAListTypeAttributes",
}


_QUANTITIES: Final = {
    "quantity": {"value"},
    "requestPolicy": {"default"},
    "validRange": {"min", "max", "step"},
}
"""The quantities of an object, by the name of its field."""


def of(part: Slice) -> JsonObject:
    """The devices and counter sets of a slice as JSON. Empty fields are omitted."""
    content: JsonObject = {}
    if part.devices:
        content["devices"] = [_to_json(device) for device in part.devices]
    if part.shared_counters:
        content["sharedCounters"] = [_to_json(counter) for counter in part.shared_counters]
    return content


def is_equal(spec: JsonObject, other: JsonObject) -> bool:
    """Whether two specs mean the same."""
    return bool(_normalized(spec) == _normalized(other))


def dropped_fields(sent: JsonObject, stored: JsonObject) -> tuple[str, ...]:
    """What the API server has dropped from a spec: feature gates that it lacks, or paths of fields.

    Empty if it has kept everything. A difference that no feature gate explains is reported by its
    path, such as `devices[0].capacity`.
    """
    return tuple(sorted(set(_differences(_normalized(sent), _normalized(stored), ()))))


def _to_json(part: ApiModel) -> JsonObject:
    return part.model_dump(mode="json", by_alias=True, exclude_defaults=True)


def _normalized(value: Any, key: str = "") -> Any:
    """The value in a form that can be compared; `key` is the name of its field."""
    if isinstance(value, dict):
        if key == "taints":
            value = {k: v for k, v in value.items() if k != "timeAdded" and v != ""}
        normalized = {
            name: _normalized(each, "quantity" if key in ("capacity", "counters") else name)
            for name, each in value.items()
        }
        if key in _QUANTITIES:
            amounts = {name: _amount(normalized[name]) for name in _QUANTITIES[key] & value.keys()}
            normalized |= amounts
        return {name: each for name, each in normalized.items() if each is not None} or None
    if isinstance(value, list):
        return [_normalized(each, key) for each in value] or None
    return value


def _amount(text: Any) -> Any:
    try:
        return Quantity.parse(str(text)).amount
    except ValueError:
        return text


def _differences(sent: Any, stored: Any, path: tuple[str, ...]) -> list[str]:
    """Every field that differs: the feature gate that explains it, or its path."""
    if sent == stored:
        return []
    if isinstance(sent, dict) and isinstance(stored, dict):
        names = sorted(sent.keys() | stored.keys())
        return [
            difference
            for name in names
            for difference in _differences(sent.get(name), stored.get(name), (*path, name))
        ]
    if isinstance(sent, list) and isinstance(stored, list) and len(sent) == len(stored):
        return [
            difference
            for i, (one, other) in enumerate(zip(sent, stored, strict=True))
            for difference in _differences(one, other, (*path, f"[{i}]"))
        ]
    gate = next((_GATES[part] for part in reversed(path) if part in _GATES), None)
    return [gate or ".".join(path).replace(".[", "[")]
