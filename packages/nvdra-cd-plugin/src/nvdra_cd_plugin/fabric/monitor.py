"""Keeps the node's clique: queries NVML at the start and every ten minutes, on its own thread.

While the fabric or the driver is not there yet, it queries every five seconds; only claims on this
node wait for that. A clique that is known stays known: GPUs that leave the fabric later do not
change which clique the node belongs to.

Source: docs/reference/compute-domain.md, "Device library", "Clique ID", "Observability" (KW-65).
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from nvdra_api.errors import DriverError, PermanentError, Reason, RetryableError
from nvdra_api.ids import CliqueID
from nvdra_api.resource.claims import ClaimRef
from nvdra_runtime.claims.device_wait_queue import DeviceWaitQueue
from nvdra_runtime.process import background_tasks
from nvdra_runtime.process.worker import Worker
from nvdra_runtime.telemetry import logs

from nvdra_cd_plugin.fabric.nvml_query import FabricQuery

LOG = logs.logger(__name__)

INTERVAL_S: Final = 600.0
RETRY_INTERVAL_S: Final = 5.0
_REPORT_AFTER_S: Final = 10.0
"""A query that takes longer is reported as a problem; the plugin goes on waiting for it."""


@dataclass(frozen=True, slots=True)
class FabricStatus:
    """What is known about the node's fabric.

    Attributes:
        clique: The node's clique; None while it is unknown, empty without a fabric.
        problem: The error of the last query; None if it succeeded.
    """

    clique: CliqueID | None = None
    problem: DriverError | None = None

    def updated(self, result: CliqueID | DriverError) -> "FabricStatus":
        """The status after another query."""
        if isinstance(result, DriverError):
            return FabricStatus(self.clique, result)
        return FabricStatus(result or self.clique or result)


class FabricMonitor:
    """Queries the fabric periodically; made by `running`."""

    def __init__(self, query: FabricQuery, worker: Worker) -> None:
        self.status = FabricStatus()
        self._query = query
        self._worker = worker
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
        while True:
            await self._set_status(self.status.updated(await self._run_query()))
            await asyncio.sleep(RETRY_INTERVAL_S if self.status.problem else INTERVAL_S)

    async def _run_query(self) -> CliqueID | DriverError:
        query = self._worker.submit(self._query.run)
        if not (await asyncio.wait((query,), timeout=_REPORT_AFTER_S))[0]:
            await self._set_status(self.status.updated(_no_answer_error()))
        try:
            return await query
        except DriverError as error:
            return error

    async def _set_status(self, status: FabricStatus) -> None:
        previous, self.status = self.status, status
        if self.has_queried and _content(previous) == _content(status):
            return
        if status.problem is not None:
            LOG.warning("The node's NVLink fabric cannot be used", error=str(status.problem))
        elif status.clique:
            LOG.info("The node's NVLink clique is known", clique=status.clique)
        else:
            LOG.info("The node has no NVLink fabric that spans nodes")
        async with self._changed:
            self._change_count += 1
            self._changed.notify_all()


def _content(status: FabricStatus) -> tuple[CliqueID | None, str]:
    return status.clique, str(status.problem or "")


def _no_answer_error() -> RetryableError:
    return RetryableError(
        Reason.DEADLINE_EXCEEDED,
        "NVML has not reported the NVLink fabric of this node's GPUs yet",
        "if it lasts, look for Xid messages in the node's kernel log; nvidia-smi on the node "
        "hangs too",
    )


@asynccontextmanager
async def running(query: FabricQuery, worker: Worker) -> AsyncIterator[FabricMonitor]:
    """Monitor the fabric while the block runs."""
    monitor = FabricMonitor(query, worker)
    async with background_tasks.running(fabric=monitor.run()):
        yield monitor
