"""The plugin's directory on the node: instance lock, CDI hook and state file.

While its disk is full or read-only, nothing can be prepared. The process keeps running, reports the
problem in `/readyz`, and continues by itself when the disk can be used.
"""

import asyncio
import errno
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from nvdra_api.errors import Reason, RetryableError

from nvdra_runtime.kubeletplugin import cdi_hook
from nvdra_runtime.node.files import InstanceLock
from nvdra_runtime.node.record_store import RecordStore
from nvdra_runtime.process.clock import Clock
from nvdra_runtime.telemetry import logs

LOG = logs.logger(__name__)

_RETRY_S = 5.0
"""Between two attempts to use a disk that is full or read-only."""

_RETRYABLE_ERRNOS = frozenset(
    {
        *(errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EIO),
        *(errno.ESTALE, errno.EACCES, errno.ENAMETOOLONG),
    }
)
"""Errors of a disk or a mount that an administrator can repair while the process waits. Any other
error is one of the set-up."""


@dataclass(frozen=True, slots=True)
class StateDir:
    """The locked directory.

    Attributes:
        lock: The instance lock.
        hook_path: Path of the CDI hook on the host.
        store: The records of prepared claims.
    """

    lock: InstanceLock
    hook_path: str
    store: RecordStore


@asynccontextmanager
async def lock(
    plugin_dir: Path,
    configured_hook: str,
    http_endpoint: str,
    pod_name: str,
    read_boot_id: Callable[[], str],
    clock: Clock,
    stop: asyncio.Event,
) -> AsyncIterator[StateDir | None]:
    """Lock and open the directory. Yields None if the process is stopped while it waits for it.

    Args:
        plugin_dir: The directory; it is created if it does not exist.
        configured_hook: The CDI hook on the host; empty installs the bundled one.
        http_endpoint: Where `/readyz` reports that the directory cannot be used; empty for none.
        pod_name: The pod of this process, for the error of a second instance.
        read_boot_id: Reads the ID of the current boot.
        clock: For the times of records.
        stop: Ends the waiting.

    Raises:
        DriverError: Another instance has locked it, or a newer release wrote the state file.
        OSError: It cannot be used, and waiting would not help.
    """
    async with AsyncExitStack() as stack:
        enter = partial(_open, stack, plugin_dir, configured_hook, pod_name, read_boot_id, clock)
        try:
            home: StateDir | None = await enter()
        except (OSError, RetryableError) as error:
            home = await _retry_until_usable(enter, http_endpoint, _retryable_problem(error), stop)
        yield home


async def _open(
    stack: AsyncExitStack,
    directory: Path,
    configured_hook: str,
    pod_name: str,
    read_boot_id: Callable[[], str],
    clock: Clock,
) -> StateDir:
    """Lock the directory, install the hook and open the state file; all or nothing."""
    who = {"pid": str(os.getpid()), **({"pod": pod_name} if pod_name else {})}
    async with AsyncExitStack() as attempt:
        directory.mkdir(mode=0o750, parents=True, exist_ok=True)
        lock = attempt.enter_context(InstanceLock(directory / "instance.lock", who))
        hook_path = cdi_hook.install(configured_hook, directory)
        opening = RecordStore.open(directory / "state.sqlite", read_boot_id(), clock)
        store = await attempt.enter_async_context(opening)
        stack.push_async_exit(attempt.pop_all())
    return StateDir(lock, hook_path, store)


async def _retry_until_usable(
    enter: Callable[[], Awaitable[StateDir]], http_endpoint: str, problem: str, stop: asyncio.Event
) -> StateDir | None:
    """Try again until it succeeds. No other part of the plugin runs meanwhile."""
    # Imported here, because it takes a tenth of a second and is rarely needed.
    from nvdra_runtime.http import listener, probes

    LOG.error("The plugin waits until its directory can be used", error=problem)
    async with AsyncExitStack() as meanwhile:
        if http_endpoint:
            routes = probes.routes(alive={}, ready={"state": lambda: problem})
            await meanwhile.enter_async_context(listener.listen(http_endpoint, routes))
        while not await _is_stopped(stop):
            try:
                return await enter()
            except (OSError, RetryableError) as error:
                problem = _retryable_problem(error)
    return None


async def _is_stopped(stop: asyncio.Event) -> bool:
    try:
        async with asyncio.timeout(_RETRY_S):
            await stop.wait()
    except TimeoutError:
        return False
    return True


def _retryable_problem(error: OSError | RetryableError) -> str:
    """The text for an error that an administrator can repair. Any other error is raised again."""
    if isinstance(error, OSError):
        if error.errno not in _RETRYABLE_ERRNOS:
            raise error
        return f"{error.filename or 'the plugin directory'}: {error.strerror}"
    if error.reason is not Reason.STATE_UNAVAILABLE:
        raise error
    return str(error)
