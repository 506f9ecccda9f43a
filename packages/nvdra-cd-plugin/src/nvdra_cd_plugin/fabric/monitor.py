# SPDX-License-Identifier: Apache-2.0
"""Keeps the node's clique: queries NVML at the start and every 45 seconds, on its own thread.

While the fabric or the driver is not there yet, it queries every five seconds; only claims on this
node wait for that. A clique that is known stays known, also to the next process of this boot: GPUs
that leave the fabric later do not change which clique the node belongs to, and the daemons of the
node report that they have left it. While NVML is released
on the node nothing is queried, so that nothing of the driver is open in this process.

Source: docs/reference/compute-domain.md, "Device library", "Clique ID", "Observability" (KW-65).
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Final

from nvdra_api.errors import DriverError, PermanentError, Reason, RetryableError
from nvdra_api.ids import CliqueID
from nvdra_api.resource.claims import ClaimRef
from nvdra_api.v1beta1.compute_domain import NO_CLIQUE
from nvdra_runtime.claims.device_wait_queue import DeviceWaitQueue
from nvdra_runtime.process.worker import Worker
from nvdra_runtime.telemetry import logs

from nvdra_cd_plugin.fabric import clique
from nvdra_cd_plugin.fabric.known_clique import KnownClique
from nvdra_cd_plugin.fabric.nvml_query import FabricAnswer, FabricQuery

LOG = logs.logger(__name__)

INTERVAL_S: Final = 45.0
"""A clique that changes is noticed within a minute, also by the daemons of the node."""
RETRY_INTERVAL_S: Final = 5.0
_REPORT_AFTER_S: Final = 10.0
"""A query that takes longer is reported as a problem; the plugin goes on waiting for it, unless
NVML is to be released. GPUs without persistence mode need some seconds to start."""

ReadRelease = Callable[[], Awaitable[DriverError | None]]
"""Why NVML must be left alone on this node; None if it may be used."""

_HANGS: Final = (
    "A query hangs in NVML, which an administrator wants released: this process ends, and the next "
    "one does not query until NVML may be used again"
)


@dataclass(frozen=True, slots=True)
class FabricStatus:
    """What is known about the node's fabric.

    Attributes:
        clique: The node's clique; None while it is unknown, empty without a fabric.
        problem: The error of the last query, or why there was none; None if it succeeded.
        is_attached: Whether a GPU was in a fabric that spans nodes when they last answered.
    """

    clique: CliqueID | None = None
    problem: DriverError | None = None
    is_attached: bool = True

    @property
    def gpus_clique(self) -> CliqueID | None:
        """The clique that the GPUs are in now: empty if they have left the one that is kept."""
        return self.clique if self.is_attached or not self.clique else NO_CLIQUE

    def updated(self, result: FabricAnswer | DriverError) -> "FabricStatus":
        """The status after another query, or after one that could not be made."""
        if isinstance(result, DriverError):
            return replace(self, problem=result)
        is_kept = not result.clique and self.clique is not None
        known = self.clique if is_kept else result.clique
        problem = result.problem
        if problem is None and known and not result.is_attached:
            problem = clique.left_error(known)
        return FabricStatus(known, problem, result.is_attached)


class FabricMonitor:
    """Queries the fabric periodically.

    Attributes:
        status: What is known.
        has_answer: Whether a query of this process has succeeded.
    """

    def __init__(
        self,
        query: FabricQuery,
        worker: Worker,
        known: KnownClique,
        files: Worker,
        read_release: ReadRelease,
        stop: asyncio.Event,
    ) -> None:
        """Create it without any query.

        Args:
            query: The query.
            worker: The thread for NVML.
            known: What the former process of this boot knew.
            files: The thread for files.
            read_release: Whether NVML is released on the node.
            stop: Set to end the process, if NVML hangs while it is to be released.
        """
        self.status = FabricStatus()
        self.has_answer = False
        self._query = query
        self._worker = worker
        self._known = known
        self._files = files
        self._read_release = read_release
        self._stop = stop
        self._kept: CliqueID | None = None
        self._changed = asyncio.Condition()
        self._change_count = 0

    @property
    def has_queried(self) -> bool:
        """Whether a first query has ended, whatever its result."""
        return self._change_count > 0

    async def wait_for_change(self, seen_count: int) -> int:
        """Wait until `status` differs from what a reader at `seen_count` saw; the new count."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._change_count > seen_count)
            return self._change_count

    @property
    def unknown_reason(self) -> DriverError:
        """Why the clique is unknown; meaningful only while it is."""
        return self.status.problem or _no_answer_error()

    async def wait_clique(self, deadline: float) -> CliqueID:
        """The node's clique, as soon as it is known.

        Raises:
            DriverError: `FabricError`, `DriverMismatch`: why it is unknown.
            RetryableError: `DeadlineExceeded`: NVML hangs.
        """
        try:
            async with asyncio.timeout_at(deadline), self._changed:
                await self._changed.wait_for(lambda: self._is_settled)
        except TimeoutError as error:
            raise self.unknown_reason from error
        if self.status.clique is None:
            raise self.unknown_reason
        return self.status.clique

    async def wait_clique_for_claim(
        self, ref: ClaimRef, waits: DeviceWaitQueue, deadline: float
    ) -> CliqueID:
        """The node's clique; the wait ends early if the claim is no longer wanted.

        Raises:
            DriverError: As `wait_clique`, with the problem at the end of the wait.
        """
        try:
            async with waits.wait_until(ref, self.unknown_reason, deadline):
                return await self.wait_clique(deadline)
        except DriverError as error:
            raise self.status.problem or error from error.__cause__

    @property
    def _is_settled(self) -> bool:
        """Whether waiting longer changes nothing."""
        return self.status.clique is not None or isinstance(self.status.problem, PermanentError)

    async def run(self) -> None:
        """Query the fabric until cancelled."""
        self._kept = await self._files.run(self._known.read)
        self.status = FabricStatus(self._kept)
        rest_s = 0.0
        while True:
            release = await self._read_release()
            if release is not None:
                await self._set_status(self.status.updated(release))
                rest_s = 0.0
            elif rest_s <= 0:
                result = await self._run_query()
                is_answer = isinstance(result, FabricAnswer) and result.clique is not None
                self.has_answer |= is_answer
                await self._set_status(self.status.updated(result))
                rest_s = INTERVAL_S if is_answer else RETRY_INTERVAL_S
            await self._keep_clique()
            await asyncio.sleep(RETRY_INTERVAL_S)
            rest_s -= RETRY_INTERVAL_S

    async def _run_query(self) -> FabricAnswer | DriverError:
        query = self._worker.submit(self._query.run)
        while not (await asyncio.wait((query,), timeout=_REPORT_AFTER_S))[0]:
            release = await self._read_release()
            await self._set_status(self.status.updated(release or _no_answer_error()))
            if release is not None:
                LOG.error(_HANGS)
                self._stop.set()
                break
        try:
            return await query
        except DriverError as error:
            return error

    async def _keep_clique(self) -> None:
        known = self.status.clique
        if known is not None and known != self._kept:
            await self._files.run(self._known.write, known)
            self._kept = known

    async def _set_status(self, status: FabricStatus) -> None:
        previous, self.status = self.status, status
        if self.has_queried and _content(previous) == _content(status):
            return
        _log(status)
        async with self._changed:
            self._change_count += 1
            self._changed.notify_all()


def _log(status: FabricStatus) -> None:
    if status.clique is None:
        LOG.warning("The node's NVLink fabric cannot be used", error=str(status.problem))
    elif status.problem is not None:
        error = str(status.problem)
        LOG.warning("The node's NVLink clique is kept", clique=status.clique, error=error)
    elif status.clique:
        LOG.info("The node's NVLink clique is known", clique=status.clique)
    else:
        LOG.info("The node has no NVLink fabric that spans nodes")


def _content(status: FabricStatus) -> tuple[CliqueID | None, str]:
    return status.clique, str(status.problem or "")


def _no_answer_error() -> RetryableError:
    return RetryableError(
        Reason.DEADLINE_EXCEEDED,
        "NVML has not reported the NVLink fabric of this node's GPUs yet",
        "if it lasts, look for Xid messages in the node's kernel log; nvidia-smi on the node "
        "hangs too",
    )
