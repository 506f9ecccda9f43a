# SPDX-License-Identifier: Apache-2.0
"""A GPU goes to vfio for a claim and comes back, on a simulated kernel and its own NVML.

The kernel's side is a server of sysfs whose files act as Linux' do (e2e/sim/tests/kernel).
"""

import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from nvdra_api.errors import PermanentError, Reason, RetryableError
from nvdra_api.ids import ClaimUID, DeviceName, NodeName, PciAddress
from nvdra_cdi.nvidia.options import Options
from nvdra_gpu_plugin.cdi.spec_files import SpecFiles
from nvdra_gpu_plugin.claims.changes.vfio_binding import VfioBindingKind, VfioHost
from nvdra_gpu_plugin.devices.claim_records import GpuClaimRecord
from nvdra_gpu_plugin.devices.steps import BindVfio
from nvdra_gpu_plugin.hardware import device_monitor
from nvdra_gpu_plugin.hardware.device_monitor import DeviceMonitor
from nvdra_gpu_plugin.hardware.session_pause import SessionPause
from nvdra_gpu_plugin.passthrough.binder import Binder
from nvdra_runtime.node.host import Host
from nvdra_runtime.node.nvml_lock import SessionHold
from nvdra_runtime.process.clock import SystemClock
from nvdra_runtime.process.worker import WorkerGroup
from nvdra_runtime.telemetry.instrumentation import Telemetry
from nvdra_runtime.telemetry.metrics.plugin_metrics import PluginMetrics
from nvdra_runtime.telemetry.recent_traces.recorder import TraceRecorder
from nvdra_sim.testing import passthrough_fixtures
from nvdra_sim.testing.passthrough_fixtures import ServedNode
from nvdra_testing.polling import wait_until

OPEN = "import os, sys; os.open(sys.argv[1], os.O_PATH); print(flush=True); sys.stdin.read()"
"""Opens a device node whose driver this machine has not."""
CLAIM = GpuClaimRecord(
    namespace="default", name="claim", uid=ClaimUID("u"), generation="", devices=()
)


@dataclass
class Machine:
    """A node whose GPUs the plugin's parts look at, and the kind of change that is tested."""

    node: ServedNode
    monitor: DeviceMonitor
    kind: VfioBindingKind

    def change(self, index: int) -> BindVfio:
        """The change for a GPU, as it is planned."""
        return BindVfio(
            device=DeviceName(f"gpu-vfio-{index}"),
            pci=PciAddress(self.node.address(index)),
            module="vfio_pci",
        )

    def driver(self, index: int) -> str | None:
        """The driver that a GPU has."""
        link = self.node.device(index) / "driver"
        return link.readlink().name if link.is_symlink() else None

    def override(self, index: int) -> str:
        """Its `driver_override`."""
        return (self.node.device(index) / "driver_override").read_text().strip()

    def gpus(self) -> set[str]:
        """The PCI addresses of the GPUs that NVML has."""
        snapshot = self.monitor.state.snapshot
        return set() if snapshot is None else {gpu.pci for gpu in snapshot.inventory.gpus}


@contextmanager
def held(command: Sequence[str]) -> Iterator[int]:
    """A process that says a line and holds what it has opened until its input ends."""
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        yield process.pid
        process.communicate()


async def keep(_: BindVfio) -> None:
    """No part of this change is recorded by itself."""


@asynccontextmanager
async def machine(directory: Path) -> AsyncIterator[Machine]:
    """A node with four boards."""
    with passthrough_fixtures.served("t4", directory) as node:
        host = Host(
            proc=node.roots.proc, sys=node.sys, dev=node.roots.dev, driver_root=node.roots.driver
        )
        options = Options(
            driver_root=str(node.roots.driver),
            dev_root=str(node.roots.dev.parent),
            sys_root=str(node.sys),
            hook_path="/usr/bin/nvidia-cdi-hook",
        )
        clock = SystemClock()
        telemetry = Telemetry(clock, PluginMetrics(driver="d", node=NodeName("n")), TraceRecorder())
        async with WorkerGroup() as threads:
            monitoring = device_monitor.running(
                host,
                lambda: options,
                SpecFiles(directory / "cdi", clock),
                lambda *_: None,
                clock,
                threads,
                threads.start_worker("files"),
                is_released=False,
                hold=SessionHold(directory),
            )
            async with monitoring as monitor:
                vfio = VfioHost(
                    host,
                    Path("/proc"),
                    node.modules,
                    node.kmod("modprobe"),
                    Binder(host, clock),
                    threads.start_worker("vfio"),
                    clock,
                )
                pause = SessionPause(monitor, directory)
                made = Machine(node, monitor, VfioBindingKind(vfio, pause, telemetry))
                await wait_until(lambda: len(made.gpus()) == 4)
                yield made


async def test_a_gpu_goes_to_vfio_and_everything_is_as_before_after_the_claim(
    tmp_path: Path,
) -> None:
    async with machine(tmp_path) as made:
        all_gpus, pci = made.gpus(), made.node.address(1)
        change = await made.kind.inspect(CLAIM, made.change(1))
        assert made.driver(1) == "nvidia", "to look changes nothing"
        change = await made.kind.apply(CLAIM, change, keep)
        assert (made.driver(1), made.override(1)) == ("vfio-pci", "vfio-pci")
        assert await made.kind.is_in_force(CLAIM, change)
        await wait_until(lambda: made.gpus() == all_gpus - {pci})

        again = await made.kind.apply(CLAIM, change, keep)
        assert again == change

        await made.kind.revert(CLAIM, change)
        assert (made.driver(1), made.override(1)) == ("nvidia", "(null)")
        await wait_until(lambda: made.gpus() == all_gpus)


async def test_a_process_that_has_the_gpu_open_is_named_and_nothing_is_written(
    tmp_path: Path,
) -> None:
    async with machine(tmp_path) as made:
        node = made.node.roots.dev / "nvidia1"
        with held((sys.executable, "-c", OPEN, str(node))) as pid:
            with pytest.raises(RetryableError) as caught:
                await made.kind.inspect(CLAIM, made.change(1))
            assert caught.value.reason is Reason.VFIO_DEVICE_BUSY
            assert f"(pid {pid})" in caught.value.message
        assert (made.driver(1), made.override(1)) == ("nvidia", "(null)")
        assert len(made.gpus()) == 4


async def test_a_process_that_comes_between_the_look_and_the_unbind_is_not_unbound(
    tmp_path: Path,
) -> None:
    async with machine(tmp_path) as made:
        change = await made.kind.inspect(CLAIM, made.change(1))
        node = made.node.roots.dev / "nvidia1"
        with held((sys.executable, "-c", OPEN, str(node))):
            with pytest.raises(RetryableError) as caught:
                await made.kind.apply(CLAIM, change, keep)
            assert caught.value.reason is Reason.VFIO_DEVICE_BUSY
            await wait_until(lambda: len(made.gpus()) == 4)
        await made.kind.revert(CLAIM, change)
        assert (made.driver(1), made.override(1)) == ("nvidia", "(null)")


async def test_a_virtual_machine_that_still_has_the_gpu_keeps_it(tmp_path: Path) -> None:
    async with machine(tmp_path) as made:
        change = await made.kind.inspect(CLAIM, made.change(1))
        change = await made.kind.apply(CLAIM, change, keep)
        group = (made.node.device(1) / "iommu_group").readlink().name
        with held((*made.node.vmm, "device", group, change.pci)) as pid:
            with pytest.raises(RetryableError) as caught:
                await made.kind.revert(CLAIM, change)
            assert caught.value.reason is Reason.VFIO_DEVICE_BUSY
            assert f"(pid {pid})" in caught.value.message
            assert made.driver(1) == "vfio-pci"
        await made.kind.revert(CLAIM, change)
        assert (made.driver(1), made.override(1)) == ("nvidia", "(null)")


async def test_a_gpu_that_was_on_vfio_before_stays_there(tmp_path: Path) -> None:
    async with machine(tmp_path) as made:
        first = await made.kind.inspect(CLAIM, made.change(1))
        await made.kind.apply(CLAIM, first, keep)
        change = await made.kind.inspect(CLAIM, made.change(1))
        assert change.is_prebound
        assert await made.kind.is_in_force(CLAIM, change)
        await made.kind.revert(CLAIM, change)
        assert made.driver(1) == "vfio-pci"
        await made.kind.revert(CLAIM, first)


async def test_a_gpu_that_is_not_there_is_refused_by_name(tmp_path: Path) -> None:
    async with machine(tmp_path) as made:
        change = made.change(1).model_copy(update={"pci": PciAddress("0000:77:00.0")})
        with pytest.raises(PermanentError) as caught:
            await made.kind.inspect(CLAIM, change)
        assert caught.value.reason is Reason.VFIO_NOT_POSSIBLE
        await made.kind.revert(CLAIM, change)
