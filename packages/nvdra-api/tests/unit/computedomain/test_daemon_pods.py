# SPDX-License-Identifier: Apache-2.0
"""Pods of daemons, read as the API server returns them."""

from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest
from nvdra_api.ids import CliqueID, DomainUID, NodeName, PodUID
from nvdra_runtime.computedomain import announcements, daemon_pods
from nvdra_runtime.computedomain.announcements import Announcement
from nvdra_runtime.computedomain.daemon_pods import DaemonPod
from nvdra_runtime.computedomain.imex_links import ImexLinks

SAID = "nvdra.nvidia.com/imex-daemon"
DOMAIN, CLIQUE = "resource.nvidia.com/computeDomain", "resource.nvidia.com/computeDomain.cliqueID"


def obj(
    spec: dict[str, Any] | None = None,
    status: dict[str, Any] | None = None,
    *,
    labels: dict[str, str] | None = None,
) -> dict[str, Any]:
    metadata = {"name": "d", "namespace": "nvdra", "uid": "u", "creationTimestamp": "t"}
    return {
        "metadata": {**metadata, "labels": {DOMAIN: "cd", **(labels or {})}},
        "spec": {"nodeName": "node-a", **(spec or {})},
        "status": status or {},
    }


def waiting(reason: str, message: str = "") -> dict[str, Any]:
    state = {"waiting": {"reason": reason, "message": message}}
    return {"containerStatuses": [{"name": "compute-domain-daemon", "state": state}]}


def test_a_running_pod_is_read_completely() -> None:
    status = {
        "phase": "Running",
        "podIP": "10.4.1.7",
        "conditions": [
            {"type": "PodScheduled", "status": "True"},
            {"type": "Ready", "status": "True"},
        ],
    }
    read = daemon_pods.read(obj(status=status, labels={CLIQUE: "x.1"}))

    assert read == DaemonPod(
        name="d",
        namespace="nvdra",
        uid=PodUID("u"),
        domain=DomainUID("cd"),
        node=NodeName("node-a"),
        ip="10.4.1.7",
        created="t",
        is_ready=True,
        clique=CliqueID("x.1"),
    )


def test_a_missing_label_differs_from_an_empty_one() -> None:
    assert daemon_pods.read(obj()).clique is None
    assert daemon_pods.read(obj(labels={CLIQUE: ""})).clique == ""


@pytest.mark.parametrize(
    ("phase", "is_finished"), [("Failed", True), ("Succeeded", True), ("Running", False)]
)
def test_a_pod_that_ended_is_finished(phase: str, is_finished: bool) -> None:
    assert daemon_pods.read(obj(status={"phase": phase})).is_finished is is_finished


def test_an_unscheduled_pod_belongs_to_the_node_for_which_it_was_made() -> None:
    field = {"key": "metadata.name", "operator": "In", "values": ["node-b"]}
    terms = {"nodeSelectorTerms": [{"matchFields": [field]}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}

    assert daemon_pods.read(obj({"nodeName": "", "affinity": affinity})).node == "node-b"
    assert daemon_pods.read(obj({"nodeName": "", "affinity": {}})).node == ""


@pytest.mark.parametrize(
    ("status", "problem"),
    [
        (waiting("ContainerCreating"), ""),
        (
            waiting("ImagePullBackOff", "Back-off pulling\nimage"),
            "ImagePullBackOff: Back-off pulling image",
        ),
        (waiting("CrashLoopBackOff"), "CrashLoopBackOff"),
        (
            {
                "conditions": [
                    {
                        "type": "PodScheduled",
                        "status": "False",
                        "reason": "Unschedulable",
                        "message": "0/3 nodes",
                    }
                ]
            },
            "Unschedulable: 0/3 nodes",
        ),
        ({}, ""),
        (
            {"phase": "Failed", "reason": "Evicted", "message": "low on memory"},
            "Evicted: low on memory",
        ),
        ({"phase": "Succeeded"}, ""),
    ],
)
def test_the_problem_says_why_a_pod_does_not_run(status: dict[str, Any], problem: str) -> None:
    assert daemon_pods.read(obj(status=status)).problem == problem


@pytest.mark.parametrize(
    ("gates", "writes_status"),
    [
        ("ComputeDomainCliques=false,", True),
        ("ComputeDomainCliques=true,", False),
        ("AllBeta=false", True),
        ("SomethingNew=true", False),
    ],
)
def test_a_daemon_that_writes_to_the_status_is_recognized_by_its_gates(
    gates: str, writes_status: bool
) -> None:
    container = {"env": [{"name": "FEATURE_GATES", "value": gates}]}
    assert daemon_pods.read(obj({"containers": [container]})).writes_status is writes_status


def test_a_pod_that_is_being_deleted_or_has_ended_is_read_as_such() -> None:
    deleted = obj(status={"phase": "Running"})
    deleted["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    read = daemon_pods.read(deleted)
    assert (read.is_terminating, read.is_finished) == (True, False)
    for phase in ("Succeeded", "Failed"):
        read = daemon_pods.read(obj(status={"phase": phase}))
        assert (read.is_terminating, read.is_finished) == (False, True)


STARTED = {"restartCount": 0, "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}}
CRASHED = {"restartCount": 1, "state": {"waiting": {"reason": "CrashLoopBackOff"}}}
AFTER_A_REBOOT = {
    "restartCount": 0,
    "state": {"waiting": {"reason": "ContainerCreating"}},
    "lastState": {"terminated": {"exitCode": 255}},
}
NEVER_STARTED = {"restartCount": 0, "state": {"waiting": {"reason": "ContainerCreating"}}}


@pytest.mark.parametrize(
    ("ready", "container", "is_down"),
    [
        ("False", STARTED, True),
        ("False", {**STARTED, "ready": True}, True),
        ("False", {**STARTED, "ready": False}, False),
        ("False", {**CRASHED, "ready": False}, True),
        ("False", CRASHED, True),
        ("False", AFTER_A_REBOOT, True),
        ("False", NEVER_STARTED, False),
        ("True", STARTED, False),
        ("Unknown", STARTED, False),
        (None, STARTED, False),
    ],
)
def test_a_container_that_was_started_is_down_unless_only_its_probe_says_so(
    ready: str | None, container: dict[str, Any], *, is_down: bool
) -> None:
    condition = {"type": "Ready", "status": ready, "message": "it is gone"}
    status = {"conditions": [condition] if ready else [], "containerStatuses": [container]}
    found = daemon_pods.read(obj(status=status)).down_because
    assert found == ("its daemon's pod is not ready any more: it is gone" if is_down else "")


@pytest.mark.parametrize(
    ("ready", "container", "has_ended"),
    [
        ("False", CRASHED, True),
        ("False", AFTER_A_REBOOT, True),
        ("False", {"state": {"terminated": {"exitCode": 137}}}, True),
        ("False", {**STARTED, "restartCount": 1}, True),
        ("False", {**STARTED, "restartCount": 1, "ready": False}, True),
        ("False", STARTED, False),
        ("False", NEVER_STARTED, False),
        ("True", {**STARTED, "restartCount": 1}, False),
        (None, CRASHED, False),
    ],
)
def test_a_container_that_ended_once_and_is_not_ready_is_no_daemon_to_believe(
    ready: str | None, container: dict[str, Any], *, has_ended: bool
) -> None:
    conditions = [{"type": "Ready", "status": ready}] if ready else []
    status = {"conditions": conditions, "containerStatuses": [container]}
    assert bool(daemon_pods.read(obj(status=status)).ended_because) is has_ended


@pytest.mark.parametrize(
    ("container", "after_s", "is_believed"),
    [
        (STARTED, 0, True),
        (STARTED, 20, True),
        (STARTED, -60, False),
        pytest.param(STARTED, 86_400, False, id="by a clock that was wrong after the reboot"),
        pytest.param({**STARTED, "ready": True}, -60, True, id="the kubelet has asked the daemon"),
        pytest.param(STARTED, None, True, id="a daemon before 0.2.0"),
    ],
)
def test_a_daemon_is_not_ready_by_the_words_of_an_earlier_container(
    container: dict[str, Any], after_s: int | None, *, is_believed: bool
) -> None:
    began = int(datetime.fromisoformat(container["state"]["running"]["startedAt"]).timestamp())
    started = None if after_s is None else began + after_s
    said = Announcement("10.4.1.7", is_ready=True, preferred_index=3, started=started)
    pod = obj(status={"containerStatuses": [{"ready": False, **container}]})
    pod["metadata"]["annotations"] = {SAID: announcements.annotation(said)}
    found = daemon_pods.read(pod).announcement
    again = "its daemon has started again and is not ready yet"
    assert found == (said if is_believed else replace(said, is_ready=False, message=again))


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_the_daemon_of_a_pod_that_ended_has_ended(phase: str) -> None:
    assert daemon_pods.read(obj(status={"phase": phase})).ended_because


def test_what_a_daemon_says_of_its_connections_is_read() -> None:
    pod = obj()
    assert daemon_pods.read(pod).links.are_well
    value = '{"broken":{"node-b":"VERSION_MISMATCH"}}'
    pod["metadata"]["annotations"] = {"nvdra.nvidia.com/imex-links": value}
    assert daemon_pods.read(pod).links == ImexLinks({NodeName("node-b"): "VERSION_MISMATCH"})
