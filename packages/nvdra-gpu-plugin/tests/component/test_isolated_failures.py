# SPDX-License-Identifier: Apache-2.0
"""The failure of a GPU, a caller, the API server or a file does not affect other claims."""

import asyncio
import signal
import sqlite3
from collections.abc import Callable
from contextlib import closing

import grpc
import pytest
from nvdra_api.resource.claims import ClaimRef
from nvdra_testing.kubelet.kubelet_client import RegisteredPlugin
from nvdra_testing.node import plugin
from nvdra_testing.node.rig import Rig

HANG = ("slow", "-1", "--function", "nvmlDevice*", "--gpu")


async def test_a_gpu_that_hangs_keeps_only_its_own_claims_waiting_and_is_named(rig: Rig) -> None:
    await rig.start()
    rig.node.simctl(*HANG, "1")
    stuck, fine = rig.create_claim("gpu-1"), rig.create_claim("gpu-0")
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(rig.dra.prepare([stuck], timeout_s=9))
        assert not (await rig.dra.prepare([fine]))[fine.uid].error
        assert not waiting.done()
    text = waiting.result()[stuck.uid].error
    assert text.startswith("DeadlineExceeded: gpu-1 (GPU-")
    assert "does not answer NVML" in text
    assert stuck.uid not in rig.recorded_claims()
    rig.node.simctl("fault", "rm", "all")
    assert not (await rig.dra.prepare([stuck]))[stuck.uid].error


async def test_a_caller_with_little_time_is_answered_too(rig: Rig) -> None:
    await rig.start()
    claim, stuck = rig.create_claim("gpu-0"), rig.create_claim("gpu-1")
    await _answered_in_little_time(rig, claim, lambda text: not text)
    rig.node.simctl(*HANG, "1")
    wanted = "DeadlineExceeded: gpu-1"
    await _answered_in_little_time(rig, stuck, lambda text: text.startswith(wanted))


async def _answered_in_little_time(
    rig: Rig, claim: ClaimRef, is_wanted: Callable[[str], bool]
) -> None:
    """Prepare it with less time than is usually kept for the answer; once has to be enough."""
    answers: list[str] = []
    for _ in range(5):
        try:
            answers.append((await rig.dra.prepare([claim], timeout_s=1.5))[claim.uid].error)
        except grpc.aio.AioRpcError as failure:  # the machine was too slow
            answers.append(str(failure))
        if is_wanted(answers[-1]):
            return
    raise AssertionError(answers)


async def test_a_call_that_comes_before_the_gpus_have_been_looked_at_waits_for_that(
    rig: Rig,
) -> None:
    rig.node.simctl("slow", "1500", "--function", "nvmlInit*")
    dra = await _serving(rig)
    claim = rig.create_claim("gpu-0")
    assert not (await dra.prepare([claim]))[claim.uid].error


async def test_the_plugin_ends_in_time_although_nvml_hangs(rig: Rig) -> None:
    await rig.start()
    rig.node.simctl("slow", "-1")
    assert rig.process.stop() == 0
    await rig.kubelet.wait_deregistered(plugin.DRIVER)


async def test_a_claim_that_is_being_prepared_when_the_plugin_ends_is_answered_and_held(
    rig: Rig,
) -> None:
    await rig.start()
    rig.node.simctl("slow", "700", "--gpu", "3")
    claim = rig.create_claim("gpu-3")
    async with asyncio.TaskGroup() as group:
        call = group.create_task(rig.dra.prepare([claim]))
        await rig.wait_until(lambda: bool(rig.spans(claim, "resolve config")), "it to be under way")
        rig.process.process.send_signal(signal.SIGTERM)
    assert not call.result()[claim.uid].error
    assert rig.process.process.wait(timeout=20) == 0
    assert claim.uid in rig.recorded_claims()


async def test_work_goes_on_when_its_caller_has_gone_and_its_failure_is_told_once(
    rig: Rig,
) -> None:
    await rig.start()
    rig.node.simctl("slow", "1500", "--gpu", "2")
    rig.node.simctl("gpu", "lose", "2")
    claim = rig.create_claim("gpu-2")
    call = asyncio.ensure_future(rig.dra.prepare([claim], timeout_s=45))  # noqa: TID251 - given up
    await rig.wait_until(lambda: bool(rig.spans(claim, "resolve config")), "it to be under way")
    call.cancel()
    await rig.wait_until(lambda: "Failed: prepare" in rig.process.log.read_text(), "the failure")
    assert not (await rig.dra.unprepare([claim]))[claim.uid].error
    assert rig.process.stop() == 0
    assert "never retrieved" not in rig.process.log.read_text()


@pytest.mark.soak
async def test_a_plugin_that_starts_without_an_api_server_serves_what_is_held_and_recovers(
    rig: Rig,
) -> None:
    await rig.start()
    held, later = rig.create_claim("gpu-4"), rig.create_claim("gpu-5")
    before = (await rig.dra.prepare([held]))[held.uid]
    assert not before.error
    assert rig.process.stop() == 0
    await rig.kubelet.wait_deregistered(plugin.DRIVER)
    rig.server.stop()
    try:
        dra = await _serving(rig)
        assert (await dra.prepare([held]))[held.uid] == before
        text = await dra.refusal(later, timeout_s=5)
        assert text.startswith("ApiUnavailable: ")
        assert "Traceback" not in rig.process.log.read_text()
        assert rig.process.get("/readyz")[0] == 503
    finally:
        rig.server.start()
    assert not (await dra.unprepare([held]))[held.uid].error
    await rig.wait_until(lambda: rig.process.get("/readyz")[0] == 200, "readiness")
    assert not (await dra.prepare([later]))[later.uid].error


async def test_a_record_that_cannot_be_read_stops_no_other_claim_that_is_held(rig: Rig) -> None:
    """Nobody knows which GPU it holds: no GPU is given away until that is settled."""
    await rig.start()
    broken, held, new = (
        rig.create_claim("gpu-0"),
        rig.create_claim("gpu-1"),
        rig.create_claim("gpu-2"),
    )
    first = await rig.dra.prepare([broken, held])
    assert not any(each.error for each in first.values())
    assert rig.process.stop() == 0
    await rig.kubelet.wait_deregistered(plugin.DRIVER)
    _change(rig, "UPDATE records SET payload = '{' WHERE uid = ?", broken.uid)
    await rig.start()
    assert f"default/{broken.name}" in rig.process.log.read_text()
    assert (await rig.dra.prepare([held]))[held.uid] == first[held.uid]
    text = (await rig.dra.prepare([new]))[new.uid].error
    assert text.startswith("StateCorrupt: ")
    assert broken.name in text
    # Prepared anew from the claim itself, the record is whole again.
    assert (await rig.dra.prepare([broken]))[broken.uid] == first[broken.uid]
    assert not (await rig.dra.prepare([new]))[new.uid].error


async def test_a_record_that_cannot_be_read_goes_with_its_claim(rig: Rig) -> None:
    await rig.start()
    broken, new = rig.create_claim("gpu-0"), rig.create_claim("gpu-0")
    await rig.dra.prepare([broken])
    assert rig.process.stop() == 0
    await rig.kubelet.wait_deregistered(plugin.DRIVER)
    _change(rig, "UPDATE records SET payload = '{' WHERE uid = ?", broken.uid)
    await rig.start()
    assert not (await rig.dra.unprepare([broken]))[broken.uid].error
    assert not rig.recorded_claims()
    assert not (await rig.dra.prepare([new]))[new.uid].error


async def test_a_spec_that_was_removed_is_there_again_for_the_next_claim(rig: Rig) -> None:
    await rig.start()
    (spec,) = rig.node.cdi.glob("*.yaml")
    spec.unlink()
    claim = rig.create_claim("gpu-6")
    assert not (await rig.dra.prepare([claim]))[claim.uid].error
    assert spec.is_file()


async def test_a_spec_that_cannot_be_written_is_a_reason_not_a_bug(rig: Rig) -> None:
    await rig.start()
    for spec in rig.node.cdi.iterdir():
        spec.unlink()
    rig.node.cdi.rmdir()
    rig.node.cdi.write_text("a file where the directory was")
    claim = rig.create_claim("gpu-6")
    text = (await rig.dra.prepare([claim]))[claim.uid].error
    assert text.startswith("DeviceNodeMissing: ")
    assert str(rig.node.cdi) in text
    assert claim.uid not in rig.recorded_claims()


async def test_a_pod_without_times_in_its_conditions_costs_nothing(rig: Rig) -> None:
    # Pods are read only if spans are exported; nobody listens there.
    await rig.start("-v=6", environ={"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"})
    pod = rig.server.create(
        "/api/v1/namespaces/default/pods",
        {
            "metadata": {"generateName": "timeless-"},
            "spec": {"containers": [{"name": "c", "image": "i"}]},
        },
    )
    name = pod["metadata"]["name"]
    pod["status"]["conditions"] = [{"type": "PodScheduled", "status": "True"}]
    rig.server.request("PUT", f"/api/v1/namespaces/default/pods/{name}/status", pod)
    claim = rig.create_claim("gpu-0", pod=name, has_allocation_timestamp=False)
    assert not (await rig.dra.prepare([claim]))[claim.uid].error
    await rig.wait_until(lambda: bool(rig.spans(claim, "schedule")), "the claim's schedule")
    assert 'resource="pods" ' in rig.process.log.read_text()
    assert rig.process.stop() == 0


async def _serving(rig: Rig) -> RegisteredPlugin:
    """Start the plugin, ready or not."""
    rig.process = rig.launch()
    await rig.kubelet.wait_registered(plugin.DRIVER, plugin.START_S)
    await rig.wait_until(lambda: rig.process.get("/healthz")[0] == 200, "its port")
    return await rig.kubelet.wait_registered(plugin.DRIVER)


def _change(rig: Rig, statement: str, *values: str) -> None:
    path = rig.node.kubelet / "plugins" / plugin.DRIVER / "state.sqlite"
    with closing(sqlite3.connect(path)) as connection, connection:
        assert connection.execute(statement, values).rowcount == 1
