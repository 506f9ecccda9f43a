"""A pool as we want it, the slices as they are: what to create, replace and delete.

Works on v1 objects as JSON; `protocol.apiversions` knows the others, `runtime.kube.publisher` acts.
Replaced objects are what was read with only our fields changed, so that nothing a newer server put
there is lost. Source: spec/kubelet-dra-protocol.md §3.3, §3.8; spec/gpu-devices.md §17.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from nvdra_api.protocol import contents
from nvdra_api.protocol.apiversions import JsonObject
from nvdra_api.types.ids import NodeName, PoolName
from nvdra_api.types.quantity import Quantity
from nvdra_api.types.slices import Pool

_OURS = ("devices", "sharedCounters")
"""The keys of a spec that hold a slice's content."""


@dataclass(frozen=True, slots=True)
class Wish:
    """One pool, slice by slice, as a ResourceSlice's spec carries it.

    `contents[i]` has `devices` or `sharedCounters` or both, never an empty one of them: their
    presence is what the server checks.
    """

    pool: PoolName
    contents: tuple[JsonObject, ...]


@dataclass(frozen=True, slots=True)
class Writes:
    """What makes a pool true, in this order. All are whole v1 objects.

    Created ones have no owner yet, because naming it takes the Node's UID.
    """

    deletes: tuple[JsonObject, ...] = ()
    replaces: tuple[JsonObject, ...] = ()
    creates: tuple[JsonObject, ...] = ()

    def __bool__(self) -> bool:
        """Is there anything to do?"""
        return bool(self.deletes or self.replaces or self.creates)


def problems(pool: Pool) -> tuple[str, ...]:
    """What consumers would refuse about a pool, although the server accepts each slice of it.

    The server looks at one slice at a time; the scheduler ignores a whole pool for a duplicate name
    or a counter that does not exist.
    """
    found = []
    counters: dict[str, Mapping[str, Quantity]] = {}
    for counter_set in (each for part in pool.slices for each in part.counter_sets):
        if counter_set.name in counters:
            found.append(f"counter set {counter_set.name} occurs twice")
        counters[counter_set.name] = counter_set.counters
    names = set()
    for device in (each for part in pool.slices for each in part.devices):
        if device.name in names:
            found.append(f"device {device.name} occurs twice")
        names.add(device.name)
        for counter_set_name, consumed in device.consumes.items():
            if counter_set_name not in counters:
                found.append(f"device {device.name} consumes unknown set {counter_set_name}")
                continue
            found += [
                f"device {device.name} consumes unknown counter {counter_set_name}/{name}"
                for name in consumed
                if name not in counters[counter_set_name]
            ]
    return tuple(found)


def wish(pool: Pool) -> Wish:
    """A pool as the API server will be told about it."""
    return Wish(pool.name, tuple(contents.of(part) for part in pool.slices))


def reconcile(
    wanted: Wish, observed: Sequence[JsonObject], driver: str, node: NodeName, owner: str = ""
) -> Writes:
    """What to write so that the node's slices of the driver become the wanted pool.

    Slices are matched by the index that leads their names. Those of another pool, of an older
    generation, of a Node that was here before under the same name (the garbage collector would take
    them), or without a place in the pool go. The generation stays while at most one slice
    changes and none is added; otherwise it grows, and every slice is written with the new one, so
    that consumers take either the old pool or the new, never a mixture.

    Args:
        wanted: The pool; with no contents at all, every slice is deleted.
        observed: All slices of this driver and node, in v1 form.
        driver: Its name.
        node: Name of the node that the devices are on.
        owner: UID of the Node; empty while it is not known.
    """
    count = len(wanted.contents)
    ours = [each for each in observed if _pool(each).get("name") == wanted.pool]
    latest = max(map(generation, ours), default=0)
    matched: dict[int, JsonObject] = {}
    for each in ours:
        index = index_of(each, count)
        is_current = generation(each) == latest and (not owner or _is_owned(each, owner))
        if index is not None and index not in matched and is_current:
            matched[index] = each
    kept = {id(each) for each in matched.values()}
    deletes = tuple(each for each in observed if id(each) not in kept)
    specs = [_spec(wanted, index, driver, node, latest) for index in range(count)]
    missing = [index for index in range(count) if index not in matched]
    changed = [i for i, each in matched.items() if not contents.same(each["spec"], specs[i])]
    if missing or len(changed) > 1:
        specs = [_spec(wanted, index, driver, node, latest + 1) for index in range(count)]
        changed = list(matched)
    return Writes(
        deletes=deletes,
        replaces=tuple(_replaced(matched[index], specs[index]) for index in sorted(changed)),
        creates=tuple(_created(specs[index], index, count) for index in missing),
    )


def owned(obj: JsonObject, node: NodeName, uid: str) -> JsonObject:
    """The object as the Node's own: the garbage collector removes it with the Node."""
    owner = {"apiVersion": "v1", "kind": "Node", "name": node, "uid": uid, "controller": True}
    return {**obj, "metadata": {**obj["metadata"], "ownerReferences": [owner]}}


def _is_owned(obj: JsonObject, uid: str) -> bool:
    return any(owner.get("uid") == uid for owner in obj["metadata"].get("ownerReferences") or ())


def adopt(wanted: Wish, index: int, stored: JsonObject) -> Wish:
    """The wish with one slice's content as the server kept it, so that the next look is calm."""
    content = {key: stored[key] for key in _OURS if stored.get(key)}
    adopted = (*wanted.contents[:index], content, *wanted.contents[index + 1 :])
    return replace(wanted, contents=adopted)


def _width(count: int) -> int:
    """Digits of an index: enough for every slice, at least five; the allocator sorts by name."""
    return max(5, len(f"{max(count - 1, 0):x}"))


def index_of(obj: JsonObject, count: int) -> int | None:
    """Which slice of a pool of `count` an object is by its name; None when it has no place."""
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
    """Generation of the pool that a slice belongs to; consumers look at the highest only."""
    return int(_pool(obj).get("generation") or 0)


def _spec(wanted: Wish, index: int, driver: str, node: NodeName, latest: int) -> JsonObject:
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
    """The stored object with our spec, and the times of the taints that stay."""
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
"""What an update may not change. Everything else in a spec is ours to say, unknown fields too."""


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
