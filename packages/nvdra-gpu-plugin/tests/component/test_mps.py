"""Pods share GPUs by MPS: a claim has its daemon, and nothing is left of it afterwards."""

import asyncio
import signal
from collections.abc import AsyncIterator
from typing import Any

import pytest_asyncio
import yaml
from nvdra_testing.hardware import driver_installation
from nvdra_testing.kubelet.checkpoint_file import CheckpointFile
from nvdra_testing.node import mps_pods, plugin
from nvdra_testing.node.mps_pods import MpsPods
from nvdra_testing.node.rig import Rig, cdi_edits, cdi_names

GATES = "--feature-gates=MPSSupport=true,DynamicMIG=true,TimeSlicingSettings=true"
FLAGS = (GATES, *mps_pods.FLAGS)


def shared(kind: str = "GpuConfig", **config: Any) -> list[object]:
    """The config of a claim whose devices are shared by MPS, with these settings."""
    sharing: dict[str, Any] = {"strategy": "MPS"}
    if config:
        sharing["mpsConfig"] = config
    parameters = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": kind, "sharing": sharing}
    return [plugin.opaque_config(parameters)]


def compute_mode(rig: Rig, index: int) -> str:
    """The compute mode of a GPU, from nvidia-smi."""
    fields = "--query-gpu=compute_mode", "--format=csv,noheader"
    return rig.node.nvidia_smi("-i", str(index), *fields).strip()


def is_clean(rig: Rig, pods: MpsPods) -> bool:
    """Whether nothing is left of any claim."""
    return not (rig.recorded_claims() or pods.deployments() or pods.directories())


@pytest_asyncio.fixture
async def pods(rig: Rig) -> AsyncIterator[MpsPods]:
    async with MpsPods(rig).serving() as serving:
        yield serving


async def test_a_claim_has_a_daemon_with_its_settings_and_its_containers_reach_it(
    rig: Rig, pods: MpsPods
) -> None:
    await rig.start(*FLAGS)
    limit: dict[str, Any] = {
        "defaultActiveThreadPercentage": 50,
        "defaultPinnedDeviceMemoryLimit": "10Gi",
    }
    claim = rig.create_claim("gpu-1", "gpu-2", config=shared(**limit))
    answer = (await rig.dra.prepare([claim]))[claim.uid]
    device, daemon, *_ = cdi_names(answer)
    assert cdi_edits(rig, device)["deviceNodes"]
    edits = cdi_edits(rig, daemon)
    (directory,) = pods.directories()
    assert edits["env"] == ["CUDA_MPS_PIPE_DIRECTORY=/tmp/nvidia-mps"]
    assert {each["containerPath"]: each["hostPath"] for each in edits["mounts"]} == {
        "/dev/shm": f"{directory.path}/shm",
        "/tmp/nvidia-mps": f"{directory.path}/pipe",
    }
    assert [compute_mode(rig, index) for index in (0, 1, 2)] == [
        "Default",
        "Exclusive_Process",
        "Exclusive_Process",
    ]
    (wanted,) = pods.deployments().values()
    arguments = wanted["spec"]["template"]["spec"]["containers"][0]["args"]
    assert sum(each.endswith("=10240M") for each in arguments) == 2
    assert (await rig.dra.prepare([claim]))[claim.uid] == answer
    await rig.dra.unprepare([claim])
    assert compute_mode(rig, 1) == "Default"
    assert rig.recorded_claims() == {}
    await rig.wait_until(lambda: is_clean(rig, pods), "everything to be gone")


async def test_an_unprepare_needs_no_api_server_and_waits_for_the_daemon(
    rig: Rig, pods: MpsPods
) -> None:
    await rig.start(*FLAGS)
    rig.node.nvidia_smi("-i", "0", "-c", "PROHIBITED")
    claim = rig.create_claim("gpu-0", config=shared())
    assert not (await rig.dra.prepare([claim]))[claim.uid].error
    assert pods.running()
    with rig.server.paused():
        pods.is_idle = True
        await rig.dra.unprepare([claim])
        assert not pods.running()
        assert compute_mode(rig, 0) == "Prohibited"
        assert rig.recorded_claims() == {}
        (directory,) = pods.directories()
        assert directory.is_forbidden
    await rig.wait_until(lambda: is_clean(rig, pods), "everything to be gone", timeout_s=60)


async def test_a_daemon_that_is_not_ready_is_told_with_its_pods_words_and_the_retry_finds_it(
    rig: Rig, pods: MpsPods
) -> None:
    pods.is_idle = True
    await rig.start(*FLAGS)
    claim = rig.create_claim("gpu-3", config=shared())
    other = rig.create_claim("gpu-3")
    call = asyncio.create_task(rig.dra.prepare([claim], timeout_s=6))  # noqa: TID251 - awaited below
    await rig.wait_until(lambda: bool(pods.deployments()), "the Deployment")
    (wanted,) = pods.deployments().values()
    name = wanted["metadata"]["name"]
    pod = rig.server.create(
        "/api/v1/namespaces/default/pods",
        {
            "metadata": {"name": f"{name}-x", "labels": {"app": name}},
            "spec": {"nodeName": rig.node.name, "containers": [{"name": "c", "image": "i"}]},
        },
    )
    waiting = {"reason": "ImagePullBackOff", "message": "no such image"}
    status = {"name": "c", "image": "i", "imageID": "", "ready": False, "restartCount": 0}
    pod["status"] = {"containerStatuses": [{**status, "state": {"waiting": waiting}}]}
    path = f"/api/v1/namespaces/default/pods/{name}-x"
    rig.server.request("PUT", f"{path}/status", pod)
    text = (await call)[claim.uid].error
    assert text.startswith("MpsNotReady: ")
    assert "ImagePullBackOff: no such image" in text
    assert "DeviceInUse" in (await rig.dra.prepare([other], timeout_s=4))[other.uid].error
    pods.is_idle = False
    assert not (await rig.dra.prepare([claim]))[claim.uid].error
    assert len(pods.deployments()) == 1
    rig.server.request("DELETE", path)


async def test_a_killed_plugin_finds_its_daemons_and_a_deployment_that_was_deleted_is_made_again(
    rig: Rig, pods: MpsPods
) -> None:
    await rig.start(*FLAGS)
    claim = rig.create_claim("gpu-4", config=shared())
    answer = (await rig.dra.prepare([claim]))[claim.uid]
    assert not answer.error
    (uid,) = pods.deployments()
    await rig.stop(signal.SIGKILL)
    await rig.start(*FLAGS)
    assert (await rig.dra.prepare([claim]))[claim.uid] == answer
    assert list(pods.deployments()) == [uid]
    name = pods.deployments()[uid]["metadata"]["name"]
    rig.server.request("DELETE", f"{mps_pods.PATH}/{name}")
    await rig.wait_until(lambda: not pods.running(), "the daemon to end")
    assert (await rig.dra.prepare([claim]))[claim.uid] == answer
    assert pods.running()
    await rig.dra.unprepare([claim])
    await rig.wait_until(lambda: is_clean(rig, pods), "everything to be gone")


async def test_after_a_reboot_the_daemon_of_a_held_claim_runs_again(
    rig: Rig, pods: MpsPods
) -> None:
    await rig.start(*FLAGS)
    claim = rig.create_claim("gpu-5", config=shared())
    assert not (await rig.dra.prepare([claim]))[claim.uid].error
    await rig.stop()
    pods.reboot()
    driver_installation.reboot(rig.node)
    assert compute_mode(rig, 5) == "Default"
    await asyncio.sleep(1)
    (directory,) = pods.directories()
    assert not directory.is_locked, "it does not start before the plugin has prepared the GPU"
    await rig.start(*FLAGS)
    await rig.wait_until(lambda: bool(pods.running()), "the daemon")
    assert compute_mode(rig, 5) == "Exclusive_Process"
    await rig.dra.unprepare([claim])
    assert compute_mode(rig, 5) == "Default"
    await rig.wait_until(lambda: is_clean(rig, pods), "everything to be gone")


async def test_a_mig_device_is_made_and_shared(rig: Rig, pods: MpsPods) -> None:
    await rig.start(*FLAGS)
    device = next(name for name in rig.devices() if name.startswith("gpu-6-mig-3g"))
    claim = rig.create_claim(device, config=shared("MigDeviceConfig"))
    answer = (await rig.dra.prepare([claim]))[claim.uid]
    names = cdi_names(answer)
    assert len(names) == 2
    (path,) = rig.node.cdi.glob("*claim-device*")
    assert len(yaml.safe_load(path.read_text())["devices"]) == 2
    (wanted,) = pods.deployments().values()
    env = wanted["spec"]["template"]["spec"]["containers"][0]["env"]
    assert env[0]["value"].startswith("MIG-")
    await rig.dra.unprepare([claim])
    await rig.wait_until(lambda: is_clean(rig, pods), "everything to be gone")


async def test_a_claim_that_is_prepared_again_at_once_has_a_daemon_of_its_own(
    rig: Rig, pods: MpsPods
) -> None:
    await rig.start(*FLAGS)
    claim = rig.create_claim("gpu-7", config=shared())
    for _ in range(3):
        assert not (await rig.dra.prepare([claim]))[claim.uid].error
        assert pods.running()
        await rig.dra.unprepare([claim])
    await rig.wait_until(lambda: is_clean(rig, pods), "everything to be gone")


async def test_a_deployment_whose_directory_is_gone_is_deleted_at_the_start(
    rig: Rig, pods: MpsPods
) -> None:
    pods.is_idle = True
    await rig.start(*FLAGS)
    claim = rig.create_claim("gpu-0", config=shared())
    await rig.dra.prepare([claim], timeout_s=4)
    assert pods.deployments()
    await rig.stop(signal.SIGKILL)
    for directory in pods.directories():
        directory.remove()
    for file in rig.plugin_dir.glob("state.sqlite*"):
        file.unlink()
    await rig.start(*FLAGS)
    await rig.wait_until(lambda: not pods.deployments(), "the Deployment to be gone")


async def test_a_claim_whose_record_is_lost_keeps_its_daemon_and_is_unprepared_properly(
    rig: Rig, pods: MpsPods
) -> None:
    kubelet = CheckpointFile(rig.node.kubelet)
    await rig.start(*FLAGS)
    claim = rig.create_claim("gpu-0", config=shared())
    answer = (await rig.dra.prepare([claim]))[claim.uid]
    kubelet.add_claim(claim, answer)
    await rig.stop(signal.SIGKILL)
    for file in rig.plugin_dir.glob("state.sqlite*"):
        file.unlink()
    await rig.start(*FLAGS)
    await rig.wait_until(lambda: claim.uid in rig.recorded_claims(), "the record")
    assert (await rig.dra.prepare([claim]))[claim.uid] == answer
    assert cdi_edits(rig, cdi_names(answer)[1])["mounts"]
    assert pods.running()
    await rig.dra.unprepare([claim])
    assert not pods.running()
    assert compute_mode(rig, 0) == "Default"
    await rig.wait_until(lambda: is_clean(rig, pods), "everything to be gone")


async def test_a_claim_is_unprepared_properly_after_the_gate_was_switched_off(
    rig: Rig, pods: MpsPods
) -> None:
    await rig.start(*FLAGS)
    claim = rig.create_claim("gpu-2", config=shared())
    assert not (await rig.dra.prepare([claim]))[claim.uid].error
    await rig.stop()
    await rig.start()
    await rig.dra.unprepare([claim])
    assert not pods.running()
    assert compute_mode(rig, 2) == "Default"
