"""The standard variables configure export; nonsense in them is reported and ignored."""

from dataclasses import replace
from importlib import metadata
from typing import Any

import pytest
from nvdra_api.protocol import identity
from nvdra_api.runtime.telemetry import environment, sampler
from nvdra_api.runtime.telemetry.environment import Collector, ExportSettings, MetricSettings
from nvdra_api.types.ids import TraceID
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import Sampler

BASE = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}
URL = "http://collector:4318/v1/traces"


def test_nothing_is_exported_unless_an_endpoint_is_set() -> None:
    settings = environment.read({"OTEL_EXPORTER_OTLP_ENDPOINT": " ", "PATH": "/bin"})

    assert settings == environment.OtelSettings()
    assert settings.export is None


def test_everything_about_an_exporter_can_be_said() -> None:
    settings = environment.read(
        {
            **BASE,
            "OTEL_EXPORTER_OTLP_HEADERS": "authorization=Bearer%20x, tenant = a",
            "OTEL_EXPORTER_OTLP_TIMEOUT": "2.5",
            "OTEL_EXPORTER_OTLP_COMPRESSION": "gzip",
            "OTEL_EXPORTER_OTLP_CERTIFICATE": "/ca.pem",
            "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE": "/me.pem",
            "OTEL_EXPORTER_OTLP_CLIENT_KEY": "/me.key",
            "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
            "OTEL_BSP_MAX_QUEUE_SIZE": "100",
            "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "10",
            "OTEL_BSP_SCHEDULE_DELAY": "250",
            "OTEL_METRIC_EXPORT_INTERVAL": "1500",
            "OTEL_TRACES_SAMPLER_ARG": "0.25",
            "OTEL_SERVICE_NAME": "mine",
            "OTEL_RESOURCE_ATTRIBUTES": "deployment.environment.name=prod,service.name=other",
        }
    )

    assert settings.problems == ()
    assert settings.ratio == 0.25
    assert settings.resource == {"deployment.environment.name": "prod", "service.name": "mine"}
    traces = Collector(
        endpoint=URL,
        headers={"authorization": "Bearer x", "tenant": "a"},
        timeout_s=2.5,
        compression="gzip",
        certificate="/ca.pem",
        client_certificate="/me.pem",
        client_key="/me.key",
    )
    assert settings.metrics == MetricSettings(
        replace(traces, endpoint="http://collector:4318/v1/metrics"), interval_s=1.5
    )
    assert settings.export == ExportSettings(
        traces,
        queue_size=100,
        batch_size=10,
        delay_s=0.25,
    )


def test_the_variable_for_traces_wins_and_its_url_is_taken_as_it_is() -> None:
    own = {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "https://traces.example/custom"}
    export = environment.read({**BASE, **own}).export

    assert export is not None
    assert export.collector.endpoint == "https://traces.example/custom"


@pytest.mark.parametrize("base", ["http://collector:4318", "http://collector:4318/"])
def test_the_shared_url_gets_the_path_of_traces(base: str) -> None:
    export = environment.read({"OTEL_EXPORTER_OTLP_ENDPOINT": base}).export

    assert export is not None
    assert export.collector.endpoint == URL


@pytest.mark.parametrize("off", [{"OTEL_SDK_DISABLED": "true"}, {"OTEL_TRACES_EXPORTER": "none"}])
def test_export_can_be_switched_off(off: dict[str, str]) -> None:
    assert environment.read({**BASE, **off}).export is None


@pytest.mark.parametrize(
    ("variables", "ratio"),
    [
        ({"OTEL_TRACES_SAMPLER": "nvdra", "OTEL_TRACES_SAMPLER_ARG": "0.5"}, 0.5),
        ({"OTEL_TRACES_SAMPLER": "parentbased_always_on", "OTEL_TRACES_SAMPLER_ARG": "0.5"}, 1.0),
        ({"OTEL_TRACES_SAMPLER": "always_off"}, 0.0),
        ({"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0.1"}, 0.1),
    ],
)
def test_a_standard_sampler_means_its_ratio(variables: dict[str, str], ratio: float) -> None:
    assert environment.read(variables) == environment.OtelSettings(ratio=ratio)


@pytest.mark.parametrize(
    "variables",
    [
        {"OTEL_TRACES_SAMPLER_ARG": "most"},
        {"OTEL_TRACES_SAMPLER_ARG": "1.5"},
        {"OTEL_TRACES_SAMPLER_ARG": "nan"},
        {"OTEL_TRACES_SAMPLER": "jaeger_remote"},
        {"OTEL_RESOURCE_ATTRIBUTES": "novalue"},
        {**BASE, "OTEL_EXPORTER_OTLP_TIMEOUT": "-1"},
        {**BASE, "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"},
        {**BASE, "OTEL_EXPORTER_OTLP_COMPRESSION": "zip"},
        {**BASE, "OTEL_BSP_MAX_QUEUE_SIZE": "0"},
        {**BASE, "OTEL_BSP_SCHEDULE_DELAY": "soon"},
    ],
)
def test_a_value_without_sense_is_reported_and_the_default_used(variables: dict[str, str]) -> None:
    settings = environment.read(variables)
    (problem,) = settings.problems

    name = list(variables)[-1]
    assert name in problem
    expected: Any = environment.read(BASE if BASE.keys() <= variables.keys() else {})
    assert (settings.export, settings.ratio, settings.resource) == (
        expected.export,
        expected.ratio,
        expected.resource,
    )


def test_an_endpoint_that_is_no_url_exports_nothing_and_says_so() -> None:
    settings = environment.read({"OTEL_EXPORTER_OTLP_ENDPOINT": "collector:4318"})

    assert settings.export is None
    assert "http://" in settings.problems[0]


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
        assert context.trace_flags.sampled is identity.is_sampled(trace, 0.5)
    assert set(decisions) == {True, False}


@pytest.mark.parametrize(("argument", "ratio"), [(None, 1.0), ("", 1.0), ("0.1", 0.1)])
def test_without_an_argument_all_is_sampled(argument: str | None, ratio: float) -> None:
    assert sampler.from_argument(argument).ratio == ratio


@pytest.mark.parametrize("argument", ["2", "-0.1", "all"])
def test_a_ratio_out_of_range_is_refused(argument: str) -> None:
    with pytest.raises(ValueError):
        sampler.from_argument(argument)


def test_each_signal_can_be_kept_here_or_sent_elsewhere() -> None:
    spans_only = environment.read({**BASE, "OTEL_METRICS_EXPORTER": "none"})
    assert (spans_only.export is None, spans_only.metrics is None) == (False, True)
    metrics_only = environment.read({**BASE, "OTEL_TRACES_EXPORTER": "none"})
    assert (metrics_only.export is None, metrics_only.metrics is None) == (True, False)
    own = environment.read({"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://prometheus:9090/otlp"})
    assert own.export is None
    assert own.metrics is not None
    assert own.metrics.collector.endpoint == "http://prometheus:9090/otlp"


def test_what_is_wrong_for_both_signals_is_said_once() -> None:
    settings = environment.read({**BASE, "OTEL_EXPORTER_OTLP_COMPRESSION": "zip"})
    assert len(settings.problems) == 1
