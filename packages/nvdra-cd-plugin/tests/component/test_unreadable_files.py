# SPDX-License-Identifier: Apache-2.0
"""An error of the file system on any file that the plugin reads is a reason; none ends the process.

The usual run tries each error; `--soak` tries each with all and with some of the calls, and each
file by itself.
"""

import asyncio
import time
from functools import partial
from pathlib import Path

import pytest
from nvdra_testing.control_plane.domain_objects import Json
from nvdra_testing.faults import strace, unreadable_files
from nvdra_testing.faults.strace import InjectedError
from nvdra_testing.faults.unreadable_files import ERRORS, ROUND_S, SOME, START_S, is_state
from nvdra_testing.kubelet.checkpoint_file import CheckpointFile
from nvdra_testing.node.domain_rig import DomainRig


@pytest.mark.timeout(3600)
async def test_no_error_on_any_file_ends_the_plugin_and_unprepares_go_on(
    rig: DomainRig, request: pytest.FixtureRequest
) -> None:
    is_soak = bool(request.config.getoption("--soak"))
    namespace = f"--namespace={rig.namespace}"
    CheckpointFile(rig.node.kubelet).write()
    async with unreadable_files.recorded(rig, namespace) as paths:
        await unreadable_files.start_stopped_plugin(rig)
        domain = rig.create_domain()
        await rig.make_daemon_ready(domain)
        await exercise(rig, domain)
        await asyncio.sleep(ROUND_S)
    found = {Path(path).name for path in paths}
    assert {"devices", "boot_id", "dra_manager_state", "state.sqlite"} <= found, paths
    await unreadable_files.fail_while_running(
        rig, paths, partial(failed_while_running, rig, domain), is_soak=is_soak
    )
    await rig.stop()
    for error in ERRORS if is_soak else ("EIO",):
        injected = InjectedError(error, sorted(paths), SOME)
        await unreadable_files.start_with_failures(rig, injected, namespace)
        await check_well(rig, domain)
        await rig.stop()


async def failed_while_running(
    rig: DomainRig, domain: Json, injected: InjectedError, seconds: float
) -> set[str]:
    """Let calls of the running plugin fail; it lives, releases a claim, and serves afterwards.

    Returns the files on which a call failed.
    """
    held = rig.create_channel_claim(domain)
    assert not (await rig.prepare(held)).error
    with unreadable_files.let_fail(rig, injected) as log:
        unreadable_files.check_reason(await rig.refusal(held, timeout_s=6))
        await asyncio.sleep(seconds)
        released = await rig.unprepare(held, timeout_s=10)
        unreadable_files.check_reason(released)
        # The claim's own spec must go first, or the next start would find a claim without record.
        own = [path for path in injected.paths if is_state(rig, path) or "/cdi" in path]
        assert not released or own, released
        if not released:
            await exercise(rig, domain)
        unreadable_files.check_alive(rig)
    assert not await rig.unprepare(held)
    await check_well(rig, domain)
    return strace.injected_paths(log)


async def check_well(rig: DomainRig, domain: Json) -> None:
    """The plugin serves as if nothing had happened; the first claim may still find what failed."""
    claim = rig.create_channel_claim(domain)
    deadline = time.monotonic() + START_S
    while refusal := (await rig.prepare(claim)).error:
        unreadable_files.check_reason(refusal)
        assert time.monotonic() < deadline, refusal
        await asyncio.sleep(1)
    assert not await rig.unprepare(claim)
    await rig.wait_until(lambda: rig.process.get("/readyz")[0] == 200, "readiness", START_S)
    assert "Traceback" not in rig.process.log.read_text(), unreadable_files.end_of_log(rig)


async def exercise(rig: DomainRig, domain: Json) -> None:
    """Prepare a channel, repeat, and unprepare: each is done, or refused for a reason."""
    claim = rig.create_channel_claim(domain)
    for _ in range(2):
        unreadable_files.check_reason(await rig.refusal(claim, timeout_s=6))
    unreadable_files.check_reason(await rig.unprepare(claim, timeout_s=6))
