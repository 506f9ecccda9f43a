# SPDX-License-Identifier: Apache-2.0
"""Texts of errors for the kubelet and for Events."""

from datetime import UTC, datetime, timedelta, timezone

from nvdra_api.errors import MAX_MESSAGE, PermanentError, Reason, RetryableError
from nvdra_api.ids import TraceID


def test_the_kubelet_gets_reason_message_remedy_and_trace() -> None:
    error = RetryableError(Reason.DEVICE_IN_USE, "gpu-0 is in use", "wait", device="gpu-0")
    assert str(error) == "DeviceInUse: gpu-0 is in use; wait"
    assert error.kubelet_text(TraceID("0a" * 16)) == f"{error} (trace {'0a' * 16})"
    assert error.facts == {"device": "gpu-0"}


def test_an_event_has_the_message_since_when_and_the_remedy() -> None:
    error = PermanentError(
        Reason.DEVICE_UNHEALTHY,
        "gpu-0 does not answer",
        since=datetime(2026, 1, 2, 4, 4, 5, 600, tzinfo=timezone(timedelta(hours=1))),
    )
    assert error.event_text == "gpu-0 does not answer, since 2026-01-02T03:04:05Z"
    assert PermanentError(Reason.INTERNAL, "a").event_text == "a"


def test_the_time_of_an_error_may_be_set_later() -> None:
    error = RetryableError(Reason.LOCK_TIMEOUT, "gpu-0 is locked")
    error.since = datetime(2026, 1, 2, tzinfo=UTC)
    assert "since 2026-01-02T00:00:00Z" in str(error)


def test_what_operators_read_may_name_more() -> None:
    error = RetryableError(Reason.LOCK_TIMEOUT, "it is locked", "wait", operator_message="by a/b")
    assert (error.event_text, error.operator_text) == ("it is locked; wait", "by a/b; wait")
    assert RetryableError(Reason.INTERNAL, "a", "b").operator_text == "a; b"


def test_every_text_of_an_error_is_bounded_and_can_be_encoded() -> None:
    text = "\ud800" * 3_000_000
    error = PermanentError(
        Reason.INTERNAL, text, text, operator_message=f"by {text}", holder=text, field="a"
    )
    for shown in (str(error), error.event_text, error.operator_text, *error.facts.values()):
        assert len(shown.encode()) < 20 * MAX_MESSAGE
    assert error.facts["field"] == "a"
