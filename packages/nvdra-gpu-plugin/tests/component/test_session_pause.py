# SPDX-License-Identifier: Apache-2.0
"""While a GPU changes its driver, no program of nvdra on the node has NVML open.

The simulated driver refuses to be unloaded while any process has a session.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import pytest_asyncio
from nvdra_api.errors import Reason, RetryableError
from nvdra_cd_plugin.fabric.nvml_query import FabricPolicy, FabricQuery
from nvdra_cdi.nvidia.options import Options
from nvdra_gpu_plugin.cdi.spec_files import SpecFiles
from nvdra_gpu_plugin.hardware import device_monitor
from nvdra_gpu_plugin.hardware.device_monitor import DeviceMonitor
from nvdra_gpu_plugin.hardware.session_pause import SessionPause
from nvdra_gpu_plugin.hardware.standby_session import StandbySession
from nvdra_runtime.http.probes import is_failure
from nvdra_runtime.node import nvml_lock
from nvdra_runtime.node.host import Host
from nvdra_runtime.node.nvml_lock import SessionHold
from nvdra_runtime.process import background_tasks
from nvdra_runtime.process.clock import SystemClock
from nvdra_runtime.process.worker import Worker, WorkerGroup
from nvdra_testing.node import plugin
from nvdra_testing.node.plugin import Node
from nvdra_testing.polling import wait_until

POLICY = FabricPolicy(is_strict=False, tolerates_unfinished=False, requires_dns_names=False)


def host_of(node: Node) -> Host:
    """The node's files."""
    roots = node.roots
    return Host(proc=roots.proc, sys=roots.sys, dev=roots.dev, driver_root=roots.driver)


@asynccontextmanager
async def monitored(node: Node, plugin_dir: Path) -> AsyncIterator[DeviceMonitor]:
    """The node's GPUs, as the active instance looks at them."""
    roots = node.roots
    options = Options(
        driver_root=str(roots.driver),
        dev_root=str(roots.dev.parent),
        sys_root=str(roots.sys),
        hook_path="/usr/bin/nvidia-cdi-hook",
    )
    async with WorkerGroup() as threads:
        monitoring = device_monitor.running(
            host_of(node),
            lambda: options,
            SpecFiles(node.cdi, SystemClock()),
            lambda *_: None,
            SystemClock(),
            threads,
            threads.start_worker("files"),
            is_released=False,
            hold=SessionHold(plugin_dir),
        )
        async with monitoring as monitor:
            await wait_until(lambda: gpu_count(monitor) == 8)
            yield monitor


def gpu_count(monitor: DeviceMonitor) -> int:
    """How many GPUs can be used."""
    snapshot = monitor.state.snapshot
    return 0 if snapshot is None else len(snapshot.inventory.gpus)


def after(seconds: float) -> float:
    """A deadline."""
    return asyncio.get_running_loop().time() + seconds


@pytest_asyncio.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    with plugin.simulated_node(tmp_path, "node-a") as made:
        nvml_lock.create(tmp_path)
        yield made


async def test_all_sessions_of_the_node_are_closed_and_opened_again(
    node: Node, tmp_path: Path
) -> None:
    standby = StandbySession(
        host_of(node), lambda *_: None, lambda: False, SessionHold(tmp_path), opens_gpus=True
    )
    async with (
        monitored(node, tmp_path) as monitor,
        background_tasks.running(standby=standby.run),
    ):
        await wait_until(lambda: not is_failure(standby.checks["driver"]()))
        published = monitor.state.snapshot
        async with SessionPause(monitor, tmp_path).paused(after(10)):
            node.simctl("driver", "unload")
            node.simctl("driver", "load")
            assert monitor.state.snapshot is published, "what is published does not change"
        assert gpu_count(monitor) == 8
        await wait_until(lambda: not is_failure(standby.checks["driver"]()))
        assert SessionHold(tmp_path).acquire()


async def test_a_query_of_the_other_plugin_waits_until_nvml_may_be_opened_again(
    node: Node, tmp_path: Path
) -> None:
    query = FabricQuery(host_of(node), POLICY, lambda *_: None, SessionHold(tmp_path))
    async with monitored(node, tmp_path) as monitor, Worker("query") as thread:
        async with SessionPause(monitor, tmp_path).paused(after(10)):
            asked = thread.submit(query.run)
            await asyncio.sleep(0.3)
            assert not asked.done()
            node.simctl("driver", "unload")
            node.simctl("driver", "load")
        assert (await asked).problem is None


async def test_a_session_that_stays_open_is_a_typed_error_and_nvml_is_used_again(
    node: Node, tmp_path: Path
) -> None:
    stays = SessionHold(tmp_path)
    assert stays.acquire()
    async with monitored(node, tmp_path) as monitor:
        with pytest.raises(RetryableError) as caught:
            async with SessionPause(monitor, tmp_path).paused(after(0.5)):
                raise AssertionError("another program has NVML open")
        assert caught.value.reason is Reason.DEADLINE_EXCEEDED
        assert gpu_count(monitor) == 8
        assert not monitor.state.is_released
    stays.release()


async def test_gpus_that_change_their_driver_at_once_share_a_pause(
    node: Node, tmp_path: Path
) -> None:
    async with monitored(node, tmp_path) as monitor:
        pause = SessionPause(monitor, tmp_path)
        before = node.nvml_calls("nvmlShutdown")
        inside = asyncio.Barrier(8)

        async def change() -> None:
            async with pause.paused(after(10)):
                await inside.wait()  # all are inside at once
                node.simctl("driver", "unload")

        async with asyncio.TaskGroup() as group:
            for _ in range(8):
                group.create_task(change())
        node.simctl("driver", "load")
        await wait_until(lambda: gpu_count(monitor) == 8)
        async with pause.paused(after(10)):
            assert node.nvml_calls("nvmlShutdown") == before + 2
        assert not monitor.state.is_released
