# SPDX-License-Identifier: Apache-2.0
"""Derives the trace ID of an object, the span ID of its root, and the sampling decision.

The functions depend on names only, so every component derives the same values without context
propagation. Source: docs/reference/tracing.md, "Trace identity".
"""

import re
from dataclasses import dataclass
from hashlib import blake2b

from nvdra_api.ids import ClaimUID, DomainUID, NodeName, SpanID, TraceID

from nvdra_runtime.telemetry import keys

_HEX_TRACE = re.compile(r"[0-9a-f]{32}")
_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}(-.*)?")
_SPAN_SPACE = 1 << 64


@dataclass(frozen=True, slots=True)
class Link:
    """A link to a span of another trace.

    Attributes:
        trace: ID of the other trace.
        span: ID of the span in it.
        kind: Value of `nvdra.link`, such as `inbound`.
    """

    trace: TraceID
    span: SpanID
    kind: str


def trace_id(uid: str) -> TraceID:
    """The trace ID of an object: its UID without dashes.

    Kubernetes documents the UID as a string and uses a UUID. Any other string is hashed to the same
    width, so that an unusual UID never fails a prepare.
    """
    digits = uid.replace("-", "").lower()
    if _HEX_TRACE.fullmatch(digits) and int(digits, 16):
        return TraceID(digits)
    return TraceID(blake2b(uid.encode(), digest_size=16).hexdigest())


def shared_part(trace: TraceID) -> str:
    """What the trace ID of a domain and those of its members have in common: 8 bytes."""
    return trace[:16]


def span_id(key: str) -> SpanID:
    """The span ID that every component derives from `key`: 8 bytes of BLAKE2b, never zero."""
    digest = blake2b(key.encode(), digest_size=8).hexdigest()
    return SpanID(digest if int(digest, 16) else f"{1:016x}")


def claim_root_span_id(uid: ClaimUID, node: NodeName) -> SpanID:
    """Span ID of a claim's root on one node. It is known before the root is written."""
    return span_id(f"claim/{uid}/{node}")


def domain_root_span_id(uid: DomainUID) -> SpanID:
    """Span ID of a ComputeDomain's root, the parent of the controller's spans."""
    return span_id(f"domain/{uid}")


def member_span_id(uid: DomainUID, node: NodeName) -> SpanID:
    """Span ID of a ComputeDomain's member, the parent of its plugin's and daemon's spans."""
    return span_id(f"member/{uid}/{node}")


def member_trace_id(uid: DomainUID, node: NodeName) -> TraceID:
    """The trace ID of one member of a ComputeDomain with many, whose trace would be too large.

    It begins as the domain's, so that one is sampled with the other and people see what belongs
    together, and ends with the ID of the member's span.
    """
    return TraceID(shared_part(trace_id(uid)) + member_span_id(uid, node))


def is_sampled(trace: TraceID, ratio: float) -> bool:
    """Whether a trace is exported if `ratio` (0 to 1) of all traces are.

    The first 8 bytes of the ID decide, which the traces of a domain and of its members share; 60 of
    their bits are random in a UUIDv4. They are hashed, because the fixed ones would bias a plain
    comparison.
    """
    draw = int.from_bytes(blake2b(bytes.fromhex(shared_part(trace)), digest_size=8).digest())
    return draw < ratio * _SPAN_SPACE


def link_from_traceparent(traceparent: str | None) -> Link | None:
    """The link for a W3C `traceparent`; None if it is not valid.

    The context is linked, never inherited: a tenant must not enable sampling or move our spans into
    another trace. Source: W3C Trace Context §3.2; version ff and all-zero IDs are invalid.
    """
    match = _TRACEPARENT.fullmatch((traceparent or "").strip())
    if match is None:
        return None
    version, trace, span, rest = match.groups()
    if version == "ff" or (version == "00" and rest) or not int(trace, 16) or not int(span, 16):
        return None
    return Link(TraceID(trace), SpanID(span), keys.LINK_INBOUND)
