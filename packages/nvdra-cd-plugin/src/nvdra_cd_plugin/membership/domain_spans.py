# SPDX-License-Identifier: Apache-2.0
"""Spans of this node in the trace of a ComputeDomain; a claim's own trace links to them.

Trace ID and parent follow from UIDs and the node's name. So the controller, the plugins and the
daemons write one trace without passing anything to each other. In a large domain everything below
the node's span `member` goes into a trace of its own, which begins with a copy of that span. The
span `split trace` in the domain's trace leads to it.

Source: docs/reference/tracing.md, "Trace identity", "Spans".
"""

from datetime import datetime

from nvdra_api.ids import CliqueID, DomainUID, NodeName, SpanID, TraceID
from nvdra_api.resource.claims import ClaimRef, ResourceClaim
from nvdra_runtime.node.record_store import RecordStore
from nvdra_runtime.process.clock import Clock
from nvdra_runtime.telemetry import keys, trace_ids
from nvdra_runtime.telemetry.active_span import ActiveSpan, failure_of
from nvdra_runtime.telemetry.instrumentation import Telemetry, claim_attributes, domain_attributes
from nvdra_runtime.telemetry.spans import AttributeValue
from nvdra_runtime.telemetry.trace_ids import Link

from nvdra_cd_plugin.domains.domain import Domain


class DomainSpans:
    """Writes the spans of one node into the traces of domains."""

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

    def link(self, domain: Domain) -> Link:
        """A link from a claim's trace to this node's span where the domain's spans are."""
        return Link(self._trace(domain), self._member(domain.uid), keys.LINK_DOMAIN)

    def emit_member(
        self,
        ref: ClaimRef,
        domain: Domain,
        clique: CliqueID,
        started_at: datetime,
        error: BaseException | None,
    ) -> None:
        """Write the span `member`: from the label to the end of the first attempt at a channel.

        Its span ID follows from the names alone, so it may exist only once: it is written once
        while the node is a member of the domain, and for an hour after that
        (`renew_member_mark`). A node that comes back later writes another one.
        """
        if not self._store.is_root_span_written(domain.uid):
            self._write_member(ref, domain, clique, started_at, error)
        # Written before it is marked: a crash in between loses both, and the next attempt writes.
        self._store.mark_root_span_written(domain.uid)

    def renew_member_mark(self, domain: Domain) -> None:
        """Keep the span `member` from being written again within an hour after a channel went."""
        own = trace_ids.member_trace_id(domain.uid, self._node)
        if domain.has_member_traces or self._store.is_root_span_written(own):
            self._store.mark_root_span_written(own)
        self._store.mark_root_span_written(domain.uid)

    def emit_schedule_daemon(
        self,
        claim: ResourceClaim,
        domain: Domain,
        clique: CliqueID,
        joined_at: datetime | None,
        called_at: datetime,
    ) -> None:
        """Write the span `schedule daemon`: from the creation of its claim to the kubelet's call.

        Args:
            claim: The daemon's claim; Kubernetes keeps its creation time in whole seconds.
            domain: The domain of the daemon.
            clique: The node's clique.
            joined_at: When the node became a member, which is the earliest possible start.
            called_at: When the kubelet called.
        """
        created_at = claim.metadata.creation_timestamp or called_at
        start = created_at if joined_at is None else max(created_at, joined_at)
        self._write("schedule daemon", claim.ref, domain, clique, start, called_at)

    def emit_operation(
        self,
        name: str,
        ref: ClaimRef,
        domain: Domain,
        clique: CliqueID,
        started_at: datetime,
        error: BaseException | None = None,
        span: ActiveSpan | None = None,
    ) -> None:
        """Write the span of an operation that ends now, `wait domain` or `prepare` for example.

        Args:
            name: The span's name.
            ref: The claim that the operation was for.
            domain: The domain.
            clique: The node's clique.
            started_at: When the operation started.
            error: Why it failed; None if it succeeded.
            span: The operation's span in the claim's trace; its attributes and events are copied.
        """
        self._write(name, ref, domain, clique, started_at, self._clock.now(), error, span)

    def _write_member(
        self,
        ref: ClaimRef,
        domain: Domain,
        clique: CliqueID,
        started_at: datetime,
        error: BaseException | None,
    ) -> None:
        self._telemetry.write_finished_span(
            "member",
            trace=trace_ids.trace_id(domain.uid),
            id=self._member(domain.uid),
            parent=trace_ids.domain_root_span_id(domain.uid),
            start=started_at,
            end=self._clock.now(),
            attributes=self._attributes(domain, clique),
            links=(self._claim_link(ref),),
            failure=None if error is None else failure_of(error),
        )

    def _write(
        self,
        name: str,
        ref: ClaimRef,
        domain: Domain,
        clique: CliqueID,
        start: datetime,
        end: datetime,
        error: BaseException | None = None,
        span: ActiveSpan | None = None,
    ) -> None:
        copied = span.attributes if span is not None else {}
        if domain.has_member_traces:
            self._split_trace(domain, clique, start)
        self._telemetry.write_finished_span(
            name,
            trace=self._trace(domain),
            parent=self._member(domain.uid),
            start=start,
            end=end,
            attributes={**copied, **claim_attributes(ref), **self._attributes(domain, clique)},
            events=span.events if span is not None else (),
            links=(self._claim_link(ref),),
            failure=None if error is None else failure_of(error),
            is_operation=True,
        )

    def _split_trace(self, domain: Domain, clique: CliqueID, start: datetime) -> None:
        """Write the root of this node's own trace, once, and the way to it from the domain's.

        A domain that grew has members whose first spans are in its trace: both traces go on.
        """
        own, member = self._trace(domain), self._member(domain.uid)
        whole = trace_ids.trace_id(domain.uid)
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
                    end=self._clock.now(),
                    attributes=self._attributes(domain, clique),
                    links=(link,),
                )
        self._store.mark_root_span_written(own)

    def _trace(self, domain: Domain) -> TraceID:
        """The trace of this node's spans: the domain's, or in a large domain its own."""
        if domain.has_member_traces:
            return trace_ids.member_trace_id(domain.uid, self._node)
        return trace_ids.trace_id(domain.uid)

    def _member(self, uid: DomainUID) -> SpanID:
        return trace_ids.member_span_id(uid, self._node)

    def _claim_link(self, ref: ClaimRef) -> Link:
        root = trace_ids.claim_root_span_id(ref.uid, self._node)
        return Link(trace_ids.trace_id(ref.uid), root, keys.LINK_CLAIM)

    def _attributes(self, domain: Domain, clique: CliqueID) -> dict[str, AttributeValue]:
        return {
            **domain_attributes(domain.namespace, domain.name, domain.uid),
            keys.CLIQUE: clique,
            keys.K8S_NODE_NAME: self._node,
        }
