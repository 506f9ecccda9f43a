"""Spans on their way to an OTLP collector, without ever holding up the work they tell of.

A bounded queue and one thread; what does not fit, or does not arrive, is counted and gone. Encoding
and sending are OpenTelemetry's own exporter (http/protobuf), imported in that thread, so that
neither the import nor the conversion is on anybody's way. Source: spec/tracing.md §2 (Export).
"""

import asyncio
import logging
import threading
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Final, Protocol

from nvdra_api.protocol import identity
from nvdra_api.runtime.telemetry import logs
from nvdra_api.runtime.telemetry.environment import ExportSettings
from nvdra_api.runtime.telemetry.process_metrics import Measures
from nvdra_api.runtime.telemetry.spans import Span

if TYPE_CHECKING:
    from nvdra_api.runtime.telemetry.otlp import OtlpSender

LOG: Final = logs.logger(__name__)
_LIBRARY_LOG: Final = logging.getLogger("opentelemetry.exporter.otlp.proto.http.trace_exporter")

FLUSH_S: Final = 3.0
"""How long leaving waits for the collector; the kubelet gives a pod 30 s in all."""


class Exporting:
    """The queue, from the side that puts spans in; safe from any thread."""

    def __init__(
        self,
        settings: ExportSettings,
        ratio: float,
        resource: Mapping[str, str],
        metrics: Measures,
    ) -> None:
        self._settings = settings
        self._ratio = ratio
        self._resource = resource
        self._metrics = metrics
        self._queue: deque[Span] = deque()
        self._wake = threading.Event()
        self._is_closing = False
        self._is_failing = False
        self._sender: OtlpSender | None = None

    def add(self, span: Span) -> None:
        """Hand over one finished span, if its trace is sampled and there is room."""
        if not identity.is_sampled(span.trace, self._ratio):
            return
        if self._is_closing or len(self._queue) >= self._settings.queue_size:
            self._metrics.spans_dropped("shutdown" if self._is_closing else "queue_full")
            return
        self._queue.append(span)
        if len(self._queue) >= self._settings.batch_size:
            self._wake.set()

    def close(self) -> None:
        """Take no more; send what waits and end."""
        self._is_closing = True
        self._wake.set()

    def abandon(self) -> None:
        """Give up what still waits."""
        self._metrics.spans_dropped("shutdown", len(self._queue))
        self._queue.clear()
        if self._sender is not None:
            self._sender.close()

    def work(self) -> None:
        """Send batches until closed; the body of the thread."""
        # Imported here: 200 ms that neither the start nor a prepare has to wait for.
        from nvdra_api.runtime.telemetry.otlp import OtlpSender

        self._sender = OtlpSender(self._settings.collector, self._resource)
        _LIBRARY_LOG.addFilter(self._is_news)
        try:
            while not self._is_closing:
                self._wake.wait(self._settings.delay_s)
                self._wake.clear()
                self._drain(self._sender)
            self._drain(self._sender)
        finally:
            _LIBRARY_LOG.removeFilter(self._is_news)
            self._sender.close()

    def _drain(self, sender: "OtlpSender") -> None:
        while batch := self._batch():
            self._note(sender.send(batch), len(batch))

    def _batch(self) -> Sequence[Span]:
        batch: list[Span] = []
        with suppress(IndexError):  # abandoned meanwhile
            while self._queue and len(batch) < self._settings.batch_size:
                batch.append(self._queue.popleft())
        return batch

    def _note(self, is_sent: bool, count: int) -> None:
        if not is_sent:
            self._metrics.spans_dropped("export_failed", count)
        if is_sent == self._is_failing:
            self._is_failing = not is_sent
            sentence = "Traces reach the collector again" if is_sent else "Cannot export traces"
            LOG.info(sentence, endpoint=self._settings.collector.endpoint)

    def _is_news(self, record: logging.LogRecord) -> bool:
        """Let the exporter say why it fails once, not with every batch."""
        del record
        return not self._is_failing


class Job(Protocol):
    """Work for a thread of its own, until told to end."""

    def work(self) -> None:
        """The body of the thread."""

    def close(self) -> None:
        """End soon, with what is left done."""

    def abandon(self) -> None:
        """Too late for that: give up."""


@asynccontextmanager
async def in_background(jobs: Mapping[str, Job]) -> AsyncIterator[None]:
    """Let jobs work in threads of these names while the block runs.

    Leaving waits until all have ended, for at most `FLUSH_S`.
    """
    loop = asyncio.get_running_loop()
    working = {name: asyncio.Event() for name in jobs}

    def work(name: str) -> None:
        jobs[name].work()
        with suppress(RuntimeError):  # nobody waits any more and the loop is closed
            loop.call_soon_threadsafe(working[name].set)

    for name in jobs:
        # A daemon: a collector that hangs must not keep the process from ending.
        threading.Thread(target=work, args=(name,), name=name, daemon=True).start()
    try:
        yield
    finally:
        await _end(jobs, working)


async def _end(jobs: Mapping[str, Job], working: Mapping[str, asyncio.Event]) -> None:
    for job in jobs.values():
        job.close()
    try:
        async with asyncio.timeout(FLUSH_S):
            for ended in working.values():
                await ended.wait()
    except TimeoutError:
        for name, job in jobs.items():
            if not working[name].is_set():
                job.abandon()
