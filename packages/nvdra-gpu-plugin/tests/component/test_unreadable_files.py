"""An error of the file system on any file that the plugin reads is a reason; none ends the process.

strace records which files the plugin looks at, and then lets calls on them fail. The usual run
tries each error; `--soak` tries each with all and with some of the calls, and each file by itself.
"""

import asyncio
import re
import signal
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from itertools import count, cycle
from pathlib import Path

import pytest
from nvdra_api.errors import Reason
from nvdra_testing import polling
from nvdra_testing.faults import strace
from nvdra_testing.faults.strace import FILE_CALLS, InjectedError
from nvdra_testing.kubelet.checkpoint_file import CheckpointFile
from nvdra_testing.node import plugin
from nvdra_testing.node.plugin import PluginProcess
from nvdra_testing.node.rig import Rig

EVERY = "1+"
SOME = "2+3"
ERRORS = ("EIO", "ESTALE", "EACCES", "ENAMETOOLONG")
USUAL = tuple(zip(ERRORS, cycle((EVERY, SOME)), strict=False))
ALL = tuple((error, when) for error in ERRORS for when in (EVERY, SOME))

ROUND_S = 5.5
"""What is checked periodically is checked every five seconds."""

STARTING_S = 4.0
"""How long calls fail after the first one that did, when the plugin starts."""

START_S = 60.0
"""A process takes long to start while it is traced."""

STOPPED = ("sh", "-c", 'kill -STOP $$; exec "$0" "$@"', "nvdra-gpu-plugin")
"""The plugin, before its first call; SIGCONT starts it."""

NOT_THE_PLUGINS = re.compile(r"gsp_nvdra_sim\.bin|\.log$|/traced-")
"""Files of the simulated NVML, which a real one does not have, and of the test."""

_NUMBERS = count(1)
_PATH = re.compile(r'"(/[^"]*)"|<(/[^>]*)>')


@pytest.mark.timeout(3600)
async def test_no_error_on_any_file_ends_the_plugin_and_unprepares_go_on(
    rig: Rig, request: pytest.FixtureRequest
) -> None:
    is_soak = bool(request.config.getoption("--soak"))
    CheckpointFile(rig.node.kubelet).write()
    async with recorded(rig) as paths:
        await start_stopped_plugin(rig)
        await exercise(rig, ROUND_S)
    found = {Path(path).name for path in paths}
    assert {"devices", "boot_id", "dra_manager_state", "state.sqlite", "nvidia0"} <= found, paths
    for error, when in ALL if is_soak else USUAL:
        # Without its own record of what is prepared, the plugin refuses an unprepare.
        failing = paths if when == SOME else {path for path in paths if not is_state(path)}
        injected = InjectedError(error, sorted(failing), when)
        assert await failed_while_running(rig, injected, ROUND_S)
    if is_soak:
        for path, error in zip(sorted(paths), cycle(ERRORS), strict=False):
            await failed_while_running(rig, InjectedError(error, [path]), seconds=0.0)
    await rig.stop()
    for error in ERRORS if is_soak else ("EIO",):
        await check_start(rig, InjectedError(error, sorted(paths), SOME))


async def failed_while_running(rig: Rig, injected: InjectedError, seconds: float) -> set[str]:
    """Let calls of the running plugin fail; it lives, releases a claim, and serves afterwards.

    Returns the files on which a call failed.
    """
    held = rig.create_claim("gpu-6")
    assert not (await rig.dra.prepare([held]))[held.uid].error
    with let_fail(rig, injected) as log:
        await exercise(rig, seconds)
        released = (await rig.dra.unprepare([held], timeout_s=10))[held.uid].error
        check_reason(released)
        assert not released or any(map(is_state, injected.paths)), released
        check_alive(rig)
    await check_well(rig)
    assert not (await rig.dra.unprepare([held]))[held.uid].error
    return strace.injected_paths(log)


async def check_start(rig: Rig, injected: InjectedError) -> None:
    """Let calls of a plugin that starts fail for a while; then it serves."""
    await launch_stopped(rig)
    with let_fail(rig, injected) as log:
        rig.process.process.send_signal(signal.SIGCONT)
        await rig.wait_until(lambda: bool(strace.injected_paths(log)), "a call to fail", START_S)
        await asyncio.sleep(STARTING_S)
        check_alive(rig)
    await wait_served(rig)
    await check_well(rig)
    await rig.stop()


async def check_well(rig: Rig) -> None:
    """The plugin serves as if nothing had happened; the first claim may still find what failed."""
    claim = rig.create_claim("gpu-0")
    deadline = time.monotonic() + START_S
    while refusal := (await rig.dra.prepare([claim]))[claim.uid].error:
        check_reason(refusal)
        assert time.monotonic() < deadline, refusal
        await asyncio.sleep(1)
    assert not (await rig.dra.unprepare([claim]))[claim.uid].error
    await rig.wait_until(lambda: rig.process.get("/readyz")[0] == 200, "readiness", START_S)
    assert "Traceback" not in rig.process.log.read_text(), end_of_log(rig)


async def exercise(rig: Rig, seconds: float) -> None:
    """Prepare, repeat, wait for a held GPU and unprepare: each is done, or refused for a reason.

    This takes at least so many seconds.
    """
    until = time.monotonic() + seconds
    first, second = rig.create_claim("gpu-0"), rig.create_claim("gpu-0")
    for claim in (first, first, second):
        check_reason((await rig.dra.prepare([claim], timeout_s=6))[claim.uid].error)
    for claim in (second, first):
        check_reason((await rig.dra.unprepare([claim], timeout_s=6))[claim.uid].error)
    await asyncio.sleep(until - time.monotonic())


def check_reason(answer: str) -> None:
    """A refusal has a reason, which is not that of a bug."""
    reasons = {str(reason) for reason in Reason} - {Reason.INTERNAL}
    assert not answer or answer.partition(":")[0] in reasons, answer


def check_alive(rig: Rig) -> None:
    assert rig.process.process.poll() is None, end_of_log(rig)


def end_of_log(rig: Rig) -> Sequence[str]:
    return rig.process.log.read_text().splitlines()[-40:]


def is_state(path: str) -> bool:
    """Whether the file is part of the plugin's state file, or its directory."""
    return Path(path).name.startswith("state.sqlite") or path.endswith(f"/{plugin.DRIVER}")


@asynccontextmanager
async def recorded(rig: Rig) -> AsyncIterator[set[str]]:
    """A plugin that has not started; after the block the files that it has looked at."""
    await launch_stopped(rig)
    paths: set[str] = set()
    log = traced_log(rig)
    with strace.attach(log, threads(rig), FILE_CALLS, is_following=True) as tracer:
        yield paths
        root = f"{rig.node.kubelet.parent}/"
        for call in tracer.detach():
            found = {path for pair in _PATH.findall(call.arguments) for path in pair}
            paths |= {path.rstrip("/") for path in found if path.startswith(root)}
    paths -= {path for path in paths if NOT_THE_PLUGINS.search(path)}


@contextmanager
def let_fail(rig: Rig, injected: InjectedError) -> Iterator[Path]:
    """Let calls of the plugin fail during the block. Yields strace's log."""
    log = traced_log(rig)
    with strace.fail_calls(log, threads(rig), injected):
        yield log


def threads(rig: Rig) -> dict[int, str]:
    return strace.threads(rig.process.process.pid)


def traced_log(rig: Rig) -> Path:
    return rig.node.kubelet.parent / f"traced-{next(_NUMBERS)}"


async def launch_stopped(rig: Rig) -> None:
    """Start a process that becomes the plugin with SIGCONT."""
    starting = plugin.run_plugin(rig.server, rig.node, program=STOPPED)
    rig.process = rig.stack.enter_context(starting)
    await polling.wait_until(lambda: is_stopped(rig.process))


def is_stopped(process: PluginProcess) -> bool:
    status = Path(f"/proc/{process.process.pid}/status").read_text()
    return "State:\tT" in status


async def start_stopped_plugin(rig: Rig) -> None:
    rig.process.process.send_signal(signal.SIGCONT)
    await wait_served(rig)


async def wait_served(rig: Rig) -> None:
    await rig.kubelet.wait_registered(rig.driver, START_S)
    await rig.wait_until(lambda: rig.process.get("/readyz")[0] == 200, "readiness", START_S)
    rig.dra = await rig.kubelet.wait_registered(rig.driver)
