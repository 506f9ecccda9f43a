# SPDX-License-Identifier: Apache-2.0
"""Lets calls on the files that a plugin reads fail, while it runs and while it starts.

strace records which files the plugin looks at, and then lets calls on them fail. A test that uses
this shows that each error becomes a reason and that none ends the process.
"""

import asyncio
import re
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence, Set
from contextlib import asynccontextmanager, contextmanager
from itertools import count, cycle
from pathlib import Path

from nvdra_api.errors import Reason

from nvdra_testing import polling
from nvdra_testing.faults import strace
from nvdra_testing.faults.strace import FILE_CALLS, InjectedError
from nvdra_testing.node import plugin
from nvdra_testing.node.plugin import PluginProcess
from nvdra_testing.node.rig import Rig

EVERY = "1+"
SOME = "2+3"
ERRORS = ("EIO", "ESTALE", "EACCES", "ENAMETOOLONG")
USUAL = tuple(zip(ERRORS, cycle((EVERY, SOME)), strict=False))
ALL = tuple((error, when) for error in ERRORS for when in (EVERY, SOME))

STARTING_S = 4.0
"""How long calls fail after the first one that did, when the plugin starts."""

START_S = 60.0
"""A process takes long to start while it is traced."""

_STOPPED = ("sh", "-c", 'kill -STOP $$; exec "$0" "$@"')
"""Before a program: a process that becomes the program with SIGCONT."""

_NOT_THE_PLUGINS = re.compile(r"gsp_nvdra_sim\.bin|\.log$|/traced-")
"""Files of the simulated NVML, which a real one does not have, and of the test."""

_NUMBERS = count(1)
_PATH = re.compile(r'"(/[^"]*)"|<(/[^>]*)>')


ROUND_S = 5.5
"""What is checked periodically is checked every five seconds."""


async def fail_while_running(
    rig: Rig,
    paths: Set[str],
    serve: Callable[[InjectedError, float], Awaitable[Set[str]]],
    *,
    is_soak: bool,
) -> None:
    """Let each error happen while the plugin runs; with `is_soak` also on each file by itself.

    Args:
        rig: The node.
        paths: The files that the plugin reads.
        serve: Uses the plugin during the error, for at least the seconds that are given, and
            afterwards. Returns the files on which a call failed.
        is_soak: Whether each error is tried with all and with some of the calls.
    """
    for error, when in ALL if is_soak else USUAL:
        # Without its own record of what is prepared, the plugin refuses an unprepare.
        failing = paths if when == SOME else {path for path in paths if not is_state(rig, path)}
        assert await serve(InjectedError(error, sorted(failing), when), ROUND_S)
    if is_soak:
        for path, error in zip(sorted(paths), cycle(ERRORS), strict=False):
            await serve(InjectedError(error, [path]), 0.0)


def check_reason(answer: str) -> None:
    """A refusal has a reason, which is not that of a bug."""
    reasons = {str(reason) for reason in Reason} - {Reason.INTERNAL}
    assert not answer or answer.partition(":")[0] in reasons, answer


def check_alive(rig: Rig) -> None:
    """The plugin has not ended."""
    assert rig.process.process.poll() is None, end_of_log(rig)


def end_of_log(rig: Rig) -> Sequence[str]:
    """The last lines of the plugin's log."""
    return rig.process.log.read_text().splitlines()[-40:]


def is_state(rig: Rig, path: str) -> bool:
    """Whether the file is part of the plugin's state file, or its directory."""
    return Path(path).name.startswith("state.sqlite") or path.endswith(f"/{rig.driver}")


@asynccontextmanager
async def recorded(rig: Rig, *flags: str) -> AsyncIterator[set[str]]:
    """A plugin that has not started; after the block the files that it has looked at."""
    await launch_stopped(rig, *flags)
    paths: set[str] = set()
    log = _traced_log(rig)
    with strace.attach(log, _threads(rig), FILE_CALLS, is_following=True) as tracer:
        yield paths
        root = f"{rig.node.kubelet.parent}/"
        for call in tracer.detach():
            found = {path for pair in _PATH.findall(call.arguments) for path in pair}
            paths |= {path.rstrip("/") for path in found if path.startswith(root)}
    paths -= {path for path in paths if _NOT_THE_PLUGINS.search(path)}


@contextmanager
def let_fail(rig: Rig, injected: InjectedError) -> Iterator[Path]:
    """Let calls of the plugin fail during the block. Yields strace's log."""
    log = _traced_log(rig)
    with strace.fail_calls(log, _threads(rig), injected):
        yield log


async def start_with_failures(rig: Rig, injected: InjectedError, *flags: str) -> None:
    """Let calls of a plugin that starts fail for a while; it lives, and then serves."""
    await launch_stopped(rig, *flags)
    with let_fail(rig, injected) as log:
        rig.process.process.send_signal(signal.SIGCONT)
        await rig.wait_until(lambda: bool(strace.injected_paths(log)), "a call to fail", START_S)
        await asyncio.sleep(STARTING_S)
        check_alive(rig)
    await _wait_served(rig)


async def launch_stopped(rig: Rig, *flags: str) -> None:
    """Start a process that becomes the plugin with SIGCONT."""
    program = (*_STOPPED, rig.program)
    starting = plugin.run_plugin(rig.server, rig.node, flags=flags, program=program)
    rig.process = rig.stack.enter_context(starting)
    await polling.wait_until(lambda: _is_stopped(rig.process))


async def start_stopped_plugin(rig: Rig) -> None:
    """Let the process become the plugin, and wait until it serves."""
    rig.process.process.send_signal(signal.SIGCONT)
    await _wait_served(rig)


async def _wait_served(rig: Rig) -> None:
    await rig.kubelet.wait_registered(rig.driver, START_S)
    await rig.wait_until(lambda: rig.process.get("/readyz")[0] == 200, "readiness", START_S)
    rig.dra = await rig.kubelet.wait_registered(rig.driver)


def _threads(rig: Rig) -> dict[int, str]:
    return strace.threads(rig.process.process.pid)


def _traced_log(rig: Rig) -> Path:
    return rig.node.kubelet.parent / f"traced-{next(_NUMBERS)}"


def _is_stopped(process: PluginProcess) -> bool:
    status = Path(f"/proc/{process.process.pid}/status").read_text()
    return "State:\tT" in status
