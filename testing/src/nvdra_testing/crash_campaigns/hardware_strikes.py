# SPDX-License-Identifier: Apache-2.0
"""Kills a plugin in a call that changes a GPU: in one of NVML, or while nvidia-smi runs.

Both are below the system calls of a campaign. The GPUs are in persistence mode, so that what was
changed outlives the plugin. A container ends with all its processes, and so does nvidia-smi here.
"""

import asyncio
import contextlib
import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest

from nvdra_testing.control_plane.apiserver import ApiServer
from nvdra_testing.crash_campaigns import plugin_sandbox
from nvdra_testing.crash_campaigns.plugin_operations import Operation
from nvdra_testing.crash_campaigns.plugin_sandbox import PluginSandbox, TestedPlugin
from nvdra_testing.hardware import gpu_modes

SET_TIME_SLICE = "--set-timeslice"


@dataclass(frozen=True)
class HardwareCall:
    """A call in which the plugin is killed.

    Attributes:
        function: Of NVML; or `smi:` and a command of nvidia-smi.
        is_done: Whether the call has done its work by then.
        earlier: How many such calls the operation makes before.
    """

    function: str
    is_done: bool = False
    earlier: int = 0

    def __str__(self) -> str:
        return f"{'after' if self.is_done else 'before'} {self.function}"

    @property
    def is_program(self) -> bool:
        """Whether it is a program of the driver, which must be killed along with the plugin."""
        return self.function.startswith("smi:")

    @property
    def rule(self) -> Sequence[str]:
        """The fault rule of the simulated hardware: kill its caller, or keep it waiting."""
        effect = ["--delay-ms=-1"] if self.is_program else ["--abort"]
        done = ["--do-work"] if self.is_done else []
        return [self.function, *effect, *done, f"--after-calls={self.earlier}"]


async def strike_hardware_call(
    server: ApiServer,
    operation: Operation,
    call: HardwareCall,
    tested: TestedPlugin,
    flags: Sequence[str],
) -> str:
    """Kill the plugin in a call of the operation, check the recovery, and describe the result."""
    async with (
        plugin_sandbox.open_sandbox(server, tested, flags) as sandbox,
        operation.neighbours(sandbox),
    ):
        await operation.arrange(sandbox)
        gpu_modes.keep_settings(sandbox.node)
        sandbox.node.simctl("fault", "add", *call.rule)
        async with asyncio.TaskGroup() as group:
            if call.is_program:
                group.create_task(_kill_in_program(sandbox))
            with pytest.raises(grpc.aio.AioRpcError):  # how a client notices it
                await operation.perform(sandbox)
        await sandbox.wait_dead()
        await sandbox.kill()
        sandbox.node.simctl("fault", "rm", "all")
        operation.check_interrupted(sandbox)
        await operation.end_interruption(sandbox)
        await sandbox.start()
        return await operation.check_recovery(sandbox)


async def _kill_in_program(sandbox: PluginSandbox) -> None:
    """Kill the plugin and nvidia-smi as soon as it runs to set a time slice."""
    found: list[int] = []

    def is_running() -> bool:
        found[:] = [pid for pid in children_of(sandbox.pid) if SET_TIME_SLICE in command_of(pid)]
        return bool(found)

    await sandbox.wait_until(is_running, "nvidia-smi to set a time slice")
    for pid in (sandbox.pid, *found):
        os.kill(pid, signal.SIGKILL)


def children_of(pid: int) -> list[int]:
    """The processes that a process has started and that have not ended."""
    children: list[int] = []
    for listed in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # the thread has just ended
            children += map(int, listed.read_text().split())
    return children


def command_of(pid: int) -> str:
    """The command line of a process; empty if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""
