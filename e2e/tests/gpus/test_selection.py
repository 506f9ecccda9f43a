# SPDX-License-Identifier: Apache-2.0
"""Claims select GPUs by attributes; a request that no GPU meets is reported to the user."""

from functools import partial
from pathlib import Path
from typing import Any

from nvdra_testing.cluster import workloads
from nvdra_testing.cluster.installation import Cluster
from nvdra_testing.cluster.kubectl import Kubectl

QUICKSTARTS = Path(__file__).parents[2] / "quickstarts"


def test_a_gpu_is_chosen_by_product_memory_and_architecture(
    cluster: Cluster, pods: Kubectl
) -> None:
    pods.apply(QUICKSTARTS / "4-chosen-by-what-it-is.yaml")
    pods.wait_running("chosen-gpu")
    (claim,) = workloads.claims_of(pods, "chosen-gpu")
    (device,) = cluster.allocated_devices(claim)
    assert device.attributes["architecture"] == "Hopper"
    assert workloads.visible_gpus(pods, "chosen-gpu").uuids == {device.uuid}


def test_a_gpu_is_chosen_by_the_version_of_its_driver(pods: Kubectl) -> None:
    version = workloads.attribute("driverVersion")
    at_least = f"{version}.compareTo(semver('580.65.6')) >= 0"
    below = f"{version}.compareTo(semver('581.0.0')) < 0"
    pods.apply(workloads.template("recent", workloads.gpus("gpu", at_least, below)))
    pods.apply(workloads.pod("p", templates=["recent"]))
    pods.wait_running("p")
    assert len(workloads.visible_gpus(pods, "p").uuids) == 1


def test_a_pod_whose_gpu_no_node_has_stays_pending_and_is_told_why(pods: Kubectl) -> None:
    pods.apply(QUICKSTARTS / "6-a-gpu-that-no-node-has.yaml")
    pods.wait(partial(undecided, pods), "the scheduler's verdict")
    pods.wait(partial(silent, pods), "an Event that says the same")
    (claim,) = workloads.claims_of(pods, "no-such-gpu")
    assert "allocation" not in claim.get("status", {})


def undecided(pods: Kubectl) -> str | None:
    """None once the scheduler has found no node; before that it may wait for the claim."""
    verdict = scheduled(pods)
    found = verdict.get("status"), verdict.get("reason")
    is_refused = "cannot allocate all claims" in verdict.get("message", "")
    return None if is_refused and found == ("False", "Unschedulable") else str(verdict)


def silent(pods: Kubectl) -> str | None:
    """None once the scheduler's event is there.

    Which is written at the same time as the condition.
    """
    events = pods.events("no-such-gpu")
    told = [message for reason, message in events if "Scheduling" in reason]
    return None if any("cannot allocate all claims" in each for each in told) else str(told)


def scheduled(pods: Kubectl) -> dict[str, Any]:
    """The PodScheduled condition of the pod, once there is one."""
    conditions = pods.get("pod", "no-such-gpu")["status"].get("conditions", [])
    return next((each for each in conditions if each["type"] == "PodScheduled"), {})
