# SPDX-License-Identifier: Apache-2.0
"""A channel is not given on the word of a daemon that is dead, whatever its entry says.

Daemons of this release hold a lock while their nvidia-imex is READY. Of others, such as those of
the reference driver, the status of the pod may say that they are dead, and never that they live.
"""

import asyncio
import signal
from pathlib import Path
from typing import Any

import pytest
from nvdra_api.resource.claims import ClaimRef
from nvdra_testing.control_plane.domain_objects import Json
from nvdra_testing.hardware import driver_installation
from nvdra_testing.node.domain_rig import CLIQUE, DomainRig, cdi_names
from nvdra_testing.node.imex_daemons import DaemonPod, Rack

A_WHILE_S = 1.5
"""Longer than a claim waits that is given its channel on the word of the entry."""
SLOW_START_MS = 120_000
OTHER_RACK = "d2c0a7e4-5b1f-5c3a-8e69-40b7f1a95c13"
OTHER_CLIQUES = pytest.mark.parametrize(
    ("fabric", "clique"),
    [
        (("--clique", "9"), f"{CLIQUE.partition('.')[0]}.9"),
        (("--uuid", OTHER_RACK), f"{OTHER_RACK}.2"),
    ],
    ids=["another clique of its rack", "another rack"],
)
"""What NVML says of the fabric now, and the clique of that."""
RUNNING = {"name": "c", "image": "i", "imageID": "", "ready": True, "restartCount": 0}
RUNNING["state"] = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}
ENDED = {**RUNNING, "ready": False, "restartCount": 3}
ENDED["state"] = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 40s"}}


async def started(rig: DomainRig, directory: Path) -> tuple[Json, ClaimRef, Rack]:
    """A domain with a daemon as a process, on whose word a channel is given."""
    await rig.start()
    domain = rig.create_domain()
    claim = rig.create_daemon_claim(domain)
    assert not (await rig.prepare(claim)).error
    rack = rig.create_rack(domain, directory)
    rig.run_daemon(rack, claim)
    await rig.poll_until(lambda: rack.are_ready(rig.node.name), "a Ready entry")
    return domain, claim, rack


async def killed(rig: DomainRig, pod: DaemonPod) -> None:
    """Kill the daemon; its entry stays as it is."""
    await asyncio.to_thread(pod.stop, signal.SIGKILL)


async def held_over_a_reboot(
    rig: DomainRig, directory: Path, *fabric: str
) -> tuple[ClaimRef, Rack, ClaimRef, list[Any]]:
    """The daemon's claim, its rack, a channel's claim, and how both were answered before."""
    domain, daemon, rack = await started(rig, directory)
    claim = rig.create_channel_claim(domain)
    before = [cdi_names(await rig.prepare(each)) for each in (daemon, claim)]
    await killed(rig, rack.pods[0])
    await rebooted(rig, *fabric)
    return daemon, rack, claim, before


async def is_waiting(call: "asyncio.Task[Any]") -> bool:
    await asyncio.sleep(A_WHILE_S)
    return not call.done()


async def test_a_daemon_that_was_killed_gives_no_channel_until_its_imex_is_ready_again(
    rig: DomainRig, tmp_path: Path
) -> None:
    domain, daemon, rack = await started(rig, tmp_path)
    await killed(rig, rack.pods[0])
    claim = rig.create_channel_claim(domain)
    waiting = rig.start_prepare(claim)
    assert await is_waiting(waiting), await waiting
    assert rack.are_ready(rig.node.name), "the entry is still that of the former container"

    rack.set_imex_faults(rig.node.name, slow_start_ms=SLOW_START_MS)
    again = rig.run_daemon(rack, daemon)
    assert await is_waiting(waiting), await waiting
    rack.set_imex_faults(rig.node.name)
    answer = await waiting
    assert not answer.error, answer.error
    assert again.status()["imex"]["phase"] == "up"
    assert again.is_ready()


async def test_a_claim_that_waits_for_a_dead_daemon_is_told_so(
    rig: DomainRig, tmp_path: Path
) -> None:
    domain, daemon, rack = await started(rig, tmp_path)
    await killed(rig, rack.pods[0])
    claim = rig.create_channel_claim(domain)
    said = await rig.refusal(claim)
    assert said.startswith("DaemonNotReady: "), said
    assert "its entry says READY, but" in said

    rig.write_daemon_status(daemon, ended())
    said = await rig.refusal(claim)
    assert "is not running: CrashLoopBackOff: back-off 40s" in said


async def test_a_held_channel_waits_after_a_reboot_until_the_daemon_is_ready_again(
    rig: DomainRig, tmp_path: Path
) -> None:
    daemon, rack, claim, before = await held_over_a_reboot(rig, tmp_path)

    waiting = rig.start_prepare(claim)
    assert await is_waiting(waiting), await waiting
    assert cdi_names(await rig.prepare(daemon)) == before[0]
    rig.run_daemon(rack, daemon)
    assert cdi_names(await waiting) == before[1]
    assert rig.claim_cdi_spec(claim)
    await killed(rig, rack.pods[1])
    assert cdi_names(await rig.prepare(claim)) == before[1], "a repetition within one boot"
    assert await rig.unprepare(claim) == ""
    assert rig.node_label() == ""


@OTHER_CLIQUES
async def test_after_a_reboot_into_another_clique_the_daemon_joins_the_one_of_now(
    rig: DomainRig, tmp_path: Path, fabric: tuple[str, ...], clique: str
) -> None:
    """A tray that is moved to another rack, which its domain outlives."""
    daemon, rack, claim, before = await held_over_a_reboot(rig, tmp_path, *fabric)

    waiting = rig.start_prepare(claim)
    assert cdi_names(await rig.prepare(daemon)) == before[0]
    assert rig.claim_environment(daemon)["CLIQUE_ID"] == clique
    rig.run_daemon(rack, daemon)
    assert cdi_names(await waiting) == before[1]


@OTHER_CLIQUES
async def test_a_daemon_whose_gpus_are_in_another_clique_now_is_named_with_what_to_do(
    rig: DomainRig, tmp_path: Path, fabric: tuple[str, ...], clique: str
) -> None:
    domain, _, _ = await started(rig, tmp_path)
    await rig.stop()
    rig.node.simctl("fabric", "all", *fabric)
    await rig.start()
    await rig.poll_until(lambda: clique in rig.process.log.read_text(), "the clique")
    said = await rig.refusal(rig.create_channel_claim(domain))
    assert f"it was started in the clique {rig.clique}, and the GPUs of this node are in " in said
    assert clique in said
    assert "delete the daemon's pod" in said


async def test_a_held_channel_of_a_domain_that_is_gone_is_refused_after_a_reboot(
    rig: DomainRig,
) -> None:
    await rig.start()
    domain = rig.create_domain()
    daemon = await rig.make_daemon_ready(domain)
    claim = rig.create_channel_claim(domain)
    assert not (await rig.prepare(claim)).error
    metadata = domain["metadata"]
    path = f"/apis/resource.nvidia.com/v1beta1/namespaces/{metadata['namespace']}/computedomains"
    rig.server.request("DELETE", f"{path}/{metadata['name']}")
    await rebooted(rig)
    assert (await rig.refusal(claim, timeout_s=6)).startswith("DomainNotFound: ")
    assert [await rig.unprepare(each) for each in (claim, daemon)] == ["", ""]


@pytest.mark.parametrize("names_its_pod", [True, False], ids=["older release", "reference"])
async def test_a_daemon_without_a_lock_is_believed_until_its_pod_says_that_it_is_dead(
    rig: DomainRig, *, names_its_pod: bool
) -> None:
    await rig.start()
    domain = rig.create_domain()
    daemon = rig.create_daemon_claim(domain)
    assert not (await rig.prepare(daemon)).error
    rig.write_daemon_status(daemon, running())
    entry = {"podUID": rig.pod_uid(daemon)} if names_its_pod else {}
    rig.write_clique_entry(domain, "NotReady", **entry)
    claim = rig.create_channel_claim(domain)
    waiting = rig.start_prepare(claim)
    assert await is_waiting(waiting), "the pod's readiness is no daemon's word"
    rig.write_daemon_status(daemon, ended())
    rig.write_clique_entry(domain, **entry)
    assert await is_waiting(waiting), await waiting
    rig.write_daemon_status(daemon, running(restarts=4))
    assert not (await waiting).error


async def test_a_daemon_without_a_lock_is_believed_again_when_its_claim_was_prepared_in_this_boot(
    rig: DomainRig,
) -> None:
    await rig.start()
    domain = rig.create_domain()
    daemon = await rig.make_daemon_ready(domain)
    claim = rig.create_channel_claim(domain)
    assert not (await rig.prepare(claim)).error
    await rebooted(rig)
    waiting = rig.start_prepare(claim)
    assert await is_waiting(waiting), await waiting
    assert not (await rig.prepare(daemon)).error
    assert not (await waiting).error


async def test_the_lock_of_an_earlier_pod_says_nothing_of_a_daemon_without_one(
    rig: DomainRig, tmp_path: Path
) -> None:
    domain, daemon, rack = await started(rig, tmp_path)
    await killed(rig, rack.pods[0])
    assert await rig.unprepare(daemon) == ""
    await rig.make_daemon_ready(domain)
    assert not (await rig.prepare(rig.create_channel_claim(domain))).error


async def rebooted(rig: DomainRig, *fabric: str) -> None:
    """Cut the power, and wait until the plugin of the next boot serves.

    Args:
        rig: The node.
        fabric: Flags of `nvdra-simctl fabric all`, for another fabric than before.
    """
    await rig.stop(signal.SIGKILL)
    driver_installation.reboot(rig.node, profile="gb200-nvl72")
    if fabric:
        rig.node.simctl("fabric", "all", *fabric)
    for socket in rig.kubelet.registry_dir.iterdir():
        socket.unlink()  # a kubelet that finds the new one under the old name registers it twice
    await rig.start()


def running(restarts: int = 0) -> Json:
    """The status of a pod that runs."""
    container = {**RUNNING, "restartCount": restarts}
    return pod_status(container, "True")


def ended() -> Json:
    """The status of a pod whose container has ended and waits for its next start."""
    return pod_status(ENDED, "False")


def pod_status(container: Json, is_ready: str) -> Json:
    return {
        "phase": "Running",
        "podIP": "10.0.0.1",
        "conditions": [{"type": "Ready", "status": is_ready}],
        "containerStatuses": [container],
    }
