# SPDX-License-Identifier: Apache-2.0
"""An object that fails each time it is looked at keeps no other object from its turn."""

from datetime import UTC, datetime
from uuid import uuid4

from nvdra_api.ids import ClaimUID, NodeName, SpanID, TraceID
from nvdra_api.meta import JsonObject
from nvdra_api.resource.claims import ClaimRef
from nvdra_runtime.kube import event_recorder
from nvdra_runtime.kube.client import Client
from nvdra_runtime.kube.event_recorder import EventRecorder
from nvdra_runtime.kube.informer import Informer, fixed_path
from nvdra_runtime.process.clock import SystemClock
from nvdra_runtime.process.task_failures import TASK_FAILURES, TaskFailures
from nvdra_runtime.telemetry import instrumentation
from nvdra_runtime.telemetry.export import otel_settings
from nvdra_runtime.telemetry.metrics.plugin_metrics import PluginMetrics
from nvdra_testing.control_plane.apiserver import ApiServer
from nvdra_testing.polling import wait_until
from nvdra_testing.telemetry import otlp_receiver

NODE = NodeName("node-a")
MAPS = "/api/v1/namespaces/default/configmaps"


class Poison(str):
    """A text that cannot be encoded, whatever the encoder does about single characters."""

    __slots__ = ()

    def encode(self, *_: str) -> bytes:
        raise RecursionError("poisoned")


async def test_an_event_that_cannot_be_written_is_dropped_and_others_are_written(
    server: ApiServer, api: Client
) -> None:
    counted: list[str] = []
    TASK_FAILURES.set(TaskFailures(counted.append, lambda: 0.0))
    name = f"claim-{uuid4().hex[:8]}"
    ref = ClaimRef("default", name, ClaimUID(str(uuid4())))
    claim = (event_recorder.claim_reference(ref),)
    recorder = EventRecorder(api, "gpu.nvidia.com", NODE, now=lambda: datetime.now(UTC))
    async with recorder.running():
        recorder.emit(claim, "Warning", "Poisoned", Poison("text"))
        recorder.emit(claim, "Warning", "DeviceInUse", "gpu-0 is held")
        selector = f"fieldSelector=involvedObject.name%3D{name}"
        path = f"/api/v1/namespaces/default/events?{selector}"
        await wait_until(lambda: server.request("GET", path)["items"])
        (event,) = server.request("GET", path)["items"]
        assert event["reason"] == "DeviceInUse"
    assert recorder.dropped == 1
    assert counted == ["events"]


def config_map(name: str, run: str) -> JsonObject:
    return {"metadata": {"name": name, "labels": {"run": run}}, "data": {"a": "1"}}


async def test_an_object_that_cannot_be_read_is_skipped_and_others_are_known(
    server: ApiServer, api: Client
) -> None:
    counted: list[str] = []
    TASK_FAILURES.set(TaskFailures(counted.append, lambda: 0.0))
    run = f"run-{uuid4().hex[:8]}"

    def read(obj: JsonObject) -> JsonObject:
        if obj["metadata"]["name"].startswith("poisoned"):
            raise RecursionError
        return obj

    server.create(MAPS, config_map(f"poisoned-{run}", run))
    server.create(MAPS, config_map(f"listed-{run}", run))
    params = {"labelSelector": f"run={run}"}
    informer = Informer(api, fixed_path(MAPS), params, lambda _: None, transform=read)
    async with informer.running():
        await informer.wait_for_sync()
        server.create(MAPS, config_map(f"poisoned-too-{run}", run))
        server.create(MAPS, config_map(f"watched-{run}", run))
        await wait_until(lambda: f"default/watched-{run}" in informer.snapshot())
        assert set(informer.snapshot()) == {f"default/listed-{run}", f"default/watched-{run}"}
        assert informer.error == ""
    assert counted == ["informer", "informer"]


async def test_who_misses_a_change_by_a_failure_gets_it_when_the_informer_runs_again(
    server: ApiServer, api: Client
) -> None:
    counted: list[str] = []
    TASK_FAILURES.set(TaskFailures(counted.append, lambda: 0.0))
    run = f"run-{uuid4().hex[:8]}"
    received: list[frozenset[str]] = []

    def note(keys: frozenset[str]) -> None:
        if not received:
            received.append(frozenset())
            raise MemoryError
        received.append(keys)

    params = {"labelSelector": f"run={run}"}
    informer = Informer(api, fixed_path(MAPS), params, lambda _: None, on_change=note)
    async with informer.running():
        await informer.wait_for_sync()
        server.create(MAPS, config_map(f"missed-{run}", run))
        await wait_until(lambda: any(f"default/missed-{run}" in keys for keys in received))
        await wait_until(lambda: informer.error == "")
    assert counted == ["informer"]


async def test_spans_that_cannot_be_encoded_are_counted_and_later_ones_are_exported() -> None:
    metrics = PluginMetrics(driver="gpu.nvidia.com", node=NODE)
    trace, span = TraceID("0af7651916cd43dd8448eb211c80319c"), SpanID("b7ad6b7169203331")
    now = datetime.now(UTC)
    async with otlp_receiver.receiver() as collector:
        settings = otel_settings.from_environment(
            {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.endpoint, "OTEL_BSP_SCHEDULE_DELAY": "20"}
        )
        async with instrumentation.running(
            settings, {}, clock=SystemClock(), metrics=metrics
        ) as telemetry:
            unreadable = SpanID("not hexadecimal")
            telemetry.write_finished_span(
                "poisoned", trace=trace, parent=unreadable, start=now, end=now
            )
            value = metrics.registry.get_sample_value
            task = {"task": "trace export"}
            await wait_until(lambda: value("nvdra_task_failures_total", task))
            dropped = {"reason": "export_failed"}
            await wait_until(lambda: value("nvdra_spans_dropped_total", dropped) == 1)
            telemetry.write_finished_span("kept", trace=trace, parent=span, start=now, end=now)
            await wait_until(lambda: [each.name for each in collector.spans()] == ["kept"])
        assert "trace export" in telemetry.task_failures.description
