# SPDX-License-Identifier: Apache-2.0
"""The table of what can become of a pool, row by row: what is written, and what is there then.

One publisher leaves a pool; others do what they do; another publisher wants the next pool. Pools
for all nodes, for nodes by selector or by device, and of one name alone are not in it: what we
publish is on the publisher's own node.
"""

import copy
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple
from uuid import uuid4

import pytest
from nvdra_api.ids import PoolName
from nvdra_api.meta import JsonObject
from nvdra_api.resource.slices import Device, DeviceTaint
from nvdra_runtime.kube import client
from nvdra_runtime.kube.client import KubeSettings
from nvdra_runtime.resourceslices.pool import Pool, Slice
from nvdra_runtime.resourceslices.publisher import Publisher, Write
from nvdra_testing.control_plane import apiserver
from nvdra_testing.control_plane.published_pools import (
    DRIVER,
    SLICES,
    PublishedNode,
    device_names,
    gpu_device,
)
from nvdra_testing.polling import wait_until

LOST = (DeviceTaint(key="gpu.nvidia.com/lost", effect="NoExecute"),)
Slices = Sequence[Sequence[Device]]


def nothing(node: PublishedNode) -> None:
    """Nobody does anything."""


def delete_the_last(node: PublishedNode) -> None:
    node.delete_slice(node.slices()[-1]["metadata"]["name"])


def copy_the_first(node: PublishedNode) -> None:
    made = copy.deepcopy(node.slices()[0])
    made["metadata"] = {"generateName": made["metadata"]["name"][:-1]}
    node.server.create(SLICES, made)


def raise_the_generation_of_the_first(node: PublishedNode) -> None:
    first = node.slices()[0]
    first["spec"]["pool"]["generation"] = 7
    node.update_slice(first)


def rename(*indices: int) -> Callable[[PublishedNode], None]:
    """As a driver named its slices that had no index in them."""

    def renamed(node: PublishedNode) -> None:
        slices = node.slices()
        for index in indices:
            made = copy.deepcopy(slices[index])
            made["metadata"] = {"generateName": f"{node.name[:20]}-{DRIVER}-"}
            node.delete_slice(slices[index]["metadata"]["name"])
            node.server.create(SLICES, made)

    return renamed


def move_to_another_pool(node: PublishedNode) -> None:
    for each in node.slices():
        made = copy.deepcopy(each)
        made["metadata"] = {"generateName": each["metadata"]["name"][:-5]}
        made["spec"]["pool"]["name"] = "another"
        node.delete_slice(each["metadata"]["name"])
        node.server.create(SLICES, made)


class Row(NamedTuple):
    """From one pool to the next."""

    before: Slices | None
    after: Slices
    writes: dict[str, int]
    generation: int = 1
    meanwhile: Callable[[PublishedNode], None] = nothing


ONE, TWO, THREE = ([(gpu_device(index),) for index in range(count)] for count in (1, 2, 3))
MANY = [[gpu_device(number) for number in numbers] for numbers in (range(128), range(128, 192))]

ROWS = {
    "created": Row(None, TWO, {"create": 2}),
    "created empty": Row(None, [()], {"create": 1}),
    "with many devices": Row(None, MANY, {"create": 2}),
    "unchanged": Row(TWO, TWO, {}),
    "taint added": Row(TWO, [(gpu_device(0, taints=LOST),), TWO[1]], {"replace": 1}),
    "taint kept": Row([(gpu_device(0, taints=LOST),)], [(gpu_device(0, taints=LOST),)], {}),
    "taint dropped": Row([(gpu_device(0, taints=LOST),)], ONE, {"replace": 1}),
    "device gone": Row([(gpu_device(0), gpu_device(1))], [(gpu_device(1),)], {"replace": 1}),
    "devices in another order": Row(
        [(gpu_device(0), gpu_device(1))], [(gpu_device(1), gpu_device(0))], {"replace": 1}
    ),
    "one of two changed": Row(TWO, [TWO[0], (gpu_device(1, 40),)], {"replace": 1}),
    "two of three changed": Row(
        THREE, [(gpu_device(0, 40),), (gpu_device(1, 40),), THREE[2]], {"replace": 3}, 2
    ),
    "slice added": Row(ONE, TWO, {"replace": 1, "create": 1}, 2),
    "slice removed": Row(TWO, ONE, {"delete": 1, "replace": 1}),
    "slice deleted by others": Row(TWO, TWO, {"replace": 1, "create": 1}, 2, delete_the_last),
    "slice there twice": Row(TWO, TWO, {"delete": 1}, 1, copy_the_first),
    "mixed generations": Row(
        TWO,
        TWO,
        {"delete": 1, "replace": 1, "create": 1},
        8,
        raise_the_generation_of_the_first,
    ),
    "random names": Row(TWO, TWO, {"delete": 2, "create": 2}, 2, rename(0, 1)),
    "a random name beside another": Row(
        TWO, TWO, {"delete": 1, "replace": 1, "create": 1}, 2, rename(1)
    ),
    "another pool": Row(TWO, TWO, {"delete": 2, "create": 2}, 1, move_to_another_pool),
}


@pytest.mark.protocol("S6")
@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
async def test_a_pool_becomes_the_next(server: apiserver.ApiServer, row: Row) -> None:
    node = PublishedNode(server, f"node-{uuid4().hex[:8]}")
    if row.before is not None:
        await published(node, row.before)
        row.meanwhile(node)
    writes = await published(node, row.after)
    assert writes == Counter(row.writes)
    stored = node.slices()
    assert device_names(stored) == [[device.name for device in each] for each in row.after]
    assert [each["spec"]["pool"] for each in stored] == [
        {"name": node.name, "generation": row.generation, "resourceSliceCount": len(row.after)}
    ] * len(stored)
    tainted = [bool(device.get("taints")) for each in stored for device in each_device(each)]
    assert tainted == [bool(device.taints) for each in row.after for device in each]


@pytest.mark.protocol("S6")
async def test_a_taint_that_stays_keeps_its_time_beside_one_that_comes(
    server: apiserver.ApiServer,
) -> None:
    node = PublishedNode(server, f"node-{uuid4().hex[:8]}")
    await published(node, [(gpu_device(0, taints=LOST), gpu_device(1))])
    added = node.slices()[0]["spec"]["devices"][0]["taints"][0]["timeAdded"]
    await published(node, [(gpu_device(0, taints=LOST), gpu_device(1, taints=LOST))])
    first, second = node.slices()[0]["spec"]["devices"]
    assert first["taints"][0]["timeAdded"] == added
    assert second["taints"][0]["timeAdded"] >= added


async def published(node: PublishedNode, slices: Slices) -> Counter[str]:
    """Publish a pool and leave it; the writes that took, by their verb."""
    writes: list[Write] = []
    pool = Pool(PoolName(node.name), tuple(Slice(devices=tuple(each)) for each in slices))
    async with client.connect(KubeSettings(str(node.server.kubeconfig))) as api:
        publisher = Publisher(api, DRIVER, node.name, writes.append)
        async with publisher.running():
            publisher.publish(pool)
            await wait_until(lambda: publisher.state.is_published)
    assert not [write for write in writes if write.outcome != "success"]
    return Counter(write.verb for write in writes)


def each_device(slice_: JsonObject) -> list[JsonObject]:
    return list(slice_["spec"].get("devices") or ())
