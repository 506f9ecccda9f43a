# SPDX-License-Identifier: Apache-2.0
"""What the monitor makes of the files of GPUs that vfio has."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from nvdra_api.ids import PciAddress
from nvdra_gpu_plugin.devices import vfio_devices
from nvdra_gpu_plugin.health.vfio_monitor import Taints, VfioMonitor
from nvdra_runtime.process.worker import WorkerGroup
from nvdra_testing.node.pci_tree import GPU, SysfsTree
from nvdra_testing.polling import wait_until

PCI, OTHER = PciAddress(GPU), PciAddress("0000:86:00.0")
GPUS = {PCI, OTHER}
NAMES = {vfio_devices.uuid_at(PCI): "3b", vfio_devices.uuid_at(OTHER): "86"}
ANSWERS, SILENT = b"\xde\x10", b"\xff\xff"
BOOT = "b2f5f7a6-0000-4000-8000-000000000001"


class Clock:
    seconds = 0.0

    def now(self) -> datetime:
        return datetime(2026, 8, 1, tzinfo=UTC) + timedelta(seconds=self.seconds)

    def monotonic(self) -> float:
        return self.seconds


class Node:
    """Two GPUs, and a monitor of those that vfio has."""

    def __init__(self, root: Path) -> None:
        self.tree = SysfsTree(root)
        self.clock = Clock()
        self.on_vfio = set(GPUS)
        self.plugin_dir = root / "plugin"
        self.plugin_dir.mkdir()
        self.directories = {pci: self.tree.add(pci, 0x10DE, 0x030200, "vfio-pci") for pci in GPUS}
        self.write("config", ANSWERS.decode("latin-1"), *GPUS)
        self.write("power_state", "D0\n", *GPUS)
        self.write("aer_dev_fatal", "TOTAL_ERR_FATAL 4\n", *GPUS)

    def write(self, name: str, text: str, *gpus: PciAddress) -> None:
        for pci in gpus or (PCI,):
            (self.directories[pci] / name).write_bytes(text.encode("latin-1"))

    def silence(self, pci: PciAddress = PCI) -> None:
        self.write("config", SILENT.decode("latin-1"), pci)

    def heal(self, pci: PciAddress = PCI) -> None:
        self.write("config", ANSWERS.decode("latin-1"), pci)

    @asynccontextmanager
    async def monitor(self, boot_id: str = BOOT) -> AsyncIterator[VfioMonitor]:
        async with WorkerGroup() as threads:
            looks, files = threads.start_worker("pci-health"), threads.start_worker("files")
            monitor = VfioMonitor(
                self.tree.host,
                lambda: self.on_vfio,
                self.plugin_dir,
                "NoSchedule",
                looks,
                files,
                self.clock,
            )
            await monitor.restore(boot_id)
            yield monitor

    async def look(self, monitor: VfioMonitor, *seconds: float) -> list[tuple[str, str]]:
        """Look again after so many seconds each, and return the taints of the first GPU."""
        for each in seconds:
            self.clock.seconds += each
            await monitor.look()
        return described(monitor.taints(knows_none=True))


def described(taints: Taints) -> list[tuple[str, str]]:
    return [(taint.key.partition("/")[2], NAMES[uuid]) for uuid in taints for taint in taints[uuid]]


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


LOST = [("gpu-lost", "3b")]
ERRORS = [("pcie-fatal-errors", "3b")]


async def test_a_gpu_that_falls_off_the_bus_is_tainted_until_it_answers_again(node: Node) -> None:
    changes = []
    async with node.monitor() as monitor:
        monitor.on_change(lambda: changes.append(described(monitor.taints(knows_none=True))))
        assert await node.look(monitor, 0, 10) == []
        node.silence()
        assert await node.look(monitor, 10) == []
        assert await node.look(monitor, 1) == LOST
        node.heal()
        assert await node.look(monitor, 10, 9) == LOST
        assert await node.look(monitor, 1) == []
    assert changes == [LOST, []]


async def test_a_gpu_that_leaves_vfio_is_forgotten_and_its_errors_begin_anew(node: Node) -> None:
    changes = []
    async with node.monitor() as monitor:
        monitor.on_change(lambda: changes.append(described(monitor.taints(knows_none=True))))
        await node.look(monitor, 0)
        node.write("aer_dev_fatal", "TOTAL_ERR_FATAL 5")
        assert await node.look(monitor, 10) == ERRORS
        node.on_vfio = {OTHER}
        assert await node.look(monitor, 10) == []
        assert set(monitor.gpus) == {OTHER}
        node.on_vfio = set(GPUS)
        assert await node.look(monitor, 10, 10) == []
    assert changes == [ERRORS, []]


async def test_a_gpu_that_comes_to_vfio_is_looked_at(node: Node) -> None:
    node.on_vfio = set()
    node.silence()
    async with node.monitor() as monitor:
        assert await node.look(monitor, 0, 10) == []
        assert monitor.gpus == {}
        node.on_vfio = set(GPUS)
        assert await node.look(monitor, 10, 1) == LOST


async def test_a_successor_goes_on_with_what_was_known_and_misses_no_error(node: Node) -> None:
    async with node.monitor() as monitor:
        node.silence(OTHER)
        await node.look(monitor, 0, 1)
        (before,) = monitor.taints(knows_none=False)[vfio_devices.uuid_at(OTHER)]
    node.write("aer_dev_fatal", "TOTAL_ERR_FATAL 5")
    node.clock.seconds += 60
    async with node.monitor() as monitor:
        assert monitor.restored == {vfio_devices.uuid_at(OTHER): (before,)}
        assert monitor.taints(knows_none=False) == monitor.restored
        found = await node.look(monitor, 0)
        assert sorted(found) == [("gpu-lost", "86"), ("pcie-fatal-errors", "3b")]
        assert monitor.taints(knows_none=False)[vfio_devices.uuid_at(OTHER)] == (before,)


async def test_nothing_is_known_of_an_earlier_boot(node: Node) -> None:
    node.silence()
    async with node.monitor() as monitor:
        assert await node.look(monitor, 0, 1) == LOST
    node.heal()
    async with node.monitor("another boot") as monitor:
        assert (monitor.gpus, monitor.restored) == ({}, {})
        assert await node.look(monitor, 0) == []


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        '{"gpus": {}}',
        '{"boot_id": "B", "gpus": {"0000:3b:00.0": {"faults": {"unheard-of": {}}}}}',
        '{"boot_id": "B", "gpus": {"0000:3b:00.0": {"faults": {"silent": {"phase": "healing",'
        ' "since": "2026-01-01T00:00:00", "healing_since": "2026-01-01T00:00:00"}}}}}',
    ],
)
async def test_a_file_that_makes_no_sense_says_nothing(node: Node, text: str) -> None:
    (node.plugin_dir / "vfio-health.json").write_text(text)
    async with node.monitor("B") as monitor:
        assert monitor.gpus == {}
        assert await node.look(monitor, 0, 10) == []


async def test_a_gpu_that_cannot_be_read_is_as_it_was(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    node.silence()
    async with node.monitor() as monitor:
        assert await node.look(monitor, 0, 1) == LOST
        (node.directories[PCI] / "config").unlink()
        assert await node.look(monitor, 10, 10) == LOST
        assert caplog.text.count("A GPU on vfio cannot be looked at") == 1


async def test_a_gpu_with_a_fault_is_woken_and_a_well_one_is_not(node: Node) -> None:
    node.silence(OTHER)
    async with node.monitor() as monitor:
        await node.look(monitor, 0, 1)
        node.write("power_state", "D3cold\n", *GPUS)
        node.silence()
        node.heal(OTHER)
        await node.look(monitor, 10, 10)
        assert described(monitor.taints(knows_none=True)) == []
        assert monitor.gpus[PCI].faults == {}


async def test_what_cannot_be_written_is_written_later(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    file = node.plugin_dir / "vfio-health.json"
    async with node.monitor() as monitor:
        file.mkdir()
        await node.look(monitor, 0, 10)
        assert caplog.text.count("cannot be written") == 1
        file.rmdir()
        await node.look(monitor, 10)
        assert file.is_file()
        written = file.stat().st_ino
        await node.look(monitor, 10)
        assert file.stat().st_ino == written


async def test_it_looks_again_soon_while_a_fault_is_to_be_confirmed_and_when_woken(
    node: Node,
) -> None:
    async with node.monitor() as monitor, asyncio.TaskGroup() as group:
        seen = asyncio.Event()
        monitor.on_change(seen.set)
        run = group.create_task(monitor.run())
        await wait_until(lambda: set(monitor.gpus) == GPUS)
        node.silence()
        monitor.wake()
        async with asyncio.timeout(5):
            await seen.wait()
        assert described(monitor.taints(knows_none=True)) == LOST
        run.cancel()
