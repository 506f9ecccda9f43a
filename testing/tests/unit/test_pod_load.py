# SPDX-License-Identifier: Apache-2.0
"""How long pods waited for their sandbox, and which prepares failed, from recordings."""

from pathlib import Path
from typing import Any

from nvdra_testing.cluster.kubectl import Kubectl
from nvdra_testing.cluster.pod_load import Load, Refusal, Start
from nvdra_testing.cluster.recorders import Observation, Recording

NOBODY = Kubectl("kubectl", Path("kubeconfig"))


def version(at: float, *, node: str = "node-1", sandbox: str = "False") -> Observation:
    conditions = [{"type": "PodReadyToStartContainers", "status": sandbox}]
    pod: dict[str, Any] = {
        "metadata": {"name": "p"},
        "spec": {"nodeName": node} if node else {},
        "status": {"conditions": conditions},
    }
    return Observation(at, "", {"type": "MODIFIED", "object": pod})


def load(*versions: Observation, refusals: Recording | None = None) -> Load:
    return Load(NOBODY, Recording(list(versions)), refusals or Recording())


def test_a_pod_waits_from_its_scheduling_to_its_sandbox() -> None:
    seen = load(
        version(1, node=""),
        version(2),
        version(3),
        version(4.5, sandbox="True"),
        version(6, sandbox="True"),
        version(7),  # its sandbox is gone again
    )
    assert seen.starts() == [Start("p", "node-1", 2, 2.5)]


def test_pods_that_were_scheduled_before_or_have_not_started_do_not_count() -> None:
    assert load(version(2)).starts() == []
    seen = load(version(1), version(3, sandbox="True"))
    assert seen.starts(since=2) == []


def test_a_failed_prepare_is_named_with_its_pod_and_reason() -> None:
    event = {"involvedObject": {"name": "p"}, "message": "DeviceInUse: gpu-0 is held"}
    kinds = ("ADDED", "DELETED")  # the second one with the namespace of an earlier test
    refusals = Recording([Observation(1, "", {"type": kind, "object": event}) for kind in kinds])
    assert load(refusals=refusals).failed_prepares() == ["p: DeviceInUse: gpu-0 is held"]


def test_a_failed_prepare_is_as_late_as_it_comes_after_its_pods_scheduling() -> None:
    events = [
        {"involvedObject": {"name": name}, "message": "DaemonNotReady: ring"}
        for name in ("p", "scheduled-before")
    ]
    told = [Observation(33, "", {"type": "ADDED", "object": event}) for event in events]
    seen = load(version(1, node=""), version(2), version(9), refusals=Recording(told))
    assert seen.refused() == [
        Refusal("p", 31, "DaemonNotReady: ring"),
        Refusal("scheduled-before", 0, "DaemonNotReady: ring"),
    ]
    assert seen.refused(since=34) == []
