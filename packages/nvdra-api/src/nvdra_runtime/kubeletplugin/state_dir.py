# SPDX-License-Identifier: Apache-2.0
"""The plugin's directory on the node: instance lock, CDI hook and state file.

While another instance holds the lock, this one stands by. While the directory's disk is full or
read-only, nothing can be prepared: the process keeps running, reports the problem in `/readyz`, and
continues by itself when the disk can be used.
"""

import asyncio
import errno
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from nvdra_api.errors import Reason, RetryableError

from nvdra_runtime.kubeletplugin import cdi_hook
from nvdra_runtime.node import record_database
from nvdra_runtime.node.instance_lock import InstanceLock
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


StandBy = Callable[[InstanceLock, asyncio.Event], Awaitable[bool]]
"""Stands by until the lock is acquired. Returns False if the process is stopped before."""

ReportProblem = Callable[[str], Awaitable[None]]
"""Shows in `/readyz` why the directory cannot be used. Called again for each new problem."""


class _Stopped(Exception):
    """The process was stopped while it stood by."""


@asynccontextmanager
async def lock(
    plugin_dir: Path,
    configured_hook: str,
    holder: Mapping[str, str],
    read_boot_id: Callable[[], str],
    clock: Clock,
    stand_by: StandBy,
    report: ReportProblem,
    stop: asyncio.Event,
) -> AsyncIterator[StateDir | None]:
    """Lock and open the directory. Yields None if the process is stopped while it waits for it.

    Args:
        plugin_dir: The directory; it is created if it does not exist.
        configured_hook: The CDI hook on the host; empty installs the bundled one.
        holder: Identifies this process in the lock.
        read_boot_id: Reads the ID of the current boot.
        clock: For the times of records.
        stand_by: Called while another instance has locked the directory.
        report: Called while the directory cannot be used.
        stop: Ends the waiting.

    Raises:
        DriverError: A newer release wrote the state file.
        OSError: It cannot be used, and waiting would not help.
    """
    async with AsyncExitStack() as stack:
        enter = partial(
            _open,
            *(stack, plugin_dir, configured_hook, holder, read_boot_id, clock, stand_by, stop),
        )
        try:
            home: StateDir | None = await enter()
        except _Stopped:
            home = None
        except (OSError, RetryableError) as error:
            home = await _retry_until_usable(enter, report, _retryable_problem(error), stop)
        yield home


async def _open(
    stack: AsyncExitStack,
    directory: Path,
    configured_hook: str,
    holder: Mapping[str, str],
    read_boot_id: Callable[[], str],
    clock: Clock,
    stand_by: StandBy,
    stop: asyncio.Event,
) -> StateDir:
    """Lock the directory, install the hook and open the state file; all or nothing.

    The state file is read under the lock: the former instance may have written until its end.

    Raises:
        _Stopped: The process was stopped while it stood by.
    """
    async with AsyncExitStack() as attempt:
        directory.mkdir(mode=0o750, parents=True, exist_ok=True)
        lock = InstanceLock(directory / "instance.lock", holder)
        if not lock.try_acquire() and not await stand_by(lock, stop):
            raise _Stopped
        attempt.callback(lock.release)
        hook_path = cdi_hook.install(configured_hook, directory)
        path = directory / record_database.FILE_NAME
        store = await attempt.enter_async_context(RecordStore.open(path, read_boot_id(), clock))
        stack.push_async_exit(attempt.pop_all())
    return StateDir(lock, hook_path, store)


async def _retry_until_usable(
    enter: Callable[[], Awaitable[StateDir]],
    report: ReportProblem,
    problem: str,
    stop: asyncio.Event,
) -> StateDir | None:
    """Try again until it succeeds. No other part of the plugin runs meanwhile."""
    LOG.error("The plugin waits until its directory can be used", error=problem)
    await report(problem)
    while not await _is_stopped(stop):
        try:
            return await enter()
        except _Stopped:
            return None
        except (OSError, RetryableError) as error:
            await report(_retryable_problem(error))
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
