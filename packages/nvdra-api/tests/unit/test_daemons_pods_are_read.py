"""A pod as the API server returns it → what a status needs of it."""

from typing import Any

import pytest
from nvdra_api.protocol import daemon_pods
from nvdra_api.protocol.daemon_pods import DaemonPod

DOMAIN, CLIQUE = "resource.nvidia.com/computeDomain", "resource.nvidia.com/computeDomain.cliqueID"


def obj(
    spec: dict[str, Any] | None = None,
    status: dict[str, Any] | None = None,
    **labels: str,
) -> dict[str, Any]:
    metadata = {"name": "d", "namespace": "nvdra", "uid": "u", "creationTimestamp": "t"}
    return {
        "metadata": {**metadata, "labels": {DOMAIN: "cd", **labels}},
        "spec": {"nodeName": "node-a", **(spec or {})},
        "status": status or {},
    }


def waiting(reason: str, message: str = "") -> dict[str, Any]:
    state = {"waiting": {"reason": reason, "message": message}}
    return {"containerStatuses": [{"name": "compute-domain-daemon", "state": state}]}


def test_a_running_pod_is_read_whole() -> None:
    status = {
        "phase": "Running",
        "podIP": "10.4.1.7",
        "conditions": [
            {"type": "PodScheduled", "status": "True"},
            {"type": "Ready", "status": "True"},
        ],
    }
    read = daemon_pods.read(obj(status=status, **{CLIQUE: "x.1"}))

    assert read == DaemonPod(
        name="d",
        namespace="nvdra",
        uid="u",
        domain="cd",
        node="node-a",
        ip="10.4.1.7",
        created="t",
        is_ready=True,
        clique="x.1",
    )


def test_no_label_and_an_empty_one_are_two_things() -> None:
    assert daemon_pods.read(obj()).clique is None
    assert daemon_pods.read(obj(**{CLIQUE: ""})).clique == ""


@pytest.mark.parametrize(
    ("phase", "is_over"), [("Failed", True), ("Succeeded", True), ("Running", False)]
)
def test_a_pod_that_ended_is_over(phase: str, is_over: bool) -> None:
    assert daemon_pods.read(obj(status={"phase": phase})).is_over is is_over


def test_before_it_is_scheduled_a_pod_belongs_to_the_node_it_was_made_for() -> None:
    field = {"key": "metadata.name", "operator": "In", "values": ["node-b"]}
    terms = {"nodeSelectorTerms": [{"matchFields": [field]}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}

    assert daemon_pods.read(obj({"nodeName": "", "affinity": affinity})).node == "node-b"
    assert daemon_pods.read(obj({"nodeName": "", "affinity": {}})).node == ""


@pytest.mark.parametrize(
    ("status", "trouble"),
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
    ],
)
def test_what_keeps_it_from_running_is_its_trouble(status: dict[str, Any], trouble: str) -> None:
    assert daemon_pods.read(obj(status=status)).trouble == trouble


@pytest.mark.parametrize(
    ("gates", "writes_status"),
    [
        ("ComputeDomainCliques=false,", True),
        ("ComputeDomainCliques=true,", False),
        ("AllBeta=false", True),
        ("SomethingNew=true", False),
    ],
)
def test_a_daemon_that_keeps_to_the_status_is_told_by_its_gates(
    gates: str, writes_status: bool
) -> None:
    container = {"env": [{"name": "FEATURE_GATES", "value": gates}]}
    assert daemon_pods.read(obj({"containers": [container]})).writes_status is writes_status
