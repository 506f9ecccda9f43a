# SPDX-License-Identifier: Apache-2.0
"""The health of devices on its way to the kubelet, over real sockets; the test is the kubelet."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import grpc
import pytest
from nvdra_api.ids import DeviceName, PoolName
from nvdra_runtime.kubeletplugin import health_service, server
from nvdra_runtime.kubeletplugin.call_router import CallRouter
from nvdra_runtime.kubeletplugin.device_health import DeviceHealth, HealthStatus
from nvdra_runtime.kubeletplugin.health_service import HealthService
from nvdra_runtime.kubeletplugin.peer_health import PeerHealth
from nvdra_runtime.kubeletplugin.registration import SocketPaths
from nvdra_runtime.process import background_tasks
from nvdra_testing.kubelet import kubelet_client
from nvdra_testing.kubelet.health_watch import HealthCache
from nvdra_testing.kubelet.kubelet_client import KubeletClient
from nvdra_testing.polling import wait_until

DRIVER = "gpu.nvidia.com"
SINCE = datetime(2026, 8, 7, 16, 0, 54, 250_000, tzinfo=UTC)
BOTH = pytest.mark.parametrize("asks_first", [False, True], ids=["1.36", "1.37"])


def health(name: str, status: HealthStatus, message: str = "") -> DeviceHealth:
    return DeviceHealth(PoolName("node-a"), DeviceName(name), status, SINCE, message)


WELL = health("gpu-0", HealthStatus.HEALTHY)
ILL = health("gpu-0", HealthStatus.UNHEALTHY, "gpu-0 has reported XID 48")
OTHER = health("gpu-1", HealthStatus.UNKNOWN, "it does not report XIDs")


class Source:
    """Devices whose health the test sets."""

    def __init__(self, *devices: DeviceHealth) -> None:
        self.devices: Sequence[DeviceHealth] | None = devices or None
        self._on_change: list[Callable[[], None]] = []

    def on_change(self, notify: Callable[[], None]) -> None:
        self._on_change.append(notify)

    def set(self, *devices: DeviceHealth) -> None:
        self.devices = devices
        for notify in self._on_change:
            notify()


@asynccontextmanager
async def serving(
    root: Path, service: HealthService | None, name: str = "dra"
) -> AsyncIterator[None]:
    plugin_dir = root / "plugins" / DRIVER
    paths = SocketPaths(
        str(plugin_dir / f"{name}.sock"), str(root / "plugins_registry" / f"{name}-reg.sock")
    )
    handlers = (CallRouter(lambda: None), *(() if service is None else service.handlers()))
    async with server.serve_on(DRIVER, paths, handlers, reports_health=service is not None):
        try:
            yield
        finally:
            if service is not None:
                service.end()


@asynccontextmanager
async def kubelet(
    root: Path, *, asks_first: bool
) -> AsyncIterator[tuple[KubeletClient, HealthCache]]:
    async with kubelet_client.run_kubelet(root) as client:
        client.health = HealthCache(asks_first=asks_first, retry_s=0.5)
        yield client, client.health


@BOTH
@pytest.mark.protocol("H1", "H5", "H8")
async def test_the_kubelet_learns_the_health_of_each_device_and_every_change(
    kubelet_root: Path, asks_first: bool
) -> None:
    service, source = HealthService(), Source(WELL, OTHER)
    service.report(source)
    async with (
        kubelet(kubelet_root, asks_first=asks_first) as (client, cache),
        serving(kubelet_root, service),
    ):
        plugin = await client.wait_registered(DRIVER)
        assert plugin.services[2:] == ("v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth")
        both = {"gpu-0": "Healthy", "gpu-1": "Unknown"}
        await wait_until(lambda: cache.statuses(DRIVER) == both)
        source.set(ILL, OTHER)
        await wait_until(lambda: cache.statuses(DRIVER)["gpu-0"] == "Unhealthy")
        told = cache.device(DRIVER, "gpu-0")
        assert told.message == ILL.message
        assert (told.last_updated_time, told.health_check_timeout_seconds) == (1786118454, 30)
        source.set(WELL, OTHER)
        await wait_until(lambda: cache.statuses(DRIVER) == both)
        assert len(cache.messages) == 3
        expected = "v1.DRAResourceHealth" if asks_first else "v1alpha1.DRAResourceHealth"
        assert {service for _, service, _ in cache.messages} == {expected}


async def test_it_is_repeated_before_the_kubelet_takes_it_for_unknown(kubelet_root: Path) -> None:
    assert 2 * health_service.REPEAT_S < health_service.TIMEOUT_S
    service = HealthService(repeat_s=0.5)
    service.report(Source(WELL))
    async with (
        kubelet(kubelet_root, asks_first=True) as (_, cache),
        serving(kubelet_root, service),
    ):
        await wait_until(lambda: len(cache.messages) >= 2)
        assert cache.messages[0] == cache.messages[1]


@BOTH
@pytest.mark.protocol("H8", "H12")
async def test_a_driver_that_does_not_report_health_says_so(
    kubelet_root: Path, asks_first: bool
) -> None:
    async with (
        kubelet(kubelet_root, asks_first=asks_first) as (client, cache),
        serving(kubelet_root, None),
    ):
        plugin = await client.wait_registered(DRIVER)
        assert plugin.services == ("v1.DRAPlugin", "v1beta1.DRAPlugin")
        if not asks_first:
            await wait_until(lambda: cache.ends[:1] == [grpc.StatusCode.UNIMPLEMENTED])
            await wait_until(lambda: len(cache.ends) >= 2)  # asked again, and nothing breaks
        assert not (await plugin.prepare([]))
        assert cache.messages == []


@BOTH
@pytest.mark.protocol("H2", "H3")
async def test_nothing_is_known_while_no_instance_runs_and_all_when_one_does_again(
    kubelet_root: Path, asks_first: bool
) -> None:
    async with kubelet(kubelet_root, asks_first=asks_first) as (_, cache):
        for _ in range(2):
            service = HealthService()
            service.report(Source(WELL))
            async with serving(kubelet_root, service):
                await wait_until(lambda: cache.statuses(DRIVER) == {"gpu-0": "Healthy"})
            await wait_until(lambda: cache.statuses(DRIVER) == {})
        assert grpc.StatusCode.OK in cache.ends


async def test_an_instance_that_stands_by_says_what_the_active_one_says(kubelet_root: Path) -> None:
    """A kubelet may listen to any of them, or to all of them."""
    active, standby = HealthService(), HealthService()
    active_socket = kubelet_root / "plugins" / DRIVER / "dra-a.sock"
    peer, source = PeerHealth(lambda: active_socket), Source(WELL, OTHER)
    active.report(source)
    standby.report(peer)
    async with (
        kubelet(kubelet_root, asks_first=True) as (_, cache),
        serving(kubelet_root, standby, "dra-b"),
        background_tasks.running(peer=peer.run),
    ):
        assert peer.devices is None
        async with serving(kubelet_root, active, "dra-a"):
            await wait_until(lambda: peer.devices == [seconds(WELL), seconds(OTHER)])
            source.set(ILL, OTHER)
            await wait_until(lambda: peer.devices == [seconds(ILL), seconds(OTHER)])
            await wait_until(lambda: len(cache.messages) == 4)  # each state from each of them
        await wait_until(lambda: peer.devices is None)
        standby.report(Source(ILL))
        await wait_until(lambda: cache.statuses(DRIVER) == {"gpu-0": "Unhealthy"})


def seconds(known: DeviceHealth) -> DeviceHealth:
    """What is left of it on the wire."""
    return replace(known, since=known.since.replace(microsecond=0))


@BOTH
async def test_what_an_instance_knew_is_dropped_before_its_successor_speaks(
    kubelet_root: Path, asks_first: bool
) -> None:
    first, second = HealthService(), HealthService()
    first.report(Source(WELL))
    async with (
        kubelet(kubelet_root, asks_first=asks_first) as (client, cache),
        serving(kubelet_root, second, "dra-b"),
    ):
        async with serving(kubelet_root, first, "dra-a"):
            await client.wait_until(lambda: len(client.instances.get(DRIVER, ())) == 2)
            await wait_until(lambda: cache.statuses(DRIVER) == {"gpu-0": "Healthy"})
            first.end()
            await wait_until(lambda: cache.statuses(DRIVER) == {})
            assert len(cache.messages) == 1
            second.report(Source(ILL))
            await wait_until(lambda: cache.statuses(DRIVER) == {"gpu-0": "Unhealthy"})
        await client.wait_until(lambda: len(client.instances[DRIVER]) == 1)


async def test_an_instance_with_open_streams_ends_at_once(kubelet_root: Path) -> None:
    service = HealthService()
    async with kubelet(kubelet_root, asks_first=True) as (client, _):
        async with serving(kubelet_root, service):
            await client.wait_registered(DRIVER)
            service.report(Source(WELL))
            began = asyncio.get_running_loop().time()
        assert asyncio.get_running_loop().time() - began < 2
