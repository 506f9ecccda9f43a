# SPDX-License-Identifier: Apache-2.0
"""What the publisher writes, on which conditions, and how long it leaves others alone."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from nvdra_api.errors import DriverError
from nvdra_api.ids import DeviceName, NodeName, PoolName
from nvdra_api.meta import JsonObject
from nvdra_api.resource.slices import Device
from nvdra_runtime.kube.errors import DraDisabled
from nvdra_runtime.resourceslices.pool import Pool, Slice
from nvdra_runtime.resourceslices.publisher import Publisher, Write
from nvdra_testing import virtual_time
from nvdra_testing.faults import recorded_api
from nvdra_testing.faults.recorded_api import Answer, RecordedApi, Request

DRIVER, NODE = "gpu.nvidia.com", NodeName("node-a")
SLICES = "/apis/resource.k8s.io/v1/resourceslices"
POOL = Pool(PoolName(NODE), (Slice(devices=(Device(name=DeviceName("gpu-0")),)),))
FIRST = f"{SLICES}/00000-{DRIVER}-{NODE}-1"


def stale_slice(name: str, version: str = "7") -> JsonObject:
    """A slice of a former pool of this node."""
    return {
        "metadata": {"name": name, "uid": f"uid-{name}", "resourceVersion": version},
        "spec": {"driver": DRIVER, "nodeName": NODE, "pool": {"name": "former", "generation": 3}},
    }


@dataclass
class Slices:
    """The slices that exist.

    Attributes:
        changed: A slice that somebody else has changed: a delete with conditions is refused once.
    """

    stored: dict[str, JsonObject] = field(default_factory=dict)
    changed: set[str] = field(default_factory=set)
    version: int = 10

    def answer(self, request: Request) -> Answer:
        verb, _, path = request.line.partition(" ")
        name = path.removeprefix(f"{SLICES}/")
        match verb:
            case "GET" if path == f"/api/v1/nodes/{NODE}":
                return 200, {"metadata": {"name": NODE, "uid": "uid-of-the-node"}}
            case "GET":
                metadata = {"resourceVersion": str(self.version)}
                return 200, {"metadata": metadata, "items": list(self.stored.values())}
            case "WATCH":
                return 200, {}
            case "POST":
                return 200, self._put(request.body["metadata"]["generateName"] + "1", request.body)
            case "PUT":
                return 200, self._put(name, request.body)
            case "DELETE":
                if name in self.changed and request.body["preconditions"]:
                    self.changed.discard(name)
                    return recorded_api.status(409, "Conflict")
                return 200, self.stored.pop(name)
        raise AssertionError(request.line)

    def _put(self, name: str, obj: JsonObject) -> JsonObject:
        self.version += 1
        metadata = {"uid": f"uid-{name}", **obj["metadata"], "name": name}
        self.stored[name] = {
            **obj,
            "metadata": {**metadata, "resourceVersion": str(self.version)},
        }
        return self.stored[name]


def published(
    slices: Slices, main: Callable[[RecordedApi, Publisher, list[Write]], Awaitable[Any]]
) -> Any:
    async def started() -> Any:
        api, writes = RecordedApi(slices.answer), list[Write]()
        publisher = Publisher(api, DRIVER, NODE, writes.append)
        async with publisher.running():
            publisher.publish(POOL)
            async with asyncio.timeout(300):
                while not publisher.state.is_published:  # noqa: ASYNC110 - in virtual time
                    await asyncio.sleep(0.1)
            return await main(api, publisher, writes)

    return virtual_time.run_with_virtual_time(started)


def test_a_slice_is_created_with_the_node_as_its_owner() -> None:
    async def main(api: RecordedApi, _: Publisher, writes: list[Write]) -> None:
        assert writes == [Write("create", "success")]
        assert api.sent(f"POST {SLICES}").body == {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSlice",
            "metadata": {
                "generateName": f"00000-{DRIVER}-{NODE}-",
                "ownerReferences": [
                    {
                        "apiVersion": "v1",
                        "kind": "Node",
                        "name": NODE,
                        "uid": "uid-of-the-node",
                        "controller": True,
                    }
                ],
            },
            "spec": {
                "driver": DRIVER,
                "nodeName": NODE,
                "pool": {"name": NODE, "generation": 1, "resourceSliceCount": 1},
                "devices": [{"name": "gpu-0"}],
            },
        }

    published(Slices(), main)


def test_only_the_slice_that_was_read_is_deleted() -> None:
    async def main(api: RecordedApi, _: Publisher, __: list[Write]) -> None:
        assert api.sent(f"DELETE {SLICES}/former").body == {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": {"uid": "uid-former", "resourceVersion": "7"},
        }

    published(Slices({"former": stale_slice("former")}), main)


def test_a_slice_that_somebody_changed_since_is_looked_at_before_it_is_deleted() -> None:
    slices = Slices({"former": stale_slice("former")}, changed={"former"})

    async def main(api: RecordedApi, _: Publisher, writes: list[Write]) -> None:
        assert [(each.verb, each.outcome) for each in writes] == [
            ("delete", "Conflict"),
            ("delete", "success"),
            ("create", "success"),
        ]
        first, second = (each for each in api.requests if each.line.startswith("DELETE"))
        assert second.time - first.time >= 0.4
        assert set(slices.stored) == {f"00000-{DRIVER}-{NODE}-1"}

    published(slices, main)


def test_a_slice_that_others_delete_again_and_again_is_repaired_ever_later() -> None:
    slices = Slices()

    async def main(api: RecordedApi, publisher: Publisher, writes: list[Write]) -> None:
        pauses = []
        for _ in range(7):
            (name,) = slices.stored
            gone = slices.stored.pop(name)
            slices.version += 1
            version = {"resourceVersion": str(slices.version)}
            api.push(SLICES, "DELETED", {**gone, "metadata": {**gone["metadata"], **version}})
            removed_at = asyncio.get_running_loop().time()
            async with asyncio.timeout(60):
                while not slices.stored:  # noqa: ASYNC110 - in virtual time
                    await asyncio.sleep(0.01)
            pauses.append(asyncio.get_running_loop().time() - removed_at)
            await asyncio.sleep(0.1)
        for pause, longest in zip(pauses, (1, 2, 4, 8, 16, 30, 30), strict=True):
            assert 0.8 * longest <= pause <= longest + 0.05, pauses
        assert publisher.state.is_published
        assert len(writes) == 1 + 7

    published(slices, main)


def test_a_repair_after_a_quiet_minute_is_soon() -> None:
    slices = Slices()

    async def main(api: RecordedApi, publisher: Publisher, writes: list[Write]) -> None:
        for _ in range(3):
            (name,) = slices.stored
            gone = slices.stored.pop(name)
            slices.version += 1
            version = {"resourceVersion": str(slices.version)}
            api.push(SLICES, "DELETED", {**gone, "metadata": {**gone["metadata"], **version}})
            await asyncio.sleep(1.5)
            assert slices.stored
            await asyncio.sleep(120)
        assert publisher.state.is_published
        assert len(writes) == 1 + 3

    published(slices, main)


def pool(*devices: str) -> Pool:
    return Pool(
        PoolName(NODE), (Slice(devices=tuple(Device(name=DeviceName(d)) for d in devices)),)
    )


def test_another_pool_is_written_at_once_and_an_equal_one_not_at_all() -> None:
    slices = Slices()

    async def main(api: RecordedApi, publisher: Publisher, writes: list[Write]) -> None:
        publisher.publish(pool("gpu-0"))
        await asyncio.sleep(60)
        assert publisher.state.is_published
        assert writes == [Write("create", "success")]
        publisher.publish(pool("gpu-0", "gpu-1"))
        assert not publisher.state.is_published
        await asyncio.sleep(0.01)
        assert publisher.state.is_published
        assert writes[1:] == [Write("replace", "success")]
        (stored,) = slices.stored.values()
        assert [device["name"] for device in stored["spec"]["devices"]] == ["gpu-0", "gpu-1"]

    published(slices, main)


def test_a_pool_that_the_scheduler_would_ignore_is_told_and_not_written() -> None:
    async def main(_: RecordedApi, publisher: Publisher, writes: list[Write]) -> None:
        publisher.publish(pool("gpu-0", "gpu-0"))
        await asyncio.sleep(60)
        assert publisher.state.error == "device gpu-0 occurs twice"
        assert not publisher.state.is_published
        assert writes == [Write("create", "success")]
        publisher.publish(pool("gpu-0"))
        await asyncio.sleep(0.01)
        assert publisher.state.error == ""
        assert publisher.state.is_published

    published(Slices(), main)


def test_a_cluster_without_the_api_is_told_and_asked_again() -> None:
    async def main() -> None:
        problems: list[DriverError] = []
        api = RecordedApi(lambda _: recorded_api.status(404, "NotFound"))
        api._dra_api_version = None
        publisher = Publisher(api, DRIVER, NODE, observe_problem=problems.append)
        async with publisher.running():
            publisher.publish(POOL)
            await asyncio.sleep(65)
        assert [type(each) for each in problems] == [DraDisabled] * 3
        assert publisher.state.error.startswith("ApiUnavailable: https://api serves no")

    virtual_time.run_with_virtual_time(main)
