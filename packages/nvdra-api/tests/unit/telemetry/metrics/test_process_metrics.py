# SPDX-License-Identifier: Apache-2.0
"""The metrics that every component has."""

from nvdra_runtime.telemetry.metrics.process_metrics import ProcessMetrics


def test_operations_steps_requests_and_watches_are_counted() -> None:
    metrics = ProcessMetrics(driver="d")
    metrics.initialize_operations("prepare")
    metrics.operation_started("reconcile")
    metrics.step("write status", 0.2)
    metrics.api_request("GET", "200", 0.1)
    metrics.watch_restart("pods")
    metrics.spans_dropped("queue_full", 3)
    metrics.task_failed("events")

    value = metrics.registry.get_sample_value
    in_flight = "nvdra_operations_in_flight"
    assert value(in_flight, {"driver": "d", "operation": "prepare"}) == 0
    assert value(in_flight, {"driver": "d", "operation": "reconcile"}) == 1
    steps = {"driver": "d", "step": "write status"}
    assert value("nvdra_step_seconds_sum", steps) == 0.2
    requests = {"verb": "GET", "code": "200"}
    assert value("nvdra_api_requests_seconds_count", requests) == 1
    assert value("nvdra_watch_restarts_total", {"resource": "pods"}) == 1
    assert value("nvdra_spans_dropped_total", {"reason": "queue_full"}) == 3
    assert value("nvdra_task_failures_total", {"task": "events"}) == 1
    metrics.operation_ended("reconcile")
    assert value(in_flight, {"driver": "d", "operation": "reconcile"}) == 0
