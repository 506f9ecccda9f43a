"""Our sampling decision as an OpenTelemetry sampler, for programs that set up their own tracing.

Registered as `nvdra` in the entry point group `opentelemetry_traces_sampler`. Our own components
ask `protocol.identity` directly. Source: spec/tracing.md §1.
"""

from collections.abc import Sequence

from opentelemetry.context import Context
from opentelemetry.sdk.trace.sampling import Decision, Sampler, SamplingResult
from opentelemetry.trace import Link, SpanKind, TraceState
from opentelemetry.util.types import Attributes

from nvdra_api.protocol import identity
from nvdra_api.types.ids import TraceID


class HashedRatio(Sampler):
    """Samples a ratio of traces by a hash of the trace ID; asks no parent.

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
        """The same decision for every span of a trace, in every process."""
        del parent_context, name, kind, links
        if identity.is_sampled(TraceID(f"{trace_id:032x}"), self.ratio):
            return SamplingResult(Decision.RECORD_AND_SAMPLE, attributes, trace_state)
        return SamplingResult(Decision.DROP, None, trace_state)

    def get_description(self) -> str:
        """How the sampler names itself in OpenTelemetry's own diagnostics."""
        return f"nvdra{{{self.ratio}}}"


def from_argument(argument: str | None) -> HashedRatio:
    """The sampler for a value of `OTEL_TRACES_SAMPLER_ARG`; none means all traces.

    Raises:
        ValueError: Not a number from 0 to 1; OpenTelemetry reports it and uses its default.
    """
    return HashedRatio(float(argument) if argument else 1.0)
