# SPDX-License-Identifier: Apache-2.0
"""A node of the reference driver gets ours while its pods run, and nothing of that driver stays."""

from pathlib import Path

import pytest
from nvdra_api import names
from nvdra_migrate import command
from nvdra_testing import yaml_documents
from nvdra_testing.cluster import reference_node, workloads
from nvdra_testing.cluster.installation import Cluster
from nvdra_testing.cluster.kubectl import Kubectl

NODE = "node-1"
GPUS = ("gpu-3", "gpu-5")
OURS = "gpu-6"
SOCKETS = ["dra.sock", "gpu.nvidia.com-reg.sock"]
THEIR_VALUES = """\
nvidiaDriverRoot: /run/nvidia/driver
gpuResourcesEnabledOverride: true
logVerbosity: "5"
resources:
  computeDomains:
    enabled: false
"""


@pytest.mark.timeout(400, func_only=True)
def test_pods_of_the_reference_driver_keep_their_gpus_and_are_released_by_ours(
    idle: Cluster,
    pods: Kubectl,
    settings: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    uuids = {name: idle.device(NODE, name).uuid for name in (*GPUS, OURS)}
    for name, uuid in uuids.items():
        pods.apply(
            workloads.template(name, workloads.gpus("gpu", workloads.is_gpu_with_uuid(uuid)))
        )
    for name in GPUS:
        pods.apply(workloads.pod(name, templates=[name]))
    pods.wait_running(*GPUS)
    held = {name: workloads.claims_of(pods, name) for name in GPUS}
    before = {name: container(pods, name) for name in GPUS}
    idle.uninstall()
    reference_node.leave_gpu_claims(
        idle, NODE, [claim for each in held.values() for claim in each], uuids
    )
    left = reference_node.what_is_read(idle, NODE, names.GPU_DRIVER)
    assert reference_node.sockets(idle, NODE, names.GPU_DRIVER) == SOCKETS

    (tmp_path / "theirs.yaml").write_text(THEIR_VALUES)
    assert command.run(["values", str(tmp_path / "theirs.yaml")]) == 0
    (tmp_path / "ours.yaml").write_text(capsys.readouterr().out)
    idle.install(f"--values={tmp_path / 'ours.yaml'}", *settings)
    idle.kubectl.wait(lambda: not_held(idle, 2), "both claims to be taken over")
    assert {name: container(pods, name) for name in GPUS} == before
    assert len(left) == 3
    assert reference_node.what_is_read(idle, NODE, names.GPU_DRIVER) == left

    # A container that is created anew gets its GPU by the names that the reference driver gave.
    restart(pods, GPUS[0])
    for name in GPUS:
        assert workloads.visible_gpus(pods, name).uuids == {uuids[name]}

    # Whoever goes back finds what the reference driver reads, and room for its sockets.
    pods.apply(workloads.pod(OURS, templates=[OURS]))
    pods.wait_running(OURS)
    (claim,) = workloads.claims_of(pods, OURS)
    idle.uninstall()
    assert reference_node.what_is_read(idle, NODE, names.GPU_DRIVER) == left
    assert reference_node.sockets(idle, NODE, names.GPU_DRIVER) == []
    answered = reference_node.cdi_names(idle, NODE, names.GPU_DRIVER)
    ours = answered.pop(claim["metadata"]["uid"])
    assert set().union(*answered.values()) == described(left)
    assert not ours & described(left)
    for name in (GPUS[1], OURS):  # no driver is there, and none is needed
        restart(pods, name)
    for name, uuid in uuids.items():
        assert workloads.visible_gpus(pods, name).uuids == {uuid}
    idle.install(f"--values={tmp_path / 'ours.yaml'}", *settings)
    idle.kubectl.wait(lambda: not_held(idle, 3), "all claims to be held again")
    pods.delete("pod", OURS)
    idle.kubectl.wait(lambda: not_held(idle, 2), "our own claim to be released")

    # The GPU of a claim that is taken over goes to nobody else before it is released.
    pods.apply(workloads.pod("next", templates=[GPUS[0]]))
    workloads.wait_unschedulable(pods, "next")
    pods.delete("pod", GPUS[0])
    pods.wait_running("next", timeout_s=90)
    assert workloads.visible_gpus(pods, "next").uuids == {uuids[GPUS[0]]}
    idle.kubectl.wait(lambda: not_left(idle, 2), "one claim's spec to be gone")

    # With the last claim everything of the reference driver goes.
    pods.delete("pod", GPUS[1], "next")
    idle.kubectl.wait(lambda: not_held(idle, 0), "no claim to be held")
    idle.kubectl.wait(lambda: not_left(idle, 0), "nothing of the reference driver to be left")


def container(pods: Kubectl, name: str) -> tuple[str, int]:
    """The container that the pod runs, and how often it was restarted."""
    (status,) = pods.get("pod", name)["status"]["containerStatuses"]
    return status["containerID"], status["restartCount"]


def described(files: dict[str, str]) -> set[str]:
    """The CDI names of the devices in the specs among these files."""
    specs = [yaml_documents.load(text) for name, text in files.items() if name.endswith(".yaml")]
    return {f"{spec['kind']}={device['name']}" for spec in specs for device in spec["devices"]}


def restart(pods: Kubectl, name: str) -> None:
    """End the container of a pod, and wait until it has been created again."""

    def not_restarted() -> str | None:
        (status,) = pods.get("pod", name)["status"]["containerStatuses"]
        return None if status["restartCount"] == 1 and status["ready"] else str(status)

    pods.run_unchecked("exec", name, "--", "sh", "-c", "kill -TERM 1")
    pods.wait(not_restarted, "the container to be created again", 60)


def not_held(cluster: Cluster, count: int) -> str | None:
    """The number of prepared GPUs if it is another one."""
    found = cluster.prepared_gpu_count(NODE)
    return None if found == count else str(found)


def not_left(cluster: Cluster, count: int) -> str | None:
    """The files of the reference driver if there are more or fewer."""
    found = reference_node.leftovers(cluster, NODE, names.GPU_DRIVER)
    return None if len(found) == count else str(found)
