# SPDX-License-Identifier: Apache-2.0
"""What fails unexpectedly in one task of the plugin ends neither the process nor another task."""

import asyncio
from pathlib import Path

import pytest
from nvdra_testing.faults import task_campaign, task_faults
from nvdra_testing.faults.task_campaign import Campaign
from nvdra_testing.faults.task_faults import Connection
from nvdra_testing.node import mps_pods
from nvdra_testing.node.rig import Rig

PROGRAM = "nvdra-gpu-plugin"
GATES = (
    "DeviceMetadata",
    "NVMLDeviceHealthCheck",
    "MPSSupport",
    "DynamicMIG",
    "TimeSlicingSettings",
)


async def started(rig: Rig, directory: Path, *flags: str) -> Connection:
    await rig.start(*flags, environ=task_faults.environment(directory))
    return task_faults.connect(directory, PROGRAM)


@pytest.fixture
def directory(rig: Rig) -> Path:
    return rig.node.kubelet.parent


async def test_each_exception_in_each_task_leaves_the_others_and_the_node_served(
    rig: Rig, directory: Path
) -> None:
    gates = ",".join(f"{gate}=true" for gate in GATES)
    tasks = await started(rig, directory, f"--feature-gates={gates}", *mps_pods.FLAGS)
    kept = rig.create_claim("gpu-0")
    assert not (await rig.dra.prepare([kept]))[kept.uid].error
    campaign = Campaign(tasks, lambda: rig.process.get("/metrics")[1])
    names = await asyncio.to_thread(campaign.run)
    assert {"events", "status writer", "stale claims", "mps collector", "metadata"} <= names
    status, text = rig.process.get("/readyz?verbose")
    assert status == 200
    assert "[+]tasks ok: failed unexpectedly and goes on, see the log: " in text
    assert rig.process.get("/healthz")[0] == 200
    log = rig.process.log.read_text()
    assert "Traceback (most recent call last)" in log
    claim = rig.create_claim("gpu-1")
    assert not (await rig.dra.prepare([claim]))[claim.uid].error
    assert not (await rig.dra.unprepare([kept]))[kept.uid].error


async def test_a_task_that_is_not_supervised_would_be_found(rig: Rig, directory: Path) -> None:
    tasks = await asyncio.to_thread((await started(rig, directory)).tasks)
    assert not task_campaign.unsupervised(tasks)
    main, *others = tasks
    bare = [task for task in others if task.is_supervised][-1]
    unsupervised = type(bare)(**{**vars(bare), "is_supervised": False, "parent": main.id})
    assert task_campaign.unsupervised([main, unsupervised]) == [f"{bare.name}: {bare.work}"]


async def test_the_loss_of_the_instance_lock_ends_the_process(rig: Rig, directory: Path) -> None:
    tasks = await started(rig, directory)
    (lock,) = [task for task in tasks.tasks() if task.name == "instance lock"]
    tasks.throw(lock, "Exception")
    assert await asyncio.to_thread(rig.process.process.wait, 30) == 1
    assert "Error: Exception: thrown by a test" in rig.process.log.read_text()
