# SPDX-License-Identifier: Apache-2.0
"""A node is Ready while its daemon says so and its pod is Ready; Kubernetes may be late itself."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from nvdra_api import names
from nvdra_testing.random_domains.recording import Recording
from nvdra_testing.random_domains.timeline import Change

UID = "uid"
ALLOWED_S = 5.0


def recorded(told_at: float, counted_at: float) -> Recording:
    """A domain whose only daemon was Ready after 100 s, and deleted after 200 s."""
    seen = Recording()
    seen.names[UID] = "ring"
    seen.deleted[UID] = 200.0
    seen.up[UID]["node-1"].append(Change(100.0, True))
    seen.true[UID]["node-1"].append(Change(100.0, True))
    seen.told[UID]["node-1"].append(Change(told_at, True))
    seen.counted[UID]["0"].append(Change(counted_at, True))
    return seen


def pod(
    *,
    says: bool | None,
    is_ready: bool = True,
    uid: str = "pod-1",
    node: str = "node-1",
    started: str = "",
) -> dict[str, Any]:
    """A daemon's pod, and what the daemon says."""
    said = (
        {}
        if says is None
        else {names.DAEMON_ANNOTATION: json.dumps({"ip": "10.0.0.1", "ready": says})}
    )
    started = started or datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "metadata": {"uid": uid, "labels": {names.DOMAIN_LABEL: UID}, "annotations": said},
        "spec": {"nodeName": node},
        "status": {
            "conditions": [{"type": "Ready", "status": str(is_ready)}],
            "containerStatuses": [{"state": {"running": {"startedAt": started}}}],
        },
    }


def states(seen: Recording) -> list[bool]:
    return [each.is_ready for each in seen.true[UID]["node-1"]]


@pytest.mark.parametrize(
    ("told_at", "counted_at", "is_late"),
    [(104.0, 100.5, False), (107.0, 100.5, True), (107.0, 103.0, False), (109.0, 103.0, True)],
)
def test_a_status_may_be_later_by_as_much_as_kubernetes_is(
    told_at: float, counted_at: float, is_late: bool
) -> None:
    seen = recorded(told_at, counted_at)
    assert bool(seen.untruths([], ALLOWED_S, is_beyond_delay=True)) == is_late
    assert bool(seen.untruths([], ALLOWED_S)) == (told_at > 105)


def test_nodes_that_are_told_in_another_order_than_they_became_ready_are_told_in_time() -> None:
    seen = recorded(told_at=102.8, counted_at=100.0)
    seen.up[UID]["node-2"].append(Change(100.5, True))
    seen.true[UID]["node-2"].append(Change(100.5, True))
    seen.told[UID]["node-2"].append(Change(102.0, True))
    seen.counted[UID]["1"].append(Change(100.5, True))
    assert seen.untruths([], ALLOWED_S, is_beyond_delay=True) == {}


def test_a_node_is_ready_once_its_pod_is_and_its_daemon_says_so() -> None:
    seen = Recording()
    seen.take_pod("ADDED", pod(says=None))
    seen.take_pod("MODIFIED", pod(says=False))
    assert states(seen) == []
    seen.take_pod("MODIFIED", pod(says=True))
    assert states(seen) == [True]
    assert len(seen.starts_s) == 1
    (change,) = seen.true[UID]["node-1"]
    assert change.since is not None
    assert 0 <= change.at - change.since < 1.5
    seen.take_pod("MODIFIED", pod(says=True, is_ready=False))
    assert states(seen) == [True, False]


def test_a_node_is_not_ready_by_what_an_earlier_container_has_said() -> None:
    seen = Recording()
    first, second = "2026-01-01T00:00:00Z", "2026-01-01T00:05:00Z"
    seen.take_pod("ADDED", pod(says=True, started=first))
    seen.take_pod("MODIFIED", pod(says=True, is_ready=False, started=first))
    seen.take_pod("MODIFIED", pod(says=True, started=second))
    assert states(seen) == [True, False]
    seen.take_pod("MODIFIED", pod(says=False, started=second))
    seen.take_pod("MODIFIED", pod(says=True, started=second))
    assert states(seen) == [True, False, True]


def test_a_node_that_was_never_told_is_late_although_its_pod_runs_until_it_is_deleted() -> None:
    seen = Recording()
    seen.take_pod("ADDED", pod(says=True))
    (change,) = seen.true[UID]["node-1"]
    seen.take_pod("DELETED", pod(says=True))
    assert [each.since for each in seen.true[UID]["node-1"]] == [change.since, None]


def test_a_pod_that_was_replaced_says_nothing_more_of_its_node() -> None:
    seen = Recording()
    seen.take_pod("ADDED", pod(says=True))
    seen.take_pod("ADDED", pod(says=True, uid="pod-2"))
    seen.take_pod("DELETED", pod(says=True))
    assert states(seen) == [True]
    seen.take_pod("DELETED", pod(says=True, uid="pod-2"))
    assert states(seen) == [True, False]


def test_the_pods_that_a_daemon_set_counts_are_noted_when_their_number_changes() -> None:
    seen = Recording()
    for ready in (0, 1, 1, 2, 1):
        status = {"numberReady": ready}
        labels = {names.DOMAIN_LABEL: UID}
        seen.take_daemon_set("MODIFIED", {"metadata": {"labels": labels}, "status": status})
    seen.take_daemon_set("MODIFIED", {"metadata": {}, "status": {"numberReady": 7}})
    counted = {
        number: [each.is_ready for each in found] for number, found in seen.counted[UID].items()
    }
    assert counted == {"0": [True], "1": [True, False]}
    assert set(seen.counted) == {UID}
