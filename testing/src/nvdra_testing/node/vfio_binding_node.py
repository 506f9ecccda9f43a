# SPDX-License-Identifier: Apache-2.0
"""The plugin's parts that bind GPUs to vfio, on a simulated kernel with its own NVML.

The kernel's side is a server of sysfs whose files act as Linux' do (e2e/sim/tests/kernel). NVML is
in the process of the test.
"""

import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nvdra_api.ids import ClaimUID, DeviceName, NodeName, PciAddress
from nvdra_cdi.nvidia.options import Options
from nvdra_gpu_plugin.cdi.spec_files import SpecFiles
from nvdra_gpu_plugin.claims.changes.vfio_binding import VfioBindingKind, VfioHost
from nvdra_gpu_plugin.devices.claim_records import GpuClaimRecord
from nvdra_gpu_plugin.devices.steps import BindVfio
from nvdra_gpu_plugin.hardware import device_monitor
from nvdra_gpu_plugin.hardware.device_monitor import DeviceMonitor
from nvdra_gpu_plugin.hardware.gpu_changes import GpuChanges
from nvdra_gpu_plugin.hardware.gpu_drain import GpuDrain
from nvdra_gpu_plugin.hardware.session_pause import SessionPause
from nvdra_gpu_plugin.passthrough.binder import Binder
from nvdra_gpu_plugin.passthrough.busy_gpus import BusyGpus
from nvdra_runtime.node import nvml_lock
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

CLAIM = GpuClaimRecord(
    namespace="default", name="claim", uid=ClaimUID("u"), generation="", devices=()
)
_OPEN = "import os, sys; os.open(sys.argv[1], os.O_PATH); print(flush=True); sys.stdin.read()"
"""Opens a device node whose driver this machine has not."""


@dataclass
class BindingNode:
    """A node whose GPUs the plugin's parts look at.

    Attributes:
        node: The hardware.
        monitor: What the plugin knows of the GPUs.
        kind: Binds them.
        drain: Keeps new clients away from them.
    """

    node: ServedNode
    monitor: DeviceMonitor
    kind: VfioBindingKind
    drain: GpuDrain

    def change(self, index: int) -> BindVfio:
        """The change for a GPU, as it is planned."""
        return BindVfio(
            device=DeviceName(f"gpu-vfio-{index}"),
            pci=PciAddress(self.node.address(index)),
            module="vfio_pci",
        )

    async def bind(self, index: int) -> BindVfio:
        """Bind a GPU as the engine does, and return the change."""
        change = await self.kind.inspect(CLAIM, self.change(index))
        return await self.kind.apply(CLAIM, change, keep)

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

    def holding(self, index: int) -> Sequence[str]:
        """The command of a program that opens a GPU's node, for `held`."""
        return (sys.executable, "-c", _OPEN, str(self.node.roots.dev / f"nvidia{index}"))


@contextmanager
def held(
    command: Sequence[str], environment: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """A process that says a line and holds what it has opened until its input ends."""
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, env=environment) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        yield process
        process.communicate()


async def keep(_: BindVfio) -> None:
    """No part of this change is recorded by itself."""


@asynccontextmanager
async def opened(directory: Path, **sections: dict[str, Any]) -> AsyncIterator[BindingNode]:
    """A node with four boards, and the plugin's parts on it."""
    with passthrough_fixtures.served("t4", directory, **sections) as node:
        async with running(node, directory) as made:
            yield made


@asynccontextmanager
async def running(
    node: ServedNode, directory: Path, gpu_count: int = 4
) -> AsyncIterator[BindingNode]:
    """The plugin's parts on a node, from when they know its GPUs."""
    nvml_lock.create(directory)
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
                threads,
                clock,
            )
            pause = SessionPause(monitor, directory)
            drain = GpuDrain(GpuChanges(monitor), monitor, host)
            kind = VfioBindingKind(vfio, pause, drain, BusyGpus(), telemetry)
            made = BindingNode(node, monitor, kind, drain)
            await wait_until(lambda: len(made.gpus()) == gpu_count)
            yield made
