# SPDX-License-Identifier: Apache-2.0
"""The node's ResourceSlices, when others change them and when the API server fails."""

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from nvdra_testing.control_plane import apiserver
from nvdra_testing.control_plane.apiserver import ApiServer
from nvdra_testing.durations import Durations
from nvdra_testing.faults import api_proxy
from nvdra_testing.faults.api_proxy import FaultyProxy
from nvdra_testing.node import plugin
from nvdra_testing.node.rig import SLICES, Rig

WRITES = r"(POST|PUT|DELETE) .*/resourceslices"
STATUS = '{"kind":"Status","apiVersion":"v1","status":"Failure","message":"%s","code":%d}'
SPOILT: dict[int, dict[str, Any]] = {
    409: {"status": 409, "body": STATUS % ("the object has been modified", 409)},
    410: {"status": 410, "body": STATUS % ("too old resource version", 410)},
    429: {"status": 429, "body": "slow down", "headers": {"Retry-After": "1"}},
    500: {"status": 500, "body": STATUS % ("etcdserver: request timed out", 500)},
}
ALL = {f"gpu-{minor}" for minor in range(8)}


@pytest_asyncio.fixture
async def proxy(rig: Rig) -> AsyncIterator[FaultyProxy]:
    async with api_proxy.run_proxy(rig.server, rig.node.kubelet.parent) as running:
        yield running


def uids(rig: Rig) -> list[str]:
    return [slice_["metadata"]["uid"] for slice_ in rig.slices()]


async def test_a_slice_that_was_edited_by_hand_is_as_it_was_within_seconds(rig: Rig) -> None:
    await rig.start()
    (edited,) = rig.slices()
    before = edited["spec"]["devices"]
    edited["spec"]["devices"] = [
        {**device, "attributes": {**device["attributes"], "productName": {"string": "RTX"}}}
        for device in before[:3]
    ]
    rig.server.request("PUT", f"{SLICES}/{edited['metadata']['name']}", edited)
    await rig.wait_until(
        lambda: set(rig.devices()) == ALL, "the slice to be as it was", timeout_s=10
    )
    assert rig.slices()[0]["spec"]["devices"] == before


async def test_slices_that_others_made_in_our_name_go(rig: Rig) -> None:
    await rig.start()
    (ours,) = rig.slices()
    forged = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"generateName": "forged-"},
        "spec": {**ours["spec"], "pool": {**ours["spec"]["pool"], "generation": 99}},
    }
    name = rig.server.create(SLICES, forged)["metadata"]["name"]

    def only_ours() -> bool:
        names = [slice_["metadata"]["name"] for slice_ in rig.slices()]
        return len(names) == 1 and name not in names and set(rig.devices()) == ALL

    await rig.wait_until(only_ours, "the forged slice to go", timeout_s=10)


async def test_slices_of_a_node_that_was_here_before_are_made_anew_as_this_nodes(rig: Rig) -> None:
    await rig.start()
    assert rig.process.stop() == 0
    await rig.kubelet.wait_deregistered(plugin.DRIVER)
    before = uids(rig)
    rig.server.request("DELETE", f"/api/v1/nodes/{rig.node.name}")
    plugin.create_node_object(rig.server, rig.node.name)
    node = rig.server.request("GET", f"/api/v1/nodes/{rig.node.name}")["metadata"]["uid"]
    await rig.start()
    await rig.wait_until(lambda: not set(before) & set(uids(rig)), "the old slices to go")
    owners = [slice_["metadata"]["ownerReferences"] for slice_ in rig.slices()]
    assert [owner["uid"] for (owner,) in owners] == [node]
    assert set(rig.devices()) == ALL


async def test_a_restart_writes_nothing_where_nothing_has_changed(rig: Rig) -> None:
    await rig.start()
    before = rig.slices()
    assert rig.process.stop() == 0
    await rig.kubelet.wait_deregistered(plugin.DRIVER)
    await rig.start()
    assert rig.slices() == before


@pytest.mark.parametrize("status", SPOILT)
async def test_writes_that_the_api_server_refuses_are_made_until_they_are_taken(
    rig: Rig, proxy: FaultyProxy, status: int
) -> None:
    with proxy.inject(WRITES, times=3, **SPOILT[status]) as spoilage:
        await rig.start(f"--kubeconfig={proxy.kubeconfig}")
        assert spoilage.hits == 3
    assert set(rig.devices()) == ALL
    (slice_,) = rig.slices()
    with proxy.inject(WRITES, times=2, **SPOILT[status]) as spoilage:
        rig.server.request("DELETE", f"{SLICES}/{slice_['metadata']['name']}")
        await rig.wait_until(lambda: set(rig.devices()) == ALL, "the slice to be there again")
        assert spoilage.hits == 2


async def test_a_watch_that_the_api_server_breaks_is_taken_up_and_misses_nothing(
    rig: Rig, proxy: FaultyProxy
) -> None:
    await rig.start(f"--kubeconfig={proxy.kubeconfig}")
    with proxy.inject(r"GET .*/resourceslices\?.*watch=true", times=2, **SPOILT[410]):
        await proxy.stop_listening()
        (slice_,) = rig.slices()
        rig.server.request("DELETE", f"{SLICES}/{slice_['metadata']['name']}")
        await proxy.listen()
        await rig.wait_until(lambda: set(rig.devices()) == ALL, "the slice")


async def test_a_slice_that_the_api_server_rejects_is_told_on_the_node(
    rig: Rig, proxy: FaultyProxy
) -> None:
    body = STATUS % ("spec.devices: Too many: 8: must have at most 7 items", 422)
    with proxy.inject("POST .*/resourceslices", status=422, body=body):
        rig.process = rig.launch(f"--kubeconfig={proxy.kubeconfig}")
        await rig.wait_until(lambda: bool(_on_the_node(rig, "Too many: 8")), "an Event of the Node")
        status, text = rig.process.get("/readyz?verbose")
        assert status == 503
        assert "Too many: 8" in text
        assert rig.process.get("/healthz")[0] == 200


async def test_an_idle_plugin_asks_the_api_server_for_nothing(
    rig: Rig, proxy: FaultyProxy, durations: Durations
) -> None:
    """A bit more than 10 s shows any loop: files are checked every 5 s and GPUs every 10 s.

    Rarer requests, the renewal of a watch after 300 s to 360 s and the GET of each prepared claim
    in ten minutes, are counted over ten minutes by `python -m bench.idle`.
    """
    await rig.start(f"--kubeconfig={proxy.kubeconfig}")
    claim = rig.create_claim("gpu-0")
    assert not (await rig.dra.prepare([claim]))[claim.uid].error
    await rig.wait_until(lambda: bool(rig.spans(claim, "prepare")), "the trace to be written")
    await asyncio.sleep(3)
    asked = len(proxy.requests)
    await asyncio.sleep(durations.idle_s)
    assert [what for _, what in proxy.requests[asked:]] == []


@pytest.fixture
def without_dra(tmp_path: Path) -> Iterator[ApiServer]:
    off = ",".join(f"resource.k8s.io/{version}=false" for version in ("v1", "v1beta1", "v1beta2"))
    with apiserver.run_apiserver(tmp_path, runtime_config=off) as server:
        yield server


@pytest.mark.soak
async def test_a_cluster_without_dra_is_told_of_until_it_serves_it(
    rig: Rig, without_dra: ApiServer
) -> None:
    rig.server = without_dra
    plugin.create_node_object(without_dra, rig.node.name)
    rig.process = rig.launch()
    await rig.kubelet.wait_registered(plugin.DRIVER, plugin.START_S)
    await rig.wait_until(lambda: bool(_on_the_node(rig, "resource.k8s.io")), "an Event of the Node")
    status, text = rig.process.get("/readyz?verbose")
    assert status == 503
    assert re.search(r"slices failed: .*serves no .*resource\.k8s\.io", text)
    assert "DynamicResourceAllocation" in _on_the_node(rig, "resource.k8s.io")[0]["message"]
    assert rig.process.get("/healthz")[0] == 200
    without_dra.stop()
    without_dra.argv = [flag for flag in without_dra.argv if "--runtime-config" not in flag]
    without_dra.start()
    await rig.wait_until(lambda: rig.process.get("/readyz")[0] == 200, "recovery", timeout_s=60)
    assert set(rig.devices()) == ALL
    claim = rig.create_claim("gpu-0")
    rig.dra = await rig.kubelet.wait_registered(plugin.DRIVER)
    assert not (await rig.dra.prepare([claim]))[claim.uid].error


def _on_the_node(rig: Rig, text: str) -> list[dict[str, Any]]:
    return [
        event
        for event in rig.events("ApiUnavailable")
        if event["involvedObject"]["kind"] == "Node" and text in event["message"]
    ]
