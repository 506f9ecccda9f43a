# SPDX-License-Identifier: Apache-2.0
"""Spans of this daemon in the trace of its domain.

Trace ID and parent span ID are computed from the domain's UID and the node's name, so that the
controller, the plugins and the daemons write one trace without passing anything to each other. In a
large domain the spans are in the trace of this node's own, which the plugin begins.
Source: docs/reference/tracing.md, "Trace identity", "Spans".
"""

from collections.abc import Mapping
from datetime import datetime
from typing import NamedTuple

from nvdra_api.ids import CliqueID, DomainUID, NodeName, TraceID
from nvdra_runtime.process.clock import Clock
from nvdra_runtime.telemetry import keys, trace_ids
from nvdra_runtime.telemetry.active_span import failure_of
from nvdra_runtime.telemetry.instrumentation import SpanScope, Telemetry, domain_attributes
from nvdra_runtime.telemetry.metrics.process_metrics import ProcessMetrics
from nvdra_runtime.telemetry.spans import AttributeValue


class DomainReference(NamedTuple):
    """The ComputeDomain of this daemon."""

    namespace: str
    name: str
    uid: DomainUID


class DomainSpans:
    """The spans of this daemon, as children of its node's member span.

    Attributes:
        trace: Trace ID of the domain or of this member of it, also for Events.
    """

    def __init__(
        self,
        telemetry: Telemetry[ProcessMetrics],
        clock: Clock,
        domain: DomainReference,
        clique: CliqueID,
        node: NodeName,
        *,
        has_own_trace: bool,
    ) -> None:
        """Create it; `has_own_trace` if the domain has many nodes."""
        self.trace: TraceID = (
            trace_ids.member_trace_id(domain.uid, node)
            if has_own_trace
            else trace_ids.trace_id(domain.uid)
        )
        self._parent = trace_ids.member_span_id(domain.uid, node)
        self._telemetry = telemetry
        self._clock = clock
        self._attributes: dict[str, AttributeValue] = {
            **domain_attributes(domain.namespace, domain.name, domain.uid),
            keys.CLIQUE: clique,
            keys.K8S_NODE_NAME: node,
        }

    def operation(self, name: str) -> SpanScope:
        """Start a span: `with spans.operation("start imex") as span:`."""
        return self._telemetry.operation(
            name, trace=self.trace, parent=self._parent, attributes=self._attributes
        )

    def record(
        self,
        name: str,
        start: datetime,
        error: BaseException | None = None,
        attributes: Mapping[str, AttributeValue] | None = None,
    ) -> None:
        """Write a span that started at `start` and ends now."""
        self._telemetry.write_finished_span(
            name,
            trace=self.trace,
            parent=self._parent,
            start=start,
            end=self._clock.now(),
            attributes={**self._attributes, **(attributes or {})},
            failure=None if error is None else failure_of(error),
            is_operation=True,
        )
