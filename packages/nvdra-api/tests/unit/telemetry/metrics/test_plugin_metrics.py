# SPDX-License-Identifier: Apache-2.0
"""What Prometheus finds: our families, and the reference driver's beside them."""

import pytest
from nvdra_api.ids import NodeName, TraceID
from nvdra_runtime.telemetry.keys import PREPARE, UNPREPARE, Outcome
from nvdra_runtime.telemetry.metrics.plugin_metrics import PluginMetrics
from prometheus_client import generate_latest
from prometheus_client.exposition import choose_encoder

DRIVER = {"driver": "gpu.nvidia.com"}


def value(metrics: PluginMetrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(name, labels)


def answered(metrics: PluginMetrics, operation: str, seconds: float, reason: str = "") -> None:
    outcome = Outcome.RETRYABLE if reason else Outcome.SUCCESS
    metrics.call_answered(operation, seconds, outcome=outcome, reason=reason, device_kind="gpu")


def test_the_references_series_are_there_with_zero_before_the_first_claim(
    metrics: PluginMetrics,
) -> None:
    for operation in ("prepare", "unprepare"):
        labels = {**DRIVER, "operation": operation}
        assert value(metrics, "nvidia_dra_requests_total", **labels) == 0
        assert value(metrics, "nvidia_dra_request_duration_seconds_count", **labels) == 0
        assert value(metrics, "nvidia_dra_requests_inflight", **labels) == 0
        assert value(metrics, "nvdra_operations_in_flight", **labels) == 0
    for kind in ("gpu", "mig", "vfio", "unknown"):
        labels = {**DRIVER, "node": "node-a", "device_type": kind}
        assert value(metrics, "nvidia_dra_prepared_devices", **labels) == 0


def test_every_family_of_the_reference_is_marked_alpha(metrics: PluginMetrics) -> None:
    families = [family for family in metrics.registry.collect() if "nvidia_dra" in family.name]

    assert len(families) == 6
    assert all(family.documentation.startswith("[ALPHA] ") for family in families)


def test_the_references_buckets_are_its_own(metrics: PluginMetrics) -> None:
    answered(metrics, PREPARE, 0.07)
    labels = {**DRIVER, "operation": "prepare"}

    name = "nvidia_dra_request_duration_seconds_bucket"
    counts = [value(metrics, name, le=le, **labels) for le in ("0.05", "0.1", "12.8", "+Inf")]
    assert counts == [0, 1, 1, 1]


def test_the_reference_counts_successes_only_and_errors_apart(metrics: PluginMetrics) -> None:
    answered(metrics, PREPARE, 0.003)
    answered(metrics, PREPARE, 9.0, reason="LockTimeout")
    answered(metrics, PREPARE, 0.001, reason="InvalidConfig")
    answered(metrics, UNPREPARE, 0.001, reason="StateCorrupt")

    labels = {**DRIVER, "operation": "prepare"}
    assert value(metrics, "nvidia_dra_requests_total", **labels) == 1
    assert value(metrics, "nvidia_dra_request_duration_seconds_sum", **labels) == 0.003
    for name, error_type in (
        ("nvidia_dra_node_prepare_errors_total", "lock_acquire"),
        ("nvidia_dra_node_prepare_errors_total", "prepare_devices"),
        ("nvidia_dra_node_unprepare_errors_total", "unprepare_devices"),
    ):
        assert value(metrics, name, **DRIVER, error_type=error_type) == 1


def test_ours_counts_every_outcome_with_its_reason(metrics: PluginMetrics) -> None:
    answered(metrics, PREPARE, 0.003)
    answered(metrics, PREPARE, 44.0, reason="DeviceInUse")

    for outcome, reason in (("success", ""), ("retryable", "DeviceInUse")):
        labels = {"operation": "prepare", "outcome": outcome, "reason": reason}
        name = "nvdra_claim_operation_seconds_count"
        assert value(metrics, name, **DRIVER, device_kind="gpu", **labels) == 1


def test_operations_are_in_flight_from_their_beginning_to_their_end(metrics: PluginMetrics) -> None:
    labels = {**DRIVER, "operation": "prepare"}
    names = ("nvdra_operations_in_flight", "nvidia_dra_requests_inflight")
    metrics.operation_started(PREPARE)
    assert [value(metrics, name, **labels) for name in names] == [1, 1]
    metrics.operation_ended(PREPARE)
    assert [value(metrics, name, **labels) for name in names] == [0, 0]


def test_an_exemplar_leads_from_a_slow_operation_to_its_trace(metrics: PluginMetrics) -> None:
    trace = TraceID("3f0c1a527c1b4d0e8a550123456789ab")
    metrics.call_answered(PREPARE, 12.0, outcome=Outcome.SUCCESS, trace=trace)

    encode, _ = choose_encoder("application/openmetrics-text")
    text = encode(metrics.registry).decode()
    (line,) = [line for line in text.splitlines() if "trace_id" in line]
    assert line.startswith("nvdra_claim_operation_seconds_bucket")
    assert f'# {{trace_id="{trace}"}} 12.0' in line


def test_what_is_held_falls_to_zero_when_the_last_claim_goes(metrics: PluginMetrics) -> None:
    metrics.set_prepared({"gpu": 2}, {"gpu": 3})
    assert value(metrics, "nvdra_claims_prepared", **DRIVER, device_kind="gpu") == 2
    labels = {**DRIVER, "node": "node-a", "device_type": "gpu"}
    assert value(metrics, "nvidia_dra_prepared_devices", **labels) == 3

    metrics.set_prepared({}, {})
    assert value(metrics, "nvdra_claims_prepared", **DRIVER, device_kind="gpu") == 0
    assert value(metrics, "nvidia_dra_prepared_devices", **labels) == 0


def test_a_device_that_changes_state_leaves_its_old_one(metrics: PluginMetrics) -> None:
    metrics.set_devices({("gpu", "healthy"): 8})
    metrics.set_devices({("gpu", "healthy"): 7, ("gpu", "tainted"): 1})
    metrics.set_devices({("gpu", "healthy"): 8})

    found = {
        state: value(metrics, "nvdra_devices", **DRIVER, device_kind="gpu", state=state)
        for state in ("healthy", "tainted")
    }
    assert found == {"healthy": 8, "tainted": 0}


def test_a_driver_or_an_obstacle_that_no_gpu_has_any_more_is_zero(metrics: PluginMetrics) -> None:
    for counts in ({"nvidia": 7, "vfio-pci": 1}, {"nvidia": 8}):
        metrics.set_kernel_drivers(counts)
    for counts in ({"NoDriver": 1}, {}):
        metrics.set_vfio_withheld(counts)
    drivers = [
        value(metrics, "nvdra_gpus_by_kernel_driver", **DRIVER, kernel_driver=driver)
        for driver in ("nvidia", "vfio-pci")
    ]
    assert drivers == [8, 0]
    assert value(metrics, "nvdra_vfio_devices_withheld", **DRIVER, obstacle="NoDriver") == 0


def test_what_goes_out_to_others_is_counted(metrics: PluginMetrics) -> None:
    metrics.slice_write("update", Outcome.SUCCESS)
    metrics.api_request("GET", "200", 0.002)
    metrics.watch_restart("resourceslices")
    metrics.lock_wait(0.0)
    metrics.spans_dropped("queue_full", 3)
    metrics.health_event("DeviceUnhealthy")

    for name, labels, expected in (
        ("nvdra_resourceslice_writes_total", {**DRIVER, "verb": "update", "outcome": "success"}, 1),
        ("nvdra_api_requests_seconds_count", {"verb": "GET", "code": "200"}, 1),
        ("nvdra_watch_restarts_total", {"resource": "resourceslices"}, 1),
        ("nvdra_lock_wait_seconds_count", DRIVER, 1),
        ("nvdra_spans_dropped_total", {"reason": "queue_full"}, 3),
        ("nvdra_device_health_events_total", {"kind": "DeviceUnhealthy"}, 1),
    ):
        assert metrics.registry.get_sample_value(name, labels) == expected


@pytest.mark.parametrize("word", ["claim_uid", "namespace", "pod"])
def test_nobodys_name_is_a_label(metrics: PluginMetrics, word: str) -> None:
    answered(metrics, PREPARE, 1.0)
    metrics.set_prepared({"gpu": 1}, {"gpu": 1})

    assert f"{word}=" not in generate_latest(metrics.registry).decode()


def test_two_components_in_one_process_share_nothing() -> None:
    first, second = (
        PluginMetrics(driver="gpu.nvidia.com", node=NodeName("node-a")) for _ in range(2)
    )
    answered(first, PREPARE, 1.0)

    labels = {**DRIVER, "operation": "prepare"}
    assert value(first, "nvidia_dra_requests_total", **labels) == 1
    assert value(second, "nvidia_dra_requests_total", **labels) == 0


def test_the_process_itself_is_measured_and_series_have_no_birthday(metrics: PluginMetrics) -> None:
    text = generate_latest(metrics.registry).decode()

    assert "process_resident_memory_bytes" in text
    assert "_created" not in text
