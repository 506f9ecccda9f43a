# SPDX-License-Identifier: Apache-2.0
"""Events about pods that could not be created."""

from typing import Any

from nvdra_runtime.computedomain import failed_creates


def event(message: str, at: str = "") -> dict[str, Any]:
    return {"message": message, "lastTimestamp": at}


def test_the_cause_is_the_same_text_at_each_attempt() -> None:
    words = 'Error creating: pods "computedomain-daemon-5f4d-{}" is forbidden: exceeded quota: none'
    causes = {failed_creates.cause(event(words.format(name))) for name in ("x7k2p", "q9z4m")}
    assert causes == {"Error creating: pods is forbidden: exceeded quota: none"}


def test_the_event_that_was_seen_last_counts() -> None:
    older, later = event("a", "2026-01-01T00:00:00Z"), event("b", "2026-01-01T00:01:00Z")
    assert failed_creates.latest([older, later, older]) == later
    assert failed_creates.latest([]) is None
