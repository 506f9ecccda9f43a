# SPDX-License-Identifier: Apache-2.0
"""The manifests of docs/tasks/workloads.md, with stand-ins for images that a lab cannot pull.

A stand-in replaces image, command and arguments of a container, and nothing else.
"""

from functools import partial
from pathlib import Path
from typing import Any

from nvdra_testing import yaml_documents
from nvdra_testing.cluster.kubectl import Kubectl
from nvdra_testing.cluster.workloads import IMAGE

REPOSITORY = Path(__file__).parents[3]

# A web server that is well, and says which GPU it has.
SERVER = """
mkdir /www && touch /www/health && nvidia-smi -L > /www/gpu && exec busybox httpd -f -p 8000 -h /www
"""
# Each pod counts what it was given; nothing connects to the other: a lab has no name service.
RANK = """
set -e
test "$(nvidia-smi -L | wc -l)" = 4
test -c /dev/nvidia-caps-imex-channels/channel0
grep -q all_reduce /job/all_reduce.py
echo "rank $JOB_COMPLETION_INDEX of $NCCL_MNNVL_ENABLE domain on $(nvidia-smi -L | head -1)"
"""


def apply(kubectl: Kubectl, file: str, script: str) -> None:
    """Apply a manifest whose containers run a script in the image that each node has."""
    for item in yaml_documents.load_all((REPOSITORY / "e2e/workloads" / file).read_text()):
        pod = item.get("spec", {}).get("template", {}).get("spec")
        for container in pod["containers"] if pod else ():
            container |= {"image": IMAGE, "command": ["sh", "-c", script], "args": []}
        kubectl.apply(item)


def missing_replicas(kubectl: Kubectl) -> str | None:
    ready = kubectl.get("deployment", "inference")["status"].get("readyReplicas", 0)
    return None if ready == 2 else f"{ready} of 2 replicas are ready"


def unfinished(kubectl: Kubectl) -> str | None:
    status: dict[str, Any] = kubectl.get("job", "all-reduce")["status"]
    assert not status.get("failed"), status
    return None if status.get("succeeded") == 2 else f"{status}"


def test_replicas_of_an_inference_server_have_a_gpu_each_behind_a_service(team: Kubectl) -> None:
    apply(team, "inference-server.yaml", SERVER)
    team.wait(partial(missing_replicas, team), "the replicas", timeout_s=120)
    address = team.get("service", "inference")["spec"]["clusterIP"]
    (client, _) = (pod["metadata"]["name"] for pod in team.get("pods"))
    answers = {team.exec(client, "busybox", "wget", "-qO-", f"{address}/gpu") for _ in range(40)}
    assert len(answers) == 2, "two replicas, and a GPU of its own in each"
    assert all(answer.count("GPU-") == 1 for answer in answers)
    team.delete("deployment", "inference")


def test_a_job_over_a_domain_has_the_gpus_and_the_channel_of_each_node(team: Kubectl) -> None:
    apply(team, "all-reduce-over-a-domain.yaml", RANK)
    team.wait(partial(unfinished, team), "the job", timeout_s=180)
    names = [pod["metadata"]["name"] for pod in team.get("pods", "", "-l", "job-name=all-reduce")]
    assert {team.logs(name).split(" of ")[0] for name in names} == {"rank 0", "rank 1"}
    team.delete("job", "all-reduce")
    team.delete("computedomain", "all-reduce")
