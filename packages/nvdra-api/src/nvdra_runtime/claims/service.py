# SPDX-License-Identifier: Apache-2.0
"""Prepares and unprepares the claims of the kubelet's calls, for any driver.

Each claim is answered by itself, before the kubelet's deadline. Exceptions are caught here and in
top-level loops only: a `DriverError` is answered with its reason, any other exception is a bug and
is answered as `Internal`.
"""

from collections import Counter
from collections.abc import Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from nvdra_api.ids import ClaimUID
from nvdra_api.resource.claims import ClaimRef, ResourceClaim

from nvdra_runtime.claims import call_answers
from nvdra_runtime.claims.claim_reader import ClaimReader
from nvdra_runtime.claims.device_wait_queue import DeviceWaitQueue, NotifyWaiting
from nvdra_runtime.claims.failures import FailureRecorder
from nvdra_runtime.claims.prepare_result import PrepareResult
from nvdra_runtime.claims.record_recovery import RecordRecovery
from nvdra_runtime.claims.records import DeviceInUseError, PreparedClaimRecord, RecordT
from nvdra_runtime.claims.root_spans import RootSpanWriter
from nvdra_runtime.process.single_flight import Operation, SingleFlight
from nvdra_runtime.telemetry import keys, logs, trace_ids
from nvdra_runtime.telemetry.instrumentation import Telemetry
from nvdra_runtime.telemetry.trace_ids import Link

LOG = logs.logger(__name__)

Links = tuple[Link, ...]
T = TypeVar("T")
RecordT_contra = TypeVar("RecordT_contra", bound=PreparedClaimRecord, contravariant=True)


class Preparer(Protocol[RecordT_contra]):
    """What a driver does for a claim; each plugin has one in `claims.preparer`.

    Every `deadline` is in monotonic seconds of the loop's clock, and every wait ends by then.
    """

    async def prepare(
        self, claim: ResourceClaim, deadline: float, notify: NotifyWaiting
    ) -> PrepareResult:
        """Prepare the claim's devices and record the claim.

        If it has a record that is `started`, an earlier attempt was interrupted or not undone.

        Args:
            claim: The claim as the API server has just returned it.
            deadline: When to stop.
            notify: Reports to the user why the claim waits.

        Raises:
            DeviceInUseError: Another claim holds a device. The service waits until that claim is
                unprepared, and calls again.
            DriverError: The kubelet is answered with it.
        """

    async def prepare_again(self, record: RecordT_contra, deadline: float) -> PrepareResult:
        """Verify that a prepared claim can still be used, and return the same result as before."""

    async def unprepare(self, record: RecordT_contra, deadline: float) -> None:
        """Undo what `prepare` did, and remove the record."""


class ClaimService(Generic[RecordT]):
    """Answers the kubelet's calls; a `kubeletplugin.grpc_service.ClaimHandler`."""

    def __init__(
        self,
        claim_reader: ClaimReader,
        preparer: Preparer[RecordT],
        recovery: RecordRecovery[RecordT],
        wait_queue: DeviceWaitQueue,
        operations: SingleFlight[ClaimUID],
        root_spans: RootSpanWriter,
        failures: FailureRecorder,
        telemetry: Telemetry,
    ) -> None:
        self._claim_reader = claim_reader
        self._preparer = preparer
        self._prepared_claims = recovery.prepared_claims
        self._recovery = recovery
        self._wait_queue = wait_queue
        self._operations = operations
        self._root_spans = root_spans
        self._failures = failures
        self._telemetry = telemetry
        self._attempts: Counter[ClaimUID] = Counter()

    async def prepare(
        self, claims: Sequence[ClaimRef], deadline: float, traceparent: str | None
    ) -> Mapping[ClaimUID, PrepareResult | str]:
        """Prepare all claims of a call concurrently."""
        deadlines, links = call_answers.deadlines(deadline), _links(traceparent)
        answers: list[Coroutine[Any, Any, PrepareResult | str]] = []
        for ref in claims:
            operation = self._start_prepare(ref, deadlines.work, links)
            answer = self._answer(ref, operation, deadlines.answer)
            answers.append(answer)
        return await call_answers.gather(claims, answers)

    async def unprepare(
        self, claims: Sequence[ClaimRef], deadline: float, traceparent: str | None
    ) -> Mapping[ClaimUID, str | None]:
        """Unprepare all claims of a call concurrently. One without a record needs nothing."""
        deadlines, links = call_answers.deadlines(deadline), _links(traceparent)
        answers: list[Coroutine[Any, Any, str | None]] = []
        for ref in claims:
            self._wait_queue.cancel(ref.uid)
            operation = self._start_unprepare(ref, deadlines.work, links)
            answer = self._answer(ref, operation, deadlines.answer)
            answers.append(answer)
        try:
            return await call_answers.gather(claims, answers)
        finally:
            for ref in claims:
                self._wait_queue.resume(ref.uid)

    async def unprepare_stale(self, ref: ClaimRef, deadline: float) -> None:
        """Unprepare a claim that no longer exists, without a call of the kubelet.

        Raises:
            DriverError: The claim is still prepared.
        """
        await self._start_unprepare(ref, deadline, ()).wait(deadline)

    def _start_prepare(
        self, ref: ClaimRef, deadline: float, links: Links
    ) -> Operation[PrepareResult]:
        """Start to prepare the claim, unless this is already in progress."""
        return self._operations.find(ref.uid, keys.PREPARE) or self._operations.start(
            ref.uid, keys.PREPARE, self._prepare(ref, deadline, links)
        )

    def _start_unprepare(self, ref: ClaimRef, deadline: float, links: Links) -> Operation[None]:
        return self._operations.find(ref.uid, keys.UNPREPARE) or self._operations.start(
            ref.uid, keys.UNPREPARE, self._unprepare(ref, deadline, links)
        )

    async def _answer(self, ref: ClaimRef, operation: Operation[T], deadline: float) -> T | str:
        """The result of the operation, or the text of its error."""
        with self._telemetry.kubelet_call(operation.kind, trace_ids.trace_id(ref.uid)) as call:
            call.device_kind = self._device_kind(ref)
            try:
                result = await operation.wait(deadline)
            except Exception as error:  # noqa: BLE001 - a bug in one claim must not fail the others
                return self._failures.record_answer(ref, operation.kind, error, call)
            call.device_kind = self._device_kind(ref) or call.device_kind
            return result

    def _device_kind(self, ref: ClaimRef) -> str:
        record = self._prepared_claims.get(ref.uid)
        return "" if record is None else record.kind

    async def _prepare(self, ref: ClaimRef, deadline: float, links: Links) -> PrepareResult:
        self._attempts[ref.uid] += 1
        # The kubelet may ask again before an unprepare has been answered.
        self._wait_queue.resume(ref.uid)
        now = self._telemetry.clock.now
        started = now()
        claim: ResourceClaim | None = None
        try:
            with self._root_spans.operation(keys.PREPARE, ref, links) as span:
                span.set_attribute(keys.ATTEMPT, self._attempts[ref.uid])
                if not (ref.uid in self._prepared_claims or self._recovery.is_done):
                    await self._recovery.complete(deadline)
                record = self._prepared_claims.get(ref.uid)
                if record is not None and not self._prepared_claims.is_started(ref.uid):
                    span.set_attribute(keys.DEVICE_KIND, record.kind)
                    result = await self._preparer.prepare_again(record, deadline)
                else:
                    claim = await self._claim_reader.fetch(ref, deadline)
                    result = await self._prepare_new(claim, deadline)
                    if result.unapplied_configs:
                        self._failures.record_unapplied_configs(claim, result.unapplied_configs)
                    span.set_attribute(keys.DEVICE_KIND, self._device_kind(ref))
                    span.set_attribute(
                        keys.DEVICES, tuple(device.device for device in result.devices)
                    )
        except Exception as error:  # noqa: BLE001 - bugs are recorded like any other failure
            self._root_spans.add(ref, claim, started, now(), error)
            raise self._failures.record(ref, keys.PREPARE, error, claim) from error.__cause__
        # Not written if the process's end cancels the attempt: the next attempt writes it.
        self._root_spans.add(ref, claim, started, now(), None)
        devices = [device.device for device in result.devices]
        self._failures.record_success(ref, keys.PREPARE, claim, devices)
        return result

    async def _prepare_new(self, claim: ResourceClaim, deadline: float) -> PrepareResult:
        """Prepare a claim that has no record, as soon as no other claim holds its devices."""
        notify = partial(self._failures.record, claim.ref, keys.PREPARE, claim=claim)
        try:
            return await self._preparer.prepare(claim, deadline, notify)
        except DeviceInUseError as error:
            in_use = error
        async with self._wait_queue.join(claim.ref, deadline, notify) as wait:
            while True:
                with self._telemetry.step("wait device", {keys.HOLDER: in_use.holder.uid}):
                    await wait.wait_released(in_use)
                # The claim may have been deleted meanwhile: then it would never be unprepared.
                claim = await self._claim_reader.fetch(claim.ref, deadline)
                try:
                    return await self._preparer.prepare(claim, deadline, notify)
                except DeviceInUseError as error:
                    in_use = error

    async def _unprepare(self, ref: ClaimRef, deadline: float, links: Links) -> None:
        self._attempts.pop(ref.uid, None)
        record = self._prepared_claims.get(ref.uid)
        if record is None:
            if ref.uid in self._prepared_claims.unreadable:
                await self._prepared_claims.remove(ref.uid)
                LOG.info("Removed an unreadable record with its claim", claim=str(ref))
            LOG.v(2, "Nothing to unprepare", claim=str(ref))
            # The kubelet unprepares claims whose prepare has failed, too.
            self._failures.end(ref.uid)
            return
        try:
            with self._root_spans.operation(keys.UNPREPARE, ref, links) as span:
                span.set_attribute(keys.DEVICE_KIND, record.kind)
                await self._preparer.unprepare(record, deadline)
        except Exception as error:  # noqa: BLE001 - bugs are recorded like any other failure
            raise self._failures.record(ref, keys.UNPREPARE, error) from error.__cause__
        devices = [device.device for device in record.devices]
        self._failures.record_success(ref, keys.UNPREPARE, None, devices)
        self._failures.end(ref.uid)


def _links(traceparent: str | None) -> Links:
    link = trace_ids.link_from_traceparent(traceparent)
    return () if link is None else (link,)
