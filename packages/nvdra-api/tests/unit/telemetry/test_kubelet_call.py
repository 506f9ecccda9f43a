# SPDX-License-Identifier: Apache-2.0
"""What the kubelet waited for, and how that ended: one observation for each call and claim."""

import asyncio
from typing import Any

import pytest
from nvdra_api.errors import DriverError, PermanentError, Reason, RetryableError
from nvdra_api.resource.claims import ClaimRef
from nvdra_runtime.telemetry import keys, trace_ids
from nvdra_runtime.telemetry.instrumentation import Telemetry

NAME = "nvdra_claim_operation_seconds"


def observed(telemetry: Telemetry, outcome: str, reason: str, kind: str = "") -> float | None:
    """How long the calls with this ending took together; None when there was none."""
    labels = {
        "driver": "gpu.nvidia.com",
        "operation": "prepare",
        "device_kind": kind,
        "outcome": outcome,
        "reason": reason,
    }
    return telemetry.metrics.registry.get_sample_value(f"{NAME}_sum", labels)


async def test_a_success_counts_with_its_time_and_the_kind_of_its_devices(
    telemetry: Telemetry, ref: ClaimRef, clock: Any
) -> None:
    with telemetry.kubelet_call(keys.PREPARE, trace_ids.trace_id(ref.uid)) as call:
        clock.advance(0.003)
        call.device_kind = "gpu"
    assert observed(telemetry, "success", "", "gpu") == pytest.approx(0.003)


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (PermanentError(Reason.UNKNOWN_DEVICE, "gone"), "permanent"),
        (RetryableError(Reason.LOCK_TIMEOUT, "later"), "retryable"),
        (DriverError(Reason.INTERNAL, "a bug"), "internal"),
    ],
)
async def test_a_refusal_counts_with_its_reason_and_with_who_must_move(
    telemetry: Telemetry, ref: ClaimRef, clock: Any, error: DriverError, outcome: str
) -> None:
    with telemetry.kubelet_call(keys.PREPARE, trace_ids.trace_id(ref.uid)) as call:
        clock.advance(43.0)
        call.fail(error)
    assert observed(telemetry, outcome, error.reason) == pytest.approx(43.0)


async def test_a_call_whose_caller_went_away_counts_as_cancelled(
    telemetry: Telemetry, ref: ClaimRef
) -> None:
    with (
        pytest.raises(asyncio.CancelledError),
        telemetry.kubelet_call(keys.PREPARE, trace_ids.trace_id(ref.uid)),
    ):
        raise asyncio.CancelledError
    assert observed(telemetry, "cancelled", "Cancelled") is not None
