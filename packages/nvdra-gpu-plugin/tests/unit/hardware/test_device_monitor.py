# SPDX-License-Identifier: Apache-2.0
"""What the monitor keeps while sessions and specs are replaced below claims under way."""

import asyncio
import threading
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from nvdra_gpu_plugin.devices.inventory import Gpu, Inventory
from nvdra_gpu_plugin.devices.spec_generation import SpecGeneration
from nvdra_gpu_plugin.driver.nvml_sessions import DriverUnavailable, NvmlSessions
from nvdra_gpu_plugin.hardware import device_state
from nvdra_gpu_plugin.hardware.device_monitor import DeviceMonitor
from nvdra_gpu_plugin.hardware.device_state import DeviceState, Snapshot
from nvdra_gpu_plugin.hardware.nvml_reopen_policy import Action
from nvdra_runtime.node.host import Host
from nvdra_runtime.process.worker import WorkerGroup
from nvdra_testing.hardware import simulated_nvml
from nvdra_testing.hardware.gpus import h100
from nvdra_testing.hardware.simulated_nvml import AnsweringNvml


class Clock:
    seconds = 100.0

    def now(self) -> datetime:
        return datetime(2026, 8, 1, tzinfo=UTC)

    def monotonic(self) -> float:
        return self.seconds


class Setting:
    def __init__(self, threads: WorkerGroup) -> None:
        self.clock, self.nvml = Clock(), AnsweringNvml()
        self.sessions = NvmlSessions(threads.start_worker("nvml"), lambda *_: None)
        updater: Any = None  # nothing inspects this node
        self.monitor = DeviceMonitor(
            Host(), updater, self.clock, self.sessions, threads.start_worker("files"), threads
        )
        self.worker = threads.start_worker("gpu-0")

    def open(self, *gpus: Gpu) -> None:
        """Have a session with these GPUs, which share a thread."""
        self.sessions.current = simulated_nvml.session(self.nvml, *gpus)
        self.monitor.session.probes = tuple(
            simulated_nvml.described_probe(
                self.sessions.current, index, gpu, self.clock, self.worker
            )
            for index, gpu in enumerate(gpus)
        )

    async def see(self, generation: str) -> None:
        """Have the monitor see a node whose spec is of this generation."""
        spec: Any = SimpleNamespace(generation=SpecGeneration(generation, {}))
        await self.monitor._set_state(DeviceState(Snapshot(Inventory(), spec)))


@pytest.fixture
async def setting() -> AsyncIterator[Setting]:
    async with WorkerGroup() as threads:
        yield Setting(threads)


async def test_a_state_that_does_not_differ_wakes_nobody(setting: Setting) -> None:
    await setting.see("first")
    before = setting.monitor.state
    await setting.see("first")
    assert setting.monitor.serial == 1
    assert setting.monitor.state is before


async def test_nvml_is_not_closed_below_a_call_that_runs(setting: Setting) -> None:
    """NVML's answer to that is a crash of the process."""
    setting.open(h100(0))
    may_return = threading.Event()
    call = setting.worker.submit(may_return.wait, 20)
    await setting.monitor.session.close()
    assert not setting.nvml.is_closed
    assert setting.sessions.current is None
    assert not setting.monitor.session.is_usable.is_set(), "claims wait for the next session"
    may_return.set()
    assert await call


async def test_nvml_is_closed_once_calls_that_ran_have_returned(setting: Setting) -> None:
    setting.open(h100(0))
    may_return = threading.Event()
    setting.worker.submit(may_return.wait, 20)
    asyncio.get_running_loop().call_later(0.05, may_return.set)
    await setting.monitor.session.close()
    assert setting.nvml.is_closed


async def test_a_session_of_use_is_closed_although_a_call_takes_long_before_nvml_is_opened_again(
    setting: Setting,
) -> None:
    """A session that is left open would hide GPUs that come later."""
    setting.open(h100(0))
    assert setting.sessions.current is not None
    may_return = threading.Event()
    setting.worker.submit(may_return.wait, 20)
    asyncio.get_running_loop().call_later(1.5, may_return.set)
    found = setting.sessions.current.installation._replace(gpus=())
    with pytest.raises(DriverUnavailable):  # there is no library to be opened
        await setting.monitor.session._open(found, Action.REOPEN)
    assert setting.nvml.is_closed
    assert not setting.sessions.has_abandoned


async def test_a_gpu_that_describes_itself_while_the_spec_is_made_is_awaited(
    setting: Setting,
) -> None:
    setting.open(h100(0), h100(1))
    spec: Any = SimpleNamespace(device_edits={h100(0).name: None})
    made_before: Any = SimpleNamespace(
        spec=spec, gpus=(h100(0),), faults=(), missing_paths={}, write_fault=None
    )
    state = device_state.derive(setting.monitor.probes, made_before)
    assert state.awaited == ("gpu-1",)
    assert state.snapshot is not None
    assert [each.name for each in state.snapshot.inventory.gpus] == ["gpu-0"]


def test_gpus_of_another_driver_version_are_not_taken_as_known() -> None:
    async def main() -> None:
        async with WorkerGroup() as threads:
            setting = Setting(threads)
            same, other = h100(0), h100(1, driver_version="570.1")
            setting.open(same, other)
            session = simulated_nvml.session(setting.nvml, same, other)
            found = setting.monitor.session._create_probes(session)
            assert [probe.gpu for probe in found] == [same, None]
            newer = simulated_nvml.session(setting.nvml, same, other, version="590.44.01")
            found = setting.monitor.session._create_probes(newer)
            assert [probe.gpu for probe in found] == [None, None]

    asyncio.run(main())
