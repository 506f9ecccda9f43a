# SPDX-License-Identifier: Apache-2.0
"""Recovers records of claims from the kubelet's checkpoint, at the start of the plugin.

Records are lost if the disk is damaged, and a record that cannot be read does not say which devices
its claim holds. The kubelet's checkpoint has what the kubelet was answered, and for which pods. No
device is given to a new claim before it has been read. If it cannot be read after the state file
was damaged, nothing says which devices are free. Source: docs/design.md, "Settled", a corrupt state
file.
"""

import asyncio
import itertools
import random
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Generic

from nvdra_api.errors import Reason, RetryableError
from nvdra_api.ids import ClaimUID, NodeName

from nvdra_runtime.claims.kubelet_checkpoint import (
    CheckpointClaim,
    CheckpointUnreadable,
    KubeletCheckpoint,
)
from nvdra_runtime.claims.prepared_claims import PreparedClaims
from nvdra_runtime.claims.records import RecordT
from nvdra_runtime.kube.event_recorder import EventRecorder, node_reference
from nvdra_runtime.node.record_store import RecordStore
from nvdra_runtime.process.backoff import Backoff
from nvdra_runtime.process.worker import Worker
from nvdra_runtime.telemetry import logs

LOG = logs.logger(__name__)

_RETRY_BACKOFF = Backoff(first_s=1.0, ceiling_s=60.0)
_ATTEMPT_TIMEOUT_S = 2.0

BuildRecords = Callable[[Sequence[CheckpointClaim], float], AsyncGenerator[RecordT, None]]
"""Builds the record of each claim by the deadline: `RecordBuilder.build` of a driver.

It raises `RetryableError` if it must be called again. Records that it yielded before are kept.
"""


def _is_gone(path: Path) -> bool:
    """Whether the file has certainly been removed; a file that cannot be looked at has not."""
    try:
        path.lstat()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return False


class RecordRecovery(Generic[RecordT]):
    """Adds the records that are missing.

    Attributes:
        done: Set once the records are as complete as they can be.
        prepared_claims: The records.
    """

    def __init__(
        self,
        driver: str,
        node: NodeName,
        store: RecordStore,
        prepared_claims: PreparedClaims[RecordT],
        checkpoint: KubeletCheckpoint,
        build_records: BuildRecords[RecordT],
        events: EventRecorder,
    ) -> None:
        self.done = asyncio.Event()
        self._driver = driver
        self._node = node
        self._store = store
        self.prepared_claims = prepared_claims
        self._checkpoint = checkpoint
        self._build_records = build_records
        self._events = events
        self._reported = ""
        self._lock = asyncio.Lock()
        self._last_error = RetryableError(
            Reason.DEADLINE_EXCEEDED,
            "the records of this node have not been compared with the kubelet's checkpoint yet",
            "this continues by itself; if it takes long, see the plugin's log",
        )

    @property
    def is_done(self) -> bool:
        """Whether the records are as complete as they can be."""
        return self.done.is_set()

    async def run(self) -> None:
        """Recover records, and try again while the API server does not respond."""
        for failures in itertools.count(1):
            try:
                await self.complete(asyncio.get_running_loop().time() + _ATTEMPT_TIMEOUT_S)
            except RetryableError as error:
                LOG.v(2, "The records cannot be completed yet", error=str(error))
                delay_s = _RETRY_BACKOFF.delay(failures, random.random())  # noqa: S311 - spreads load
                await asyncio.sleep(delay_s)
            else:
                return

    async def complete(self, deadline: float) -> None:
        """Compare the records with the checkpoint, and add those that are missing.

        Raises:
            RetryableError: `ApiUnavailable`, `DeadlineExceeded`, `StateUnavailable`.
        """
        try:
            async with asyncio.timeout_at(deadline):
                await self._lock.acquire()
        except TimeoutError:
            raise self._last_error from None
        try:
            if not self.is_done:
                await self._recover(deadline)
        except RetryableError as error:
            self._last_error = error
            raise
        finally:
            self._lock.release()

    async def _recover(self, deadline: float) -> None:
        try:
            async with Worker("checkpoint") as worker:
                known = await worker.run(self._checkpoint.claims)
        except CheckpointUnreadable as error:
            self._continue_without_checkpoint(error)
            return
        await self._add_missing_records(known, deadline)
        await self._remove_unreadable_records(known)
        await self._mark_done()

    def _continue_without_checkpoint(self, why: CheckpointUnreadable) -> None:
        marker = self._store.recovery_marker
        if marker is not None and _is_gone(marker.path):
            # An administrator has removed the file: no claim is prepared without a record.
            marker = self._store.recovery_marker = None
        if marker is None:
            self.prepared_claims.incomplete_reason = ""
            if not self.prepared_claims.unreadable:
                self.done.set()
            return
        self.prepared_claims.incomplete_reason = (
            f"the state file was damaged and was moved to {marker.corrupt_file}, and its records "
            f"cannot be recovered from the kubelet either ({why})"
        )
        self._report_state_file(
            f"no device is given to new claims: {self.prepared_claims.incomplete_reason}; make "
            f"the kubelet's file readable, or drain the node and remove {marker.path}"
        )

    async def _add_missing_records(
        self, known: Mapping[ClaimUID, CheckpointClaim], deadline: float
    ) -> None:
        """Add records of claims that the kubelet has devices for and the state file lacks."""
        missing = [
            claim
            for uid, claim in known.items()
            if uid not in self.prepared_claims and claim.devices(self._driver)
        ]
        if not missing:
            return
        async with aclosing(self._build_records(missing, deadline)) as records:
            async for record in records:
                await self.prepared_claims.add(record.ref, record)
                LOG.warning(
                    "Recovered the record of a prepared claim from the kubelet's checkpoint",
                    claim=str(record.ref),
                    devices=[device.device for device in record.devices],
                )

    async def _remove_unreadable_records(self, known: Mapping[ClaimUID, CheckpointClaim]) -> None:
        """Remove unreadable records of claims that the kubelet has no devices for.

        If the kubelet is still preparing such a claim, its next call prepares it again.
        """
        for uid, ref in tuple(self.prepared_claims.unreadable.items()):
            await self.prepared_claims.remove(uid)
            LOG.warning(
                "Removed an unreadable record: the kubelet has no devices for its claim",
                claim=str(ref),
                is_known=uid in known,
            )

    async def _mark_done(self) -> None:
        marker = self._store.recovery_marker
        if marker is not None:
            await self._store.finish_recovery()
            self._report_state_file(
                f"the state file was damaged and was moved to {marker.corrupt_file}; the records "
                f"of {len(self.prepared_claims)} claims were recovered from the kubelet's "
                "checkpoint"
            )
        self.prepared_claims.incomplete_reason = ""
        self.done.set()

    def _report_state_file(self, text: str) -> None:
        """Report damage of the state file on the Node, once per text."""
        if text != self._reported:
            self._reported = text
            LOG.error("The state file was damaged", node=self._node, error=text)
            self._events.emit((node_reference(self._node),), "Warning", Reason.STATE_CORRUPT, text)
