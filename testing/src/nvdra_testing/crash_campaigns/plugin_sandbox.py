# SPDX-License-Identifier: Apache-2.0
"""A simulated node that is restored to a known state before each strike, and its plugin.

Blocking calls run on threads, because several sandboxes share one loop.
"""

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence, Set
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

from nvdra_api import names
from nvdra_api.resource.claims import ClaimRef
from nvdra_sim.testing.passthrough_fixtures import ServedNode

from nvdra_testing.control_plane.apiserver import ApiServer
from nvdra_testing.crash_campaigns import points
from nvdra_testing.faults import strace
from nvdra_testing.faults.strace import MAIN
from nvdra_testing.hardware import driver_installation
from nvdra_testing.kubelet import kubelet_client
from nvdra_testing.kubelet.kubelet_client import KubeletClient, RegisteredPlugin
from nvdra_testing.node import passthrough_rig, plugin, rig
from nvdra_testing.node.plugin import PluginProcess

READY_S = 60
"""The longest wait for a start; ten tests may run at the same time."""
EXIT_TIMEOUT_S = 60
POLL_S = 0.05
IDLE_S = 0.03
COMM = 15
"""The kernel keeps so many characters of a process's name."""
GRPC_THREADS = "grpc"
"""Threads of gRPC have the process's name or that of a pool."""


@dataclass(frozen=True)
class TestedPlugin:
    """The plugin that runs in a sandbox.

    Attributes:
        driver: Its driver name.
        program: Its command.
        profile: The profile of the simulated node.
        devices: The devices that it publishes there.
        kept_dirs: Directories below its state directory that it clears only when it starts.
        kept_files: Files there that it writes when it starts, and keeps.
        settles_s: What it writes after an answer or a start, it has written within this time.
        is_passing: Whether it passes GPUs to virtual machines, on a node whose sysfs is served.
    """

    __test__ = False

    driver: str
    program: str
    profile: str
    devices: Sequence[str]
    kept_dirs: Sequence[str] = ()
    kept_files: Sequence[str] = ()
    settles_s: float = 0.35
    is_passing: bool = False


H100_PARTITIONS = {
    "1g10gb-19": range(7),
    "1g10gb-me-20": range(7),
    "1g20gb-15": range(0, 7, 2),
    "2g20gb-14": range(0, 5, 2),
    "3g40gb-9": (0, 4),
    "4g40gb-5": (0,),
    "7g80gb-0": (0,),
}
"""What can be made of an H100 GPU: profile and its number, and where."""

GPU_PLUGIN = TestedPlugin(
    plugin.DRIVER,
    "nvdra-gpu-plugin",
    plugin.PROFILE,
    [f"gpu-{minor}" for minor in range(8)],
    settles_s=1.6,  # the status of its claims is written a second later
)
DIVIDING_GPU_PLUGIN = replace(
    GPU_PLUGIN,
    devices=[
        *GPU_PLUGIN.devices,
        *(
            f"{gpu}-mig-{profile}-{start}"
            for gpu in GPU_PLUGIN.devices
            for profile, starts in H100_PARTITIONS.items()
            for start in starts
        ),
    ],
)
"""The same with the feature gate DynamicMIG."""
PASSING_GPU_PLUGIN = replace(
    GPU_PLUGIN,
    profile="t4",
    devices=[name for index in range(4) for name in (f"gpu-{index}", f"gpu-vfio-{index}")],
    kept_files=["nvml.lock", "passthrough.json"],
    is_passing=True,
)
"""The same with the feature gate PassthroughSupport, on a node of four GPUs."""
DOMAIN_PLUGIN = TestedPlugin(
    names.COMPUTE_DOMAIN_DRIVER,
    "nvdra-cd-plugin",
    "gb200-nvl72",
    ["channel-0", "daemon-0"],
    kept_dirs=["domains"],
    kept_files=["clique.json"],
)


@dataclass(eq=False)
class PluginSandbox:
    """One node; the test is its kubelet.

    Attributes:
        tested: The plugin that runs here.
        flags: Its flags that differ between campaigns.
        specs: The CDI specs of an idle node, by file name.
        pid: The process id of the plugin, also when strace runs it.
        is_dirty: Whether there may be leftovers that a new sequence must not find.
        may_lack: Devices that it need not offer, because their GPU does not work.
        served: Its hardware, if its sysfs is served.
    """

    server: ApiServer
    directory: Path
    node: plugin.Node
    kubelet: KubeletClient
    tested: TestedPlugin = GPU_PLUGIN
    flags: Sequence[str] = ()
    process: PluginProcess | None = None
    running: ExitStack = field(default_factory=ExitStack)
    dra: RegisteredPlugin = field(init=False)
    specs: Mapping[str, bytes] = field(default_factory=dict)
    pid: int = 0
    is_dirty: bool = True
    may_lack: Set[str] = frozenset()
    served: ServedNode | None = None

    @property
    def trace_names(self) -> points.TraceNames:
        """The names with which traces of this node are read."""
        return points.TraceNames(str(self.directory), int(self.server.url.rpartition(":")[2]))

    @property
    def state_dir(self) -> Path:
        """The plugin's state directory."""
        return self.node.kubelet / "plugins" / self.tested.driver

    def launch(self, *before: str) -> None:
        """Start the plugin, optionally with a command such as strace before it."""
        flags = ["--http-endpoint=", "--debug-endpoint=", *self.flags]
        environ: Mapping[str, str] = {}
        if self.served is not None:
            flags += passthrough_rig.flags_of(self.served)
            environ = passthrough_rig.environ_of(self.served)
        program = (*before, self.tested.program)
        starting = plugin.run_plugin(
            self.server, self.node, flags=flags, environ=environ, program=program
        )
        self.process = self.running.enter_context(starting)
        pid = self.process.process.pid
        self.pid = _traced_plugin_pid(pid, self.tested.program) if before else pid

    async def start(self) -> None:
        """Start the plugin, and wait until it serves and has published its slices."""
        self.launch()
        await self.wait_serving()

    async def wait_serving(self) -> None:
        """Wait until the plugin is registered.

        Has inspected the hardware and published its slices.
        """
        await self.kubelet.wait_registered(self.tested.driver, READY_S)
        await self.wait_until(self.is_idle, "the plugin to come to rest")
        await self.wait_slices()
        await self.wait_until(self.is_idle, "the plugin to come to rest")
        # Only now: a kubelet that finds the new socket under the old name registers it twice.
        self.dra = await self.kubelet.wait_registered(self.tested.driver, READY_S)

    async def start_renumbered(self) -> None:
        """Start the plugin where it publishes its GPUs under other names, which is not checked."""
        self.launch()
        await self.kubelet.wait_registered(self.tested.driver, READY_S)
        await self.wait_until(self.is_idle, "the plugin to come to rest")
        self.dra = await self.kubelet.wait_registered(self.tested.driver, READY_S)

    async def wait_slices(self) -> None:
        """Wait until the slices offer the node's devices."""
        deadline = time.monotonic() + READY_S
        while problem := await asyncio.to_thread(self.find_slice_problem):
            assert time.monotonic() < deadline, f"{problem}\n{self.log()[-2000:]}"
            await asyncio.sleep(POLL_S)

    async def wait_until(self, is_so: Any, what: str, timeout_s: float = READY_S) -> None:
        """Wait for a condition, checking it on a thread."""
        deadline = time.monotonic() + timeout_s
        while not await asyncio.to_thread(is_so):
            assert time.monotonic() < deadline, f"waited for {what}\n{self.log()[-2000:]}"
            await asyncio.sleep(POLL_S)

    def is_idle(self) -> bool:
        """Whether no thread of the plugin has run for a moment."""
        before = _context_switches(self.pid)
        time.sleep(IDLE_S)
        return _context_switches(self.pid) == before

    async def stop(self) -> int:
        """End the plugin as the kubelet ends a pod, and return its exit code."""
        assert self.process is not None
        code = await asyncio.to_thread(self.process.stop)
        await self._forget_process()
        return code

    async def kill(self) -> None:
        """Kill the plugin, if it runs."""
        if self.process is not None:
            if self.process.process.poll() is None:
                with contextlib.suppress(ProcessLookupError):  # it has just died
                    os.kill(self.pid, signal.SIGKILL)
            await self.wait_dead()
            await self._forget_process()

    async def wait_dead(self) -> None:
        """Wait until the plugin, and strace if it runs it, have ended."""
        assert self.process is not None
        await asyncio.to_thread(self.process.process.wait, EXIT_TIMEOUT_S)

    async def _forget_process(self) -> None:
        self.running.close()
        self.process = None
        # The kubelet does this when a registration socket disappears and comes back.
        await self.kubelet.restart()

    def threads(self) -> dict[int, str]:
        """The names of the plugin's threads.

        Threads without a name of their own count as gRPC's.
        """
        found = strace.threads(self.pid)
        unnamed = found[self.pid]
        return {
            tid: MAIN if tid == self.pid else GRPC_THREADS if name == unnamed else name
            for tid, name in found.items()
        }

    def create_claim(self, *devices: str) -> ClaimRef:
        """Create a claim that is allocated to these devices."""
        return plugin.create_allocated_claim(self.server, self.node.name, devices)

    def delete_claim(self, claim: ClaimRef) -> None:
        """Delete a claim in the API server."""
        self.server.send("DELETE", f"{plugin.CLAIMS}/{claim.name}", None)

    def reboot(self) -> None:
        """Reboot the node: a new boot id and an empty /run; the disk stays."""
        self.node.simctl("reboot", f"--proc-root={self.node.roots.proc}")
        shutil.rmtree(self.node.cdi, ignore_errors=True)

    def renumber(self, minors: Sequence[int]) -> None:
        """Give the first GPUs these minor numbers, of which the driver makes device nodes."""
        gpus = [{"index": index, "minor": minor} for index, minor in enumerate(minors)]
        driver_installation.install_driver(
            self.node, profile=self.tested.profile, overrides={"gpus": gpus}
        )

    def slices(self) -> list[dict[str, Any]]:
        """The node's slices in the API server."""
        query = f"?fieldSelector=spec.nodeName={self.node.name}"
        return list(self.server.request("GET", rig.SLICES + query)["items"])

    def find_slice_problem(self) -> str:
        """What is wrong with the node's slices; empty if nothing is."""
        specs = [slice_["spec"] for slice_ in self.slices()]
        offered = sorted(device["name"] for spec in specs for device in spec.get("devices") or [])
        wanted = {*self.tested.devices}
        missing, more = wanted - {*offered} - self.may_lack, {*offered} - wanted
        if missing or more or len(offered) > len({*offered}):
            return f"the slices lack {sorted(missing)} and have {sorted(more)}, of {len(offered)}"
        if {spec["pool"]["resourceSliceCount"] for spec in specs} != {len(specs)}:
            return f"a pool of {specs[0]['pool']['resourceSliceCount']} has {len(specs)} slices"
        return ""

    def delete_slices(self) -> None:
        """Delete the node's slices."""
        for slice_ in self.slices():
            self.server.request("DELETE", f"{rig.SLICES}/{slice_['metadata']['name']}")

    def log(self) -> str:
        """The plugin's log since its last start."""
        logs = sorted(self.directory.glob("plugin-*.log"), key=lambda log: log.stat().st_mtime)
        return logs[-1].read_text() if logs else ""

    def save_files(self, name: str) -> None:
        """Save the plugin's files under a name, sockets included."""
        kept = self.directory / f"saved-{name}"
        kept.mkdir()
        parts = [
            str(path.relative_to(self.directory)) for path in (self.node.kubelet, self.node.cdi)
        ]
        subprocess.run(["cp", "-a", *parts, str(kept)], check=True, cwd=self.directory)

    def restore_files(self, name: str) -> None:
        """Restore saved files; an unknown name restores an empty node."""
        for path in (*self.directory.glob("plugin-*.log"), *self.kubelet.registry_dir.iterdir()):
            path.unlink()
        for part in (self.state_dir, self.node.cdi):
            shutil.rmtree(part, ignore_errors=True)
        kept = self.directory / f"saved-{name}"
        if kept.exists():
            subprocess.run(["cp", "-a", f"{kept}/.", str(self.directory)], check=True)


@asynccontextmanager
async def open_sandbox(
    server: ApiServer, tested: TestedPlugin = GPU_PLUGIN, flags: Sequence[str] = ()
) -> AsyncIterator[PluginSandbox]:
    """Open a sandbox on a file system in memory, until the block is left."""
    name = f"sandbox-{uuid4().hex[:6]}"
    with (
        tempfile.TemporaryDirectory(prefix="nvdra-", dir="/dev/shm") as directory,
        _open_node(Path(directory), name, tested) as (node, served),
    ):
        plugin.create_node_object(server, name)
        async with kubelet_client.run_kubelet(node.kubelet) as kubelet:
            sandbox = PluginSandbox(server, Path(directory), node, kubelet, tested, flags)
            sandbox.served = served
            try:
                yield sandbox
            finally:
                await sandbox.kill()


@contextmanager
def _open_node(
    directory: Path, name: str, tested: TestedPlugin
) -> Iterator[tuple[plugin.Node, ServedNode | None]]:
    if tested.is_passing:
        with passthrough_rig.served_node(directory, name, tested.profile) as (node, served):
            yield node, served
    else:
        with plugin.simulated_node(directory, name, tested.profile) as node:
            yield node, None


def _context_switches(pid: int) -> int:
    """The number of context switches of all threads of a process."""
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            for line in (task / "status").read_text().splitlines():
                if "ctxt_switches" in line:
                    total += int(line.split()[1])
    return total


def _traced_plugin_pid(pid: int, program: str) -> int:
    """The process id of a plugin that strace runs; strace first runs children of its own."""
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline:
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                if Path(f"/proc/{child}/comm").read_text().strip() == program[:COMM]:
                    return int(child)
        time.sleep(0.002)
    raise AssertionError("strace has not started the plugin")
