# SPDX-License-Identifier: Apache-2.0
"""Why a daemon is not ready, in the words of its pod."""

from typing import Any

import pytest
from nvdra_gpu_plugin.mps import daemon_pods


def pod(status: dict[str, Any], name: str = "p", created: str = "2026-01-01T00:00:00Z") -> Any:
    return {"metadata": {"name": name, "creationTimestamp": created}, "status": status}


def container(**state: Any) -> dict[str, Any]:
    return {"phase": "Pending", "containerStatuses": [state]}


@pytest.mark.parametrize(
    ("status", "says"),
    [
        ({}, "pod p: Pending"),
        (
            container(state={"waiting": {"reason": "ImagePullBackOff", "message": "no  such\nx"}}),
            "pod p: ImagePullBackOff: no such x",
        ),
        (
            container(
                state={"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"}},
                lastState={"terminated": {"exitCode": 1, "message": "Error: no nvidia-cuda"}},
            ),
            "pod p: exit code 1: Error: no nvidia-cuda; CrashLoopBackOff: back-off 10s",
        ),
        (
            container(state={"running": {}}),
            "pod p runs, and its daemon has not said that it is ready",
        ),
        (
            {"conditions": [{"status": "False", "reason": "PodReadyToStartContainers"}]},
            "pod p: PodReadyToStartContainers",
        ),
        ({"phase": "Failed", "reason": "NodeAffinity", "message": "x"}, "pod p: NodeAffinity: x"),
    ],
)
def test_the_pod_says_why(status: dict[str, Any], says: str) -> None:
    assert daemon_pods.problem([pod(status)]) == says


def test_without_a_pod_the_controller_has_not_made_it() -> None:
    assert daemon_pods.problem([]) == "its Deployment has no pod yet"
    ending = pod({"phase": "Running"})
    ending["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert daemon_pods.problem([ending]) == "its Deployment has no pod yet"


def test_the_newest_pod_counts() -> None:
    found = [pod({"phase": "Failed"}, "old"), pod({}, "new", "2026-01-01T00:00:01Z")]
    assert daemon_pods.problem(found) == "pod new: Pending"


def test_a_log_that_is_the_message_is_cut() -> None:
    status = container(state={"terminated": {"exitCode": 1, "message": "x" * 5000 + " the end"}})
    said = daemon_pods.problem([pod(status)])
    assert said.endswith("the end")
    assert len(said) < 600


def test_a_deployment_whose_pod_is_refused_says_why() -> None:
    """As the Deployment controller writes it: a quota, a LimitRange, the security of pods."""
    failed = {
        "type": "ReplicaFailure",
        "status": "True",
        "reason": "FailedCreate",
        "message": 'pods "x" is forbidden: maximum memory usage per Container is 1Gi, but limit is '
        "32Gi",
    }
    text = daemon_pods.refusal({"status": {"conditions": [failed]}})
    assert text == f"its pod cannot be created: FailedCreate: {failed['message']}"
    assert daemon_pods.refusal({"status": {"conditions": [{**failed, "status": "False"}]}}) == ""
    assert daemon_pods.refusal({}) == ""
