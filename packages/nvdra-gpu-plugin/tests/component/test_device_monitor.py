# SPDX-License-Identifier: Apache-2.0
"""What the device monitor does after a minute or more: NVML is reopened, the spec is rebuilt.

The survey runs in this process, on simulated boards below an unmodified pynvml; its clock is the
test's, so an hour passes at once.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import pytest_asyncio
from nvdra_api.ids import DeviceName
from nvdra_cdi.nvidia.options import Options
from nvdra_gpu_plugin.cdi.node_spec import NodeSpec
from nvdra_gpu_plugin.cdi.spec_files import SpecFiles
from nvdra_gpu_plugin.cdi.spec_updater import SpecUpdater
from nvdra_gpu_plugin.driver.nvml_sessions import NvmlSessions
from nvdra_gpu_plugin.hardware.device_monitor import DeviceMonitor
from nvdra_gpu_plugin.hardware.device_state import DeviceState
from nvdra_runtime.node.host import Host
from nvdra_runtime.process.worker import WorkerGroup
from nvdra_testing.node import plugin
from nvdra_testing.node.plugin import Node

MISSING_PAUSES_S = (10, 60, 180)
PAUSES_S = (60, 120, 240, 480, 960, 1920, 3600, 3600)


@dataclass
class MovedClock:
    seconds: float = 0.0

    def now(self) -> datetime:
        return datetime(2026, 8, 1, tzinfo=UTC) + timedelta(seconds=self.seconds)

    def monotonic(self) -> float:
        return self.seconds


@dataclass
class RunningClock(MovedClock):
    """It also goes on by itself."""

    began: float = field(default_factory=time.monotonic)

    def monotonic(self) -> float:
        return self.seconds + time.monotonic() - self.began


@dataclass
class Watched:
    """A survey at work, and how often it did what."""

    node: Node
    clock: MovedClock
    survey: DeviceMonitor = field(init=False)
    opened: int = 0
    described: int = 0

    def nvml_called(self, function: str, _seconds: float, _is_ok: bool) -> None:
        self.opened += function.startswith("nvmlInit")

    def options(self) -> Options:
        """Asked for in every look, after NVML was opened anew or was not."""
        self.described += 1
        roots = self.node.roots
        return Options(
            driver_root=str(roots.driver),
            dev_root=str(roots.dev.parent),
            sys_root=str(roots.sys),
            hook_path="/usr/bin/nvidia-cdi-hook",
        )

    def given(self) -> NodeSpec:
        """What containers are given."""
        assert self.survey.state.snapshot is not None
        return self.survey.state.snapshot.spec

    async def until(self, is_so: Callable[[], bool]) -> None:
        """Look again and again until it is so."""
        async with asyncio.timeout(20):
            while not is_so():
                self.survey.wake()
                await asyncio.sleep(0.01)

    def has_described_more_than(self, count: int) -> bool:
        return self.described > count

    def has_opened_more_than(self, count: int) -> bool:
        return self.opened > count

    def gives_other_than(self, spec: NodeSpec) -> bool:
        return self.given() != spec

    async def look(self) -> None:
        """A whole look that begins after the call: one may be under way."""
        for _ in range(2):
            before = self.described
            await self.until(partial(self.has_described_more_than, before))

    async def lose(self, board: int) -> None:
        self.node.simctl("gpu", "lose", str(board))
        await self.until(lambda: bool(self.survey.state.faults))


@pytest.fixture
def bare(request: pytest.FixtureRequest) -> Iterator[Node]:
    """A node that nobody has looked at; with the sections of the test's parameter."""
    sections = getattr(request, "param", {})
    with (
        TemporaryDirectory(prefix="nvdra-") as directory,
        plugin.simulated_node(Path(directory), "node-a", **sections) as node,
    ):
        yield node


@pytest_asyncio.fixture
async def watched(bare: Node) -> AsyncIterator[Watched]:
    """One that was looked at, with eight boards."""
    async with _surveyed(Watched(bare, MovedClock())) as watched:
        await watched.look()
        yield watched


@asynccontextmanager
async def _surveyed(watched: Watched) -> AsyncIterator[Watched]:
    roots, clock = watched.node.roots, watched.clock
    host = Host(proc=roots.proc, sys=roots.sys, dev=roots.dev, driver_root=roots.driver)
    specs = SpecFiles(watched.node.cdi, clock)
    async with WorkerGroup() as threads:
        sessions = NvmlSessions(threads.start_worker("nvml"), watched.nvml_called)
        describer = SpecUpdater(host, watched.options, specs, clock)
        files = threads.start_worker("files")
        watched.survey = DeviceMonitor(host, describer, clock, sessions, files, threads)
        async with watched.survey.running():
            yield watched


async def test_a_board_that_is_lost_has_nvml_opened_anew_after_a_minute_then_ever_later(
    watched: Watched,
) -> None:
    await watched.lose(3)
    for times, pause_s in enumerate(PAUSES_S, start=1):
        watched.clock.seconds += pause_s - 1
        await watched.look()
        assert watched.opened == times, "not before its time"
        watched.clock.seconds += 1
        await watched.until(partial(watched.has_opened_more_than, times))
        await watched.look()
    assert [fault.device for fault in watched.survey.state.faults] == ["gpu-3"]
    watched.node.simctl("gpu", "restore", "3")
    await watched.until(lambda: not watched.survey.state.faults)
    await watched.look()
    opened = watched.opened
    await watched.lose(3)
    watched.clock.seconds += 60
    await watched.until(lambda: watched.opened > opened)


async def test_nothing_is_opened_anew_while_all_boards_work(watched: Watched) -> None:
    watched.clock.seconds += 7200
    await watched.look()
    assert watched.opened == 1


async def test_a_lost_board_that_leaves_the_bus_has_nvml_opened_anew_at_once(
    watched: Watched,
) -> None:
    await watched.lose(3)
    assert watched.survey.state.snapshot is not None
    place = watched.survey.state.snapshot.inventory.by_name[DeviceName("gpu-3")].pci
    listed = watched.node.roots.proc / "driver/nvidia/gpus" / place
    listed.rename(watched.node.kubelet.parent / "unplugged")
    await watched.until(lambda: watched.opened == 2)


EXCLUDED = {"overrides": {"gpus": [{"index": 3, "excluded": True}]}}


def names_of(state: DeviceState) -> list[str]:
    assert state.snapshot is not None
    return [gpu.name for gpu in state.snapshot.inventory.gpus]


@pytest.mark.parametrize("bare", [{}, EXCLUDED], indirect=True, ids=["all", "one excluded"])
async def test_boards_that_start_slowly_stay_while_nvml_is_opened_anew(bare: Node) -> None:
    """Without persistence mode a board starts anew when the last session is closed."""
    seen: list[DeviceState] = []
    async with _surveyed(Watched(bare, RunningClock())) as watched, asyncio.TaskGroup() as group:
        await watched.look()
        before = watched.survey.state
        assert not before.faults
        for board in range(8):
            bare.simctl("gpu", "initialisation", str(board), "2500")
        await watched.lose(5)
        collecting = group.create_task(_collect(watched.survey, seen))
        watched.clock.seconds += 60
        await watched.until(partial(watched.has_opened_more_than, 1))
        bare.simctl("gpu", "restore", "5")
        await watched.until(lambda: not watched.survey.state.faults)
        await watched.look()
        collecting.cancel()
        assert watched.survey.state.snapshot == before.snapshot
    assert seen, "the board that was lost works again"
    for state in seen:
        assert names_of(state) == names_of(before)
        assert {fault.device for fault in state.faults} <= {"gpu-5"}


async def _collect(survey: DeviceMonitor, seen: list[DeviceState]) -> None:
    serial = survey.serial
    while True:
        serial = await survey.changed_since(serial)
        seen.append(survey.state)


async def test_a_board_that_is_described_again_after_another_has_left_is_still_itself(
    watched: Watched,
) -> None:
    """Indexes move as soon as a board has left the bus, before NVML is opened anew."""
    probe = watched.survey.probes[1]
    assert probe.gpu is not None
    watched.node.simctl("gpu", "unplug", "0")
    found = await probe.worker.run(probe._discover)
    assert found is not None
    assert found.gpu.uuid == probe.gpu.uuid


@pytest.mark.parametrize("bare", [EXCLUDED], indirect=True)
async def test_a_board_that_the_kernel_module_leaves_alone_is_missed_by_nobody(
    watched: Watched,
) -> None:
    assert len(list((watched.node.roots.proc / "driver/nvidia/gpus").iterdir())) == 8
    assert names_of(watched.survey.state) == [f"gpu-{n}" for n in range(8) if n != 3]
    for pause_s in PAUSES_S:
        watched.clock.seconds += pause_s
        await watched.look()
    assert watched.opened == 1
    assert not watched.survey.state.faults


async def test_a_board_that_nvml_never_reports_has_nvml_opened_anew_three_times(
    bare: Node,
) -> None:
    (bare.roots.proc / "driver/nvidia/gpus/0000:ff:00.0").mkdir()
    async with _surveyed(Watched(bare, MovedClock())) as watched:
        await watched.look()
        before = watched.survey.state
        for times, pause_s in enumerate(MISSING_PAUSES_S, start=1):
            watched.clock.seconds += pause_s - 1
            await watched.look()
            assert watched.opened == times, "not before its time"
            watched.clock.seconds += 1
            await watched.until(partial(watched.has_opened_more_than, times))
            await watched.look()
        for pause_s in PAUSES_S:
            watched.clock.seconds += pause_s
            await watched.look()
        assert watched.opened == 4
        assert watched.survey.state == before
        (bare.roots.proc / "driver/nvidia/gpus/0000:ff:00.0").rmdir()
        await watched.until(partial(watched.has_opened_more_than, 4))


@dataclass(frozen=True)
class Aside:
    """A file that was taken away."""

    place: Path
    elsewhere: Path

    def put_back(self) -> None:
        self.elsewhere.rename(self.place)


def _aside(node: Node, name: str) -> Aside:
    """Take the one file of this name away from the driver, or a device node from the host."""
    roots = (node.roots.driver, node.roots.dev)
    (place,) = (path for root in roots for path in root.rglob(name))
    return Aside(place, place.rename(node.roots.driver.parent / f"{place.name}.aside"))


async def test_a_driver_is_never_offered_without_a_file_that_it_had(watched: Watched) -> None:
    before = watched.given()
    library = _aside(watched.node, "libcuda.so.*.*")
    await watched.until(lambda: len(watched.survey.state.faults) == 8)
    watched.clock.seconds += 3600
    await watched.look()
    assert len(watched.survey.state.faults) == 8
    await watched.lose(3)
    watched.clock.seconds += 3600  # NVML is opened anew, from the same library
    await watched.until(lambda: watched.opened == 2)
    await watched.look()
    assert {fault.device for fault in watched.survey.state.faults} == {f"gpu-{n}" for n in range(8)}
    watched.node.simctl("gpu", "restore", "3")
    library.put_back()
    await watched.until(lambda: not watched.survey.state.faults)
    assert watched.given() == before


async def test_a_file_that_comes_to_a_driver_is_found_after_a_minute_then_ever_later(
    bare: Node,
) -> None:
    """An installer is still at work; a driver that stays the same is described more rarely."""
    late = _aside(bare, "nvidia_icd.json"), _aside(bare, "libcuda.so.*.*")
    async with _surveyed(Watched(bare, MovedClock())) as watched:
        await watched.look()
        assert not watched.survey.state.faults
        for file in late:
            before = watched.given()
            file.put_back()
            watched.clock.seconds += 59
            await watched.look()
            assert watched.given() == before
            watched.clock.seconds += 1
            await watched.until(partial(watched.gives_other_than, before))
        whole = watched.given()
        for pause_s in PAUSES_S:  # nothing comes
            watched.clock.seconds += pause_s
            await watched.look()
        last = _aside(bare, "nvidia_icd.json")
        await watched.until(lambda: bool(watched.survey.state.faults))
        last.put_back()
        await watched.until(lambda: not watched.survey.state.faults)
        assert watched.given() == whole


@pytest.mark.parametrize("name", ["nvidia-modeset", "nvidia-uvm-tools"])
async def test_a_device_node_beside_the_gpus_is_given_to_containers_as_soon_as_it_is_there(
    bare: Node, name: str
) -> None:
    """A module is loaded at its first use."""
    node = _aside(bare, name)
    async with _surveyed(Watched(bare, MovedClock())) as watched:
        await watched.look()
        assert not watched.survey.state.faults
        without = watched.given()
        node.put_back()
        await watched.until(lambda: watched.given() != without)
        assert not watched.survey.state.faults
