# SPDX-License-Identifier: Apache-2.0
"""Five failures alike say how an operation fails; then only what changes is said."""

from nvdra_api.ids import SpanID, TraceID
from nvdra_runtime.telemetry import keys
from nvdra_runtime.telemetry.repeated_failures import MAX_ALIKE, OperationKey, RepeatedFailures
from nvdra_runtime.telemetry.spans import Failure

START: OperationKey = (TraceID("a" * 32), "start imex", SpanID("b" * 16))
OTHER: OperationKey = (TraceID("c" * 32), "start imex", SpanID("b" * 16))


def failure(text: str = "no such file") -> Failure:
    return Failure(keys.Outcome.RETRYABLE, "ImexBinaryMissing", text)


def test_the_same_failure_is_new_five_times() -> None:
    repeated = RepeatedFailures()
    said = [repeated.note(START, failure()) for _ in range(8)]
    assert said == [True] * MAX_ALIKE + [False] * (8 - MAX_ALIKE)
    assert repeated.is_repeating(START)
    assert not repeated.is_repeating(OTHER)
    assert repeated.note(OTHER, failure())


def test_another_failure_and_a_success_are_new() -> None:
    repeated = RepeatedFailures()
    for _ in range(9):
        repeated.note(START, failure())
    assert repeated.note(START, failure("permission denied"))
    assert not repeated.is_repeating(START)
    for _ in range(9):
        repeated.note(START, failure())
    assert repeated.note(START, None)
    assert repeated.note(START, failure())


def test_the_operations_that_failed_last_are_known() -> None:
    repeated = RepeatedFailures()
    for number in range(10_000):
        key = TraceID(f"{number:032x}"), "reconcile", None
        assert repeated.note(key, failure())
    for _ in range(MAX_ALIKE):
        repeated.note(key, failure())
    assert repeated.is_repeating(key)
