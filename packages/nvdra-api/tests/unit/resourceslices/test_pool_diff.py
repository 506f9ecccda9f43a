# SPDX-License-Identifier: Apache-2.0
import copy
import itertools
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nvdra_api.ids import DeviceName, NodeName, PoolName
from nvdra_api.meta import JsonObject
from nvdra_api.quantity import Quantity
from nvdra_api.resource.slices import (
    Counter,
    CounterSet,
    Device,
    DeviceAttribute,
    DeviceCapacity,
    DeviceCounterConsumption,
    DeviceTaint,
)
from nvdra_runtime.resourceslices import pool_diff, slice_spec
from nvdra_runtime.resourceslices.pool import Pool, Slice

DRIVER = "gpu.nvidia.com"
NODE = NodeName("node-a")


class Store:
    """What an API server does with writes: names, versions, refusals of stale ones."""

    def __init__(self) -> None:
        self.objects: dict[str, JsonObject] = {}
        self.writes = 0
        self._counter = itertools.count(1)

    def put(self, obj: JsonObject) -> JsonObject:
        number = next(self._counter)
        stored = copy.deepcopy(obj)
        metadata = stored["metadata"]
        metadata.setdefault("name", f"{metadata.get('generateName', '')[:58]}{number:05d}")
        metadata.setdefault("uid", f"uid-{number}")
        metadata["resourceVersion"] = str(number)
        self.objects[metadata["name"]] = stored
        return stored

    def apply(self, writes: pool_diff.Writes) -> None:
        for obj in writes.deletes:
            assert (
                self.objects[obj["metadata"]["name"]]["metadata"]["uid"] == obj["metadata"]["uid"]
            )
            del self.objects[obj["metadata"]["name"]]
        for obj in (*writes.replaces, *writes.creates):
            self.put(obj)
        self.writes += len(writes.deletes) + len(writes.replaces) + len(writes.creates)

    def observed(self) -> list[JsonObject]:
        return list(self.objects.values())

    def publish(self, wanted: pool_diff.DesiredPool) -> None:
        """Until nothing is left to do, which must not take more than two rounds."""
        for _ in range(2):
            writes = pool_diff.reconcile(wanted, self.observed(), DRIVER, NODE)
            if not writes:
                return
            self.apply(writes)
        assert not pool_diff.reconcile(wanted, self.observed(), DRIVER, NODE)


def gpu(index: int, memory_gib: int = 80, taints: tuple[DeviceTaint, ...] = ()) -> Device:
    return Device(
        name=DeviceName(f"gpu-{index}"),
        attributes={
            "index": DeviceAttribute(int_value=index),
            "type": DeviceAttribute(string_value="gpu"),
        },
        capacity={"memory": DeviceCapacity(value=Quantity.binary(memory_gib << 30))},
        taints=taints,
    )


def consumption(counter_set: str, name: str, amount: Counter) -> DeviceCounterConsumption:
    return DeviceCounterConsumption(counter_set=counter_set, counters={name: amount})


def pool(*slices: Sequence[Device], name: str = "node-a") -> Pool:
    return Pool(PoolName(name), tuple(Slice(devices=tuple(each)) for each in slices))


def published(wanted: Pool) -> Store:
    store = Store()
    store.publish(pool_diff.desired(wanted))
    return store


def generations(store: Store) -> set[int]:
    return {pool_diff.generation(each) for each in store.observed()}


def test_the_first_publication_creates_every_slice_with_generation_1() -> None:
    writes = pool_diff.reconcile(pool_diff.desired(pool([gpu(0)], [gpu(1)])), [], DRIVER, NODE)
    assert not writes.deletes
    assert not writes.replaces
    assert [each["metadata"] for each in writes.creates] == [
        {"generateName": "00000-gpu.nvidia.com-node-a-"},
        {"generateName": "00001-gpu.nvidia.com-node-a-"},
    ]
    assert writes.creates[1]["spec"] == {
        "driver": DRIVER,
        "nodeName": NODE,
        "pool": {"name": "node-a", "generation": 1, "resourceSliceCount": 2},
        "devices": [
            {
                "name": "gpu-1",
                "attributes": {"index": {"int": 1}, "type": {"string": "gpu"}},
                "capacity": {"memory": {"value": "80Gi"}},
            }
        ],
    }


def test_an_empty_pool_is_published_as_one_slice_without_devices() -> None:
    (created,) = pool_diff.reconcile(pool_diff.desired(pool([])), [], DRIVER, NODE).creates
    assert "devices" not in created["spec"]
    assert created["spec"]["pool"]["resourceSliceCount"] == 1


def test_a_pool_that_is_there_already_is_not_written() -> None:
    store = published(pool([gpu(0)], [gpu(1)]))
    assert not pool_diff.reconcile(
        pool_diff.desired(pool([gpu(0)], [gpu(1)])), store.observed(), DRIVER, NODE
    )


def test_what_the_server_writes_differently_is_the_same() -> None:
    store = published(pool([gpu(0)]))
    (stored,) = store.observed()
    stored["spec"]["devices"][0]["capacity"]["memory"]["value"] = str(80 << 30)
    stored["spec"]["devices"][0]["taints"] = None
    stored["spec"]["sharedCounters"] = []
    assert not pool_diff.reconcile(
        pool_diff.desired(pool([gpu(0)])), store.observed(), DRIVER, NODE
    )


def test_one_changed_slice_is_replaced_in_place_and_keeps_the_generation() -> None:
    store = published(pool([gpu(0)], [gpu(1)]))
    writes = pool_diff.reconcile(
        pool_diff.desired(pool([gpu(0)], [gpu(1, memory_gib=40)])), store.observed(), DRIVER, NODE
    )
    (replaced,) = writes.replaces
    assert (writes.deletes, writes.creates) == ((), ())
    assert replaced["metadata"] == store.observed()[1]["metadata"]
    assert replaced["spec"]["pool"]["generation"] == 1


def test_two_changed_slices_get_a_new_generation_together() -> None:
    store = published(pool([gpu(0)], [gpu(1)], [gpu(2)]))
    changed = pool([gpu(0, 40)], [gpu(1, 40)], [gpu(2)])
    writes = pool_diff.reconcile(pool_diff.desired(changed), store.observed(), DRIVER, NODE)
    assert [each["spec"]["pool"]["generation"] for each in writes.replaces] == [2, 2, 2]


def test_an_added_slice_gets_a_new_generation_with_all_others() -> None:
    store = published(pool([gpu(0)]))
    store.publish(pool_diff.desired(pool([gpu(0)], [gpu(1)])))
    assert generations(store) == {2}


def test_the_order_of_devices_matters() -> None:
    store = published(pool([gpu(0), gpu(1)]))
    assert pool_diff.reconcile(
        pool_diff.desired(pool([gpu(1), gpu(0)])), store.observed(), DRIVER, NODE
    ).replaces


def test_a_taint_that_stays_keeps_its_time() -> None:
    lost = DeviceTaint(key="gpu.nvidia.com/lost", effect="NoExecute")
    store = published(pool([gpu(0, taints=(lost,)), gpu(1)]))
    (stored,) = store.observed()
    stored["spec"]["devices"][0]["taints"][0]["timeAdded"] = "2026-01-02T03:04:05Z"
    assert not pool_diff.reconcile(
        pool_diff.desired(pool([gpu(0, taints=(lost,)), gpu(1)])), store.observed(), DRIVER, NODE
    )
    both = pool([gpu(0, taints=(lost,)), gpu(1, taints=(lost,))])
    (replaced,) = pool_diff.reconcile(
        pool_diff.desired(both), store.observed(), DRIVER, NODE
    ).replaces
    assert replaced["spec"]["devices"][0]["taints"][0]["timeAdded"] == "2026-01-02T03:04:05Z"
    assert "timeAdded" not in replaced["spec"]["devices"][1]["taints"][0]


def test_metadata_that_others_put_there_survives_a_replacement() -> None:
    store = published(pool([gpu(0)]))
    (stored,) = store.observed()
    stored["metadata"]["annotations"] = {"who": "knows"}
    (replaced,) = pool_diff.reconcile(
        pool_diff.desired(pool([gpu(0, 40)])), store.observed(), DRIVER, NODE
    ).replaces
    assert replaced["metadata"]["annotations"] == {"who": "knows"}


def test_slices_of_a_pool_that_is_not_wanted_any_more_are_deleted() -> None:
    store = published(pool([gpu(0)], name="old"))
    store.publish(pool_diff.desired(pool([gpu(0)])))
    assert [each["spec"]["pool"]["name"] for each in store.observed()] == ["node-a"]


@pytest.mark.protocol("S6")
def test_slices_with_names_of_another_scheme_are_replaced_once() -> None:
    store = published(pool([gpu(0)]))
    (old,) = store.observed()
    store.objects.clear()
    store.put({"metadata": {"name": "node-a-gpu.nvidia.com-x7k2p"}, "spec": old["spec"]})
    store.publish(pool_diff.desired(pool([gpu(0)])))
    (new,) = store.observed()
    assert new["metadata"]["name"].startswith("00000-")
    assert pool_diff.generation(new) == 2


def test_counters_and_devices_may_lie_in_slices_of_their_own() -> None:
    memory = Counter(value=Quantity.binary(80 << 30))
    counters = CounterSet(name="gpu-0-counters", counters={"memory": memory})
    device = Device(
        name=DeviceName("gpu-0"),
        consumes_counters=(consumption("gpu-0-counters", "memory", memory),),
    )
    split = Pool(PoolName("p"), (Slice(shared_counters=(counters,)), Slice(devices=(device,))))
    first, second = pool_diff.desired(split).contents
    amount = {"counters": {"memory": {"value": "80Gi"}}}
    assert first == {"sharedCounters": [{"name": "gpu-0-counters", **amount}]}
    assert second == {
        "devices": [
            {"name": "gpu-0", "consumesCounters": [{"counterSet": "gpu-0-counters", **amount}]}
        ]
    }


@pytest.mark.protocol("S6")
def test_a_pool_that_contradicts_itself_is_found_out() -> None:
    one = Counter(value=Quantity.decimal(1))
    counters = CounterSet(name="c", counters={"memory": one})
    wrong = Pool(
        PoolName("p"),
        (
            Slice(shared_counters=(counters, counters)),
            Slice(
                devices=(
                    Device(
                        name=DeviceName("a"), consumes_counters=(consumption("c", "cores", one),)
                    ),
                    Device(
                        name=DeviceName("a"), consumes_counters=(consumption("d", "memory", one),)
                    ),
                )
            ),
        ),
    )
    assert pool_diff.problems(wrong) == (
        "counter set c occurs twice",
        "device a consumes unknown counter c/cores",
        "device a occurs twice",
        "device a consumes unknown set d",
    )
    assert pool_diff.problems(pool([gpu(0)], [gpu(1)])) == ()


@pytest.mark.parametrize(
    ("field", "value", "gates"),
    [
        ("taints", [{"key": "k", "effect": "NoSchedule"}], ("DRADeviceTaints",)),
        (
            "consumesCounters",
            [{"counterSet": "c", "counters": {"m": {"value": "1"}}}],
            ("DRAPartitionableDevices",),
        ),
        ("attributes", {"a": {"string": "x"}}, ("devices[0].attributes",)),
    ],
)
def test_what_the_server_dropped_is_named_by_its_gate(
    field: str, value: object, gates: tuple[str, ...]
) -> None:
    sent = {"driver": "d", "devices": [{"name": "gpu-0", field: value}]}
    assert slice_spec.dropped_fields(sent, {"driver": "d", "devices": [{"name": "gpu-0"}]}) == gates
    assert slice_spec.dropped_fields(sent, copy.deepcopy(sent)) == ()


def test_a_taints_time_from_the_server_is_nothing_dropped() -> None:
    sent = {"devices": [{"name": "a", "taints": [{"key": "k", "effect": "None"}]}]}
    stored = copy.deepcopy(sent)
    stored["devices"][0]["taints"][0]["timeAdded"] = "2026-01-02T03:04:05Z"  # type: ignore[index]  # JSON
    assert slice_spec.dropped_fields(sent, stored) == ()


def test_what_the_server_kept_can_be_adopted_and_is_then_left_alone() -> None:
    wanted = pool_diff.desired(pool([gpu(0, taints=(DeviceTaint(key="k", effect="NoSchedule"),))]))
    created = copy.deepcopy(pool_diff.reconcile(wanted, [], DRIVER, NODE).creates[0])
    store = Store()
    del created["spec"]["devices"][0]["taints"]
    kept = store.put(created)
    adopted = pool_diff.accept_stored(wanted, 0, kept["spec"])
    assert pool_diff.reconcile(wanted, store.observed(), DRIVER, NODE)
    assert not pool_diff.reconcile(adopted, store.observed(), DRIVER, NODE)


POOLS = st.lists(st.lists(st.integers(0, 7).map(gpu), max_size=3), min_size=1, max_size=4).map(
    lambda slices: pool(*slices)
)


def _delete(store: Store, obj: JsonObject, _: int) -> None:
    del store.objects[obj["metadata"]["name"]]


def _set_generation(store: Store, obj: JsonObject, number: int) -> None:
    obj["spec"]["pool"]["generation"] = number


def _set_count(store: Store, obj: JsonObject, number: int) -> None:
    obj["spec"]["pool"]["resourceSliceCount"] = number + 1


def _set_devices(store: Store, obj: JsonObject, number: int) -> None:
    obj["spec"]["devices"] = [{"name": f"gpu-{number}"}]


def _drop_devices(store: Store, obj: JsonObject, _: int) -> None:
    obj["spec"].pop("devices", None)


def _move_pool(store: Store, obj: JsonObject, number: int) -> None:
    obj["spec"]["pool"]["name"] = f"other-{number}"


def _rename(store: Store, obj: JsonObject, number: int) -> None:
    copied = copy.deepcopy(obj)
    copied["metadata"] = {"name": f"{number:05x}-someone-{number}"}
    store.put(copied)


def _select_by_label(store: Store, obj: JsonObject, _: int) -> None:
    obj["spec"]["somethingNewer"] = {"a": 1}


EDITS: list[Callable[[Store, JsonObject, int], None]] = [
    _delete,
    _set_generation,
    _set_count,
    _set_devices,
    _drop_devices,
    _move_pool,
    _rename,
    _select_by_label,
]


@pytest.mark.protocol("S6", "S7")
@given(
    POOLS, POOLS, st.lists(st.tuples(st.sampled_from(EDITS), st.integers(0, 9), st.integers(0, 9)))
)
def test_whatever_others_do_to_the_slices_the_pool_becomes_true_and_stays_so(
    first: Pool, second: Pool, edits: list[tuple[Callable[..., None], int, int]]
) -> None:
    store = published(first)
    for edit, which, number in edits:
        if store.objects:
            edit(store, store.observed()[which % len(store.objects)], number)
    wanted = pool_diff.desired(second)
    store.publish(wanted)
    in_order = [store.objects[name] for name in sorted(store.objects)]
    kept = ("devices", "sharedCounters")
    assert (
        tuple({key: each["spec"][key] for key in kept if key in each["spec"]} for each in in_order)
        == wanted.contents
    )
    assert len(generations(store)) == 1
    assert {each["spec"]["pool"]["resourceSliceCount"] for each in in_order} == {len(in_order)}
    writes = store.writes
    store.publish(wanted)
    assert store.writes == writes


@given(POOLS, POOLS)
def test_consumers_never_see_two_pools_mixed_in_one_generation(before: Pool, after: Pool) -> None:
    store = published(before)
    (old,) = generations(store)
    wanted = pool_diff.desired(after)
    writes = pool_diff.reconcile(wanted, store.observed(), DRIVER, NODE)
    new = {pool_diff.generation(each) for each in (*writes.replaces, *writes.creates)}
    assert len(new) <= 1
    if len(writes.replaces) + len(writes.creates) > 1:
        assert new == {old + 1}


def test_slices_of_a_node_that_was_here_before_are_made_anew() -> None:
    """They are its property: the garbage collector would remove them sooner or later."""
    wanted, store = pool_diff.desired(pool([gpu(0)], [gpu(1)])), Store()
    for uid in ("the predecessor's", "ours"):
        writes = pool_diff.reconcile(wanted, store.observed(), DRIVER, NODE, uid)
        assert len(writes.deletes) == len(store.objects)
        creates = tuple(pool_diff.with_node_owner(each, NODE, uid) for each in writes.creates)
        assert len(creates) == 2
        store.apply(pool_diff.Writes(deletes=writes.deletes, creates=creates))
        assert not pool_diff.reconcile(wanted, store.observed(), DRIVER, NODE, uid)
    assert generations(store) == {2}, "nobody mixes the old with the new"
