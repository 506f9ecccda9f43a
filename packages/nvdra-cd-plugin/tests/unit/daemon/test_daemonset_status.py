# SPDX-License-Identifier: Apache-2.0
"""Why a domain's DaemonSet has made no pod for a node."""

from typing import Any

import pytest
from nvdra_cd_plugin.daemon import daemonset_status

WANTED = "nvdra/computedomain-daemon-x"


def stored(**metadata: Any) -> dict[str, Any]:
    return {"metadata": {"name": "computedomain-daemon-x", **metadata}}


def event(message: str, **times: Any) -> dict[str, Any]:
    return {"message": message, **times}


def test_a_missing_daemonset_is_named() -> None:
    said = daemonset_status.why_no_pod({}, [], WANTED)
    assert said == f"there is no DaemonSet {WANTED}, which the controller of the domains makes"


def test_a_daemonset_that_is_being_deleted_makes_no_pod() -> None:
    going = stored(deletionTimestamp="2026-01-01T00:00:00Z")
    said = daemonset_status.why_no_pod({"nvdra": going}, [event("x")], WANTED)
    assert said == f"DaemonSet {WANTED} is being deleted"


@pytest.mark.parametrize(
    "times",
    [
        {"lastTimestamp": "2026-01-01T00:00:09Z"},
        {"eventTime": "2026-01-01T00:00:09Z", "lastTimestamp": None},
        {
            "lastTimestamp": "2026-01-01T00:00:01Z",
            "series": {"lastObservedTime": "2026-01-01T00:00:09Z"},
        },
    ],
)
def test_the_latest_failure_is_named_with_its_time_on_one_line(times: dict[str, Any]) -> None:
    older = event("some other", lastTimestamp="2026-01-01T00:00:02Z")
    latest = event("exceeded quota:\n pods=0", **times)
    said = daemonset_status.why_no_pod({"nvdra": stored()}, [older, latest, older], WANTED)
    assert said == (
        f"DaemonSet {WANTED} could not make its pod, last at 2026-01-01T00:00:09Z: "
        "exceeded quota: pods=0"
    )


def test_a_daemonset_without_failures_has_made_no_pod_yet() -> None:
    said = daemonset_status.why_no_pod({"old": stored()}, [], WANTED)
    assert said == "DaemonSet old/computedomain-daemon-x has made no pod for this node"


def test_a_long_message_is_cut() -> None:
    assert len(daemonset_status.why_no_pod({"nvdra": stored()}, [event("x" * 5000)], WANTED)) < 400
