# SPDX-License-Identifier: Apache-2.0
"""The sampler for other programs decides as our own components do."""

from importlib import metadata

import pytest
from nvdra_api.ids import TraceID
from nvdra_runtime.telemetry import trace_ids
from nvdra_runtime.telemetry.export import sampler
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import Sampler


def test_our_sampler_is_found_by_its_name_and_decides_as_we_do() -> None:
    (entry,) = metadata.entry_points(group="opentelemetry_traces_sampler", name="nvdra")
    made = entry.load()("0.5")
    assert isinstance(made, Sampler)

    tracer = TracerProvider(sampler=made, shutdown_on_exit=False).get_tracer("test")
    decisions = []
    for _ in range(64):
        context = tracer.start_span("any").get_span_context()
        trace = TraceID(f"{context.trace_id:032x}")
        decisions.append(context.trace_flags.sampled)
        assert context.trace_flags.sampled is trace_ids.is_sampled(trace, 0.5)
    assert set(decisions) == {True, False}


@pytest.mark.parametrize(("argument", "ratio"), [(None, 1.0), ("", 1.0), ("0.1", 0.1)])
def test_without_an_argument_all_is_sampled(argument: str | None, ratio: float) -> None:
    assert sampler.from_argument(argument).ratio == ratio


@pytest.mark.parametrize("argument", ["2", "-0.1", "all"])
def test_a_ratio_out_of_range_is_refused(argument: str) -> None:
    with pytest.raises(ValueError):
        sampler.from_argument(argument)
