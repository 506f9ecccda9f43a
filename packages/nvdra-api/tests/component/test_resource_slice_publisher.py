# SPDX-License-Identifier: Apache-2.0
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from nvdra_api.ids import DeviceName, NodeName, PoolName
from nvdra_api.resource.slices import Device, DeviceTaint
from nvdra_runtime.kube import client
from nvdra_runtime.kube.client import KubeSettings
from nvdra_runtime.resourceslices.pool import Pool, Slice
from nvdra_runtime.resourceslices.publisher import Publisher, Write
from nvdra_testing.control_plane import apiserver
from nvdra_testing.control_plane.published_pools import (
    DRIVER,
    PublishedNode,
    device_names,
    gpu_device,
    slice_versions,
)
from nvdra_testing.polling import wait_until


@pytest.fixture
def node(server: apiserver.ApiServer, request: pytest.FixtureRequest) -> PublishedNode:
    return PublishedNode(server, f"node-{abs(hash(request.node.name)):x}")


@asynccontextmanager
async def publishing(node: PublishedNode, pool: Pool | None = None) -> AsyncIterator[Publisher]:
    """A publisher of its own client, with the pool published if there is one."""
    settings = KubeSettings(str(node.server.kubeconfig))
    async with client.connect(settings) as api:
        publisher = Publisher(api, DRIVER, node.name)
        async with publisher.running():
            if pool is not None:
                publisher.publish(pool)
                await wait_until(lambda: publisher.state.is_published)
            yield publisher


@pytest.mark.protocol("S6")
async def test_the_slices_of_a_pool_belong_to_the_node_and_sort_by_their_index(
    node: PublishedNode,
) -> None:
    async with publishing(
        node, node.make_pool((gpu_device(0), gpu_device(1)), (gpu_device(2),))
    ) as publisher:
        first, second = node.slices()
        assert first["metadata"]["name"].startswith("00000-gpu.nvidia.com-node-")
        assert device_names([first, second]) == [["gpu-0", "gpu-1"], ["gpu-2"]]
        assert first["metadata"]["ownerReferences"] == [
            {
                "apiVersion": "v1",
                "kind": "Node",
                "name": node.name,
                "uid": node.uid,
                "controller": True,
            }
        ]
        assert second["spec"]["pool"] == {
            "name": node.name,
            "generation": 1,
            "resourceSliceCount": 2,
        }
        assert (publisher.state.slices, publisher.state.generation) == (2, 1)
        assert publisher.state.error == ""


@pytest.mark.protocol("S6")
async def test_an_empty_pool_says_that_the_driver_is_there(node: PublishedNode) -> None:
    async with publishing(node, node.make_pool(())):
        assert device_names(node.slices()) == [[]]


@pytest.mark.protocol("S4")
async def test_a_restart_of_the_driver_leaves_the_slices_as_they_are(node: PublishedNode) -> None:
    pool = node.make_pool((gpu_device(0),), (gpu_device(1),))
    async with publishing(node, pool):
        before = slice_versions(node.slices())
    assert slice_versions(node.slices()) == before
    async with publishing(node, pool):
        assert slice_versions(node.slices()) == before


async def test_a_driver_that_starts_reads_what_it_has_published_before(node: PublishedNode) -> None:
    devices = (gpu_device(0), gpu_device(1, memory_gib=40), gpu_device(2))
    async with publishing(node) as publisher:
        assert await publisher.stored_content() == Slice()
    async with publishing(node, node.make_pool(devices[:2], devices[2:])):
        before = slice_versions(node.slices())
    async with publishing(node) as publisher:
        stored = (await publisher.stored_content()).devices
        assert sorted(stored, key=lambda device: device.name) == list(devices)
        publisher.publish(node.make_pool(stored[:2], stored[2:]))
        await wait_until(lambda: publisher.state.is_published)
        assert slice_versions(node.slices()) == before


@pytest.mark.protocol("S6")
async def test_publishing_the_same_again_writes_nothing(node: PublishedNode) -> None:
    writes: list[Write] = []
    async with client.connect(KubeSettings(str(node.server.kubeconfig))) as api:
        publisher = Publisher(api, DRIVER, node.name, writes.append)
        async with publisher.running():
            publisher.publish(node.make_pool((gpu_device(0),)))
            await wait_until(lambda: publisher.state.is_published)
            publisher.publish(node.make_pool((gpu_device(0),)))
            assert publisher.state.is_published
            publisher.publish(node.make_pool((gpu_device(0, 40),)))
            await wait_until(lambda: publisher.state.is_published)
    assert writes == [Write("create", "success"), Write("replace", "success")]


@pytest.mark.protocol("S6")
async def test_a_change_of_one_slice_is_written_to_that_slice_alone(node: PublishedNode) -> None:
    async with publishing(node, node.make_pool((gpu_device(0),), (gpu_device(1),))) as publisher:
        before = slice_versions(node.slices())
        publisher.publish(node.make_pool((gpu_device(0),), (gpu_device(1, memory_gib=40),)))
        await wait_until(lambda: publisher.state.is_published)
        after = node.slices()
        assert slice_versions(after)[0] == before[0]
        assert after[1]["metadata"]["uid"] == before[1][0]
        assert after[1]["spec"]["devices"][0]["capacity"]["memory"]["value"] == "40Gi"
        assert {each["spec"]["pool"]["generation"] for each in after} == {1}


@pytest.mark.protocol("S6")
async def test_added_and_removed_slices_follow_the_pool(node: PublishedNode) -> None:
    async with publishing(node, node.make_pool((gpu_device(0),))) as publisher:
        publisher.publish(node.make_pool((gpu_device(0),), (gpu_device(1),), (gpu_device(2),)))
        await wait_until(lambda: publisher.state.is_published)
        assert device_names(node.slices()) == [["gpu-0"], ["gpu-1"], ["gpu-2"]]
        publisher.publish(node.make_pool((gpu_device(2),)))
        await wait_until(lambda: publisher.state.is_published)
        assert device_names(node.slices()) == [["gpu-2"]]


@pytest.mark.protocol("S7")
async def test_an_edit_by_hand_is_undone(node: PublishedNode) -> None:
    async with publishing(node, node.make_pool((gpu_device(0), gpu_device(1)))):
        (edited,) = node.slices()
        edited["spec"]["devices"] = edited["spec"]["devices"][:1]
        node.update_slice(edited)
        await wait_until(lambda: device_names(node.slices()) == [["gpu-0", "gpu-1"]])


@pytest.mark.protocol("S7")
async def test_a_deleted_slice_comes_back(node: PublishedNode) -> None:
    async with publishing(node, node.make_pool((gpu_device(0),), (gpu_device(1),))):
        node.delete_slice(node.slices()[1]["metadata"]["name"])
        await wait_until(lambda: device_names(node.slices()) == [["gpu-0"], ["gpu-1"]])


@pytest.mark.protocol("S1", "S2")
async def test_after_a_kubelets_wipe_the_slices_are_back_within_seconds_and_once(
    node: PublishedNode,
) -> None:
    pool = node.make_pool(*((gpu_device(index),) for index in range(8)))
    async with publishing(node, pool):
        node.delete_slices()
        await wait_until(lambda: len(node.slices()) == 8, timeout_s=5)
        assert device_names(node.slices()) == [[f"gpu-{index}"] for index in range(8)]
        assert len({each["spec"]["pool"]["generation"] for each in node.slices()}) == 1


@pytest.mark.protocol("S8")
async def test_a_hundred_slices_are_created_exactly_once(node: PublishedNode) -> None:
    writes: list[Write] = []
    async with client.connect(KubeSettings(str(node.server.kubeconfig))) as api:
        publisher = Publisher(api, DRIVER, node.name, writes.append)
        async with publisher.running():
            publisher.publish(node.make_pool(*((gpu_device(index),) for index in range(100))))
            await wait_until(lambda: publisher.state.is_published)
    assert writes == [Write("create", "success")] * 100
    assert device_names(node.slices()) == [[f"gpu-{index}"] for index in range(100)]


async def test_what_the_server_rejects_is_reported_with_its_words_and_not_repeated(
    node: PublishedNode,
) -> None:
    writes: list[Write] = []
    async with client.connect(KubeSettings(str(node.server.kubeconfig))) as api:
        publisher = Publisher(api, DRIVER, node.name, writes.append)
        async with publisher.running():
            publisher.publish(node.make_pool((Device(name=DeviceName("GPU_0")),)))
            await wait_until(lambda: publisher.state.error)
            assert "spec.devices[0].name" in publisher.state.error
            assert not publisher.state.is_published
            publisher.publish(node.make_pool((gpu_device(0),)))
            await wait_until(lambda: publisher.state.is_published)
            assert publisher.state.error == ""
    assert writes == [Write("create", "Invalid"), Write("create", "success")]


@pytest.mark.protocol("S6")
async def test_a_pool_that_contradicts_itself_is_not_published(node: PublishedNode) -> None:
    async with publishing(node, node.make_pool((gpu_device(0),))) as publisher:
        before = slice_versions(node.slices())
        publisher.publish(node.make_pool((gpu_device(0),), (gpu_device(0),)))
        assert publisher.state.error == "device gpu-0 occurs twice"
        assert slice_versions(node.slices()) == before


async def test_publication_waits_for_a_node_that_is_not_there_yet(
    server: apiserver.ApiServer,
) -> None:
    late = NodeName("node-that-comes-late")
    async with client.connect(KubeSettings(str(server.kubeconfig))) as api:
        publisher = Publisher(api, DRIVER, late)
        async with publisher.running():
            publisher.publish(Pool(PoolName(late), (Slice(devices=(gpu_device(0),)),)))
            await wait_until(lambda: "not found" in publisher.state.error)
            PublishedNode(server, late)
            await wait_until(lambda: publisher.state.is_published)


@pytest.mark.protocol("S6")
async def test_a_time_that_the_server_gave_a_taint_stays(node: PublishedNode) -> None:
    lost = DeviceTaint(key="gpu.nvidia.com/lost", effect="NoExecute")
    async with publishing(
        node, node.make_pool((gpu_device(0, taints=(lost,)), gpu_device(1)))
    ) as publisher:
        assert publisher.state.dropped == ()
        (first,) = node.slices()
        added = first["spec"]["devices"][0]["taints"][0]["timeAdded"]
        publisher.publish(
            node.make_pool((gpu_device(0, taints=(lost,)), gpu_device(1, memory_gib=40)))
        )
        await wait_until(lambda: publisher.state.is_published)
        (second,) = node.slices()
        assert second["spec"]["devices"][0]["taints"][0]["timeAdded"] == added


async def test_publication_outlives_the_api_server_and_repairs_what_happened_meanwhile(
    tmp_path: Path,
) -> None:
    with apiserver.run_apiserver(tmp_path) as server:
        node = PublishedNode(server, "node-a")
        async with publishing(node, node.make_pool((gpu_device(0),))) as publisher:
            server.stop()
            publisher.publish(node.make_pool((gpu_device(0),), (gpu_device(1),)))
            await wait_until(lambda: publisher.state.error)
            server.start()
            node.delete_slices()
            await wait_until(
                lambda: device_names(node.slices()) == [["gpu-0"], ["gpu-1"]], timeout_s=20
            )
            await wait_until(lambda: publisher.state.is_published and not publisher.state.error)


OLDER = "resource.k8s.io/v1=false,resource.k8s.io/v1beta2=false,resource.k8s.io/v1beta1=false"


@pytest.mark.protocol("S10")
@pytest.mark.parametrize("version", ["v1beta2", "v1beta1"])
async def test_a_server_with_an_older_version_alone_gets_the_same_pool(
    tmp_path: Path, version: str
) -> None:
    only = OLDER.replace(f"{version}=false", f"{version}=true")
    with apiserver.run_apiserver(tmp_path, runtime_config=only) as server:
        node = PublishedNode(server, "node-a", version)
        pool = node.make_pool((gpu_device(0), gpu_device(1)), (gpu_device(2),))
        async with publishing(node, pool):
            assert device_names(node.slices()) == [["gpu-0", "gpu-1"], ["gpu-2"]]
            (device, _), _ = (each["spec"]["devices"] for each in node.slices())
            body = device["basic"] if version == "v1beta1" else device
            assert body["capacity"]["memory"]["value"] == "80Gi"
            before = slice_versions(node.slices())
        async with publishing(node, pool):
            assert slice_versions(node.slices()) == before


@pytest.mark.protocol("S6")
async def test_fields_that_the_server_drops_are_named_by_their_gate_and_written_once(
    tmp_path: Path,
) -> None:
    gates = "DRADeviceTaints=false,DRADeviceTaintRules=false"
    with apiserver.run_apiserver(tmp_path, feature_gates=gates) as server:
        node = PublishedNode(server, "node-a")
        lost = DeviceTaint(key="gpu.nvidia.com/lost", effect="NoExecute")
        async with publishing(node, node.make_pool((gpu_device(0, taints=(lost,)),))) as publisher:
            assert publisher.state.dropped == ("DRADeviceTaints",)
            assert publisher.state.is_published
            (stored,) = node.slices()
            assert "taints" not in stored["spec"]["devices"][0]
            assert stored["metadata"]["generation"] == 1


async def test_a_cluster_without_dra_is_reported_and_waited_for(tmp_path: Path) -> None:
    with apiserver.run_apiserver(tmp_path, runtime_config=OLDER) as server:
        async with client.connect(KubeSettings(str(server.kubeconfig))) as api:
            publisher = Publisher(api, DRIVER, NodeName("node-a"))
            async with publisher.running():
                publisher.publish(Pool(PoolName("node-a"), (Slice(devices=(gpu_device(0),)),)))
                await wait_until(lambda: publisher.state.error)
                assert "resource.k8s.io" in publisher.state.error
                assert not publisher.state.is_published
