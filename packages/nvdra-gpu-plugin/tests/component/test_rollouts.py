# SPDX-License-Identifier: Apache-2.0
"""Two instances of the plugin on one node: one is active, the other stands by and takes over."""

import asyncio
import json
import os
import re
import signal
import sys
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from socket import AF_UNIX, socket
from typing import Any

import pytest
from nvdra_runtime.node.instance_lock import InstanceLock
from nvdra_testing import releases
from nvdra_testing.hardware.gpu_modes import gpu_instances
from nvdra_testing.node import plugin, rollouts
from nvdra_testing.node.plugin import PluginProcess
from nvdra_testing.node.rig import Rig, cdi_names
from nvdra_testing.node.rollouts import CreateClaim, launch_next, load, start_next, wait_takeover

KUBELET_PREFERS = pytest.mark.parametrize(
    "prefers_oldest",
    [
        pytest.param(False, id="newest first"),
        pytest.param(True, id="oldest first", marks=pytest.mark.soak),
    ],
)

RELEASED = ("nvdra-api", "nvdra-cdi", "nvdra-gpu-plugin")
DYNAMIC_MIG = "--feature-gates=DynamicMIG=true"


@pytest.fixture(scope="session")
def release_environ(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The variables with which Python runs the latest release in place of the tree's state."""
    release = releases.latest("nvdra-gpu-plugin")
    with releases.checkout(release, tmp_path_factory.mktemp("release")) as tree:
        sources = [str(tree / "packages" / package / "src") for package in RELEASED]
        yield {"PYTHONPATH": os.pathsep.join(sources)}


RELEASE = (sys.executable, "-m", "nvdra_gpu_plugin")


def creators(rig: Rig) -> list[CreateClaim]:
    """For each GPU of the node what creates a claim of it."""
    return [partial(rig.create_claim, f"gpu-{minor}") for minor in range(8)]


def slice_versions(rig: Rig) -> set[tuple[str, str]]:
    """Which slices there are, and which versions of them."""
    return {(s["metadata"]["uid"], s["metadata"]["resourceVersion"]) for s in rig.slices()}


def devices_of(resource_slice: dict[str, Any]) -> list[dict[str, Any]]:
    """The devices of a slice."""
    found: list[dict[str, Any]] = resource_slice["spec"].get("devices") or []
    return found


def sockets(rig: Rig) -> set[str]:
    """The names of the node's sockets."""
    return {path.name for path in rig.node.kubelet.rglob("*.sock")}


CLASSIC = {"dra.sock", "gpu.nvidia.com-reg.sock"}


def metric(process: PluginProcess, name: str) -> float:
    lines = process.get("/metrics")[1].splitlines()
    (value,) = (line.rsplit(" ", 1)[1] for line in lines if line.startswith(f"{name}{{"))
    return float(value)


@KUBELET_PREFERS
async def test_no_call_fails_while_an_instance_is_replaced_under_load(
    rig: Rig, prefers_oldest: bool
) -> None:
    await rig.start("--pod-name=the-first")
    rig.kubelet.prefers_oldest = prefers_oldest
    held = rig.create_claim("gpu-0", admin=True)
    before = (await rig.dra.prepare([held]))[held.uid]
    published = slice_versions(rig)
    async with load(rig, creators(rig)) as running:
        second = await start_next(rig)
        assert metric(second, "nvdra_instance_active") == 0
        assert metric(rig.process, "nvdra_instance_active") == 1
        await asyncio.sleep(2)
        first = rig.process
        assert await asyncio.to_thread(first.stop) == 0
        await wait_takeover(rig, second)
        count = running.count
        await asyncio.sleep(2)
        await rig.wait_until(lambda: running.count > count + 8, "claims after the takeover")
    assert running.failures == []
    assert running.cancelled <= 8  # one for each GPU: only calls of the moment when a socket closes
    assert slice_versions(rig) == published
    assert metric(second, "nvdra_instance_active") == 1
    assert len(rig.kubelet.instances[rig.driver]) == 1
    assert sockets(rig).isdisjoint(CLASSIC)
    dra = rig.kubelet.plugins[rig.driver]
    assert (await dra.prepare([held]))[held.uid] == before
    assert set(rig.recorded_claims()) == {held.uid}
    again = await start_next(rig)
    second.stop()
    await wait_takeover(rig, again)
    assert not (await rig.kubelet.plugins[rig.driver].unprepare([held]))[held.uid].error


@pytest.mark.soak
async def test_calls_wait_for_the_next_instance_while_the_active_one_is_killed(rig: Rig) -> None:
    await rig.start()
    async with load(rig, creators(rig)) as running:
        second = await start_next(rig)
        await asyncio.sleep(1)
        await asyncio.to_thread(rig.process.stop, signal.SIGKILL)
        await wait_takeover(rig, second)
        await asyncio.sleep(1)
    assert running.failures == []
    assert rig.recorded_claims() == {}
    await rig.wait_until(lambda: sockets(rig).isdisjoint(CLASSIC), "the dead sockets to be gone")


@pytest.mark.soak
async def test_an_instance_that_is_killed_while_it_stands_by_harms_no_later_call(rig: Rig) -> None:
    await rig.start()
    second = await start_next(rig)
    await asyncio.to_thread(second.stop, signal.SIGKILL)
    await rig.wait_until(lambda: sockets(rig) == CLASSIC, "the dead sockets to be gone")
    await rig.kubelet.wait_until(lambda: len(rig.kubelet.instances[rig.driver]) == 1)
    claim = rig.create_claim("gpu-1")
    assert not (await rig.kubelet.plugins[rig.driver].prepare([claim]))[claim.uid].error


async def test_an_instance_that_is_killed_while_it_takes_over_loses_no_claim(rig: Rig) -> None:
    await rig.start()
    held = rig.create_claim("gpu-3")
    before = (await rig.dra.prepare([held]))[held.uid]
    second = await start_next(rig)
    await asyncio.to_thread(rig.process.stop, signal.SIGKILL)
    rig.process = second
    await rig.wait_until(lambda: "taking over" in second.log.read_text(), "the lock to be taken")
    await asyncio.to_thread(second.stop, signal.SIGKILL)
    await rig.kubelet.restart()
    await rig.start()
    assert (await rig.dra.prepare([held]))[held.uid] == before
    assert set(rig.recorded_claims()) == {held.uid}
    await rig.wait_until(lambda: sockets(rig) == CLASSIC, "the dead sockets to be gone")


@pytest.mark.soak
@KUBELET_PREFERS
async def test_a_claim_that_waits_for_a_gpu_gets_it_after_the_rollout(
    rig: Rig, prefers_oldest: bool
) -> None:
    await rig.start()
    rig.kubelet.prefers_oldest = prefers_oldest
    second = await start_next(rig)
    holder, waiter = rig.create_claim("gpu-2"), rig.create_claim("gpu-2")
    dra = rig.kubelet.plugins[rig.driver]
    assert ("dra.sock" in dra.endpoint) == prefers_oldest
    assert not (await dra.prepare([holder]))[holder.uid].error
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(dra.prepare([waiter], timeout_s=30))
        await asyncio.sleep(1)
        stopping = group.create_task(asyncio.to_thread(rig.process.stop))
        await wait_takeover(rig, second)
        assert not waiting.done()
        newest = rig.kubelet.instances[rig.driver][-1]
        assert not (await newest.unprepare([holder]))[holder.uid].error
    assert cdi_names(waiting.result()[waiter.uid])
    assert stopping.result() == 0
    assert set(rig.recorded_claims()) == {waiter.uid}


@pytest.mark.soak
async def test_an_old_kubelet_knows_the_next_instance_only_after_the_takeover(rig: Rig) -> None:
    rollouts.set_kubelet_version(rig, "v1.32.13")
    await rig.start("--pod-name=the-first")
    second = launch_next(rig)
    await rollouts.wait_ready(rig, second)
    await rig.wait_until(
        lambda: "kubelets before 1.33 register one instance" in second.get("/readyz?verbose")[1],
        "the kubelet's version to be known",
    )
    assert "pod the-first" in second.get("/readyz?verbose")[1]
    assert sockets(rig) == CLASSIC
    assert len(rig.kubelet.registrations) == 1
    assert await asyncio.to_thread(rig.process.stop) == 0
    await wait_takeover(rig, second)
    gap_s = float(re.findall(r"gap_s=([\d.]+)", second.log.read_text())[0])
    assert 0 < gap_s < 5
    assert sockets(rig) == CLASSIC
    claim = rig.create_claim("gpu-1")
    assert not (await rig.kubelet.plugins[rig.driver].prepare([claim]))[claim.uid].error


@pytest.mark.soak
async def test_an_instance_takes_over_from_the_release_before_under_load(
    rig: Rig, release_environ: dict[str, str]
) -> None:
    rig.process = rig.launch(environ=release_environ, program=RELEASE)
    rig.dra = await rig.kubelet.wait_registered(rig.driver, plugin.START_S)
    await rollouts.wait_ready(rig, rig.process)
    assert "0.1.0" in rig.process.get("/debug/status", debug=True)[1]
    held = rig.create_claim("gpu-0", admin=True)
    before = (await rig.dra.prepare([held]))[held.uid]
    async with load(rig, creators(rig)) as running:
        second = await start_next(rig)
        await asyncio.sleep(1)
        assert await asyncio.to_thread(rig.process.stop) == 0
        await wait_takeover(rig, second)
        await asyncio.sleep(1)
    assert running.failures == []
    assert (await rig.kubelet.plugins[rig.driver].prepare([held]))[held.uid] == before
    assert set(rig.recorded_claims()) == {held.uid}


async def test_the_release_before_reads_what_this_one_wrote(
    rig: Rig, release_environ: dict[str, str]
) -> None:
    await rig.start()
    held = rig.create_claim("gpu-5")
    before = (await rig.dra.prepare([held]))[held.uid]
    await rig.stop()
    rig.process = rig.launch(environ=release_environ, program=RELEASE)
    dra = await rig.kubelet.wait_registered(rig.driver, plugin.START_S)
    await rollouts.wait_ready(rig, rig.process)
    assert (await dra.prepare([held]))[held.uid] == before
    assert not (await dra.unprepare([held]))[held.uid].error
    assert rig.recorded_claims() == {}


@pytest.mark.soak
async def test_the_release_before_refuses_a_mig_device_that_was_made_and_leaves_it_behind(
    rig: Rig, release_environ: dict[str, str]
) -> None:
    """Version 0.1.0 has no MIG devices, and nobody later can tell it from an administrator's."""
    await rig.start(DYNAMIC_MIG)
    held = rig.create_claim("gpu-0-mig-1g10gb-19-0")
    assert not (await rig.dra.prepare([held]))[held.uid].error
    own_spec = rig.node.cdi / f"k8s.gpu.nvidia.com-claim-device_{held.uid}.yaml"
    await rig.stop()
    rig.process = rig.launch(environ=release_environ, program=RELEASE)
    dra = await rig.kubelet.wait_registered(rig.driver, plugin.START_S)
    await rollouts.wait_ready(rig, rig.process)
    text = (await dra.prepare([held]))[held.uid].error
    assert text.startswith("UnknownDevice: gpu-0-mig-1g10gb-19-0 was MIG-")
    assert "delete the pod" in text
    assert "gpu-0" not in {device["name"] for each in rig.slices() for device in devices_of(each)}

    assert not (await dra.unprepare([held]))[held.uid].error
    assert gpu_instances(rig.node) == [(0, "1g.10gb", 0)]
    assert own_spec.exists()
    whole = rig.create_claim("gpu-0")
    text = await dra.refusal(whole)
    assert "gpu-0 is in MIG mode and cannot be handed out whole" in text

    await rig.stop()
    await rig.kubelet.restart()
    await rig.start(DYNAMIC_MIG)
    await rig.wait_until(lambda: not own_spec.exists(), "its spec to go")
    text = await rig.dra.refusal(whole)
    assert "gpu-0 is in MIG mode" in text
    assert gpu_instances(rig.node) == [(0, "1g.10gb", 0)]


async def test_only_dead_sockets_of_other_instances_are_removed(rig: Rig) -> None:
    registry, mine = rig.node.kubelet / "plugins_registry", rig.plugin_dir
    registry.mkdir(parents=True, exist_ok=True)
    mine.mkdir(parents=True)
    uid = "ad4af911-5bcd-47c5-a554-f35cea869472"
    dead = [registry / f"gpu.nvidia.com-{uid}-reg.sock", mine / f"dra-{uid}.sock"]
    others = [registry / f"csi.example.com-{uid}-reg.sock", mine / "mps.sock"]
    for path in (*dead, *others):
        with closing(socket(AF_UNIX)) as killed:
            killed.bind(str(path))
    with closing(socket(AF_UNIX)) as living:
        served = mine / "dra-bbbbbbbb-5bcd-47c5-a554-f35cea869472.sock"
        living.bind(str(served))
        living.listen()
        await rig.start()
        await rig.wait_until(lambda: not any(path.exists() for path in dead), "the dead to go")
        await asyncio.sleep(4)
        assert served.exists()
    assert all(path.exists() for path in others)
    assert sockets(rig) >= CLASSIC


async def test_a_call_that_nobody_can_answer_is_refused_before_its_deadline(rig: Rig) -> None:
    rig.plugin_dir.mkdir(parents=True)
    holder = {"pid": "1", "pod": "gone", "socket": str(rig.plugin_dir / "dra-gone.sock")}
    with InstanceLock(rig.plugin_dir / "instance.lock", holder) as lock:
        rig.process = launch_next(rig)
        dra = await rig.kubelet.wait_registered(rig.driver, plugin.START_S)
        claim = rig.create_claim("gpu-1")
        began = asyncio.get_running_loop().time()
        answer = (await dra.prepare([claim], timeout_s=5))[claim.uid]
        assert answer.error.startswith("DeadlineExceeded: the driver's plugin is being replaced")
        assert asyncio.get_running_loop().time() - began > 2.5, "until then it may take over"
        status, checks = rig.process.get("/readyz?verbose")
        assert (status, "no slice of this node" in checks) == (503, True)
        lock.release()
        await rig.wait_until(lambda: rig.process.get("/readyz")[0] == 200, "the takeover")
    assert not (await dra.prepare([claim]))[claim.uid].error


async def test_an_instance_that_stands_by_says_so_and_leaves_at_once(rig: Rig) -> None:
    await rig.start("--pod-name=the-first")
    first, second = rig.process, await start_next(rig)
    rig.process = second
    text = rig.status()
    assert "ready" in text
    assert f"standing by for pid {first.process.pid}, pod the-first" in text
    document = json.loads(rig.status("-o", "json"))
    assert (document["problems"], document["devices"]) == ({}, [])
    began = asyncio.get_running_loop().time()
    assert await asyncio.to_thread(second.stop) == 0
    assert asyncio.get_running_loop().time() - began < 10
    assert sockets(rig) == CLASSIC
    rig.process = first
    await rig.kubelet.wait_until(lambda: len(rig.kubelet.instances[rig.driver]) == 1)
    claim = rig.create_claim("gpu-1")
    assert not (await rig.kubelet.plugins[rig.driver].prepare([claim]))[claim.uid].error


@pytest.mark.soak
async def test_an_instance_that_cannot_use_the_driver_is_not_ready_to_take_over(rig: Rig) -> None:
    await rig.start()
    rig.node.simctl("fault", "add", "nvmlInit*", "--result", "UNKNOWN", "--times", "1000")
    second = launch_next(rig)
    await rig.wait_until(lambda: second.get("/readyz")[0] == 503, "its probe")
    await asyncio.sleep(2)
    status, checks = second.get("/readyz?verbose")
    assert (status, "[-]driver failed" in checks) == (503, True)
    rig.node.simctl("fault", "rm", "all")
    await rollouts.wait_ready(rig, second)


@pytest.mark.soak
async def test_gpus_without_persistence_stay_initialised_through_a_rollout(rig: Rig) -> None:
    for minor in range(8):
        rig.node.simctl("gpu", "initialisation", str(minor), "2500")
    await rig.start()
    second = await start_next(rig)
    assert await asyncio.to_thread(rig.process.stop) == 0
    await wait_takeover(rig, second)
    began = asyncio.get_running_loop().time()
    claims = [rig.create_claim(f"gpu-{minor}") for minor in range(8)]
    answers = await rig.kubelet.plugins[rig.driver].prepare(claims)
    assert [answers[claim.uid].error for claim in claims] == [""] * 8
    assert asyncio.get_running_loop().time() - began < 2


@pytest.mark.parametrize(
    "rig", [("dgx-h100", {"mig": {"switch_blocked_by_clients": "all"}})], indirect=True
)
async def test_an_instance_that_stands_by_keeps_no_gpu_from_being_switched(rig: Rig) -> None:
    await rig.start(DYNAMIC_MIG)
    second = await start_next(rig, DYNAMIC_MIG)
    claim = rig.create_claim("gpu-0-mig-3g40gb-9-4")
    assert not (await rig.dra.prepare([claim]))[claim.uid].error
    assert gpu_instances(rig.node) == [(0, "3g.40gb", 4)]
    assert not (await rig.dra.unprepare([claim]))[claim.uid].error
    assert await asyncio.to_thread(rig.process.stop) == 0
    await wait_takeover(rig, second)
    assert not (await rig.kubelet.plugins[rig.driver].prepare([claim]))[claim.uid].error
