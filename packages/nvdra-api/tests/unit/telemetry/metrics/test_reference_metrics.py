# SPDX-License-Identifier: Apache-2.0
"""The reference driver's metrics have its names, and show zeros from the start."""

from nvdra_api.ids import NodeName
from nvdra_runtime.telemetry import keys
from nvdra_runtime.telemetry.metrics.reference_metrics import ReferenceMetrics
from prometheus_client import CollectorRegistry

PREPARE = {"driver": "d", "operation": keys.PREPARE}


def test_successes_and_errors_of_claims_are_counted() -> None:
    registry = CollectorRegistry()
    metrics = ReferenceMetrics(registry, driver="d", node=NodeName("n"))
    value = registry.get_sample_value
    assert value("nvidia_dra_requests_total", PREPARE) == 0

    metrics.started(keys.PREPARE)
    assert value("nvidia_dra_requests_inflight", PREPARE) == 1
    metrics.ended(keys.PREPARE)
    metrics.answered(keys.PREPARE, 0.1, "")
    metrics.answered(keys.PREPARE, 0.1, "LockTimeout")
    metrics.answered("reconcile", 0.1, "")
    assert value("nvidia_dra_requests_inflight", PREPARE) == 0
    assert value("nvidia_dra_requests_total", PREPARE) == 1
    errors = {"driver": "d", "error_type": "lock_acquire"}
    assert value("nvidia_dra_node_prepare_errors_total", errors) == 1


def test_prepared_devices_of_an_absent_type_are_zero() -> None:
    registry = CollectorRegistry()
    metrics = ReferenceMetrics(registry, driver="d", node=NodeName("n"))
    metrics.set_prepared_devices({"gpu": 2})
    counts = {
        sample.labels["device_type"]: sample.value
        for family in registry.collect()
        if family.name == "nvidia_dra_prepared_devices"
        for sample in family.samples
    }
    assert counts == {"gpu": 2, "mig": 0, "vfio": 0, "unknown": 0}
