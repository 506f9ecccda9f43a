# SPDX-License-Identifier: Apache-2.0
"""Kills a plugin while its process that writes to sysfs is in the middle of a write, or before it.

In a container that process is killed along with the plugin, except in a write that the kernel does
not let end: that goes on. Where only the plugin's first process is killed, the other one lives on.
"""

import asyncio
import contextlib
import os
import re
import signal
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest

from nvdra_testing.control_plane.apiserver import ApiServer
from nvdra_testing.crash_campaigns import hardware_strikes, node_checks, plugin_sandbox, points
from nvdra_testing.crash_campaigns.passthrough_operations import (
    AS_BOOTED,
    FLAGS,
    GPU,
    NATIVE,
    Aftermath,
    PrepareOfVfio,
    UnprepareOfVfio,
    VfioOperation,
    drivers,
)
from nvdra_testing.crash_campaigns.plugin_sandbox import PASSING_GPU_PLUGIN, PluginSandbox
from nvdra_testing.crash_campaigns.step_operations import ChangingClaim
from nvdra_testing.faults import strace
from nvdra_testing.faults.strace import InjectedSignal

HELD_S = 4.0
"""How long a write lasts that must not be repeated: recovery begins within a second of a start."""
_WRITER = "sys.stdin.buffer"
"""What the command line of the process has that writes."""
_WRITTEN = re.compile(r"write\(\d+<[^>]*/bus/pci/drivers/[^>]*/(?:un)?bind>")


@dataclass(frozen=True)
class StruckWrite:
    """The write in which the plugin is killed: its GPU leaves the NVIDIA driver or comes back.

    Attributes:
        is_bind: Whether it comes back.
    """

    is_bind: bool

    def __str__(self) -> str:
        return "bind" if self.is_bind else "unbind"

    def operation(self, asked: ChangingClaim) -> VfioOperation:
        """The operation that makes it; the kubelet repeats its call."""
        kind = UnprepareOfVfio if self.is_bind else PrepareOfVfio
        return kind(asked, (Aftermath.RETRY,))

    def file(self, sandbox: PluginSandbox) -> Path:
        """What is written to."""
        return sandbox.node.roots.sys / "bus/pci/drivers" / NATIVE / str(self)

    def has_begun(self, sandbox: PluginSandbox) -> bool:
        """Whether the link of the driver says so."""
        assert sandbox.served is not None
        link = sandbox.served.device(GPU) / "driver"
        found = link.readlink().name if link.is_symlink() else None
        return found == (NATIVE if self.is_bind else None)

    @contextmanager
    def lasting(self, sandbox: PluginSandbox) -> Iterator[None]:
        """Have the write last: the GPU takes long to start, or the kernel uses it for the block."""
        assert sandbox.served is not None
        if self.is_bind:
            fault = ("pci", "fault", sandbox.served.address(GPU))
            milliseconds = round(HELD_S * 1000)
            sandbox.node.simctl(*fault, f"--driver={NATIVE}", f"--bind-ms={milliseconds}")
            yield
            sandbox.node.simctl(*fault)
        else:
            sandbox.node.simctl("gpu", "kernel-client", str(GPU), "on")
            yield
            sandbox.node.simctl("gpu", "kernel-client", str(GPU), "off")


async def strike_write(
    server: ApiServer, write: StruckWrite, asked: ChangingClaim, *, is_writer_killed: bool
) -> str:
    """Kill the plugin in a write, and check the recovery.

    Until the write returns, the successor writes nothing to the files of drivers.
    """
    operation = write.operation(asked)
    async with _arranged(server, operation) as sandbox:
        with write.lasting(sandbox):
            async with asyncio.TaskGroup() as group:
                group.create_task(_be_interrupted(sandbox, operation))
                await sandbox.wait_until(lambda: write.has_begun(sandbox), "the write to begin")
                began = time.monotonic()
                writers = _writers(sandbox)
                assert writers, "nothing writes"
                await sandbox.kill()
            if is_writer_killed:
                for pid in writers:
                    os.kill(pid, signal.SIGKILL)
            operation.check_interrupted(sandbox)
            log = sandbox.directory / "strace"
            sandbox.launch()
            with strace.attach(log, sandbox.threads(), points.CALLS, is_following=True):
                await sandbox.kubelet.wait_registered(sandbox.tested.driver)
                await asyncio.sleep(max(0.0, began + HELD_S - 0.5 - time.monotonic()))
            repeated = _WRITTEN.search(log.read_text())
            assert not repeated, f"written while another write lasts: {repeated}"
        await sandbox.wait_serving()
        found = await operation.check_recovery(sandbox)
        await sandbox.wait_until(lambda: not any(map(_lives, writers)), "the writer to end")
        return found


async def strike_before_write(server: ApiServer, write: StruckWrite, asked: ChangingClaim) -> str:
    """Kill the plugin when its other process has been told to write and has not yet; go on later.

    The successor has undone everything by then, and it stays so.
    """
    operation = write.operation(asked)
    async with _arranged(server, operation) as sandbox:
        log = sandbox.directory / "strace"
        stop = InjectedSignal("openat", 1, [str(write.file(sandbox))], "SIGSTOP")
        async with asyncio.TaskGroup() as group:
            with strace.attach(log, sandbox.threads(), ["openat"], stop, is_following=True):
                group.create_task(_be_interrupted(sandbox, operation))
                await sandbox.wait_until(
                    lambda: strace.was_signal_injected(log), "the file to be opened"
                )
                (writer,) = _writers(sandbox)
                await sandbox.kill()
        try:
            operation.check_interrupted(sandbox)
            await sandbox.start()
            await sandbox.wait_until(
                lambda: not node_checks.started_claims(sandbox), "what was begun to be undone"
            )
            assert drivers(sandbox) == AS_BOOTED
        finally:
            os.kill(writer, signal.SIGCONT)
        await sandbox.wait_until(lambda: not _lives(writer), "the writer to end")
        found = drivers(sandbox)
        assert found == AS_BOOTED, f"a process of a killed plugin has written: {found}"
        return await operation.check_recovery(sandbox)


@asynccontextmanager
async def _arranged(server: ApiServer, operation: VfioOperation) -> AsyncIterator[PluginSandbox]:
    async with plugin_sandbox.open_sandbox(server, PASSING_GPU_PLUGIN, FLAGS) as sandbox:
        await operation.arrange(sandbox)
        yield sandbox


async def _be_interrupted(sandbox: PluginSandbox, operation: VfioOperation) -> None:
    with pytest.raises(grpc.aio.AioRpcError):  # how a client notices it
        await operation.perform(sandbox)


def _writers(sandbox: PluginSandbox) -> Sequence[int]:
    """The plugin's processes that write to sysfs."""
    children = hardware_strikes.children_of(sandbox.pid)
    return [pid for pid in children if _WRITER in hardware_strikes.command_of(pid)]


def _lives(pid: int) -> bool:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    return False
