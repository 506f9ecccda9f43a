"""Jobs and Deployments whose pods each claim a GPU from one template."""

from typing import Any

import workloads
from kubectl import Kubectl


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
        "template": pod_template(workloads.IDLE, "Always"),
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
    seen = [workloads.view(pods, pod).uuids for pod in apps_pods(pods)]
    assert [len(uuids) for uuids in seen] == [1, 1]
    assert seen[0] != seen[1]
