# SPDX-License-Identifier: Apache-2.0
"""Spans of this node in the trace of a ComputeDomain; a claim's own trace links to them.

Trace ID and parent follow from UIDs and the node's name. So the controller, the plugins and the
daemons write one trace without passing anything to each other. In a large domain everything below
the node's span `member` goes into a trace of its own, which begins with a copy of that span. The
span `split trace` in the domain's trace leads to it.

Source: docs/reference/tracing.md, "Trace identity", "Spans".
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime

from nvdra_api.ids import CliqueID, NodeName, SpanID, TraceID
from nvdra_api.resource.claims import ClaimRef, ResourceClaim
from nvdra_runtime.node.record_store import RecordStore
from nvdra_runtime.process.clock import Clock
from nvdra_runtime.telemetry import keys, trace_ids
from nvdra_runtime.telemetry.active_span import ActiveSpan, failure_of
from nvdra_runtime.telemetry.instrumentation import Telemetry, claim_attributes, domain_attributes
from nvdra_runtime.telemetry.spans import AttributeValue
from nvdra_runtime.telemetry.trace_ids import Link

from nvdra_cd_plugin.domains.claim_records import DomainClaimRecord


@dataclass(slots=True)
class Shown:
    """What the span of a block says when the block has ended.

    Attributes:
        started_at: When the block was entered.
        clique: The node's clique, as soon as it is known.
        span: The operation's span in the claim's trace; its attributes and events are copied.
        is_left_out: Whether there was nothing to report.
    """

    started_at: datetime
    clique: CliqueID
    span: ActiveSpan | None = None
    is_left_out: bool = False


class DomainSpans:
    """Writes the spans of one node into the traces of its claims' domains."""

    def __init__(
        self, node: NodeName, telemetry: Telemetry, clock: Clock, store: RecordStore
    ) -> None:
        """Create it; `store` remembers for which domains the node's root span is written."""
        self._node = node
        self._telemetry = telemetry
        self._clock = clock
        self._store = store

    def now(self) -> datetime:
        """The time of day."""
        return self._clock.now()

    def link(self, claim: DomainClaimRecord) -> Link:
        """A link from a claim's trace to this node's span where its domain's spans are."""
        return Link(self._trace(claim), self._member(claim), keys.LINK_DOMAIN)

    @contextmanager
    def operation(
        self, name: str, claim: DomainClaimRecord, joined_at: datetime | None = None
    ) -> Iterator[Shown]:
        """Write the span of what the block does, `wait domain` or `prepare` for example.

        Args:
            name: The span's name.
            claim: The claim that it is done for.
            joined_at: Since when the node is a member. If it is given, the block is an attempt at a
                channel, and the span `member` ends with the first one.
        """
        shown = Shown(self.now(), claim.clique)
        error: BaseException | None = None
        try:
            yield shown
        except BaseException as failure:
            error = failure
            raise
        finally:
            if not shown.is_left_out:
                self._write(name, claim, shown, shown.started_at, self.now(), error)
                if joined_at is not None:
                    self._write_member(claim, shown.clique, joined_at, error)

    def emit_schedule_daemon(
        self,
        daemon: ResourceClaim,
        record: DomainClaimRecord,
        shown: Shown,
        joined_at: datetime | None,
    ) -> None:
        """Write the span `schedule daemon`: from the creation of its claim to the kubelet's call.

        Args:
            daemon: The daemon's claim; Kubernetes keeps its creation time in whole seconds.
            record: The record of this claim.
            shown: The span of the kubelet's call.
            joined_at: When the node became a member, which is the earliest possible start.
        """
        called_at = shown.started_at
        start = daemon.metadata.creation_timestamp or called_at
        start = start if joined_at is None else max(start, joined_at)
        self._write("schedule daemon", record, Shown(start, shown.clique), start, called_at)

    def emit_left(self, claim: DomainClaimRecord, joined_at: datetime) -> None:
        """Write the end of the membership that a recorded claim has begun.

        If the process was killed during the claim's only attempt, nothing has been written yet.
        The span `member` is not written again within an hour after a channel went.
        """
        if claim.is_joining:
            self._write_member(claim, claim.clique, joined_at, asyncio.CancelledError())
        own = trace_ids.member_trace_id(claim.domain, self._node)
        if claim.has_member_traces or self._store.is_root_span_written(own):
            self._store.mark_root_span_written(own)
        self._store.mark_root_span_written(claim.domain)

    def _write_member(
        self,
        claim: DomainClaimRecord,
        clique: CliqueID,
        joined_at: datetime,
        error: BaseException | None,
    ) -> None:
        """Write the span `member`: from the label to the end of the first attempt at a channel.

        Its span ID follows from the names alone, so it may exist only once: it is written once
        while the node is a member of the domain, and for an hour after that (`emit_left`). A node
        that comes back later writes another one.
        """
        if not self._store.is_root_span_written(claim.domain):
            self._telemetry.write_finished_span(
                "member",
                trace=trace_ids.trace_id(claim.domain),
                id=self._member(claim),
                parent=trace_ids.domain_root_span_id(claim.domain),
                start=joined_at,
                end=self.now(),
                attributes=self._attributes(claim, clique),
                links=(self._claim_link(claim.ref),),
                failure=None if error is None else failure_of(error),
            )
        # Written before it is marked: a crash in between loses both, and the next attempt writes.
        self._store.mark_root_span_written(claim.domain)

    def _write(
        self,
        name: str,
        claim: DomainClaimRecord,
        shown: Shown,
        start: datetime,
        end: datetime,
        error: BaseException | None = None,
    ) -> None:
        if claim.has_member_traces:
            self._split_trace(claim, shown.clique, start)
        span, own = shown.span, self._attributes(claim, shown.clique)
        copied = span.attributes if span is not None else {}
        self._telemetry.write_finished_span(
            name,
            trace=self._trace(claim),
            parent=self._member(claim),
            start=start,
            end=end,
            attributes={**copied, **claim_attributes(claim.ref), **own},
            events=span.events if span is not None else (),
            links=(self._claim_link(claim.ref),),
            failure=None if error is None else failure_of(error),
            is_operation=True,
        )

    def _split_trace(self, claim: DomainClaimRecord, clique: CliqueID, start: datetime) -> None:
        """Write the root of this node's own trace, once, and the way to it from the domain's.

        A domain that grew has members whose first spans are in its trace: both traces go on.
        """
        own, member = self._trace(claim), self._member(claim)
        whole = trace_ids.trace_id(claim.domain)
        if not self._store.is_root_span_written(own):
            for name, trace, id_, parent, link in (
                ("member", own, member, None, Link(whole, member, keys.LINK_DOMAIN)),
                ("split trace", whole, None, member, Link(own, member, keys.LINK_MEMBER)),
            ):
                self._telemetry.write_finished_span(
                    name,
                    trace=trace,
                    id=id_,
                    parent=parent,
                    start=start,
                    end=self.now(),
                    attributes=self._attributes(claim, clique),
                    links=(link,),
                )
        self._store.mark_root_span_written(own)

    def _trace(self, claim: DomainClaimRecord) -> TraceID:
        """The trace of this node's spans: the domain's, or in a large domain its own."""
        if claim.has_member_traces:
            return trace_ids.member_trace_id(claim.domain, self._node)
        return trace_ids.trace_id(claim.domain)

    def _member(self, claim: DomainClaimRecord) -> SpanID:
        return trace_ids.member_span_id(claim.domain, self._node)

    def _claim_link(self, ref: ClaimRef) -> Link:
        root = trace_ids.claim_root_span_id(ref.uid, self._node)
        return Link(trace_ids.trace_id(ref.uid), root, keys.LINK_CLAIM)

    def _attributes(self, claim: DomainClaimRecord, clique: CliqueID) -> dict[str, AttributeValue]:
        return {
            **domain_attributes(claim.domain_namespace, claim.domain_name, claim.domain),
            keys.CLIQUE: clique,
            keys.K8S_NODE_NAME: self._node,
        }
