# SPDX-License-Identifier: Apache-2.0
"""A state file that is damaged, missing or cannot be written."""

import asyncio
import signal
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from nvdra_api.resource.claims import ClaimRef
from nvdra_testing.faults import small_disk
from nvdra_testing.hardware import driver_installation
from nvdra_testing.kubelet.checkpoint_file import CheckpointFile
from nvdra_testing.node import plugin
from nvdra_testing.node.rig import Rig


async def answer(rig: Rig, claim: ClaimRef, **how: Any) -> Any:
    return (await rig.dra.prepare([claim], **how))[claim.uid]


def state(rig: Rig) -> Path:
    return rig.plugin_dir / "state.sqlite"


async def stopped(rig: Rig, number: signal.Signals = signal.SIGTERM) -> None:
    rig.process.stop(number)
    if number is signal.SIGKILL:
        await rig.kubelet.restart()
    else:
        await rig.kubelet.wait_deregistered(plugin.DRIVER)


async def serving(rig: Rig) -> None:
    """Start the plugin, ready or not."""
    rig.process = rig.launch()
    rig.dra = await rig.kubelet.wait_registered(plugin.DRIVER, plugin.START_S)
    await rig.wait_until(rig.process.is_listening, "its ports")


def with_garbage(path: Path) -> None:
    path.write_bytes(b"not a database" * 1000)


def cut_in_half(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def cut_to_nothing(path: Path) -> None:
    path.write_bytes(b"")


def removed(path: Path) -> None:
    path.unlink()


DAMAGES = (with_garbage, cut_in_half, cut_to_nothing, removed)
Damage = Callable[[Path], None]


@pytest.mark.parametrize("damage", DAMAGES)
async def test_what_a_damaged_file_said_is_taken_from_the_kubelets_own_record(
    rig: Rig, damage: Damage
) -> None:
    kubelet = CheckpointFile(rig.node.kubelet)
    await rig.start()
    held, monitor = (
        rig.create_claim("gpu-0", "gpu-1"),
        rig.create_claim("gpu-0", "gpu-2", admin=True),
    )
    before = await rig.dra.prepare([held, monitor])
    assert not any(each.error for each in before.values())
    for claim in (held, monitor):
        kubelet.add_claim(claim, before[claim.uid])
    await stopped(rig)
    damage(state(rig))
    await rig.start()
    await rig.wait_until(
        lambda: set(rig.recorded_claims()) == {held.uid, monitor.uid}, "the records"
    )
    # Each is answered as before, what it has is given to nobody else, what is free is.
    assert await rig.dra.prepare([held, monitor]) == before
    wanted = rig.create_claim("gpu-1")
    text = await rig.dra.refusal(wanted)
    assert text.startswith(f"DeviceInUse: gpu-1 is held by claim default/{held.name}")
    assert not (await answer(rig, rig.create_claim("gpu-2"))).error, "monitoring excludes nobody"
    assert not (await answer(rig, rig.create_claim("gpu-3"))).error
    ended = await rig.dra.unprepare([held, monitor])
    assert not any(each.error for each in ended.values())
    assert not (await answer(rig, wanted)).error
    if damage is not removed:
        assert list(rig.plugin_dir.glob("state.sqlite.corrupt-*"))
        await rig.wait_until(lambda: bool(rig.events("StateCorrupt")), "the node's event")
        (event,) = rig.events("StateCorrupt")
        assert event["involvedObject"]["kind"] == "Node"
        assert "records of 2 claims were recovered" in event["message"]
    assert not list(rig.plugin_dir.glob("*.in-doubt"))


@pytest.mark.soak
async def test_a_gpu_that_hangs_meanwhile_is_not_given_away_and_keeps_nobody_waiting(
    rig: Rig,
) -> None:
    """Which board it is cannot be asked; that the kubelet was given it is known all the same."""
    kubelet = CheckpointFile(rig.node.kubelet)
    await rig.start()
    held = rig.create_claim("gpu-0")
    before = await answer(rig, held)
    assert not before.error
    kubelet.add_claim(held, before)
    await stopped(rig)
    removed(state(rig))
    rig.node.simctl("slow", "-1", "--function", "nvmlDevice*", "--gpu", "0")
    await serving(rig)
    assert not (await answer(rig, rig.create_claim("gpu-1"))).error
    assert held.uid in rig.recorded_claims()
    rig.node.simctl("fault", "rm", "all")
    await rig.wait_until(lambda: "gpu-0" in rig.devices(), "the GPU to be offered again")
    assert (await rig.dra.refusal(rig.create_claim("gpu-0"), timeout_s=5)).startswith(
        "DeviceInUse: "
    )
    assert await answer(rig, held) == before
    assert (await rig.dra.refusal(rig.create_claim("gpu-0"), timeout_s=5)).startswith(
        "DeviceInUse: "
    )


async def test_where_nobody_can_tell_what_is_held_no_gpu_is_given_away(rig: Rig) -> None:
    await rig.start()
    await answer(rig, rig.create_claim("gpu-0"))
    await stopped(rig)
    with_garbage(state(rig))
    for _ in range(2):  # nor by the next process
        await serving(rig)
        text = (await answer(rig, rig.create_claim("gpu-3"))).error
        assert text.startswith("StateCorrupt: whether gpu-3 is free cannot be told: ")
        assert "state.sqlite.corrupt-" in text
        assert "dra_manager_state" in text
        assert not (await answer(rig, rig.create_claim("gpu-3", admin=True))).error
        assert rig.process.get("/readyz")[0] == 503
        assert "was moved to" in rig.process.get("/readyz?verbose")[1]
        await stopped(rig)
    await serving(rig)
    # It goes on by itself once the kubelet's record can be read.
    CheckpointFile(rig.node.kubelet).write()
    assert not (await answer(rig, rig.create_claim("gpu-3"))).error
    await rig.wait_until(lambda: rig.process.get("/readyz")[0] == 200, "it to be ready")


async def test_an_administrator_who_knows_better_ends_the_doubt(rig: Rig) -> None:
    await rig.start()
    await stopped(rig)
    with_garbage(state(rig))
    await serving(rig)
    text = (await answer(rig, rig.create_claim("gpu-3"))).error
    assert text.startswith("StateCorrupt: ")
    (marker,) = rig.plugin_dir.glob("*.in-doubt")
    assert str(marker) in rig.process.log.read_text()
    marker.unlink()
    assert not (await answer(rig, rig.create_claim("gpu-3"))).error


@pytest.mark.soak
async def test_after_a_reboot_nothing_of_a_damaged_file_can_be_in_use(rig: Rig) -> None:
    await rig.start()
    await stopped(rig)
    with_garbage(state(rig))
    await serving(rig)
    await stopped(rig)
    rig.node.simctl("reboot", f"--proc-root={rig.node.roots.proc}")
    await rig.start()
    assert not (await answer(rig, rig.create_claim("gpu-0"))).error


@pytest.mark.soak
async def test_changes_that_a_damaged_log_has_lost_are_made_up_for(rig: Rig) -> None:
    """SQLite takes a damaged log for one that ends earlier, and says nothing."""
    kubelet = CheckpointFile(rig.node.kubelet)
    await rig.start()
    held = rig.create_claim("gpu-0")
    before = await answer(rig, held)
    assert not before.error
    kubelet.add_claim(held, before)
    await stopped(rig, signal.SIGKILL)
    log = state(rig).with_name("state.sqlite-wal")
    log.write_bytes(b"\xff" * log.stat().st_size)
    assert not rig.recorded_claims()
    await rig.start()
    await rig.wait_until(lambda: set(rig.recorded_claims()) == {held.uid}, "the record")
    assert await answer(rig, held) == before
    assert (await rig.dra.refusal(rig.create_claim("gpu-0"))).startswith("DeviceInUse: ")


async def test_a_record_that_cannot_be_read_is_taken_from_the_kubelets_own(rig: Rig) -> None:
    kubelet = CheckpointFile(rig.node.kubelet)
    await rig.start()
    held, forgotten = rig.create_claim("gpu-0"), rig.create_claim("gpu-1")
    before = await answer(rig, held)
    assert not before.error
    await answer(rig, forgotten)
    kubelet.add_claim(held, before)
    await stopped(rig)
    with closing(sqlite3.connect(state(rig))) as connection, connection:
        connection.execute("UPDATE records SET payload = '{'")
    await rig.start()
    assert await answer(rig, held) == before
    assert (await rig.dra.refusal(rig.create_claim("gpu-0"))).startswith("DeviceInUse: ")
    # What the kubelet was given nothing for is free.
    assert not (await answer(rig, rig.create_claim("gpu-1"))).error


@pytest.mark.soak
async def test_the_kubelets_record_is_waited_for_no_longer_than_the_api_server_is_away(
    rig: Rig,
) -> None:
    """Whether a claim is for monitoring the kubelet does not know: the claim has to be asked."""
    kubelet = CheckpointFile(rig.node.kubelet)
    await rig.start()
    monitor, wanted = rig.create_claim("gpu-0", admin=True), rig.create_claim("gpu-0")
    kubelet.add_claim(monitor, await answer(rig, monitor))
    await stopped(rig)
    removed(state(rig))
    rig.server.stop()
    try:
        await serving(rig)
        text = await rig.dra.refusal(wanted, timeout_s=5)
        assert text.startswith("ApiUnavailable: ")
    finally:
        rig.server.start()
    assert not (await answer(rig, wanted)).error


@pytest.mark.soak
async def test_the_spec_of_a_claim_whose_record_is_lost_stays_when_the_driver_changes_too(
    rig: Rig,
) -> None:
    """No record names its generation until the kubelet's has been taken over."""
    kubelet = CheckpointFile(rig.node.kubelet)
    await rig.start()
    held = rig.create_claim("gpu-1")
    before = await answer(rig, held)
    assert not before.error
    kubelet.add_claim(held, before)
    (old,) = rig.node.cdi.iterdir()
    await stopped(rig)
    removed(state(rig))
    driver_installation.install_driver(rig.node, version="590.44.1")
    nobodys = old.with_name("k8s.gpu.nvidia.com-device_0123456789.yaml")
    nobodys.write_text(old.read_text().replace("name: gpu-", "name: other-gpu-"))
    rig.server.stop()  # without it nothing can be taken over: is the claim for monitoring?
    try:
        await serving(rig)
        specs = rig.node.cdi
        await rig.wait_until(
            lambda: any("590.44" in s.read_text() for s in specs.iterdir()), "the new"
        )
        await asyncio.sleep(1)  # old specs went as soon as the new one was there
        assert old.exists()
    finally:
        rig.server.start()
    await rig.wait_until(lambda: held.uid in rig.recorded_claims(), "the record")
    await rig.wait_until(lambda: not nobodys.exists(), "what nobody stands on to go")
    assert await answer(rig, held) == before
    assert old.exists()
    assert not (await rig.dra.unprepare([held]))[held.uid].error
    await rig.wait_until(lambda: not old.exists(), "it to go with its last claim")


@pytest.mark.soak
@pytest.mark.parametrize("damage", DAMAGES)
async def test_a_file_that_is_damaged_under_the_plugin_loses_nothing(
    rig: Rig, damage: Damage
) -> None:
    kubelet = CheckpointFile(rig.node.kubelet)
    await rig.start()
    claims = [rig.create_claim(f"gpu-{minor}") for minor in range(3)]
    answers = {claims[0].uid: await answer(rig, claims[0])}
    damage(state(rig))
    for claim in claims[1:]:
        answers[claim.uid] = await answer(rig, claim)
    assert not any(each.error for each in answers.values())
    for claim in claims:
        kubelet.add_claim(claim, answers[claim.uid])
    # What SQLite has in its own memory it does not read again: a kill makes it.
    await stopped(rig, signal.SIGKILL)
    await rig.start()
    await rig.wait_until(lambda: set(rig.recorded_claims()) == set(answers), "the records")
    assert await rig.dra.prepare(claims) == answers


async def test_a_full_disk_is_a_reason_and_everything_goes_on_once_there_is_room(
    rig: Rig,
) -> None:
    disk = rig.stack.enter_context(small_disk.mount_small_disk(rig.plugin_dir))
    await rig.start()
    held, new = rig.create_claim("gpu-0"), rig.create_claim("gpu-1")
    before = await answer(rig, held)
    assert not before.error
    disk.fill()
    for _ in range(2):
        text = (await answer(rig, new)).error
        assert text.startswith(f"StateUnavailable: the state file {state(rig)} cannot be written: ")
        assert "full" in text
        text = (await rig.dra.unprepare([held]))[held.uid].error
        assert text.startswith("StateUnavailable: ")
        assert await answer(rig, held) == before
    assert set(rig.recorded_claims()) == {held.uid}
    assert rig.process.get("/readyz")[0] == 503
    assert "full" in rig.process.get("/readyz?verbose")[1]
    disk.clear()
    assert not (await answer(rig, new)).error
    assert not (await rig.dra.unprepare([held]))[held.uid].error
    assert set(rig.recorded_claims()) == {new.uid}
    assert rig.process.get("/readyz")[0] == 200


@pytest.mark.soak
@pytest.mark.parametrize("trouble", ["read-only", "full"])
async def test_a_disk_that_cannot_be_written_at_the_start_is_waited_for(
    rig: Rig, trouble: str
) -> None:
    disk = rig.stack.enter_context(small_disk.mount_small_disk(rig.plugin_dir))
    await rig.start()
    held = rig.create_claim("gpu-0")
    before = await answer(rig, held)
    assert not before.error
    await stopped(rig)
    if trouble == "full":
        disk.fill()
    else:
        disk.remount("ro")
    rig.process = rig.launch()
    await rig.wait_until(lambda: _has_probes(rig), "its port")
    assert rig.process.get("/healthz")[0] == 200
    assert rig.process.get("/readyz")[0] == 503
    assert str(rig.plugin_dir) in rig.process.get("/readyz?verbose")[1]
    assert "The plugin waits until its directory can be used" in rig.process.log.read_text()
    disk.remount("rw")
    disk.clear()
    rig.dra = await rig.kubelet.wait_registered(plugin.DRIVER, plugin.START_S)
    await rig.wait_until(lambda: rig.process.get("/readyz")[0] == 200, "the plugin to be ready")
    assert await answer(rig, held) == before


async def test_a_plugin_that_waits_for_its_disk_can_be_stopped(rig: Rig) -> None:
    disk = rig.stack.enter_context(small_disk.mount_small_disk(rig.plugin_dir))
    disk.remount("ro")
    rig.process = rig.launch()
    await rig.wait_until(lambda: _has_probes(rig), "its port")
    began = asyncio.get_running_loop().time()
    assert rig.process.stop() == 0
    assert asyncio.get_running_loop().time() - began < 4


def _has_probes(rig: Rig) -> bool:
    """Whether the pod's port is open; of a plugin that waits it is the only one."""
    try:
        return rig.process.get("/healthz")[0] == 200
    except OSError:
        return False
