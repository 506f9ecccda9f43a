"""What the standard `OTEL_*` variables ask of us, from the environment as a mapping.

As OpenTelemetry wants it, a value that makes no sense is reported and ignored; telemetry keeps no
driver from starting. Read once, at start. Source: spec/tracing.md §§1-2; the OpenTelemetry
specification, "Environment Variable Specification" and "OTLP Exporter Configuration".
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar
from urllib.parse import unquote

from nvdra_api.types import keys

T = TypeVar("T")

_OFF_SAMPLERS = ("always_off", "parentbased_always_off")
_ON_SAMPLERS = ("always_on", "parentbased_always_on")
_RATIO_SAMPLERS = ("nvdra", "traceidratio", "parentbased_traceidratio")
_COMPRESSIONS = ("none", "gzip", "deflate")


@dataclass(frozen=True, slots=True)
class Collector:
    """Where one signal is sent, and how.

    Attributes:
        endpoint: Full URL that batches are posted to.
        headers: Sent with each batch; may hold secrets, never logged.
        timeout_s: For one batch, retries included.
        compression: none, gzip or deflate.
        certificate: File of CA certificates, None for the system's.
        client_certificate: File, with `client_key`, for mutual TLS.
        client_key: File.
    """

    endpoint: str
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    timeout_s: float = 10.0
    compression: str = "none"
    certificate: str | None = None
    client_certificate: str | None = None
    client_key: str | None = None


@dataclass(frozen=True, slots=True)
class ExportSettings:
    """Where spans go and how many may wait.

    Attributes:
        collector: Who gets them.
        queue_size: Spans that may wait; more are dropped.
        batch_size: Spans in one request at most.
        delay_s: How long a span waits for company.
    """

    collector: Collector
    queue_size: int = 2048
    batch_size: int = 512
    delay_s: float = 5.0


@dataclass(frozen=True, slots=True)
class MetricSettings:
    """Where metrics go and how often; `/metrics` is there in any case."""

    collector: Collector
    interval_s: float = 60.0


@dataclass(frozen=True, slots=True)
class OtelSettings:
    """Everything the variables say.

    Attributes:
        export: None where no span is to leave the process.
        metrics: None where no metric is to be sent.
        ratio: Of traces that are exported, 0 to 1.
        resource: Additional resource attributes.
        problems: One sentence for each value that was ignored.
    """

    export: ExportSettings | None = None
    metrics: MetricSettings | None = None
    ratio: float = 1.0
    resource: Mapping[str, str] = field(default_factory=dict[str, str])
    problems: tuple[str, ...] = ()


def read(environ: Mapping[str, str]) -> OtelSettings:
    """The settings in an environment; an empty variable counts as unset."""
    source = _Source({name: value.strip() for name, value in environ.items() if value.strip()})
    return OtelSettings(
        export=_export(source),
        metrics=_metrics(source),
        ratio=_ratio(source),
        resource=_resource(source),
        problems=tuple(dict.fromkeys(source.problems)),  # both signals find the shared ones
    )


class _Source:
    """Variables, and what was wrong with them."""

    def __init__(self, variables: Mapping[str, str]) -> None:
        self.variables = variables
        self.problems: list[str] = []

    def of_signal(self, signal: str, name: str) -> tuple[str, str | None]:
        """An exporter's variable: the one for the signal wins over the one for all of them."""
        own = f"OTEL_EXPORTER_OTLP_{signal}_{name}"
        shared = f"OTEL_EXPORTER_OTLP_{name}"
        variable = own if own in self.variables else shared
        return variable, self.variables.get(variable)

    def parse(
        self, variable: str, text: str | None, parse: Callable[[str], T], default: T, wanted: str
    ) -> T:
        """The value of a variable, or its default and a problem."""
        if text is None:
            return default
        try:
            return parse(text)
        except ValueError:
            self.problems.append(f"{variable}={text!r} should be {wanted}; using {default}")
            return default


def _export(source: _Source) -> ExportSettings | None:
    collector = _collector(source, "TRACES")
    if collector is None:
        return None
    queue_size = _number(source, "OTEL_BSP_MAX_QUEUE_SIZE", 2048)
    return ExportSettings(
        collector,
        queue_size=queue_size,
        batch_size=min(queue_size, _number(source, "OTEL_BSP_MAX_EXPORT_BATCH_SIZE", 512)),
        delay_s=_number(source, "OTEL_BSP_SCHEDULE_DELAY", 5000) / 1000,
    )


def _metrics(source: _Source) -> MetricSettings | None:
    collector = _collector(source, "METRICS")
    if collector is None:
        return None
    interval_ms = _number(source, "OTEL_METRIC_EXPORT_INTERVAL", 60_000)
    return MetricSettings(collector, interval_s=interval_ms / 1000)


def _collector(source: _Source, signal: str) -> Collector | None:
    """Who gets a signal (TRACES or METRICS); None where it stays here."""
    endpoint = _endpoint(source, signal)
    if endpoint is None:
        return None

    def said(name: str) -> tuple[str, str | None]:
        return source.of_signal(signal, name)

    source.parse(*said("PROTOCOL"), _one_of("http/protobuf"), "http/protobuf", "http/protobuf")
    return Collector(
        endpoint=endpoint,
        headers=_pairs(source, *said("HEADERS")),
        timeout_s=source.parse(*said("TIMEOUT"), _positive, 10.0, "seconds above 0"),
        compression=source.parse(
            *said("COMPRESSION"), _one_of(*_COMPRESSIONS), "none", "none or gzip"
        ),
        certificate=said("CERTIFICATE")[1],
        client_certificate=said("CLIENT_CERTIFICATE")[1],
        client_key=said("CLIENT_KEY")[1],
    )


def _endpoint(source: _Source, signal: str) -> str | None:
    """The URL to post to: a signal's own as it is, the shared one with its path."""
    if source.variables.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return None
    if source.variables.get(f"OTEL_{signal}_EXPORTER", "otlp") == "none":
        return None
    variable, url = source.of_signal(signal, "ENDPOINT")
    if url is None:
        return None
    if not url.startswith(("http://", "https://")):
        source.problems.append(
            f"{variable}={url!r} should be an http:// or https:// URL; no export"
        )
        return None
    if variable == f"OTEL_EXPORTER_OTLP_{signal}_ENDPOINT":
        return url
    return f"{url.rstrip('/')}/v1/{signal.lower()}"


def _ratio(source: _Source) -> float:
    """How much is sampled. Parents are never asked, so a `parentbased_` name means its rest."""
    sampler = source.variables.get("OTEL_TRACES_SAMPLER", "nvdra")
    if sampler in _OFF_SAMPLERS:
        return 0.0
    if sampler in _ON_SAMPLERS:
        return 1.0
    if sampler not in _RATIO_SAMPLERS:
        source.problems.append(f"OTEL_TRACES_SAMPLER={sampler!r} is not known here; using nvdra")
    variable = "OTEL_TRACES_SAMPLER_ARG"
    text = source.variables.get(variable)
    return source.parse(variable, text, _fraction, 1.0, "a number from 0 to 1")


def _resource(source: _Source) -> dict[str, str]:
    variable = "OTEL_RESOURCE_ATTRIBUTES"
    attributes = _pairs(source, variable, source.variables.get(variable))
    service = source.variables.get("OTEL_SERVICE_NAME")
    return {**attributes, keys.SERVICE_NAME: service} if service else attributes


def _number(source: _Source, variable: str, default: int) -> int:
    text = source.variables.get(variable)
    return source.parse(variable, text, _whole, default, "a whole number above 0")


def _pairs(source: _Source, variable: str, text: str | None) -> dict[str, str]:
    """`key=value,key=value`, percent-encoded as in W3C Baggage."""
    pairs: dict[str, str] = {}
    for part in (text or "").split(","):
        key, equals, value = part.partition("=")
        if equals and key.strip():
            pairs[unquote(key.strip())] = unquote(value.strip())
        elif part.strip():
            source.problems.append(f"{variable} should be key=value pairs with commas between")
    return pairs


def _one_of(*values: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text.lower() not in values:
            raise ValueError(text)
        return text.lower()

    return parse


def _whole(text: str) -> int:
    return int(_positive(str(int(text))))


def _positive(text: str) -> float:
    if not (value := float(text)) > 0:
        raise ValueError(text)
    return value


def _fraction(text: str) -> float:
    if not 0 <= (value := float(text)) <= 1:
        raise ValueError(text)
    return value
