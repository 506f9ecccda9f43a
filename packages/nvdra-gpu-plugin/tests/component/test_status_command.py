# SPDX-License-Identifier: Apache-2.0
"""The command `nvdra-gpu-plugin status` beside a running plugin."""

import json
from typing import Any

from nvdra_runtime.telemetry import trace_ids
from nvdra_testing.failures import gpu_provocations
from nvdra_testing.node.rig import Rig


def status(rig: Rig) -> Any:
    return json.loads(rig.status("-o", "json"))


async def test_devices_and_who_holds_them_since_when(rig: Rig) -> None:
    await rig.start()
    claim, watcher = rig.create_claim("gpu-2", "gpu-3"), rig.create_claim("gpu-3", admin=True)
    for each in (claim, watcher):
        assert not (await rig.dra.prepare([each]))[each.uid].error
    told = status(rig)
    assert told["node"] == rig.node.name
    assert told["problems"] == {}
    devices = {device["name"]: device for device in told["devices"]}
    assert set(devices) == set(rig.devices())
    for name, device in devices.items():
        assert device["uuid"] == rig.devices()[name]["attributes"]["uuid"]["string"]
    assert devices["gpu-0"]["state"] == "free"
    assert devices["gpu-2"]["claims"] == [str(claim)]
    assert devices["gpu-3"]["claims"] == [str(claim), str(watcher)]
    first, second = told["claims"]
    assert (first["name"], first["uid"], first["devices"]) == (
        claim.name,
        claim.uid,
        ["gpu-2", "gpu-3"],
    )
    assert second["devices"] == ["gpu-3 (admin)"]
    assert first["pods"] == ["p"]
    table = rig.status()
    assert f"default/{claim.name}" in table
    await rig.dra.unprepare([claim])
    assert [each["uid"] for each in status(rig)["claims"]] == [watcher.uid]


async def test_failures_with_their_reasons_and_traces_until_they_are_over(rig: Rig) -> None:
    told = await gpu_provocations.device_unhealthy(rig)
    (failure,) = status(rig)["failures"]
    assert (failure["reason"], failure["count"], failure["ended"]) == ("DeviceUnhealthy", 1, None)
    assert failure["trace_id"] == trace_ids.trace_id(told.claim.uid)
    assert failure["message"] in told.answer
    rig.node.simctl("gpu", "restore", "3")
    assert not (await rig.dra.prepare([told.claim]))[told.claim.uid].error
    assert status(rig)["failures"][0]["ended"] is not None


async def test_a_node_without_a_driver_says_what_is_missing(rig: Rig) -> None:
    await gpu_provocations.driver_mismatch(rig)
    assert "libnvidia-ml.so.1" in status(rig)["problems"]["driver"]
    assert "NOT READY, driver: " in rig.status()


async def test_it_answers_while_the_api_server_does_not(rig: Rig) -> None:
    await rig.start()
    with rig.server.paused():
        assert status(rig)["node"] == rig.node.name
