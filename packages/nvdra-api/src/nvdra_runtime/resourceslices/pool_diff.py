# SPDX-License-Identifier: Apache-2.0
"""Compares the desired pool with the ResourceSlices that exist: what to create, replace and delete.

It works on v1 objects as JSON. To replace an object, only this driver's fields of the stored object
are changed, so that fields of newer API servers are kept.
Source: docs/reference/resource-slices.md, "Ownership and naming", "Reconciliation of a pool", "The
controller of the helper".
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from nvdra_api.ids import NodeName, PoolName
from nvdra_api.meta import JsonObject
from nvdra_api.resource.slices import Counter

from nvdra_runtime.resourceslices import slice_spec
from nvdra_runtime.resourceslices.pool import Pool

_CONTENT_FIELDS = ("devices", "sharedCounters")
"""The fields of a spec that hold a slice's content."""


@dataclass(frozen=True, slots=True)
class DesiredPool:
    """A pool as JSON.

    Attributes:
        pool: The pool's name.
        contents: For each slice, `devices`, `sharedCounters` or both. Neither is ever an empty
            list, because the API server checks which of the two fields are present.
    """

    pool: PoolName
    contents: tuple[JsonObject, ...]


@dataclass(frozen=True, slots=True)
class Writes:
    """The changes that lead to the desired pool, in this order, as whole v1 objects.

    Created objects have no owner yet, because this needs the Node's UID.
    """

    deletes: tuple[JsonObject, ...] = ()
    replaces: tuple[JsonObject, ...] = ()
    creates: tuple[JsonObject, ...] = ()

    def __bool__(self) -> bool:
        """Whether there is anything to write."""
        return bool(self.deletes or self.replaces or self.creates)


def problems(pool: Pool) -> tuple[str, ...]:
    """Errors in a pool that the API server does not notice, because it checks each slice alone.

    The scheduler ignores a pool with a duplicate name or with a counter that does not exist.
    """
    found = []
    counters: dict[str, Mapping[str, Counter]] = {}
    for counter_set in (counter for part in pool.slices for counter in part.shared_counters):
        if counter_set.name in counters:
            found.append(f"counter set {counter_set.name} occurs twice")
        counters[counter_set.name] = counter_set.counters
    names = set()
    for device in (each for part in pool.slices for each in part.devices):
        if device.name in names:
            found.append(f"device {device.name} occurs twice")
        names.add(device.name)
        for consumption in device.consumes_counters:
            counter_set_name = consumption.counter_set
            if counter_set_name not in counters:
                found.append(f"device {device.name} consumes unknown set {counter_set_name}")
                continue
            found += [
                f"device {device.name} consumes unknown counter {counter_set_name}/{name}"
                for name in consumption.counters
                if name not in counters[counter_set_name]
            ]
    return tuple(found)


def desired(pool: Pool) -> DesiredPool:
    """The pool as JSON."""
    return DesiredPool(pool.name, tuple(slice_spec.of(part) for part in pool.slices))


def reconcile(
    pool: DesiredPool, observed: Sequence[JsonObject], driver: str, node: NodeName, owner: str = ""
) -> Writes:
    """The writes that turn the driver's slices of the node into the desired pool.

    Slices are matched by the index at the start of their names. Slices of another pool, of an older
    generation, or with an index that the pool does not have are deleted. So are those of a former
    Node with the same name, because the garbage collector would delete them. If at most one slice
    changes and none is added, the generation stays the same. Otherwise it is incremented and every
    slice is written, so that consumers never see a mixture of the old and the new pool.

    Args:
        pool: The desired pool. If it has no contents, every slice is deleted.
        observed: All slices of this driver and node, as v1 objects.
        driver: The driver's name.
        node: The node's name.
        owner: UID of the Node; empty if it is not known.
    """
    count = len(pool.contents)
    own = [each for each in observed if _pool(each).get("name") == pool.pool]
    latest = max(map(generation, own), default=0)
    matched: dict[int, JsonObject] = {}
    for each in own:
        index = index_of(each, count)
        is_current = generation(each) == latest and (not owner or _is_owned(each, owner))
        if index is not None and index not in matched and is_current:
            matched[index] = each
    kept = {id(each) for each in matched.values()}
    deletes = tuple(each for each in observed if id(each) not in kept)
    specs = [_spec(pool, index, driver, node, latest) for index in range(count)]
    missing = [index for index in range(count) if index not in matched]
    changed = [i for i, each in matched.items() if not slice_spec.is_equal(each["spec"], specs[i])]
    if missing or len(changed) > 1:
        specs = [_spec(pool, index, driver, node, latest + 1) for index in range(count)]
        changed = list(matched)
    return Writes(
        deletes=deletes,
        replaces=tuple(_replaced(matched[index], specs[index]) for index in sorted(changed)),
        creates=tuple(_created(specs[index], index, count) for index in missing),
    )


def with_node_owner(obj: JsonObject, node: NodeName, uid: str) -> JsonObject:
    """The object with the Node as its owner, so that it is garbage collected with the Node."""
    owner = {"apiVersion": "v1", "kind": "Node", "name": node, "uid": uid, "controller": True}
    return {**obj, "metadata": {**obj["metadata"], "ownerReferences": [owner]}}


def _is_owned(obj: JsonObject, uid: str) -> bool:
    return any(owner.get("uid") == uid for owner in obj["metadata"].get("ownerReferences") or ())


def accept_stored(pool: DesiredPool, index: int, stored: JsonObject) -> DesiredPool:
    """The desired pool with one slice as the API server stored it, so that it counts as equal."""
    content = {key: stored[key] for key in _CONTENT_FIELDS if stored.get(key)}
    adopted = (*pool.contents[:index], content, *pool.contents[index + 1 :])
    return replace(pool, contents=adopted)


def _width(count: int) -> int:
    """Digits of an index, at least five. The allocator sorts slices by name."""
    return max(5, len(f"{max(count - 1, 0):x}"))


def index_of(obj: JsonObject, count: int) -> int | None:
    """The index in an object's name; None if a pool of `count` slices does not have it."""
    metadata = obj["metadata"]
    digits = (metadata.get("name") or metadata.get("generateName", "")).partition("-")[0]
    if len(digits) != _width(count) or not set(digits) <= set("0123456789abcdef"):
        return None
    index = int(digits, 16)
    return index if index < count else None


def _pool(obj: JsonObject) -> JsonObject:
    pool: JsonObject = (obj.get("spec") or {}).get("pool") or {}
    return pool


def generation(obj: JsonObject) -> int:
    """The pool generation of a slice. Consumers use the highest only."""
    return int(_pool(obj).get("generation") or 0)


def _spec(wanted: DesiredPool, index: int, driver: str, node: NodeName, latest: int) -> JsonObject:
    return {
        "driver": driver,
        "nodeName": node,
        "pool": {
            "name": wanted.pool,
            "generation": latest,
            "resourceSliceCount": len(wanted.contents),
        },
        **wanted.contents[index],
    }


def _created(spec: JsonObject, index: int, count: int) -> JsonObject:
    prefix = f"{index:0{_width(count)}x}-{spec['driver']}-{spec['nodeName']}-"
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"generateName": prefix},
        "spec": spec,
    }


def _replaced(stored: JsonObject, spec: JsonObject) -> JsonObject:
    """The stored object with the new spec. Taints that stay keep their times."""
    known = stored["spec"]
    times = {
        (device.get("name"), *_taint(taint)): taint.get("timeAdded")
        for device in known.get("devices") or ()
        for taint in device.get("taints") or ()
    }
    written = {key: value for key, value in known.items() if key in _KEPT} | spec
    if "devices" in written:
        written["devices"] = [_with_times(device, times) for device in written["devices"]]
    return {**stored, "spec": written}


_KEPT = ("driver", "nodeName")
"""Fields of a spec that an update may not change. All others are replaced."""


def _with_times(device: JsonObject, times: Mapping[tuple[Any, ...], Any]) -> JsonObject:
    if not device.get("taints"):
        return device
    taints = []
    for taint in device["taints"]:
        added = times.get((device["name"], *_taint(taint)))
        taints.append({**taint, "timeAdded": added} if added else taint)
    return {**device, "taints": taints}


def _taint(taint: JsonObject) -> tuple[Any, ...]:
    return taint.get("key"), taint.get("value") or "", taint.get("effect")
