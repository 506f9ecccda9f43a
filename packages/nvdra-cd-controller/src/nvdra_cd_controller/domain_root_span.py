# SPDX-License-Identifier: Apache-2.0
"""The root span of a domain's trace, written once: when the domain is formed, late, or deleted.

An annotation of the domain's DaemonSet tells the next controller that the span is written. Where
the hosts run IMEX there is no DaemonSet, and the workload's claim template has the annotation.
Source: docs/reference/tracing.md, "Trace identity".
"""

from datetime import UTC, datetime, timedelta
from typing import Final

from nvdra_api import names
from nvdra_api.ids import DomainUID
from nvdra_api.v1beta1 import ComputeDomain
from nvdra_api.v1beta1.compute_domain import ComputeDomainStatus, ConditionType
from nvdra_runtime.process.clock import Clock
from nvdra_runtime.telemetry import keys, trace_ids
from nvdra_runtime.telemetry.instrumentation import Telemetry, domain_attributes
from nvdra_runtime.telemetry.metrics.process_metrics import ProcessMetrics
from nvdra_runtime.telemetry.spans import Failure

from nvdra_cd_controller import kept_parts, status
from nvdra_cd_controller.domain_snapshot import Child, DomainSnapshot
from nvdra_cd_controller.metrics import DomainMetrics
from nvdra_cd_controller.object_writer import ObjectWriter

ANNOTATION: Final = kept_parts.ROOT_SPAN_ANNOTATION

LATE_AFTER: Final = timedelta(seconds=60)
"""The root span of a domain that has not formed is written this long after its creation."""


class DomainRootSpan:
    """Writes the root spans of one controller's domains."""

    def __init__(
        self,
        writer: ObjectWriter,
        telemetry: Telemetry[ProcessMetrics],
        metrics: DomainMetrics,
        clock: Clock,
    ) -> None:
        self._writer = writer
        self._telemetry = telemetry
        self._metrics = metrics
        self._clock = clock
        self._written: set[DomainUID] = set()

    async def write_if_due(self, snapshot: DomainSnapshot, after: ComputeDomainStatus) -> None:
        """Write the root span if it is due, and annotate the child by which it is known.

        Raises:
            DriverError: The child could not be annotated. The span is not written again.
        """
        if self.due_in_s(snapshot, after) == 0.0:
            value = self.write(snapshot, after)
            child = self.annotated_child(snapshot)
            if child is not None:
                await self._writer.annotate(child, ANNOTATION, value)

    def due_in_s(self, snapshot: DomainSnapshot, after: ComputeDomainStatus) -> float | None:
        """Seconds until the root span is due; 0 if it should be written now, None if it is."""
        if snapshot.domain is None or self.is_written(snapshot):
            return None
        if snapshot.is_terminating or status.is_formed(after):
            return 0.0
        due = _created(snapshot.domain) + LATE_AFTER
        return max(0.0, (due - self._clock.now()).total_seconds())

    def is_written(self, snapshot: DomainSnapshot) -> bool:
        """Whether this or an earlier controller has written the root span."""
        return (
            snapshot.uid in self._written
            or _is_annotated(snapshot)
            or _was_annotated_child_deleted(snapshot)
        )

    def annotated_child(self, snapshot: DomainSnapshot) -> Child | None:
        """The child to annotate; None if there is none."""
        return next(iter((*snapshot.daemonsets, *snapshot.workload_templates)), None)

    def write(self, snapshot: DomainSnapshot, after: ComputeDomainStatus) -> str:
        """Write the root span and return the annotation's value."""
        assert snapshot.domain is not None
        domain, now = snapshot.domain, self._clock.now()
        self._written.add(snapshot.uid)
        metadata = domain.metadata
        failure = _failure(snapshot, after)
        outcome = keys.Outcome.SUCCESS if failure is None else failure.outcome
        link = trace_ids.link_from_traceparent(
            metadata.annotations.get(names.TRACEPARENT_ANNOTATION)
        )
        self._telemetry.write_finished_span(
            "compute domain",
            trace=trace_ids.trace_id(snapshot.uid),
            id=trace_ids.domain_root_span_id(snapshot.uid),
            parent=None,
            start=_created(domain),
            end=now,
            attributes={
                **domain_attributes(metadata.namespace, metadata.name, snapshot.uid),
                keys.MEMBERS: after.expected_nodes,
                keys.OUTCOME: outcome.value,
            },
            links=(link,) if link else (),
            failure=failure,
        )
        if status.is_formed(after):
            self._metrics.observe_formation((now - _created(domain)).total_seconds())
        return now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

    def forget(self, uid: DomainUID) -> None:
        """Forget a deleted domain."""
        self._written.discard(uid)


def _is_annotated(snapshot: DomainSnapshot) -> bool:
    return any(
        ANNOTATION in (child.object["metadata"].get("annotations") or {})
        for child in (*snapshot.daemonsets, *snapshot.workload_templates)
    )


def _was_annotated_child_deleted(snapshot: DomainSnapshot) -> bool:
    """Whether a child that had the annotation is already deleted.

    Every teardown begins with writing the root span if it is not written. So a user who deleted
    the child knew that the span was written. The status says whether there was such a child.
    """
    if snapshot.domain is None or not snapshot.is_terminating or snapshot.daemonsets:
        return False
    before = snapshot.domain.status
    ready = before.condition(ConditionType.READY)
    children_ready = before.condition(ConditionType.CHILDREN_READY)
    if children_ready is None:
        return False
    is_host_managed = ready is not None and ready.reason == status.ConditionReason.HOST_MANAGED
    if is_host_managed and snapshot.workload_templates:
        return False  # the domain has no DaemonSet, and its template is not annotated
    is_deleting = children_ready.reason == status.ConditionReason.DELETING
    return children_ready.status == "True" or is_deleting


def _created(domain: ComputeDomain) -> datetime:
    created = domain.metadata.creation_timestamp
    assert created is not None  # the API server sets it
    return created


def _failure(snapshot: DomainSnapshot, after: ComputeDomainStatus) -> Failure | None:
    """Why the domain has not formed; None if it is Ready, even without nodes."""
    ready = after.condition(ConditionType.READY)
    if snapshot.is_terminating:
        return Failure(keys.Outcome.CANCELLED, "Deleted", "deleted before it was formed")
    if ready is None or ready.status == "True":
        return None
    accepted = after.condition(ConditionType.ACCEPTED)
    is_final = accepted is not None and accepted.status == "False"
    outcome = keys.Outcome.PERMANENT if is_final else keys.Outcome.RETRYABLE
    return Failure(outcome, ready.reason, ready.message)
