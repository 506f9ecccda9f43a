"""What a ResourceSlice's spec says: written from our types, compared by what it means.

Two specs mean the same however the server writes them: null is empty, quantities count by value,
the times of taints are the server's. Source: spec/kubelet-dra-protocol.md §3.2, §3.8, §3.10.
"""

from collections.abc import Mapping
from typing import Any

from nvdra_api.protocol.apiversions import JsonObject
from nvdra_api.types.quantity import Quantity
from nvdra_api.types.slices import Attribute, CounterSet, Device, Slice

_GATES = {
    "taints": "DRADeviceTaints",
    "consumesCounters": "DRAPartitionableDevices",
    "sharedCounters": "DRAPartitionableDevices",
    "ints": "DRAListTypeAttributes",
}


def of(part: Slice) -> JsonObject:
    """One slice's content, as a spec carries it; what is empty is left out."""
    content: JsonObject = {}
    if part.devices:
        content["devices"] = [_device(device) for device in part.devices]
    if part.counter_sets:
        content["sharedCounters"] = [_counter_set(each) for each in part.counter_sets]
    return content


def same(spec: JsonObject, other: JsonObject) -> bool:
    """Do two specs mean the same? Null is empty, quantities count by value, taint times do not."""
    return bool(_meaning(spec) == _meaning(other))


def dropped(sent: JsonObject, stored: JsonObject) -> tuple[str, ...]:
    """The feature gates that the server seems to lack, from what it kept of a spec.

    Empty when it kept everything. A difference that no gate of ours explains is named by its
    place, such as `devices[0].capacity`.
    """
    return tuple(sorted(set(_lost(_meaning(sent), _meaning(stored), ()))))


def _device(device: Device) -> JsonObject:
    written: JsonObject = {"name": device.name}
    if device.attributes:
        written["attributes"] = {k: _attribute(v) for k, v in device.attributes.items()}
    if device.capacity:
        written["capacity"] = _quantities(device.capacity)
    if device.consumes:
        written["consumesCounters"] = [
            {"counterSet": name, "counters": _quantities(counters)}
            for name, counters in device.consumes.items()
        ]
    if device.taints:
        written["taints"] = [
            {"key": t.key, **({"value": t.value} if t.value else {}), "effect": t.effect}
            for t in device.taints
        ]
    return written


def _attribute(attribute: Attribute) -> JsonObject:
    value = attribute.value
    return {attribute.type: list(value) if isinstance(value, tuple) else value}


def _counter_set(counter_set: CounterSet) -> JsonObject:
    return {"name": counter_set.name, "counters": _quantities(counter_set.counters)}


def _quantities(amounts: Mapping[str, Quantity]) -> JsonObject:
    return {name: {"value": str(amount)} for name, amount in amounts.items()}


def _meaning(value: Any, key: str = "") -> Any:
    """A value stripped to what it says; `key` is where it was found."""
    if isinstance(value, dict):
        if key == "taints":
            value = {k: v for k, v in value.items() if k != "timeAdded" and v != ""}
        meant = {
            name: _meaning(each, "quantity" if key in ("capacity", "counters") else name)
            for name, each in value.items()
        }
        if key == "quantity" and "value" in meant:
            meant["value"] = _amount(meant["value"])
        return {name: each for name, each in meant.items() if each is not None} or None
    if isinstance(value, list):
        return [_meaning(each, key) for each in value] or None
    return value


def _amount(text: Any) -> Any:
    try:
        return Quantity.parse(str(text)).amount
    except ValueError:
        return text


def _lost(sent: Any, stored: Any, path: tuple[str, ...]) -> list[str]:
    """Every place where the stored meaning differs, as a gate where one explains it."""
    if sent == stored:
        return []
    if isinstance(sent, dict) and isinstance(stored, dict):
        names = sorted(sent.keys() | stored.keys())
        return [
            lost
            for name in names
            for lost in _lost(sent.get(name), stored.get(name), (*path, name))
        ]
    if isinstance(sent, list) and isinstance(stored, list) and len(sent) == len(stored):
        return [
            lost
            for i, (one, other) in enumerate(zip(sent, stored, strict=True))
            for lost in _lost(one, other, (*path, f"[{i}]"))
        ]
    gate = next((_GATES[part] for part in reversed(path) if part in _GATES), None)
    return [gate or ".".join(path).replace(".[", "[")]
