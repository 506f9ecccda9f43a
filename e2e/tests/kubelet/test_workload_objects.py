# SPDX-License-Identifier: Apache-2.0
"""Jobs, Deployments and DaemonSets whose pods each have a claim from one template."""

from typing import Any

import pytest
from nvdra_testing.cluster import workloads
from nvdra_testing.cluster.installation import Cluster
from nvdra_testing.cluster.kubectl import Kubectl


def pod_template(command: list[str], restart: str) -> dict[str, Any]:
    spec = workloads.pod_spec(templates=["one"]) | {"restartPolicy": restart}
    spec["containers"][0]["command"] = command
    return {"metadata": {"labels": {"app": "work"}}, "spec": spec}


def apps_pods(pods: Kubectl) -> list[str]:
    return [pod["metadata"]["name"] for pod in pods.get("pods", "", "-l", "app=work")]


def test_a_job_with_two_completions_succeeds_and_each_pod_saw_a_gpu(pods: Kubectl) -> None:
    pods.apply(workloads.template("one", workloads.gpus()))
    job = {"completions": 2, "template": pod_template(["nvidia-smi", "-L"], "Never")}
    pods.apply({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "work"}, "spec": job})

    def unfinished() -> str | None:
        status = pods.get("job", "work").get("status", {})
        return None if status.get("succeeded") == 2 else str(status)

    pods.wait(unfinished, "two pods of the Job to succeed", timeout_s=60)
    assert "failed" not in pods.get("job", "work")["status"]
    logs = [pods.logs(pod) for pod in apps_pods(pods)]
    assert [log.count("UUID: GPU-") for log in logs] == [1, 1]


def test_a_deployment_with_two_replicas_has_both_ready_with_a_gpu_each(pods: Kubectl) -> None:
    pods.apply(workloads.template("one", workloads.gpus()))
    deployment = {
        "replicas": 2,
        "selector": {"matchLabels": {"app": "work"}},
        "template": pod_template(workloads.IDLE_COMMAND, "Always"),
    }
    pods.apply(
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "work"},
            "spec": deployment,
        }
    )

    def unready() -> str | None:
        status = pods.get("deployment", "work").get("status", {})
        return None if status.get("readyReplicas") == 2 else str(status.get("conditions"))

    pods.wait(unready, "both replicas to be ready", timeout_s=60)
    seen = [workloads.visible_gpus(pods, pod).uuids for pod in apps_pods(pods)]
    assert [len(uuids) for uuids in seen] == [1, 1]
    assert seen[0] != seen[1]


@pytest.mark.protocol("P28")
def test_a_daemonset_that_watches_every_gpu_runs_beside_pods_that_hold_one(
    cluster: Cluster, pods: Kubectl
) -> None:
    workloads.allow_admin_access(pods)
    every = {"deviceClassName": workloads.DEVICE_CLASS, "allocationMode": "All"}
    watched = {"name": "watched", "exactly": {**every, "adminAccess": True}}
    pods.apply(workloads.template("mine", workloads.gpus()))
    pods.apply(workloads.template("one", watched))
    pods.apply(workloads.pod("before", templates=["mine"]))
    pods.wait_running("before")
    daemons = {
        "selector": {"matchLabels": {"app": "work"}},
        "template": pod_template(workloads.IDLE_COMMAND, "Always"),
    }
    metadata = {"name": "watch"}
    watch = {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": metadata, "spec": daemons}
    pods.apply(watch)

    def unready() -> str | None:
        status = pods.get("daemonset", "watch")["status"]
        return None if status.get("numberReady") == len(cluster.nodes()) else str(status)

    pods.wait(unready, "a ready pod on every node", timeout_s=60)
    pods.apply(workloads.pod("after", templates=["mine"]))
    pods.wait_running("after")
    for daemon in apps_pods(pods):
        node = pods.get("pod", daemon)["spec"]["nodeName"]
        there = {device.uuid for device in cluster.devices() if device.node == node}
        assert workloads.visible_gpus(pods, daemon).uuids == there
    held = [workloads.visible_gpus(pods, name).uuids for name in ("before", "after")]
    assert [len(uuids) for uuids in held] == [1, 1]
    assert held[0] != held[1]
