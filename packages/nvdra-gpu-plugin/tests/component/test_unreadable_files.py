"""An error of the file system on any file that the plugin reads is a reason; none ends the process.

strace records which files the plugin looks at, and then lets calls on them fail. Half of the
combinations are tried in the usual run; all of them, and each file by itself, with `--soak`.
"""

import asyncio
import re
import signal
from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from itertools import count
from pathlib import Path

import pytest
from nvdra_api.errors import Reason
from nvdra_testing.faults import strace
from nvdra_testing.faults.strace import FILE_CALLS, InjectedError
from nvdra_testing.kubelet.checkpoint_file import CheckpointFile
from nvdra_testing.node import plugin
from nvdra_testing.node.plugin import PluginProcess
from nvdra_testing.node.rig import Rig

EVERY = "1+"
SOME = "2+3"
USUAL = (("EIO", EVERY), ("ESTALE", SOME), ("EACCES", EVERY), ("ENAMETOOLONG", SOME))
ERRORS = tuple(error for error, _ in USUAL)
ALL = tuple((error, when) for error in ERRORS for when in (EVERY, SOME))

ROUND_S = 5.5
"""What is checked periodically is checked every five seconds."""

STOPPED = ("sh", "-c", 'kill -STOP $$; exec "$0" "$@"', "nvdra-gpu-plugin")
"""The plugin, before its first call; SIGCONT starts it."""

NOT_THE_PLUGINS = re.compile(r"gsp_nvdra_sim\.bin|\.log|/calls-|/errors-")
"""Files of the simulated NVML, which a real one does not have, and of the test."""

_NUMBERS = count(1)


async def test_no_error_on_any_file_ends_the_plugin_and_unprepares_go_on(
    rig: Rig, request: pytest.FixtureRequest
) -> None:
    is_soak = bool(request.config.getoption("--soak"))
    CheckpointFile(rig.node.kubelet).write()
    async with recorded(rig) as paths:
        await start_stopped_plugin(rig)
        await exercise(rig)
        await asyncio.sleep(ROUND_S)
    assert len(paths) > 100, paths
    assert {"devices", "boot_id", "dra_manager_state", "state.sqlite"} <= {
        Path(path).name for path in paths
    }
    for error, when in ALL if is_soak else USUAL:
        # Without its own record of what is prepared the plugin refuses an unprepare.
        failing = paths if when == SOME else {path for path in paths if not _is_state(path)}
        await check_while_running(rig, InjectedError(error, sorted(failing), when))
    if is_soak:
        for path in sorted(paths):
            for error in ERRORS:
                await check_while_running(rig, InjectedError(error, [path]), seconds=0.0)
    await rig.stop()
    for error in ERRORS:
        await check_start(rig, InjectedError(error, sorted(paths), SOME))


async def check_while_running(rig: Rig, injected: InjectedError, seconds: float = ROUND_S) -> None:
    """Let calls of the running plugin fail; then it is as good as before."""
    held = rig.create_claim("gpu-6")
    assert not (await rig.dra.prepare([held]))[held.uid].error
    is_state_readable = not any(_is_state(path) for path in injected.paths)
    with let_fail(rig, rig.process, injected) as log:
        await exercise(rig)
        until = asyncio.get_running_loop().time() + seconds
        while asyncio.get_running_loop().time() < until:
            await asyncio.sleep(0.5)
            assert rig.process.process.poll() is None, _end_of_log(rig.process)
        released = (await rig.dra.unprepare([held], timeout_s=10))[held.uid].error
        check_reason(released)
        assert is_state_readable <= (not released), released
    assert seconds == 0.0 or strace.injected_paths(log), "nothing failed"
    await check_well(rig, injected)
    assert not (await rig.dra.unprepare([held]))[held.uid].error


async def check_start(rig: Rig, injected: InjectedError) -> None:
    """Let calls of a plugin that starts fail for a while; then it serves."""
    rig.process = launch_stopped(rig)
    with let_fail(rig, rig.process, injected) as log:
        rig.process.process.send_signal(signal.SIGCONT)
        for _ in range(8):
            await asyncio.sleep(0.5)
            assert rig.process.process.poll() is None, _end_of_log(rig.process)
    assert strace.injected_paths(log), "nothing failed"
    rig.dra = await rig.kubelet.wait_registered(rig.driver, plugin.START_S)
    await check_well(rig, injected)
    await rig.stop()


async def check_well(rig: Rig, injected: InjectedError) -> None:
    """The plugin serves as if nothing had happened."""
    assert rig.process.process.poll() is None, _end_of_log(rig.process)
    await rig.wait_until(
        lambda: rig.process.get("/readyz")[0] == 200, f"readiness after {injected.error}"
    )
    claim = rig.create_claim("gpu-0")
    assert not (await rig.dra.prepare([claim]))[claim.uid].error
    assert not (await rig.dra.unprepare([claim]))[claim.uid].error
    assert "Traceback" not in rig.process.log.read_text(), _end_of_log(rig.process)


async def exercise(rig: Rig) -> None:
    """Prepare, repeat, wait for a held GPU and unprepare: each is done, or refused for a reason."""
    first, second = rig.create_claim("gpu-0"), rig.create_claim("gpu-0")
    for claim in (first, first, second):
        answer = (await rig.dra.prepare([claim], timeout_s=3))[claim.uid]
        check_reason(answer.error)
    for claim in (second, first):
        check_reason((await rig.dra.unprepare([claim], timeout_s=3))[claim.uid].error)


def check_reason(answer: str) -> None:
    """A refusal has a reason, which is not that of a bug."""
    reason = answer.partition(":")[0]
    assert not answer or (reason in set(Reason) - {Reason.INTERNAL}), answer


@asynccontextmanager
async def recorded(rig: Rig) -> AsyncIterator[set[str]]:
    """A plugin that does not run yet; after the block the files that it has looked at."""
    rig.process = launch_stopped(rig)
    paths: set[str] = set()
    log = rig.node.kubelet.parent / "calls-recorded"
    tids = strace.threads(rig.process.process.pid)
    with strace.attach(log, tids, FILE_CALLS, is_following=True) as tracer:
        yield paths
        root = str(rig.node.kubelet.parent)
        for call in tracer.detach():
            paths |= {each for each in _paths(call.arguments) if each.startswith(f"{root}/")}
    paths -= {each for each in paths if NOT_THE_PLUGINS.search(each)}


@contextmanager
def let_fail(rig: Rig, process: PluginProcess, injected: InjectedError) -> Iterator[Path]:
    """Let calls of the plugin fail during the block. Yields strace's log."""
    log = rig.node.kubelet.parent / f"errors-{next(_NUMBERS)}"
    with strace.fail_calls(log, strace.threads(process.process.pid), injected):
        yield log


def launch_stopped(rig: Rig) -> PluginProcess:
    starting = plugin.run_plugin(rig.server, rig.node, program=STOPPED)
    return rig.stack.enter_context(starting)


async def start_stopped_plugin(rig: Rig) -> None:
    rig.process.process.send_signal(signal.SIGCONT)
    rig.dra = await rig.kubelet.wait_registered(rig.driver, plugin.START_S)
    await rig.wait_until(lambda: rig.process.get("/readyz")[0] == 200, "the plugin to be ready")


def _paths(arguments: str) -> Collection[str]:
    return {found.rstrip("/") for pair in _PATH.findall(arguments) for found in pair if found}


_PATH = re.compile(r'"(/[^"]*)"|<(/[^>]*)>')


def _is_state(path: str) -> bool:
    return Path(path).name.startswith("state.sqlite") or path.endswith("gpu.nvidia.com")


def _end_of_log(process: PluginProcess) -> Sequence[str]:
    return process.log.read_text().splitlines()[-30:]
