"""While a board does not work NVML is opened anew, after a minute and then more and more rarely.

The survey runs in this process, on simulated boards below an unmodified pynvml; its clock is the
test's, so an hour passes at once.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import plugin
import pytest_asyncio
from nvdra_api.runtime.node.host import Host
from nvdra_api.runtime.process.worker import Workers
from nvdra_cdi.nvidia.options import Options
from nvdra_gpu_plugin.cdi_specs import SpecFiles
from nvdra_gpu_plugin.description import Describer
from nvdra_gpu_plugin.sessions import Sessions
from nvdra_gpu_plugin.survey import Survey
from plugin import Node

PAUSES_S = (60, 120, 240, 480, 960, 1920, 3600, 3600)


@dataclass
class MovedClock:
    seconds: float = 0.0

    def now(self) -> datetime:
        return datetime(2026, 8, 1, tzinfo=UTC) + timedelta(seconds=self.seconds)

    def monotonic(self) -> float:
        return self.seconds


@dataclass
class Watched:
    """A survey at work, and how often it did what."""

    node: Node
    clock: MovedClock
    survey: Survey = field(init=False)
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

    async def until(self, is_so: Callable[[], bool]) -> None:
        """Look again and again until it is so."""
        async with asyncio.timeout(20):
            while not is_so():
                self.survey.stir()
                await asyncio.sleep(0.01)

    async def look(self) -> None:
        """A whole look that begins after the call: one may be under way."""
        for _ in range(2):
            before = self.described
            await self.until(lambda before=before: self.described > before)

    async def lose(self, board: int) -> None:
        self.node.sim("gpu", "lose", str(board))
        await self.until(lambda: bool(self.survey.view.faults))


@pytest_asyncio.fixture
async def watched() -> AsyncIterator[Watched]:
    with (
        TemporaryDirectory(prefix="nvdra-") as directory,
        plugin.node(Path(directory), "node-a") as node,
    ):
        async with _surveyed(Watched(node, MovedClock())) as watched:
            await watched.look()
            yield watched


@asynccontextmanager
async def _surveyed(watched: Watched) -> AsyncIterator[Watched]:
    roots, clock = watched.node.roots, watched.clock
    host = Host(proc=roots.proc, sys=roots.sys, dev=roots.dev, driver_root=roots.driver)
    specs = SpecFiles(watched.node.cdi, clock)
    async with Workers() as threads, asyncio.TaskGroup() as group:
        sessions = Sessions(threads.started("nvml"), watched.nvml_called)
        describer = Describer(host, watched.options, specs, clock)
        files = threads.started("files")
        watched.survey = Survey(host, describer, clock, sessions, files, threads)
        task = group.create_task(watched.survey.run())
        try:
            yield watched
        finally:
            task.cancel()
            await watched.survey.close()


async def test_a_board_that_is_lost_has_nvml_opened_anew_after_a_minute_then_ever_later(
    watched: Watched,
) -> None:
    await watched.lose(3)
    for times, pause_s in enumerate(PAUSES_S, start=1):
        watched.clock.seconds += pause_s - 1
        await watched.look()
        assert watched.opened == times, "not before its time"
        watched.clock.seconds += 1
        await watched.until(lambda times=times: watched.opened > times)
    assert [fault.board for fault in watched.survey.view.faults] == ["gpu-3"]
    watched.node.sim("gpu", "restore", "3")
    await watched.until(lambda: not watched.survey.view.faults)
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
    assert watched.survey.view.snapshot is not None
    place = watched.survey.view.snapshot.inventory.by_name["gpu-3"].pci
    listed = watched.node.roots.proc / "driver/nvidia/gpus" / place
    listed.rename(watched.node.kubelet.parent / "unplugged")
    await watched.until(lambda: watched.opened == 2)
