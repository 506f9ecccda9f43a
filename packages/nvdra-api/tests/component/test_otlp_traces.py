# SPDX-License-Identifier: Apache-2.0
"""Spans leave by OTLP as they were told, and a collector in trouble holds nobody up."""

import asyncio
import io
import json
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta

import pytest
from nvdra_api.errors import PermanentError, Reason
from nvdra_api.ids import ClaimUID, NodeName
from nvdra_api.resource.claims import ClaimRef
from nvdra_runtime.process.clock import SystemClock
from nvdra_runtime.telemetry import active_span, instrumentation, keys, logs, trace_ids
from nvdra_runtime.telemetry.export import bounded_shutdown, otel_settings
from nvdra_runtime.telemetry.instrumentation import Telemetry
from nvdra_runtime.telemetry.logs import LogFormat
from nvdra_runtime.telemetry.metrics.plugin_metrics import PluginMetrics
from nvdra_testing.polling import wait_until
from nvdra_testing.telemetry import otlp_receiver

NODE = NodeName("node-a")
REF = ClaimRef("default", "train", ClaimUID("3f0c1a52-7c1b-4d0e-8a55-0123456789ab"))
TRACE, ROOT = instrumentation.claim_trace_and_root(REF, NODE)
INBOUND = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
LOST = PermanentError(Reason.DEVICE_UNHEALTHY, "gpu-3 has fallen off the bus")


@pytest.fixture
def metrics() -> PluginMetrics:
    return PluginMetrics(driver="gpu.nvidia.com", node=NODE)


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    stream = io.StringIO()
    logging_ = logs.configure(LogFormat.JSON, 0, "nvdra-test", stream)
    yield stream
    logging_.close()


async def others_gave_up() -> None:
    """Until the exporters of tests before, which nobody waits for, have said their last word."""
    await wait_until(
        lambda: (
            not any(thread.name.startswith(("otlp", "Otel")) for thread in threading.enumerate())
        ),
        60,
    )


@asynccontextmanager
async def running(
    metrics: PluginMetrics, endpoint: str, variables: Mapping[str, str] | None = None
) -> AsyncIterator[Telemetry]:
    environ = {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": f"{endpoint}/v1/traces", **(variables or {})}
    resource = instrumentation.resource_attributes("nvdra-gpu-plugin", "0.1.0", NODE, "pod-uid")
    settings = otel_settings.from_environment(environ)
    with pytest.MonkeyPatch.context() as patch:  # the SDK reads the process's environment
        for name, value in environ.items():
            patch.setenv(name, value)
        async with instrumentation.running(
            settings, resource, clock=SystemClock(), metrics=metrics
        ) as telemetry:
            yield telemetry


def prepare(telemetry: Telemetry, ref: ClaimRef = REF, *, fails: bool = False) -> None:
    """A prepare as a plugin does it: two steps, and the root after the fact."""
    trace, root = instrumentation.claim_trace_and_root(ref, NODE)
    attributes = {**instrumentation.claim_attributes(ref), keys.ATTEMPT: 1}
    link = trace_ids.link_from_traceparent(INBOUND)
    created = datetime.now(UTC) - timedelta(seconds=2)
    with (
        suppress(PermanentError),
        telemetry.operation(
            "prepare",
            trace=trace,
            parent=root,
            attributes=attributes,
            links=(link,) if link else (),
        ) as operation,
    ):
        operation.set_attribute(keys.DEVICES, ("gpu-0", "gpu-3"))
        with telemetry.step("fetch claim") as fetch:
            fetch.add_event("asked again", {"nvdra.code": 429})
        with telemetry.step("wait lock") as wait:
            wait.discard()
        with telemetry.step("verify devices"):
            if fails:
                raise LOST
    telemetry.write_finished_span(
        "claim",
        trace=trace,
        id=root,
        parent=None,
        start=created,
        end=datetime.now(UTC),
        attributes=attributes,
        failure=active_span.failure_of(LOST) if fails else None,
    )


def dropped(metrics: PluginMetrics, reason: str) -> float:
    value = metrics.registry.get_sample_value("nvdra_spans_dropped_total", {"reason": reason})
    return value or 0.0


async def test_a_collector_gets_one_tree_whose_trace_is_the_claims_uid(
    metrics: PluginMetrics,
) -> None:
    async with otlp_receiver.receiver() as collector:
        async with running(metrics, collector.endpoint) as telemetry:
            prepare(telemetry)
        spans = {span.name: span for span in collector.spans()}

    assert {span.trace_id for span in spans.values()} == {REF.uid.replace("-", "")}
    assert set(spans) == {"claim", "prepare", "fetch claim", "verify devices"}
    assert (spans["claim"].parent_id, spans["claim"].span_id) == ("", ROOT)
    assert spans["prepare"].parent_id == ROOT
    assert spans["fetch claim"].parent_id == spans["prepare"].span_id
    assert spans["claim"].seconds == pytest.approx(2, abs=0.5)
    assert spans["fetch claim"].events[0].attributes == {"nvdra.code": 429}
    assert spans["prepare"].attributes == {
        "k8s.namespace.name": "default",
        "k8s.resourceclaim.name": "train",
        "k8s.resourceclaim.uid": REF.uid,
        "nvdra.attempt": 1,
        "nvdra.devices": ("gpu-0", "gpu-3"),
        "nvdra.outcome": "success",
    }
    assert spans["prepare"].resource == {
        "service.namespace": "nvdra",
        "service.name": "nvdra-gpu-plugin",
        "service.version": "0.1.0",
        "k8s.node.name": "node-a",
        "k8s.pod.uid": "pod-uid",
    }


async def test_of_an_operation_that_fails_again_and_again_only_changes_are_exported(
    metrics: PluginMetrics,
) -> None:
    async with otlp_receiver.receiver() as collector:
        async with running(metrics, collector.endpoint) as telemetry:
            for _ in range(20):
                prepare(telemetry, fails=True)
            prepare(telemetry)
            prepare(telemetry, fails=True)
        spans = collector.spans()

    def count(name: str) -> int:
        return sum(span.name == name for span in spans)

    assert (count("prepare"), count("fetch claim")) == (7, 7)
    parents = {span.span_id for span in spans if span.name == "prepare"}
    assert {span.parent_id for span in spans if span.name == "fetch claim"} == parents
    assert [span.attributes["nvdra.outcome"] for span in spans if span.name == "prepare"] == [
        *["permanent"] * 5,
        "success",
        "permanent",
    ]


async def test_the_standard_variables_override_the_resource(metrics: PluginMetrics) -> None:
    variables = {
        "OTEL_SERVICE_NAME": "mine",
        "OTEL_RESOURCE_ATTRIBUTES": "deployment.environment.name=a%20b,service.version=9",
    }
    async with otlp_receiver.receiver() as collector:
        async with running(metrics, collector.endpoint, variables) as telemetry:
            prepare(telemetry)
        (resource,) = {tuple(span.resource.items()) for span in collector.spans()}

    assert dict(resource) == {
        "service.namespace": "nvdra",
        "service.name": "mine",
        "service.version": "9",
        "k8s.node.name": "node-a",
        "k8s.pod.uid": "pod-uid",
        "deployment.environment.name": "a b",
    }


async def test_inbound_context_arrives_as_a_link_and_ids_are_not_called_random(
    metrics: PluginMetrics,
) -> None:
    async with otlp_receiver.receiver() as collector:
        async with running(metrics, collector.endpoint) as telemetry:
            prepare(telemetry)
        spans = {span.name: span for span in collector.spans()}

    (link,) = spans["prepare"].links
    assert (link.trace_id, link.span_id) == (INBOUND[3:35], INBOUND[36:52])
    assert link.attributes == {"nvdra.link": "inbound"}
    assert all(span.flags & 0x02 == 0 for span in spans.values())


async def test_a_failure_arrives_as_an_error_with_its_reason(metrics: PluginMetrics) -> None:
    async with otlp_receiver.receiver() as collector:
        async with running(metrics, collector.endpoint) as telemetry:
            prepare(telemetry, fails=True)
        spans = {span.name: span for span in collector.spans()}

    for name in ("claim", "prepare", "verify devices"):
        assert spans[name].is_error
        assert spans[name].attributes["error.type"] == "DeviceUnhealthy"
        assert spans[name].message == "gpu-3 has fallen off the bus"
    assert not spans["fetch claim"].is_error


async def test_spans_arrive_while_the_component_runs(metrics: PluginMetrics) -> None:
    soon = {"OTEL_BSP_SCHEDULE_DELAY": "50", "OTEL_EXPORTER_OTLP_COMPRESSION": "gzip"}
    async with (
        otlp_receiver.receiver() as collector,
        running(metrics, collector.endpoint, soon) as telemetry,
    ):
        prepare(telemetry)
        spans = await asyncio.to_thread(collector.wait, lambda spans: len(spans) == 4)

    assert {span.trace_id for span in spans} == {TRACE}


async def test_only_sampled_traces_leave_and_all_are_remembered(metrics: PluginMetrics) -> None:
    half = {"OTEL_TRACES_SAMPLER_ARG": "0.5"}
    refs = [
        ClaimRef("ns", f"claim-{i}", ClaimUID(f"{i:08x}-0000-4000-8000-000000000000"))
        for i in range(1, 33)
    ]
    async with otlp_receiver.receiver() as collector:
        async with running(metrics, collector.endpoint, half) as telemetry:
            for ref in refs:
                prepare(telemetry, ref)
            remembered = {trace.id for trace in telemetry.recorder.traces()}
        arrived = {span.trace_id for span in collector.spans()}

    ids = {trace_ids.trace_id(ref.uid) for ref in refs}
    assert remembered == ids
    assert arrived == {trace for trace in ids if trace_ids.is_sampled(trace, 0.5)}


async def test_a_collector_that_hangs_delays_nobody_and_what_is_lost_is_counted(
    metrics: PluginMetrics,
) -> None:
    connected: asyncio.Queue[asyncio.StreamWriter] = asyncio.Queue()

    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        del reader
        connected.put_nowait(writer)

    small = {
        "OTEL_BSP_MAX_QUEUE_SIZE": "8",
        "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "4",
        "OTEL_BSP_SCHEDULE_DELAY": "20",
    }
    server = await asyncio.start_server(hang, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    async with server:
        async with running(metrics, f"http://{host}:{port}", small) as telemetry:
            prepare(telemetry)
            connection = await asyncio.wait_for(connected.get(), 10)
            began = time.perf_counter()
            for _ in range(100):
                prepare(telemetry)
            took_s = time.perf_counter() - began
            full = dropped(metrics, "queue_full")
            left = time.perf_counter()
        left_s = time.perf_counter() - left
        connection.close()
        await connection.wait_closed()

    assert took_s < 5.0, "an export waits for 10 s"
    assert full >= 400 - 8
    assert left_s < bounded_shutdown.FLUSH_TIMEOUT_S + 1
    assert dropped(metrics, "shutdown") > 0


async def test_a_collector_that_is_down_is_mentioned_once_and_its_losses_counted(
    metrics: PluginMetrics, log: io.StringIO
) -> None:
    await others_gave_up()
    log.truncate(log.seek(0))
    async with otlp_receiver.receiver() as gone:
        endpoint = gone.endpoint
    quick = {
        "OTEL_EXPORTER_OTLP_TIMEOUT": "0.05",
        "OTEL_BSP_SCHEDULE_DELAY": "10",
        "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "1",
    }
    async with running(metrics, endpoint, quick) as telemetry:
        prepare(telemetry)
        prepare(telemetry)

    assert dropped(metrics, "export_failed") == 8
    records = [json.loads(line) for line in log.getvalue().splitlines()]
    ours = [r["message"] for r in records if r["logger"].startswith("nvdra")]
    theirs = [r for r in records if r["logger"].startswith("opentelemetry")]
    assert ours == ["Cannot export traces"]
    assert len(theirs) == 1


async def test_a_setting_without_sense_is_logged_and_the_rest_works(
    metrics: PluginMetrics, log: io.StringIO
) -> None:
    async with otlp_receiver.receiver() as collector:
        variables = {"OTEL_TRACES_SAMPLER_ARG": "most"}
        async with running(metrics, collector.endpoint, variables) as telemetry:
            prepare(telemetry)
        assert len(collector.spans()) == 4

    assert "OTEL_TRACES_SAMPLER_ARG='most' should be a number from 0 to 1" in log.getvalue()


def test_without_an_endpoint_no_part_of_opentelemetry_is_loaded() -> None:
    program = (
        "import sys; import nvdra_runtime.telemetry.instrumentation;"
        "import nvdra_runtime.http.debug_endpoint;"
        "print([name for name in sys.modules if name.startswith(('opentelemetry', 'requests'))])"
    )
    output = subprocess.check_output([sys.executable, "-c", program], text=True)

    assert output.strip() == "[]"
