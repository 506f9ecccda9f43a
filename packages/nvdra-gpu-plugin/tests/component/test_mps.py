# SPDX-License-Identifier: Apache-2.0
"""Pods share GPUs by MPS: a claim has its daemon, and nothing is left of it afterwards."""

import asyncio
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import pytest_asyncio
import yaml
from nvdra_cdi.cache import Cache
from nvdra_gpu_plugin.devices import mps_layout
from nvdra_gpu_plugin.mps import mounts
from nvdra_gpu_plugin.mps.daemon_files import DaemonDirectory
from nvdra_testing.hardware import driver_installation, gpu_modes
from nvdra_testing.kubelet.checkpoint_file import CheckpointFile
from nvdra_testing.node import directories, mps_pods, plugin
from nvdra_testing.node.mps_pods import MpsPods
from nvdra_testing.node.rig import Rig, cdi_edits, cdi_names

GATES = "--feature-gates=MPSSupport=true,DynamicMIG=true,TimeSlicingSettings=true"
FLAGS = (GATES, *mps_pods.FLAGS)
MADE = "gpu-6-mig-3g40gb-9-4"
AT_ONCE_S = 15.0
"""Also on a machine with much else to do. A prepare waits 40 s for a daemon."""


def compute_mode(rig: Rig, index: int) -> str:
    """The compute mode of a GPU, from nvidia-smi."""
    fields = "--query-gpu=compute_mode", "--format=csv,noheader"
    return rig.node.nvidia_smi("-i", str(index), *fields).strip()


def is_clean(rig: Rig, pods: MpsPods) -> bool:
    """Whether nothing is left of any claim."""
    return not rig.recorded_claims() and pods.is_clean()


@pytest_asyncio.fixture
async def pods(rig: Rig) -> AsyncIterator[MpsPods]:
    async with MpsPods(rig.server, rig.node).serving() as serving:
        yield serving


async def test_a_claim_has_a_daemon_with_its_settings_and_its_containers_reach_it(
    rig: Rig, pods: MpsPods
) -> None:
    await rig.start(*FLAGS)
    limit: dict[str, Any] = {
        "defaultActiveThreadPercentage": 50,
        "defaultPinnedDeviceMemoryLimit": "10Gi",
    }
    claim = rig.create_claim("gpu-1", "gpu-2", config=plugin.shared_by_mps(**limit))
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
    assert {each["containerPath"]: each["options"] for each in edits["mounts"]} == {
        "/dev/shm": ["rw", "nosuid", "nodev", "bind"],
        "/tmp/nvidia-mps": ["ro", "nosuid", "nodev", "noexec", "bind"],
    }
    assert [compute_mode(rig, index) for index in (0, 1, 2)] == [
        "Default",
        "Exclusive_Process",
        "Exclusive_Process",
    ]
    (wanted,) = pods.deployments().values()
    node = rig.server.request("GET", f"/api/v1/nodes/{rig.node.name}")["metadata"]
    (owner,) = wanted["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["uid"]) == ("Node", node["name"], node["uid"])
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
    claim = rig.create_claim("gpu-0", config=plugin.shared_by_mps())
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


async def test_an_event_names_the_users_of_which_one_waits_for_the_other(
    rig: Rig, pods: MpsPods
) -> None:
    await rig.start(*FLAGS)
    claim = rig.create_claim("gpu-0", config=plugin.shared_by_mps())
    assert not (await rig.dra.prepare([claim]))[claim.uid].error
    (directory,) = pods.directories()
    (directory.path / mps_layout.WAITING).write_text("2000 1000")  # as the daemon's command does
    text = "processes of user 2000 wait on gpu-0 until those of user 1000 have ended"
    await rig.wait_until(
        lambda: any(each["message"].startswith(text) for each in rig.events("MpsNotReady")),
        "the Event",
        timeout_s=30,
    )
    await rig.dra.unprepare([claim])


@pytest.mark.parametrize(
    ("rig", "is_refused"),
    [
        (("dgx-h100", {"driver": {"version": "550.163.01"}}), True),
        (("dgx-h100", {"driver": {"version": "555.58.02"}}), False),
        ("dgx-h100", False),
    ],
    indirect=["rig"],
)
async def test_several_users_need_a_driver_that_has_the_option(
    rig: Rig, pods: MpsPods, is_refused: bool
) -> None:
    await rig.start(*FLAGS)
    claim = rig.create_claim("gpu-0", config=plugin.shared_by_mps(multiUser=True))
    text = (await rig.dra.prepare([claim]))[claim.uid].error
    if is_refused:
        assert text.startswith("InvalidConfig: ")
        assert "of NVIDIA's driver 550.163.01 has no option for several users" in text
        assert not pods.deployments()
        assert compute_mode(rig, 0) == "Default"
        assert rig.recorded_claims() == {}
    else:
        assert not text
        await rig.dra.unprepare([claim])


@pytest.mark.soak
async def test_a_daemon_that_is_not_ready_is_told_with_its_pods_words_and_the_retry_finds_it(
    rig: Rig, pods: MpsPods
) -> None:
    pods.is_idle = True
    await rig.start(*FLAGS)
    claim = rig.create_claim("gpu-3", config=plugin.shared_by_mps())
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
    assert "DeviceInUse" in await rig.dra.refusal(other)
    pods.is_idle = False
    assert not (await rig.dra.prepare([claim]))[claim.uid].error
    assert len(pods.deployments()) == 1
    rig.server.request("DELETE", path)


async def test_an_unprepare_does_not_wait_until_a_daemon_is_not_ready(
    rig: Rig, pods: MpsPods
) -> None:
    pods.is_idle = True
    await rig.start(*FLAGS)
    claim = rig.create_claim("gpu-3", config=plugin.shared_by_mps())
    async with asyncio.TaskGroup() as group:
        call = group.create_task(rig.dra.prepare([claim]))
        await rig.wait_until(lambda: bool(pods.deployments()), "the Deployment")
        began = time.monotonic()
        assert not (await rig.dra.unprepare([claim]))[claim.uid].error
        assert time.monotonic() - began < AT_ONCE_S
        text = (await call)[claim.uid].error
    assert text.startswith("MpsNotReady: claim default/"), text
    assert "is to be unprepared" in text
    assert compute_mode(rig, 3) == "Default"
    await rig.wait_until(lambda: is_clean(rig, pods), "everything to be gone")


@pytest.mark.soak
async def test_a_killed_plugin_finds_its_daemons_and_a_deployment_that_was_deleted_is_made_again(
    rig: Rig, pods: MpsPods
) -> None:
    await rig.start(*FLAGS)
    claim = rig.create_claim("gpu-4", config=plugin.shared_by_mps())
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
    name = next(iter(pods.deployments().values()))["metadata"]["name"]
    rig.server.request("DELETE", f"{mps_pods.PATH}/{name}")
    await rig.wait_until(lambda: not pods.running(), "the daemon to end")
    await rig.wait_until(lambda: bool(pods.running()), "the daemon, without a call")
    await rig.dra.unprepare([claim])
    await rig.wait_until(lambda: is_clean(rig, pods), "everything to be gone")


async def test_after_a_reboot_the_daemon_of_a_held_claim_runs_again(
    rig: Rig, pods: MpsPods
) -> None:
    await rig.start(*FLAGS)
    claim = rig.create_claim("gpu-5", config=plugin.shared_by_mps())
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


@pytest.mark.soak
async def test_a_mig_device_is_made_and_shared(rig: Rig, pods: MpsPods) -> None:
    await rig.start(*FLAGS)
    claim = rig.create_claim(MADE, config=plugin.shared_by_mps("MigDeviceConfig"))
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


@pytest.mark.soak
async def test_after_a_reboot_a_mig_device_is_made_again_before_its_daemon_runs(
    rig: Rig, pods: MpsPods
) -> None:
    await rig.start(*FLAGS)
    claim = rig.create_claim(MADE, config=plugin.shared_by_mps("MigDeviceConfig"))
    answer = (await rig.dra.prepare([claim]))[claim.uid]
    await rig.stop()
    pods.reboot()
    pods.is_idle = True
    driver_installation.reboot(rig.node)
    assert gpu_modes.gpu_instances(rig.node) == []
    await rig.start(*FLAGS)
    await rig.wait_until(lambda: bool(gpu_modes.gpu_instances(rig.node)), "the MIG device")
    await rig.wait_until(
        lambda: '"uuid":"MIG-' in rig.recorded_claims()[claim.uid], "its UUID in the record"
    )
    assert not pods.running()
    pods.is_idle = False
    assert (await rig.dra.prepare([claim]))[claim.uid] == answer
    assert pods.running()
    assert cdi_edits(rig, cdi_names(answer)[1])["mounts"]
    await rig.dra.unprepare([claim])
    assert gpu_modes.gpu_instances(rig.node) == []
    await rig.wait_until(lambda: is_clean(rig, pods), "everything to be gone")


@pytest.mark.soak
async def test_a_mig_device_of_an_administrator_is_shared_and_stays(
    rig: Rig, pods: MpsPods
) -> None:
    rig.node.nvidia_smi("-i", "0", "-mig", "1")
    rig.node.make_mig_device(0, "1g.10gb", 0)
    await rig.start("--feature-gates=MPSSupport=true", *mps_pods.FLAGS)
    (device,) = (name for name in rig.devices() if "-mig-" in name)
    config = plugin.shared_by_mps("MigDeviceConfig", defaultPinnedDeviceMemoryLimit="1Gi")
    claim = rig.create_claim(device, config=config)
    answer = (await rig.dra.prepare([claim]))[claim.uid]
    own, daemon = cdi_names(answer)
    assert cdi_edits(rig, own)["deviceNodes"]
    assert cdi_edits(rig, daemon)["mounts"]
    (wanted,) = pods.deployments().values()
    arguments = wanted["spec"]["template"]["spec"]["containers"][0]["args"]
    assert "--memory-limit=0=1024M" in arguments
    await rig.dra.unprepare([claim])
    assert gpu_modes.gpu_instances(rig.node) == [(0, "1g.10gb", 0)]
    assert device in rig.devices()
    await rig.wait_until(lambda: is_clean(rig, pods), "everything to be gone")


@pytest.mark.soak
@pytest.mark.parametrize(
    ("devices", "kind"),
    [(("gpu-0", "gpu-1"), "GpuConfig"), ((MADE,), "MigDeviceConfig")],
)
async def test_the_metadata_and_the_status_of_a_claim_with_daemons_name_its_devices(
    rig: Rig, pods: MpsPods, devices: tuple[str, ...], kind: str
) -> None:
    await rig.start(f"{GATES},DeviceMetadata=true", *mps_pods.FLAGS)
    claim = rig.create_claim(*devices, config=plugin.shared_by_mps(kind))
    answer = (await rig.dra.prepare([claim]))[claim.uid]
    names = [list(device.cdi_device_ids) for device in answer.devices]
    found = [len(each) for each in names]
    assert found == [3, 2][: len(devices)], "device, daemon, and the request's metadata"
    assert len(pods.running()) == 1
    mounts = Cache([str(rig.node.cdi)]).resolve(names[0]).mounts
    (metadata,) = (Path(each.host_path) for each in mounts if "metadata" in each.container_path)
    path = f"{plugin.claims_path(claim.namespace)}/{claim.name}"

    def uuids() -> list[str]:
        found = rig.server.request("GET", path)["status"].get("devices") or ()
        return [each["data"]["uuid"] for each in found]

    await rig.wait_until(lambda: len(uuids()) == len(devices), "the status")
    assert all(uuid in metadata.read_text() for uuid in uuids())
    await rig.stop(signal.SIGKILL)
    await rig.start(f"{GATES},DeviceMetadata=true", *mps_pods.FLAGS)
    assert (await rig.dra.prepare([claim]))[claim.uid] == answer
    await rig.dra.unprepare([claim])
    await rig.wait_until(lambda: is_clean(rig, pods), "everything to be gone")
    assert not metadata.exists()


async def test_who_only_monitors_a_gpu_is_no_client_of_a_daemon(rig: Rig, pods: MpsPods) -> None:
    await rig.start(*FLAGS)
    monitor = rig.create_claim("gpu-0", admin=True, config=plugin.shared_by_mps())
    assert len(cdi_names((await rig.dra.prepare([monitor]))[monitor.uid])) == 1
    assert compute_mode(rig, 0) == "Default"
    assert not pods.deployments()
    claim = rig.create_claim("gpu-0", config=plugin.shared_by_mps())
    assert not (await rig.dra.prepare([claim]))[claim.uid].error
    await rig.dra.unprepare([monitor])
    assert compute_mode(rig, 0) == "Exclusive_Process"
    assert pods.running()
    await rig.dra.unprepare([claim])
    await rig.wait_until(lambda: is_clean(rig, pods), "everything to be gone")


async def test_a_share_cannot_take_the_gpu_from_those_that_take_turns(
    rig: Rig, pods: MpsPods
) -> None:
    gates = f"{GATES},ConsumableShares=true"
    await rig.start(gates, "--consumable-shares=unlimited", *mps_pods.FLAGS)
    first = rig.create_claim("gpu-0", shares=[str(uuid4())], config=plugin.shared_by_time("Long"))
    assert not (await rig.dra.prepare([first]))[first.uid].error
    second = rig.create_claim("gpu-0", shares=[str(uuid4())], config=plugin.shared_by_mps())
    text = (await rig.dra.prepare([second]))[second.uid].error
    assert text.startswith("InvalidConfig: ")
    assert "MPS is not available for a share" in text
    assert gpu_modes.time_slice(rig.node, 0) == "Long"
    assert compute_mode(rig, 0) == "Default"
    assert not pods.deployments()
    await rig.dra.unprepare([first])
    assert gpu_modes.time_slice(rig.node, 0) == "Default"


async def test_a_daemon_that_does_not_end_keeps_its_gpu_until_it_does(
    rig: Rig, pods: MpsPods
) -> None:
    await rig.start(*FLAGS)
    claim, other = (rig.create_claim("gpu-0", config=each) for each in (plugin.shared_by_mps(), []))
    assert not (await rig.dra.prepare([claim]))[claim.uid].error
    (process,) = pods.processes.values()
    pods.is_idle = True
    process.send_signal(signal.SIGSTOP)
    text = (await rig.dra.unprepare([claim], timeout_s=40))[claim.uid].error
    assert text.startswith("DeviceInUse: the MPS control daemon of claim")
    assert "mps-control-daemon-" in text
    assert compute_mode(rig, 0) == "Exclusive_Process"
    refused = await rig.dra.refusal(other, timeout_s=6)
    assert refused.startswith("DeviceInUse: gpu-0 is held by claim")
    process.send_signal(signal.SIGCONT)
    await rig.wait_until(lambda: is_clean(rig, pods), "everything to be gone")
    assert compute_mode(rig, 0) == "Default"
    assert not (await rig.dra.prepare([other]))[other.uid].error


async def test_a_claim_that_is_prepared_again_at_once_has_a_daemon_of_its_own(
    rig: Rig, pods: MpsPods
) -> None:
    await rig.start(*FLAGS)
    claim = rig.create_claim("gpu-7", config=plugin.shared_by_mps())
    for _ in range(3):
        assert not (await rig.dra.prepare([claim]))[claim.uid].error
        assert pods.running()
        await rig.dra.unprepare([claim])
    await rig.wait_until(lambda: is_clean(rig, pods), "everything to be gone")


@pytest.mark.soak
async def test_a_deployment_whose_directory_is_gone_is_deleted_at_the_start(
    rig: Rig, pods: MpsPods
) -> None:
    pods.is_idle = True
    await rig.start(*FLAGS)
    claim = rig.create_claim("gpu-0", config=plugin.shared_by_mps())
    await rig.dra.prepare([claim], timeout_s=4)
    assert pods.deployments()
    await rig.stop(signal.SIGKILL)
    for directory in pods.directories():
        directory.remove()
    for file in rig.plugin_dir.glob("state.sqlite*"):
        file.unlink()
    await rig.start(*FLAGS)
    await rig.wait_until(lambda: not pods.deployments(), "the Deployment to be gone")


@pytest.mark.parametrize("links", [10_000, pytest.param(200_000, marks=pytest.mark.soak)])
async def test_what_a_claim_has_left_delays_no_other_claim_however_much_it_is(
    rig: Rig, pods: MpsPods, links: int
) -> None:
    """As a container of it can leave it that an earlier version of the plugin has given the files.

    A directory that cannot be removed does not keep the others either.
    """
    left = DaemonDirectory(rig.plugin_dir / "mps" / f"{uuid4()}-abcde")
    pipe = left.path / "pipe"
    (pipe / "wide").mkdir(parents=True)
    (pipe / "first").touch()
    for number in range(links):
        (pipe / "wide" / str(number)).hardlink_to(pipe / "first")
    directories.nest(pipe, 3_000)
    stuck = DaemonDirectory(rig.plugin_dir / "mps" / f"{uuid4()}-00000")
    (stuck.path / "pipe/mounted").mkdir(parents=True)
    mounts.mount_pipe(stuck.path / "pipe/mounted")
    try:
        await rig.start(*FLAGS)
        claim = rig.create_claim("gpu-0", config=plugin.shared_by_mps())
        assert not (await rig.dra.prepare([claim]))[claim.uid].error
        await rig.dra.unprepare([claim])
        await rig.wait_until(
            lambda: pods.directories() == [stuck], "all others to be gone", timeout_s=120
        )
        assert stuck.is_forbidden
    finally:
        mounts.unmount(stuck.path / "pipe/mounted")
    await rig.wait_until(lambda: is_clean(rig, pods), "everything to be gone", timeout_s=30)


@pytest.mark.soak
async def test_a_claim_whose_record_is_lost_keeps_its_daemon_and_is_unprepared_properly(
    rig: Rig, pods: MpsPods
) -> None:
    kubelet = CheckpointFile(rig.node.kubelet)
    await rig.start(*FLAGS)
    claim = rig.create_claim("gpu-0", config=plugin.shared_by_mps())
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
    claim = rig.create_claim("gpu-2", config=plugin.shared_by_mps())
    assert not (await rig.dra.prepare([claim]))[claim.uid].error
    await rig.stop()
    await rig.start()
    await rig.dra.unprepare([claim])
    assert not pods.running()
    assert compute_mode(rig, 2) == "Default"
    await rig.wait_until(lambda: is_clean(rig, pods), "everything to be gone")
