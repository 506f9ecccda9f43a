# SPDX-License-Identifier: Apache-2.0
"""An error of the file system on any file that the plugin reads is a reason; none ends the process.

Each error is tried with all and with some of the calls, and on each file by itself.
"""

import asyncio
import time
from functools import partial
from pathlib import Path

import pytest
from nvdra_testing.faults import strace, unreadable_files
from nvdra_testing.faults.strace import InjectedError
from nvdra_testing.faults.unreadable_files import ERRORS, ROUND_S, SOME, START_S, is_state
from nvdra_testing.kubelet.checkpoint_file import CheckpointFile
from nvdra_testing.node.rig import Rig


@pytest.mark.soak
@pytest.mark.timeout(3600)
async def test_no_error_on_any_file_ends_the_plugin_and_unprepares_go_on(
    rig: Rig,
) -> None:
    CheckpointFile(rig.node.kubelet).write()
    async with unreadable_files.recorded(rig) as paths:
        await unreadable_files.start_stopped_plugin(rig)
        await exercise(rig, ROUND_S)
    found = {Path(path).name for path in paths}
    assert {"devices", "boot_id", "dra_manager_state", "state.sqlite", "nvidia0"} <= found, paths
    await unreadable_files.fail_while_running(
        rig, paths, partial(failed_while_running, rig), is_soak=True
    )
    await rig.stop()
    for error in ERRORS:
        await check_start(rig, InjectedError(error, sorted(paths), SOME))


async def failed_while_running(rig: Rig, injected: InjectedError, seconds: float) -> set[str]:
    """Let calls of the running plugin fail; it lives, releases a claim, and serves afterwards.

    Returns the files on which a call failed.
    """
    held = rig.create_claim("gpu-6")
    assert not (await rig.dra.prepare([held]))[held.uid].error
    with unreadable_files.let_fail(rig, injected) as log:
        await exercise(rig, seconds)
        released = (await rig.dra.unprepare([held], timeout_s=10))[held.uid].error
        unreadable_files.check_reason(released)
        assert not released or any(is_state(rig, path) for path in injected.paths), released
        unreadable_files.check_alive(rig)
    await check_well(rig)
    assert not (await rig.dra.unprepare([held]))[held.uid].error
    return strace.injected_paths(log)


async def check_start(rig: Rig, injected: InjectedError) -> None:
    """Let calls of a plugin that starts fail for a while; then it serves."""
    await unreadable_files.start_with_failures(rig, injected)
    await check_well(rig)
    await rig.stop()


async def check_well(rig: Rig) -> None:
    """The plugin serves as if nothing had happened; the first claim may still find what failed."""
    claim = rig.create_claim("gpu-0")
    deadline = time.monotonic() + START_S
    while refusal := (await rig.dra.prepare([claim]))[claim.uid].error:
        unreadable_files.check_reason(refusal)
        assert time.monotonic() < deadline, refusal
        await asyncio.sleep(1)
    assert not (await rig.dra.unprepare([claim]))[claim.uid].error
    await rig.wait_until(lambda: rig.process.get("/readyz")[0] == 200, "readiness", START_S)
    assert "Traceback" not in rig.process.log.read_text(), unreadable_files.end_of_log(rig)


async def exercise(rig: Rig, seconds: float) -> None:
    """Prepare, repeat, wait for a held GPU and unprepare: each is done, or refused for a reason.

    This takes at least so many seconds.
    """
    until = time.monotonic() + seconds
    first, second = rig.create_claim("gpu-0"), rig.create_claim("gpu-0")
    for claim in (first, first, second):
        answer = (await rig.dra.prepare([claim], timeout_s=6))[claim.uid]
        unreadable_files.check_reason(answer.error)
    for claim in (second, first):
        released = (await rig.dra.unprepare([claim], timeout_s=6))[claim.uid]
        unreadable_files.check_reason(released.error)
    await asyncio.sleep(until - time.monotonic())
