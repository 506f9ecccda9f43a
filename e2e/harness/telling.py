"""The five places where a refusal is told: kubelet, Events, metric, log, span; for both drivers.

`provoking` and `domain_provoking` bring reasons about; here is what each of them must look like
for those who read it.
"""

import json
import re
from collections.abc import Iterable
from typing import Any, NamedTuple

from nvdra_api.protocol import identity
from nvdra_api.types.claims import ClaimRef
from nvdra_api.types.errors import Reason
from nvdra_api.types.ids import ClaimUID, TraceID
from rig import Rig

JSON = "--logging-format=json"
NOBODY = ClaimUID("11111111-2222-4333-8444-555555555555")
BOTH = frozenset({"ResourceClaim", "Pod"})
CLAIM = frozenset({"ResourceClaim"})
SHAPE = r"{reason}: (?P<what>.+), since (?P<since>\S+Z); (?P<remedy>.+) \(trace {trace}\)"
EVENT_S = 40
"""An Event that the API server could not take is tried again with growing pauses."""


class Told(NamedTuple):
    """A refusal: the claim, what the kubelet was told, and which kinds of objects have the Event.

    A pod is known by the claim it is in; of a claim that is gone, nobody can tell whose it was.
    """

    claim: ClaimRef
    answer: str
    subjects: frozenset[str] = BOTH


async def refused(
    rig: Rig, claim: ClaimRef, subjects: frozenset[str] = BOTH, timeout_s: float = 20
) -> Told:
    """Ask for a claim that cannot be prepared."""
    answer = (await rig.dra.prepare([claim], timeout_s=timeout_s))[claim.uid]
    return Told(claim, answer.error, subjects)


async def is_told_everywhere(rig: Rig, reason: Reason, told: Told) -> None:
    """Fail unless all five places say the reason, with the claim's trace and the same sentence."""
    trace = identity.trace_id(told.claim.uid)
    text = re.fullmatch(SHAPE.format(reason=reason, trace=trace), told.answer, re.DOTALL)
    assert text is not None, told.answer
    page = rig.process.get("/metrics")[1]
    assert re.search(_metric(reason), page, re.MULTILINE), f"no metric of {reason}"
    assert _is_logged(rig, reason, trace), f"no line of the log for {reason}"
    spans = _error_types(rig.process.trace(told.claim.uid)["spans"])
    assert reason in spans, spans
    await rig.until(lambda: subjects(rig, reason, trace) == told.subjects, "Events", EVENT_S)
    for event in events(rig, reason, trace):
        # `kubectl describe` shows this and nothing else: what, since when, what to do.
        assert event["type"] == "Warning"
        expected = text[0][len(reason) + 2 :].removesuffix(f" (trace {trace})")
        assert event["message"] == expected, (event["message"], expected)


def lines(rig: Rig) -> list[dict[str, Any]]:
    """What the plugin has logged."""
    return [json.loads(line) for line in rig.process.log.read_text().splitlines()]


def events(rig: Rig, reason: str, trace: TraceID) -> list[dict[str, Any]]:
    """The Events with this reason that name the trace."""
    return [
        event
        for event in rig.events(reason)
        if event["metadata"].get("annotations", {}).get("nvdra.nvidia.com/trace-id") == trace
    ]


def subjects(rig: Rig, reason: str, trace: TraceID) -> set[str]:
    """Kinds of the objects that those Events are about."""
    return {event["involvedObject"]["kind"] for event in events(rig, reason, trace)}


def _metric(reason: str) -> str:
    return rf'^nvdra_claim_operation_seconds_count{{[^}}]*reason="{reason}"[^}}]*}} [1-9]'


def _is_logged(rig: Rig, reason: str, trace: TraceID) -> bool:
    return any(
        line.get("reason") == reason and line.get("trace_id") == trace for line in lines(rig)
    )


def _error_types(spans: Iterable[dict[str, Any]]) -> set[str]:
    found: set[str] = set()
    for span in spans:
        found |= {span["attributes"].get("error.type", ""), *_error_types(span["children"])}
    return found
