# SPDX-License-Identifier: Apache-2.0
"""The health of GPUs that vfio has, by a sysfs that behaves as Linux'; no NVML is opened."""

import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from nvdra_api.ids import PciAddress
from nvdra_gpu_plugin.devices import vfio_devices
from nvdra_gpu_plugin.health.vfio_monitor import VfioMonitor
from nvdra_gpu_plugin.passthrough import pci_functions
from nvdra_gpu_plugin.publishing import device_taints
from nvdra_runtime.node.host import Host
from nvdra_runtime.process import background_tasks
from nvdra_runtime.process.clock import SystemClock
from nvdra_runtime.process.worker import WorkerGroup
from nvdra_sim.simctl import main as simctl
from nvdra_sim.state_file import pci_records
from nvdra_sim.testing import passthrough_fixtures
from nvdra_sim.testing.passthrough_fixtures import ServedNode
from nvdra_testing.polling import wait_until

LOST = "gpu.nvidia.com/gpu-lost=pci-silent:NoSchedule"
ERRORS = "gpu.nvidia.com/pcie-fatal-errors:NoSchedule"
LINK = "gpu.nvidia.com/pcie-link=x4-of-x16:None"
PASSED = (0, 1)
"""The GPUs that vfio has from the boot on; the others are nvidia's."""


@dataclass
class Machine:
    """A node, and the monitor of its GPUs that vfio has."""

    node: ServedNode
    monitor: VfioMonitor

    def simctl(self, *words: str) -> None:
        """Let something happen to the node."""
        simctl.output_of([*words, "--state", str(self.node.state_path)])

    def fault(self, index: int, *faults: str) -> None:
        """Let these faults be all that a GPU has."""
        self.simctl("pci", "fault", self.node.address(index), *faults)

    def taints(self, index: int) -> list[str]:
        """The taints of a GPU's vfio device."""
        uuid = vfio_devices.uuid_at(PciAddress(self.node.address(index)))
        found = self.monitor.taints(knows_none=True).get(uuid, ())
        return [device_taints.describe(taint) for taint in found]

    def wake_ups(self) -> list[int]:
        """How often each GPU that vfio has was woken."""
        state = self.node.state
        states = pci_records.read(state.snapshot(), state.description()).states
        return [states[self.node.address(index)].wake_ups for index in PASSED]

    async def looks(self, count: int = 2) -> None:
        """Look again, as often as it takes to believe a fault."""
        for _ in range(count):
            await self.monitor.look()


@contextmanager
def virtual_machine(node: ServedNode, index: int) -> Iterator[None]:
    """A process that has the device of a GPU open."""
    group = str(node.description.gpus[index].iommu_group)
    pipe = subprocess.PIPE
    command = [*node.vmm, "device", group, node.address(index)]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        yield
        process.terminate()


@asynccontextmanager
async def machine(directory: Path, *, d3cold: bool = False) -> AsyncIterator[Machine]:
    """A node with four boards, two of them on vfio."""
    bound = {"gpus": [{"index": index, "bound_driver": "vfio-pci"} for index in PASSED]}
    node = {"vfio": {"loaded": True, "d3cold": d3cold}}
    with passthrough_fixtures.served("t4", directory, overrides=bound, node=node) as served:
        host = Host(proc=served.roots.proc, sys=served.sys, dev=served.roots.dev)

        def on_vfio() -> set[PciAddress]:
            functions = pci_functions.read(host).functions.values()
            return {each.pci for each in functions if each.is_gpu and each.is_on_vfio}

        (directory / "plugin").mkdir()
        async with WorkerGroup() as threads:
            monitor = VfioMonitor(
                host,
                on_vfio,
                directory / "plugin",
                "NoSchedule",
                threads.start_worker("pci-health"),
                threads.start_worker("files"),
                SystemClock(),
            )
            await monitor.restore("boot")
            yield Machine(served, monitor)


async def test_a_gpu_that_falls_off_the_bus_is_tainted_within_seconds_and_heals(
    tmp_path: Path,
) -> None:
    async with machine(tmp_path) as found, background_tasks.running(health=found.monitor.run):
        await wait_until(lambda: len(found.monitor.gpus) == len(PASSED))
        with virtual_machine(found.node, 0):
            found.fault(0, "--config-ff")
            found.monitor.wake()
            await wait_until(lambda: found.taints(0) == [LOST], 20)
            assert found.taints(1) == []
            found.fault(0)
            found.monitor.wake()
            await wait_until(lambda: found.taints(0) == [], 40)


async def test_gpus_that_sleep_are_well_and_never_woken(tmp_path: Path) -> None:
    async with machine(tmp_path, d3cold=True) as found:
        await found.looks(5)
        assert [found.taints(index) for index in range(4)] == [[], [], [], []]
        assert set(found.monitor.gpus) == {found.node.address(index) for index in PASSED}
        assert found.wake_ups() == [0, 0]


async def test_a_gpu_that_fell_off_the_bus_while_it_was_used_is_woken_until_it_answers(
    tmp_path: Path,
) -> None:
    async with machine(tmp_path, d3cold=True) as found:
        with virtual_machine(found.node, 0):
            found.fault(0, "--config-ff")
            await found.looks()
            assert found.taints(0) == [LOST]
        await found.looks()
        assert found.taints(0) == [LOST]
        assert found.wake_ups() == [2, 0]


async def test_a_gpu_that_fell_off_the_bus_while_it_sleeps_in_d3hot_is_found(
    tmp_path: Path,
) -> None:
    async with machine(tmp_path) as found:
        found.fault(1, "--config-ff")
        await found.looks()
        assert (found.taints(0), found.taints(1)) == ([], [LOST])


async def test_the_speed_of_a_link_is_no_reason_and_its_lanes_are_while_it_is_used(
    tmp_path: Path,
) -> None:
    async with machine(tmp_path) as found:
        speed = found.node.device(0) / "current_link_speed"
        assert speed.read_text() == "2.5 GT/s PCIe\n"
        found.fault(0, "--link-width", "4")
        await found.looks()
        assert found.taints(0) == []
        with virtual_machine(found.node, 0):
            assert speed.read_text() == "8.0 GT/s PCIe\n"
            await found.looks()
            assert found.taints(0) == [LINK]


@pytest.mark.parametrize("d3cold", [False, True])
async def test_fatal_errors_count_from_when_the_gpu_came_to_vfio(
    tmp_path: Path, *, d3cold: bool
) -> None:
    async with machine(tmp_path, d3cold=d3cold) as found:
        address = found.node.address(0)
        found.simctl("pci", "error", address, "fatal", "--count", "3")
        await found.looks()
        found.simctl("pci", "error", address, "nonfatal")
        await found.looks()
        assert found.taints(0) == []
        found.simctl("pci", "error", address, "fatal")
        await found.looks(1)
        assert (found.taints(0), found.taints(1)) == ([ERRORS], [])


async def test_a_gpu_that_is_nvidia_s_again_is_forgotten(tmp_path: Path) -> None:
    async with machine(tmp_path) as found:
        await found.looks(1)
        found.simctl("pci", "error", found.node.address(0), "fatal")
        await found.looks(1)
        assert found.taints(0) == [ERRORS]
        directory = found.node.device(0)
        (directory / "driver/unbind").write_text(found.node.address(0))
        await found.looks(1)
        assert found.taints(0) == []
