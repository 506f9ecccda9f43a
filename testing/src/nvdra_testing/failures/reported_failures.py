# SPDX-License-Identifier: Apache-2.0
"""Checks the five reports of a failed prepare: kubelet, events, metric, log and span.

`gpu_provocations` and `domain_provocations` provoke the failures.
"""

import json
import re
from collections.abc import Iterable
from typing import Any, NamedTuple

from nvdra_api.errors import Reason
from nvdra_api.ids import ClaimUID, TraceID
from nvdra_api.resource.claims import ClaimRef
from nvdra_runtime.telemetry import trace_ids

from nvdra_testing.node.rig import Rig

JSON_LOGS = "--logging-format=json"
UNKNOWN_UID = ClaimUID("11111111-2222-4333-8444-555555555555")
CLAIM_AND_POD = frozenset({"ResourceClaim", "Pod"})
CLAIM_ONLY = frozenset({"ResourceClaim"})
MESSAGE_PATTERN = r"{reason}: (?P<what>.+), since (?P<since>\S+Z); (?P<remedy>.+) \(trace {trace}\)"
EVENT_S = 40
"""Events that the API server did not accept are retried with growing delays."""


class ReportedFailure(NamedTuple):
    """A failed prepare: the claim, the error for the kubelet, and the kinds of objects with events.

    The pod is known from the claim, so a deleted claim has no event on its pod.
    """

    claim: ClaimRef
    answer: str
    event_subjects: frozenset[str] = CLAIM_AND_POD


async def prepare_failing_claim(
    rig: Rig,
    claim: ClaimRef,
    subjects: frozenset[str] = CLAIM_AND_POD,
    timeout_s: float = 20,
    *,
    has_api_server: bool = True,
) -> ReportedFailure:
    """Prepare a claim that must fail.

    With an API server, a call that did not reach it in time is repeated.
    """
    if has_api_server:
        return ReportedFailure(claim, await rig.dra.refusal(claim, timeout_s), subjects)
    answer = (await rig.dra.prepare([claim], timeout_s=timeout_s))[claim.uid]
    return ReportedFailure(claim, answer.error, subjects)


async def check_all_reports(rig: Rig, reason: Reason, told: ReportedFailure) -> None:
    """Fail unless all five reports have the reason, the claim's trace id and the same message."""
    trace = trace_ids.trace_id(told.claim.uid)
    text = re.fullmatch(MESSAGE_PATTERN.format(reason=reason, trace=trace), told.answer, re.DOTALL)
    assert text is not None, told.answer
    page = rig.process.get("/metrics")[1]
    assert re.search(_metric_pattern(reason), page, re.MULTILINE), f"no metric of {reason}"
    assert _is_logged(rig, reason, trace), f"no log record for {reason}"
    spans = _error_types(rig.process.trace(told.claim.uid)["spans"])
    assert reason in spans, spans
    await rig.wait_until(
        lambda: event_subjects(rig, reason, trace) == told.event_subjects, "Events", EVENT_S
    )
    for event in events(rig, reason, trace):
        # `kubectl describe` shows only this: what happened, since when, and what to do.
        assert event["type"] == "Warning"
        expected = text[0][len(reason) + 2 :].removesuffix(f" (trace {trace})")
        assert event["message"] == expected, (event["message"], expected)


def log_records(rig: Rig) -> list[dict[str, Any]]:
    """The plugin's log records."""
    return [json.loads(line) for line in rig.process.log.read_text().splitlines()]


def events(rig: Rig, reason: str, trace: TraceID) -> list[dict[str, Any]]:
    """The events with this reason that have the trace id."""
    return [
        event
        for event in rig.events(reason)
        if event["metadata"].get("annotations", {}).get("nvdra.nvidia.com/trace-id") == trace
    ]


def event_subjects(rig: Rig, reason: str, trace: TraceID) -> set[str]:
    """The kinds of the objects that these events are about."""
    return {event["involvedObject"]["kind"] for event in events(rig, reason, trace)}


def _metric_pattern(reason: str) -> str:
    return rf'^nvdra_claim_operation_seconds_count{{[^}}]*reason="{reason}"[^}}]*}} [1-9]'


def _is_logged(rig: Rig, reason: str, trace: TraceID) -> bool:
    return any(
        line.get("reason") == reason and line.get("trace_id") == trace for line in log_records(rig)
    )


def _error_types(spans: Iterable[dict[str, Any]]) -> set[str]:
    found: set[str] = set()
    for span in spans:
        found |= {span["attributes"].get("error.type", ""), *_error_types(span["children"])}
    return found
