# SPDX-License-Identifier: Apache-2.0
"""An OTLP receiver for POST /v1/traces and /v1/metrics, decoded with OpenTelemetry's protobuf.

It serves from its own thread, for synchronous and asynchronous tests:

    with otlp_receiver.receiver() as collector:  # or: async with
        ...  # OTEL_EXPORTER_OTLP_ENDPOINT=collector.endpoint
        spans = collector.wait(lambda spans: len(spans) >= 3)
"""

import gzip
import threading
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Self

from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2
from opentelemetry.proto.common.v1 import common_pb2
from opentelemetry.proto.metrics.v1 import metrics_pb2
from opentelemetry.proto.trace.v1 import trace_pb2

TRACES, METRICS = "/v1/traces", "/v1/metrics"

Value = str | bool | int | float | tuple["Value", ...]


@dataclass(frozen=True)
class Event:
    """An event of a span."""

    name: str
    at_ns: int
    attributes: Mapping[str, Value]


@dataclass(frozen=True)
class Link:
    """A link to a span of another trace."""

    trace_id: str
    span_id: str
    attributes: Mapping[str, Value]


@dataclass(frozen=True)
class Span:
    """A received span; ids are hexadecimal, and `parent_id` is empty for a root."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    start_ns: int
    end_ns: int
    attributes: Mapping[str, Value]
    resource: Mapping[str, Value]
    is_error: bool
    message: str
    flags: int
    events: Sequence[Event] = field(default_factory=tuple)
    links: Sequence[Link] = field(default_factory=tuple)

    @property
    def seconds(self) -> float:
        return (self.end_ns - self.start_ns) / 1e9


class Receiver:
    """A collector that keeps what it receives.

    Attributes:
        endpoint: The value for `OTEL_EXPORTER_OTLP_ENDPOINT`.
        requests: The number of received batches of spans.
    """

    def __init__(self, host: str, port: int) -> None:
        self.requests = 0
        self._spans: list[Span] = []
        self._metrics: dict[str, metrics_pb2.Metric] = {}
        self._arrived = threading.Condition()
        self._server = _Server((host, port), _Handler)
        self._server.receiver = self
        bound_host, bound_port = self._server.server_address[:2]
        self.endpoint = f"http://{bound_host!s}:{bound_port}"

    def spans(self, trace_id: str | None = None) -> list[Span]:
        """The spans received so far, of all traces or of one."""
        with self._arrived:
            return [span for span in self._spans if trace_id in {None, span.trace_id}]

    def wait(
        self,
        is_enough: Callable[[list[Span]], bool],
        *,
        trace_id: str | None = None,
        timeout_s: float = 15.0,
    ) -> list[Span]:
        """Block until the received spans (of one trace) are enough.

        Asynchronous tests use a thread.

        Raises:
            TimeoutError: They never were; the message names the received spans.
        """
        with self._arrived:
            if not self._arrived.wait_for(lambda: is_enough(self.spans(trace_id)), timeout_s):
                seen = sorted(span.name for span in self.spans(trace_id))
                raise TimeoutError(f"not the spans that were expected after {timeout_s} s: {seen}")
            return self.spans(trace_id)

    def wait_quiet(self, trace_id: str, quiet_s: float) -> list[Span]:
        """Block until no span of a trace has arrived for this long, and return all its spans."""
        with self._arrived:
            seen = self.spans(trace_id)
            while self._arrived.wait_for(partial(self._has_more, trace_id, len(seen)), quiet_s):
                seen = self.spans(trace_id)
            return seen

    def wait_metrics(
        self, *names: str, timeout_s: float = 15.0
    ) -> Mapping[str, metrics_pb2.Metric]:
        """Block until all these metrics have arrived, and return the latest of all metrics."""
        with self._arrived:
            if not self._arrived.wait_for(lambda: set(names) <= set(self._metrics), timeout_s):
                missing = set(names) - set(self._metrics)
                raise TimeoutError(f"no metrics {missing} after {timeout_s} s")
            return dict(self._metrics)

    def add_metrics(self, request: metrics_service_pb2.ExportMetricsServiceRequest) -> None:
        """Keep the latest value of each metric."""
        with self._arrived:
            for group in request.resource_metrics:
                for scope in group.scope_metrics:
                    self._metrics.update({metric.name: metric for metric in scope.metrics})
            self._arrived.notify_all()

    def add_spans(self, request: trace_service_pb2.ExportTraceServiceRequest) -> None:
        """Add one batch of spans."""
        with self._arrived:
            self.requests += 1
            for group in request.resource_spans:
                resource = _attributes(group.resource.attributes)
                for scope in group.scope_spans:
                    self._spans.extend(_span(span, resource) for span in scope.spans)
            self._arrived.notify_all()

    def _has_more(self, trace_id: str, than: int) -> bool:
        return len(self.spans(trace_id)) > than

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.__exit__(kind, error, traceback)


def receiver(host: str = "127.0.0.1", port: int = 0) -> Receiver:
    """A receiver for `with` or `async with`; with port 0 the kernel chooses the port."""
    return Receiver(host, port)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    receiver: Receiver


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        is_ours = self.headers.get("Content-Type") == "application/x-protobuf"
        plain = _decompressed(body, self.headers.get("Content-Encoding", "identity"))
        if is_ours and self.path == TRACES:
            self.server.receiver.add_spans(
                trace_service_pb2.ExportTraceServiceRequest.FromString(plain)
            )
        elif is_ours and self.path == METRICS:
            request = metrics_service_pb2.ExportMetricsServiceRequest.FromString(plain)
            self.server.receiver.add_metrics(request)
        else:
            self._answer(HTTPStatus.NOT_FOUND, b"")
            return
        # An empty message of either kind means that everything was accepted.
        self._answer(HTTPStatus.OK, b"")

    def log_message(self, *_: object) -> None:
        """Do not log requests."""

    def _answer(self, status: HTTPStatus, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/x-protobuf")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def _decompressed(body: bytes, encoding: str) -> bytes:
    if encoding == "gzip":
        return gzip.decompress(body)
    return zlib.decompress(body) if encoding == "deflate" else body


def _span(span: trace_pb2.Span, resource: Mapping[str, Value]) -> Span:
    return Span(
        name=span.name,
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex(),
        start_ns=span.start_time_unix_nano,
        end_ns=span.end_time_unix_nano,
        attributes=_attributes(span.attributes),
        resource=resource,
        is_error=span.status.code == trace_pb2.Status.STATUS_CODE_ERROR,
        message=span.status.message,
        flags=span.flags,
        events=[
            Event(event.name, event.time_unix_nano, _attributes(event.attributes))
            for event in span.events
        ],
        links=[
            Link(link.trace_id.hex(), link.span_id.hex(), _attributes(link.attributes))
            for link in span.links
        ],
    )


def _attributes(pairs: Sequence[common_pb2.KeyValue]) -> dict[str, Value]:
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: common_pb2.AnyValue) -> Value:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return tuple(_value(item) for item in value.array_value.values)
    plain: str | bool | int | float = getattr(value, kind) if kind else ""
    return plain
