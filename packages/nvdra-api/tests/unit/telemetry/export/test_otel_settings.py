# SPDX-License-Identifier: Apache-2.0
"""The standard variables configure export; nonsense in them is reported and ignored."""

from typing import Any

import pytest
from nvdra_runtime.telemetry.export import otel_settings
from nvdra_runtime.telemetry.export.otel_settings import (
    MetricExportSettings,
    SpanExportSettings,
)

BASE = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}
URL = "http://collector:4318/v1/traces"


def test_nothing_is_exported_unless_an_endpoint_is_set() -> None:
    settings = otel_settings.from_environment({"OTEL_EXPORTER_OTLP_ENDPOINT": " ", "PATH": "/bin"})

    assert settings == otel_settings.OtelSettings()
    assert settings.export is None


def test_queue_interval_and_ratio_can_be_configured() -> None:
    settings = otel_settings.from_environment(
        {
            **BASE,
            "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
            "OTEL_BSP_MAX_QUEUE_SIZE": "100",
            "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "10",
            "OTEL_BSP_SCHEDULE_DELAY": "250",
            "OTEL_METRIC_EXPORT_INTERVAL": "1500",
            "OTEL_TRACES_SAMPLER_ARG": "0.25",
        }
    )

    assert settings.problems == ()
    assert settings.ratio == 0.25
    metrics = MetricExportSettings("http://collector:4318/v1/metrics", interval_s=1.5)
    assert settings.metrics == metrics
    assert settings.export == SpanExportSettings(URL, queue_size=100, batch_size=10, delay_s=0.25)


def test_a_batch_is_never_larger_than_the_queue() -> None:
    settings = otel_settings.from_environment({**BASE, "OTEL_BSP_MAX_QUEUE_SIZE": "100"})

    assert settings.export == SpanExportSettings(URL, queue_size=100, batch_size=100)


def test_the_variable_for_traces_wins_and_its_url_is_taken_as_it_is() -> None:
    own = {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "https://traces.example/custom"}
    export = otel_settings.from_environment({**BASE, **own}).export

    assert export is not None
    assert export.endpoint == "https://traces.example/custom"


@pytest.mark.parametrize("base", ["http://collector:4318", "http://collector:4318/"])
def test_the_shared_url_gets_the_path_of_traces(base: str) -> None:
    export = otel_settings.from_environment({"OTEL_EXPORTER_OTLP_ENDPOINT": base}).export

    assert export is not None
    assert export.endpoint == URL


@pytest.mark.parametrize("off", [{"OTEL_SDK_DISABLED": "true"}, {"OTEL_TRACES_EXPORTER": "none"}])
def test_export_can_be_switched_off(off: dict[str, str]) -> None:
    assert otel_settings.from_environment({**BASE, **off}).export is None


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
    assert otel_settings.from_environment(variables) == otel_settings.OtelSettings(ratio=ratio)


@pytest.mark.parametrize(
    "variables",
    [
        {"OTEL_TRACES_SAMPLER_ARG": "most"},
        {"OTEL_TRACES_SAMPLER_ARG": "1.5"},
        {"OTEL_TRACES_SAMPLER_ARG": "nan"},
        {"OTEL_TRACES_SAMPLER": "jaeger_remote"},
        {**BASE, "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"},
        {**BASE, "OTEL_BSP_MAX_QUEUE_SIZE": "0"},
        {**BASE, "OTEL_BSP_SCHEDULE_DELAY": "soon"},
    ],
)
def test_a_value_without_sense_is_reported_and_the_default_used(variables: dict[str, str]) -> None:
    settings = otel_settings.from_environment(variables)
    (problem,) = settings.problems

    name = list(variables)[-1]
    assert name in problem
    expected: Any = otel_settings.from_environment(BASE if BASE.keys() <= variables.keys() else {})
    assert (settings.export, settings.ratio) == (expected.export, expected.ratio)


def test_an_endpoint_that_is_no_url_exports_nothing_and_says_so() -> None:
    settings = otel_settings.from_environment({"OTEL_EXPORTER_OTLP_ENDPOINT": "collector:4318"})

    assert settings.export is None
    assert "http://" in settings.problems[0]


def test_each_signal_can_be_kept_here_or_sent_elsewhere() -> None:
    spans_only = otel_settings.from_environment({**BASE, "OTEL_METRICS_EXPORTER": "none"})
    assert (spans_only.export is None, spans_only.metrics is None) == (False, True)
    metrics_only = otel_settings.from_environment({**BASE, "OTEL_TRACES_EXPORTER": "none"})
    assert (metrics_only.export is None, metrics_only.metrics is None) == (True, False)
    own = otel_settings.from_environment(
        {"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://prometheus:9090/otlp"}
    )
    assert own.export is None
    assert own.metrics is not None
    assert own.metrics.endpoint == "http://prometheus:9090/otlp"


def test_what_is_wrong_for_both_signals_is_said_once() -> None:
    settings = otel_settings.from_environment({**BASE, "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"})
    assert len(settings.problems) == 1
