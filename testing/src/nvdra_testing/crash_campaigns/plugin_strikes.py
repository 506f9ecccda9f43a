# SPDX-License-Identifier: Apache-2.0
"""One run of the plugin's operation under strace: recorded to its end, or killed at a call."""

import asyncio
import contextlib
import time
from collections.abc import Coroutine, Mapping
from dataclasses import replace
from pathlib import Path

import grpc

from nvdra_testing.crash_campaigns import node_checks, points
from nvdra_testing.crash_campaigns.outcomes import PointResult, Recording, StrikeResult
from nvdra_testing.crash_campaigns.plugin_operations import Operation
from nvdra_testing.crash_campaigns.plugin_sandbox import PluginSandbox
from nvdra_testing.crash_campaigns.points import CallPosition, KillPoint
from nvdra_testing.faults import strace
from nvdra_testing.faults.strace import MAIN, InjectedSignal

THREAD_TIMEOUT_S = 20


async def record_plugin(sandbox: PluginSandbox, operation: Operation) -> Recording:
    """Record the calls of all threads in one run, then kill the plugin and check the recovery."""
    await operation.arrange(sandbox)
    log = sandbox.directory / "strace"
    if operation.is_start:
        sandbox.launch(*strace.launch_command(log, points.CALLS))
        await operation.perform(sandbox)
        await sandbox.kill()
        calls = strace.parse(log.read_text(), {})
    else:
        with strace.attach(log, sandbox.threads(), points.CALLS, is_following=True) as tracer:
            await operation.perform(sandbox)
        calls = tracer.detach()
        await sandbox.kill()
    found, others = points.kill_points(calls, sandbox.trace_names)
    await operation.end_interruption(sandbox)
    await sandbox.start()
    await operation.check_recovery(sandbox)
    return Recording(found, others, str(sandbox.directory))


async def strike_plugin(
    sandbox: PluginSandbox, operation: Operation, row: PointResult
) -> StrikeResult:
    """Kill the plugin at the row's call, and check the recovery.

    gRPC sends from any thread, so each further attempt tries other threads.
    """
    point, attempt = row.point, row.tries
    place = row.place.relocated(row.recorded_at, str(sandbox.directory))
    await operation.arrange(sandbox)
    log = sandbox.directory / "strace"
    if not place.path and attempt > 1 and not point.target.startswith(points.SYSFS):
        is_main = attempt % 2 == 0
        place = replace(place, thread=MAIN if is_main else "", index=(attempt + 1) // 2)
    strike_at = _strike_start if operation.is_start else _strike_call
    names, end = await strike_at(sandbox, operation, point, place, log)
    calls = strace.parse(log.read_text(), names)
    await sandbox.kill()
    left = node_checks.leftover_files(sandbox)
    hit = points.point_of_death(calls, point.call, sandbox.trace_names)
    try:
        operation.check_interrupted(sandbox)
        await operation.end_interruption(sandbox)
        await sandbox.start()
        outcome, is_right = await operation.check_recovery(sandbox), True
    except (AssertionError, grpc.aio.AioRpcError, TimeoutError) as error:
        outcome, is_right = f"{type(error).__name__}: {error}", False
        await sandbox.kill()
    if left and is_right:
        outcome = f"{', '.join(left)} cleared away; {outcome}"
    return StrikeResult(hit, outcome, is_right, end)


async def _strike_call(
    sandbox: PluginSandbox, operation: Operation, point: KillPoint, place: CallPosition, log: Path
) -> tuple[Mapping[int, str], str]:
    """Strike a call of a running plugin: its threads exist, or are created for the operation."""
    names = sandbox.threads()
    tids = {tid: name for tid, name in names.items() if name == place.thread}
    kill = InjectedSignal(point.call, place.index)
    with strace.attach(log, tids or names, points.CALLS, kill, is_following=not tids):
        end = await _until_dead(sandbox, operation.perform(sandbox))
    return tids or names, end


async def _strike_start(
    sandbox: PluginSandbox, operation: Operation, point: KillPoint, place: CallPosition, log: Path
) -> tuple[Mapping[int, str], str]:
    """Strike a start: strace must run before the threads exist."""
    if place.thread != MAIN and "<" in point.target:
        # The file's name is not known before. Such threads work for a while before they write.
        sandbox.launch()
        tids = {await asyncio.to_thread(_wait_thread, sandbox, place.thread): place.thread}
        with strace.attach(log, tids, points.CALLS, InjectedSignal(point.call, place.index)):
            end = await _until_dead(sandbox, operation.perform(sandbox))
        return tids, end
    if place.thread != MAIN and place.path:
        kill = InjectedSignal(point.call, place.nth, [place.path])
    else:
        kill = InjectedSignal(point.call, place.index)
    is_following = place.thread != MAIN
    sandbox.launch(*strace.launch_command(log, points.CALLS, kill, is_following=is_following))
    return {}, await _until_dead(sandbox, operation.perform(sandbox))


async def _until_dead(sandbox: PluginSandbox, work: Coroutine[None, None, None]) -> str:
    """Let the work go on until it is done or the plugin is dead; then kill the plugin.

    Returns:
        How the work ended while the plugin lived; empty if the plugin was killed before.
    """
    working = asyncio.create_task(work)
    dying = asyncio.create_task(sandbox.wait_dead())
    await asyncio.wait((working, dying), return_when=asyncio.FIRST_COMPLETED)
    end = "" if dying.done() else "it was done"
    working.cancel()
    await asyncio.wait((working,))
    if not working.cancelled() and (error := working.exception()):
        # A client notices the death of the plugin by this error.
        end = end and f"{type(error).__name__}: {error}"
    await sandbox.kill()
    await dying
    return end


def _wait_thread(sandbox: PluginSandbox, name: str) -> int:
    deadline = time.monotonic() + THREAD_TIMEOUT_S
    while time.monotonic() < deadline:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            for tid, found in strace.threads(sandbox.pid).items():
                if found == name:
                    return tid
        time.sleep(0.001)
    raise AssertionError(f"the plugin has no thread {name}")
