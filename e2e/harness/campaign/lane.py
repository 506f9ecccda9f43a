"""A simulated node that is put back to a known state before each strike, and its plugin.

Everything that blocks runs in threads: several lanes share one loop.
"""

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import kubelet_client
import plugin
import rig
import strace
from apiserver import ApiServer
from kubelet_client import KubeletClient, Plugin
from nvdra_api.types.claims import ClaimRef
from plugin import PluginProcess
from strace import MAIN

from campaign import points

READY_S = 60
"""Nothing depends on how long a start takes; ten tests may run beside this one."""
DEATH_S = 60
LOOK_S = 0.05
REST_S = 0.03
NAME_OF_OTHERS = "grpc"
"""Threads of gRPC carry the process's name or one of a pool's."""


@dataclass(eq=False)
class Lane:
    """One node, with the test in its kubelet's place.

    Attributes:
        specs: The CDI directory of a node where nothing has happened, by file name.
        pid: Of the plugin, also when strace runs it.
        is_dirty: Whether something may be there that a new sequence must not find.
    """

    server: ApiServer
    directory: Path
    node: plugin.Node
    kubelet: KubeletClient
    process: PluginProcess | None = None
    running: ExitStack = field(default_factory=ExitStack)
    dra: Plugin = field(init=False)
    specs: Mapping[str, bytes] = field(default_factory=dict)
    pid: int = 0
    is_dirty: bool = True

    @property
    def names(self) -> points.Node:
        """How to read what a trace says of this node."""
        return points.Node(str(self.directory), int(self.server.url.rpartition(":")[2]))

    @property
    def state(self) -> Path:
        """The plugin's directory."""
        return self.node.kubelet / "plugins" / plugin.DRIVER

    def launch(self, *before: str) -> None:
        """Start the plugin, behind strace perhaps."""
        flags = ("--http-endpoint=", "--debug-endpoint=")
        starting = plugin.running(
            self.server, self.node, flags=flags, program=(*before, "nvdra-gpu-plugin")
        )
        self.process = self.running.enter_context(starting)
        self.pid = _program_of(self.process.process.pid) if before else self.process.process.pid

    async def start(self) -> None:
        """Start the plugin and wait until it serves and has published."""
        self.launch()
        await self.served()

    async def served(self) -> None:
        """Wait until the plugin is registered, has looked at the hardware and has published."""
        await self.kubelet.registered(plugin.DRIVER, READY_S)
        await self.until(self.is_idle, "the plugin to come to rest")
        await self.until(lambda: not self.wrong_slices(), "the slices to be right")
        await self.until(self.is_idle, "the plugin to come to rest")
        # Only now: a kubelet that met the new socket by the old one's name registers it twice.
        self.dra = await self.kubelet.registered(plugin.DRIVER, READY_S)

    async def until(self, is_so: Any, what: str, timeout_s: float = READY_S) -> None:
        """Look again and again, beside the loop."""
        deadline = time.monotonic() + timeout_s
        while not await asyncio.to_thread(is_so):
            assert time.monotonic() < deadline, f"waited for {what}\n{self.log()[-2000:]}"
            await asyncio.sleep(LOOK_S)

    def is_idle(self) -> bool:
        """Whether no thread of the plugin has run for a moment."""
        before = _switches(self.pid)
        time.sleep(REST_S)
        return _switches(self.pid) == before

    async def stop(self) -> int:
        """End the plugin as the kubelet ends a pod; its exit code."""
        assert self.process is not None
        code = await asyncio.to_thread(self.process.stop)
        await self._ended()
        return code

    async def kill(self) -> None:
        """End the plugin as the kernel's OOM killer does; nothing happens when it is dead."""
        if self.process is not None:
            if self.process.process.poll() is None:
                with contextlib.suppress(ProcessLookupError):  # it has died in this moment
                    os.kill(self.pid, signal.SIGKILL)
            await self.died()
            await self._ended()

    async def died(self) -> None:
        """Wait until the plugin is dead, and whoever watched it has ended, too."""
        assert self.process is not None
        await asyncio.to_thread(self.process.process.wait, DEATH_S)

    async def _ended(self) -> None:
        self.running.close()
        self.process = None
        # What the kubelet does when a registration socket goes, and comes back.
        await self.kubelet.restart()

    def threads(self) -> dict[int, str]:
        """The plugin's threads; only those that the plugin has named can be told apart."""
        found = strace.threads(self.pid)
        unnamed = found[self.pid]
        return {
            tid: MAIN if tid == self.pid else NAME_OF_OTHERS if name == unnamed else name
            for tid, name in found.items()
        }

    def claim(self, *devices: str) -> ClaimRef:
        """A new claim, allocated to these devices."""
        return plugin.allocated_claim(self.server, self.node.name, devices)

    def delete(self, claim: ClaimRef) -> None:
        """Remove a claim from the API server."""
        self.server.call("DELETE", f"{plugin.CLAIMS}/{claim.name}")

    def reboot(self) -> None:
        """The node starts anew: another boot id, an empty /run; the disk stays."""
        self.node.sim("reboot", f"--proc-root={self.node.roots.proc}")
        shutil.rmtree(self.node.cdi, ignore_errors=True)

    def slices(self) -> list[dict[str, Any]]:
        """The node's slices, as the API server holds them."""
        query = f"?fieldSelector=spec.nodeName={self.node.name}"
        return list(self.server.call("GET", rig.SLICES + query)["items"])

    def wrong_slices(self) -> str:
        """What is wrong with the node's slices; empty when they are as they should be."""
        specs = [slice_["spec"] for slice_ in self.slices()]
        offered = sorted(device["name"] for spec in specs for device in spec.get("devices", []))
        if offered != [f"gpu-{minor}" for minor in range(8)]:
            return f"the slices offer {offered}"
        if {spec["pool"]["resourceSliceCount"] for spec in specs} != {len(specs)}:
            return f"a pool of {specs[0]['pool']['resourceSliceCount']} has {len(specs)} slices"
        return ""

    def forget_slices(self) -> None:
        """Delete the node's slices: nobody has published anything yet."""
        for slice_ in self.slices():
            self.server.call("DELETE", f"{rig.SLICES}/{slice_['metadata']['name']}")

    def log(self) -> str:
        """What the plugin has written since its last start."""
        logs = sorted(self.directory.glob("plugin-*.log"), key=lambda log: log.stat().st_mtime)
        return logs[-1].read_text() if logs else ""

    def save(self, name: str) -> None:
        """Keep the files of the plugin as they are, sockets included."""
        kept = self.directory / f"saved-{name}"
        kept.mkdir()
        parts = [
            str(path.relative_to(self.directory)) for path in (self.node.kubelet, self.node.cdi)
        ]
        subprocess.run(["cp", "-a", *parts, str(kept)], check=True, cwd=self.directory)

    def restore(self, name: str) -> None:
        """Put the files back as they were saved; an unknown name is a node without any."""
        for path in (*self.directory.glob("plugin-*.log"), *self.kubelet.registry_dir.iterdir()):
            path.unlink()
        for part in (self.state, self.node.cdi):
            shutil.rmtree(part, ignore_errors=True)
        kept = self.directory / f"saved-{name}"
        if kept.exists():
            subprocess.run(["cp", "-a", f"{kept}/.", str(self.directory)], check=True)


@asynccontextmanager
async def opened(server: ApiServer) -> AsyncIterator[Lane]:
    """A lane on a file system in memory, until the block is left."""
    name = f"lane-{uuid4().hex[:6]}"
    with (
        tempfile.TemporaryDirectory(prefix="nvdra-", dir="/dev/shm") as directory,
        plugin.node(Path(directory), name) as node,
    ):
        plugin.register(server, name)
        async with kubelet_client.kubelet(node.kubelet) as kubelet:
            lane = Lane(server, Path(directory), node, kubelet)
            try:
                yield lane
            finally:
                await lane.kill()


def _switches(pid: int) -> int:
    """How often the process's threads have waited, and been made to wait, since their start."""
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            for line in (task / "status").read_text().splitlines():
                if "ctxt_switches" in line:
                    total += int(line.split()[1])
    return total


def _program_of(pid: int) -> int:
    """The plugin that a strace runs; before that, it makes children to try the kernel out."""
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline:
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                if Path(f"/proc/{child}/comm").read_text().startswith("nvdra-gpu-plug"):
                    return int(child)
        time.sleep(0.002)
    raise AssertionError("strace has not started the plugin")
