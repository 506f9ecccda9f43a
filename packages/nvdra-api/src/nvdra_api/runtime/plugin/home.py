"""The plugin's own directory on the node: one process in it at a time, the hook, the state.

While its disk is full or read-only nothing can be promised to anybody: the process stays up, says
so in `/readyz`, and goes on by itself.
"""

import asyncio
import errno
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from nvdra_api.runtime.node.files import InstanceLock
from nvdra_api.runtime.node.store import Store
from nvdra_api.runtime.plugin import hook
from nvdra_api.runtime.process.clock import Clock
from nvdra_api.runtime.telemetry import logs
from nvdra_api.types.errors import Reason, RetryableError

LOG = logs.logger(__name__)

_LOOK_AGAIN_S = 5.0
"""A disk that has room again is used within this time."""

_PASSING = frozenset({errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EIO})
"""What a disk says that somebody has to see to; anything else is a mistake in the set-up."""


@dataclass(frozen=True, slots=True)
class Home:
    """The directory, taken.

    Attributes:
        lock: That nobody else has it.
        hook_path: The CDI hook, as the host sees it.
        store: What is prepared on this node.
    """

    lock: InstanceLock
    hook_path: str
    store: Store


@asynccontextmanager
async def taken(
    plugin_dir: Path,
    configured_hook: str,
    http_endpoint: str,
    pod_name: str,
    boot_id: str,
    clock: Clock,
    stop: asyncio.Event,
) -> AsyncIterator[Home | None]:
    """Have the directory for the block; None when the process was stopped while waiting for it.

    Args:
        plugin_dir: The directory; made where it is not there.
        configured_hook: The CDI hook on the host; empty installs ours.
        http_endpoint: Where to say that the directory cannot be used; empty says it in the log.
        pod_name: Pod we run in, for a second instance's message.
        boot_id: The current boot.
        clock: For records.
        stop: Ends the waiting.

    Raises:
        DriverError: Another instance has it; a newer release wrote the state.
        OSError: It cannot be used, and no time will change that.
    """
    async with AsyncExitStack() as stack:
        enter = partial(_enter, stack, plugin_dir, configured_hook, pod_name, boot_id, clock)
        try:
            home: Home | None = await enter()
        except (OSError, RetryableError) as error:
            home = await _wait(enter, http_endpoint, _passing(error), stop)
        yield home


async def _enter(
    stack: AsyncExitStack,
    directory: Path,
    configured_hook: str,
    pod_name: str,
    boot_id: str,
    clock: Clock,
) -> Home:
    """All of it, or nothing and the reason."""
    who = {"pid": str(os.getpid()), **({"pod": pod_name} if pod_name else {})}
    async with AsyncExitStack() as attempt:
        directory.mkdir(mode=0o750, parents=True, exist_ok=True)
        lock = attempt.enter_context(InstanceLock(directory / "instance.lock", who))
        hook_path = hook.install(configured_hook, directory)
        opening = Store.opened(directory / "state.sqlite", boot_id, clock)
        store = await attempt.enter_async_context(opening)
        stack.push_async_exit(attempt.pop_all())
    return Home(lock, hook_path, store)


async def _wait(
    enter: Callable[[], Awaitable[Home]], http_endpoint: str, problem: str, stop: asyncio.Event
) -> Home | None:
    """Try again until it works, with nothing else of the plugin running."""
    # Costs a tenth of a second that a start with a good disk need not wait for.
    from nvdra_api.runtime.http import listener, probes

    LOG.error("The plugin waits for its directory", error=problem)
    async with AsyncExitStack() as meanwhile:
        if http_endpoint:
            routes = probes.routes(alive={}, ready={"state": lambda: problem})
            await meanwhile.enter_async_context(listener.listening(http_endpoint, routes))
        while not await _is_stopped(stop):
            try:
                return await enter()
            except (OSError, RetryableError) as error:
                problem = _passing(error)
    return None


async def _is_stopped(stop: asyncio.Event) -> bool:
    try:
        async with asyncio.timeout(_LOOK_AGAIN_S):
            await stop.wait()
    except TimeoutError:
        return False
    return True


def _passing(error: OSError | RetryableError) -> str:
    """What to say of a disk that somebody has to see to; any other error is raised again."""
    if isinstance(error, OSError):
        if error.errno not in _PASSING:
            raise error
        return f"{error.filename or 'the plugin directory'}: {error.strerror}"
    if error.reason is not Reason.STATE_UNAVAILABLE:
        raise error
    return str(error)
