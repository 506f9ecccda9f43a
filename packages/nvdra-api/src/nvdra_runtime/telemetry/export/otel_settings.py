# SPDX-License-Identifier: Apache-2.0
"""The `OTEL_*` variables that decide whether spans and metrics are exported, and how much of them.

Everything else about export is read by the OpenTelemetry SDK itself once an endpoint is set: the
exporters read their headers, timeout, compression and TLS files, the resource its attributes. This
module imports nothing of the SDK, because a process without an endpoint must not load it.

As the OpenTelemetry specification asks, an invalid value is reported and ignored: telemetry never
prevents a driver from starting. Source: docs/reference/tracing.md, "Trace identity" to "Spans"; the
OpenTelemetry specification, "Environment Variable Specification" and "OTLP Exporter Configuration".
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")

_OFF_SAMPLERS = ("always_off", "parentbased_always_off")
_ON_SAMPLERS = ("always_on", "parentbased_always_on")
_RATIO_SAMPLERS = ("nvdra", "traceidratio", "parentbased_traceidratio")


@dataclass(frozen=True, slots=True)
class SpanExportSettings:
    """Where spans are sent, and how many may wait.

    Attributes:
        endpoint: Full URL that batches are posted to.
        queue_size: Spans that may wait; more are dropped.
        batch_size: Maximum number of spans in one request.
        delay_s: Maximum time that a span waits for its batch to fill.
    """

    endpoint: str
    queue_size: int = 2048
    batch_size: int = 512
    delay_s: float = 5.0


@dataclass(frozen=True, slots=True)
class MetricExportSettings:
    """Where metrics are sent and how often. `/metrics` is served in any case.

    Attributes:
        endpoint: Full URL that metrics are posted to.
        interval_s: Time between two exports.
    """

    endpoint: str
    interval_s: float = 60.0


@dataclass(frozen=True, slots=True)
class OtelSettings:
    """What the variables ask for.

    Attributes:
        export: None if spans are not exported.
        metrics: None if metrics are not exported.
        ratio: Share of the traces that is exported, 0 to 1.
        problems: One sentence for each value that was ignored.
    """

    export: SpanExportSettings | None = None
    metrics: MetricExportSettings | None = None
    ratio: float = 1.0
    problems: tuple[str, ...] = ()


def from_environment(environ: Mapping[str, str]) -> OtelSettings:
    """Read the settings from an environment. An empty variable counts as unset."""
    variables = _Variables(
        {name: value.strip() for name, value in environ.items() if value.strip()}
    )
    return OtelSettings(
        export=_span_export(variables),
        metrics=_metric_export(variables),
        ratio=_ratio(variables),
        problems=tuple(dict.fromkeys(variables.problems)),  # both signals report shared variables
    )


class _Variables:
    """The variables, and the problems found in them so far."""

    def __init__(self, variables: Mapping[str, str]) -> None:
        self.variables = variables
        self.problems: list[str] = []

    def of_signal(self, signal: str, name: str) -> tuple[str, str | None]:
        """An exporter's variable. The one for the signal takes precedence over the shared one."""
        own = f"OTEL_EXPORTER_OTLP_{signal}_{name}"
        shared = f"OTEL_EXPORTER_OTLP_{name}"
        variable = own if own in self.variables else shared
        return variable, self.variables.get(variable)

    def parse(self, variable: str, parse: Callable[[str], T], default: T, expected: str) -> T:
        """The value of a variable, or the default and a problem."""
        text = self.variables.get(variable)
        if text is None:
            return default
        try:
            return parse(text)
        except ValueError:
            self.problems.append(f"{variable}={text!r} should be {expected}; using {default}")
            return default


def _span_export(variables: _Variables) -> SpanExportSettings | None:
    endpoint = _endpoint(variables, "TRACES")
    if endpoint is None:
        return None
    # Not left to BatchSpanProcessor: it raises ValueError for 0 and for a batch that is larger than
    # the queue, and it does not tell its queue size, which the count of dropped spans needs.
    queue_size = _number(variables, "OTEL_BSP_MAX_QUEUE_SIZE", 2048)
    return SpanExportSettings(
        endpoint,
        queue_size=queue_size,
        batch_size=min(queue_size, _number(variables, "OTEL_BSP_MAX_EXPORT_BATCH_SIZE", 512)),
        delay_s=_number(variables, "OTEL_BSP_SCHEDULE_DELAY", 5000) / 1000,
    )


def _metric_export(variables: _Variables) -> MetricExportSettings | None:
    endpoint = _endpoint(variables, "METRICS")
    if endpoint is None:
        return None
    interval_ms = _number(variables, "OTEL_METRIC_EXPORT_INTERVAL", 60_000)
    return MetricExportSettings(endpoint, interval_s=interval_ms / 1000)


def _endpoint(variables: _Variables, signal: str) -> str | None:
    """The URL that a signal (TRACES or METRICS) is posted to; None if it is not exported.

    A signal's own URL is used as it is; the signal's path is added to the shared one.
    """
    if variables.variables.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return None
    if variables.variables.get(f"OTEL_{signal}_EXPORTER", "otlp") == "none":
        return None
    variable, url = variables.of_signal(signal, "ENDPOINT")
    if url is None:
        return None
    if not url.startswith(("http://", "https://")):
        variables.problems.append(
            f"{variable}={url!r} should be an http:// or https:// URL; no export"
        )
        return None
    _check_protocol(variables, signal)
    if variable == f"OTEL_EXPORTER_OTLP_{signal}_ENDPOINT":
        return url
    return f"{url.rstrip('/')}/v1/{signal.lower()}"


def _check_protocol(variables: _Variables, signal: str) -> None:
    """Report a protocol other than http/protobuf; the exporter class ignores the variable."""
    variable, protocol = variables.of_signal(signal, "PROTOCOL")
    if protocol is not None and protocol.lower() != "http/protobuf":
        variables.problems.append(
            f"{variable}={protocol!r} should be http/protobuf; using http/protobuf"
        )


def _ratio(variables: _Variables) -> float:
    """The share of traces that is exported.

    Parents are never asked, so a `parentbased_` sampler means its root sampler.
    """
    sampler = variables.variables.get("OTEL_TRACES_SAMPLER", "nvdra")
    if sampler in _OFF_SAMPLERS:
        return 0.0
    if sampler in _ON_SAMPLERS:
        return 1.0
    if sampler not in _RATIO_SAMPLERS:
        variables.problems.append(
            f"OTEL_TRACES_SAMPLER={sampler!r} is not supported here; using nvdra"
        )
    return variables.parse("OTEL_TRACES_SAMPLER_ARG", _fraction, 1.0, "a number from 0 to 1")


def _number(variables: _Variables, variable: str, default: int) -> int:
    return variables.parse(variable, _positive_integer, default, "a whole number above 0")


def _positive_integer(text: str) -> int:
    if not (value := int(text)) > 0:
        raise ValueError(text)
    return value


def _fraction(text: str) -> float:
    if not 0 <= (value := float(text)) <= 1:
        raise ValueError(text)
    return value
