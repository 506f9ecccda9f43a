# SPDX-License-Identifier: Apache-2.0
"""An OpenTelemetry sampler with our sampling decision, for programs with their own tracing.

It is registered as `nvdra` in the entry point group `opentelemetry_traces_sampler`. Our own
components call `trace_ids.is_sampled`. Source: docs/reference/tracing.md, "Trace identity".
"""

from collections.abc import Sequence

from nvdra_api.ids import TraceID
from opentelemetry.context import Context
from opentelemetry.sdk.trace.sampling import Decision, Sampler, SamplingResult
from opentelemetry.trace import Link, SpanKind, TraceState
from opentelemetry.util.types import Attributes

from nvdra_runtime.telemetry import trace_ids


class HashedRatioSampler(Sampler):
    """Samples a ratio of the traces by a hash of the trace ID. The parent does not matter.

    Attributes:
        ratio: From 0 (none) to 1 (all).
    """

    def __init__(self, ratio: float) -> None:
        if not 0.0 <= ratio <= 1.0:
            raise ValueError(f"the sampling ratio must be between 0 and 1, not {ratio}")
        self.ratio = ratio

    def should_sample(
        self,
        parent_context: Context | None,
        trace_id: int,
        name: str,
        kind: SpanKind | None = None,
        attributes: Attributes = None,
        links: Sequence[Link] | None = None,
        trace_state: TraceState | None = None,
    ) -> SamplingResult:
        """Decide. The decision is the same for every span of a trace, in every process."""
        del parent_context, name, kind, links
        if trace_ids.is_sampled(TraceID(f"{trace_id:032x}"), self.ratio):
            return SamplingResult(Decision.RECORD_AND_SAMPLE, attributes, trace_state)
        return SamplingResult(Decision.DROP, None, trace_state)

    def get_description(self) -> str:
        """The name of the sampler in OpenTelemetry's diagnostics."""
        return f"nvdra{{{self.ratio}}}"


def from_argument(argument: str | None) -> HashedRatioSampler:
    """Create the sampler for a value of `OTEL_TRACES_SAMPLER_ARG`. No value means all traces.

    Raises:
        ValueError: The value is not a number from 0 to 1. OpenTelemetry reports the error and uses
            its default.
    """
    return HashedRatioSampler(float(argument) if argument else 1.0)
