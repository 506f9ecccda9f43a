"""Which trace an object has, which span ID its root has, and whether the trace is exported.

Pure functions of names, so that every component reaches the same answer with nothing propagated.
Random span IDs are made where spans are made. Source: spec/tracing.md §1.
"""

import re
from dataclasses import dataclass
from hashlib import blake2b

from nvdra_api.types import keys
from nvdra_api.types.ids import ClaimUID, DomainUID, NodeName, SpanID, TraceID

_HEX_TRACE = re.compile(r"[0-9a-f]{32}")
_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}(-.*)?")
_SPAN_SPACE = 1 << 64


@dataclass(frozen=True, slots=True)
class Link:
    """A span of another trace, and why we point at it.

    Attributes:
        trace: The other trace.
        span: The span in it.
        why: Value of `nvdra.link`, for instance `inbound`.
    """

    trace: TraceID
    span: SpanID
    why: str


def trace_id(uid: str) -> TraceID:
    """The trace of an object: its UID without dashes.

    Kubernetes promises a string and gives a UUID; anything else is hashed to the same width, so
    that an odd UID costs the nice property and never a prepare.
    """
    digits = uid.replace("-", "").lower()
    if _HEX_TRACE.fullmatch(digits) and int(digits, 16):
        return TraceID(digits)
    return TraceID(blake2b(uid.encode(), digest_size=16).hexdigest())


def span_id(key: str) -> SpanID:
    """The span ID that everyone derives from `key`: 8 bytes of BLAKE2b, never zero."""
    digest = blake2b(key.encode(), digest_size=8).hexdigest()
    return SpanID(digest if int(digest, 16) else f"{1:016x}")


def claim_root(uid: ClaimUID, node: NodeName) -> SpanID:
    """Span ID of a claim's root on one node, known before the root is written."""
    return span_id(f"claim/{uid}/{node}")


def domain_root(uid: DomainUID) -> SpanID:
    """Span ID of a ComputeDomain's root: parent of whatever its controller does."""
    return span_id(f"domain/{uid}")


def member(uid: DomainUID, node: NodeName) -> SpanID:
    """Span ID of one node's part in a ComputeDomain: parent of its plugin's and daemon's spans."""
    return span_id(f"member/{uid}/{node}")


def is_sampled(trace: TraceID, ratio: float) -> bool:
    """Whether a trace is exported when `ratio` (0 to 1) of all traces are.

    The ID is hashed first: a UUIDv4 has fixed bits, and a plain comparison would be biased.
    """
    draw = int.from_bytes(blake2b(bytes.fromhex(trace), digest_size=8).digest())
    return draw < ratio * _SPAN_SPACE


def inbound_link(traceparent: str | None) -> Link | None:
    """The link for a W3C `traceparent` that somebody sent; None where there is no valid one.

    Linked, never inherited: a tenant must not switch sampling on or move our spans elsewhere.
    Source: W3C Trace Context §3.2; version ff and all-zero IDs are invalid.
    """
    match = _TRACEPARENT.fullmatch((traceparent or "").strip())
    if match is None:
        return None
    version, trace, span, rest = match.groups()
    if version == "ff" or (version == "00" and rest) or not int(trace, 16) or not int(span, 16):
        return None
    return Link(TraceID(trace), SpanID(span), keys.LINK_INBOUND)
