# SPDX-License-Identifier: Apache-2.0
"""Each reason is provoked: the kubelet's answer, Events, metric, log and span agree."""

import asyncio
import re
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import yaml
from nvdra_api.errors import Reason
from nvdra_runtime.telemetry import trace_ids
from nvdra_sim.testing import passthrough_fixtures
from nvdra_testing.control_plane.apiserver import ApiServer
from nvdra_testing.failures import gpu_provocations, reported_failures
from nvdra_testing.node import passthrough_rig
from nvdra_testing.node.rig import Rig

CHART = Path(__file__).parents[4] / "charts/nvdra"


@pytest.mark.parametrize("reason", gpu_provocations.PROVOCATIONS)
async def test_a_reason_is_the_same_word_in_all_five_places(rig: Rig, reason: Reason) -> None:
    told = await gpu_provocations.PROVOCATIONS[reason](rig)
    await reported_failures.check_all_reports(rig, reason, told)


@pytest.mark.parametrize("reason", gpu_provocations.VFIO_PROVOCATIONS)
async def test_a_reason_of_a_vfio_device_is_the_same_word_in_all_five_places(
    server: ApiServer, reason: Reason
) -> None:
    name, sections = f"node-{uuid4().hex[:6]}", passthrough_fixtures.PAIR_BEHIND_A_SWITCH
    async with passthrough_rig.open_rig(server, name, **sections) as rig:
        told = await gpu_provocations.VFIO_PROVOCATIONS[reason](rig)
        await reported_failures.check_all_reports(rig, reason, told)


async def test_a_node_without_a_driver_is_told_on_the_node_in_the_log_and_in_readyz(
    rig: Rig,
) -> None:
    """There is no claim, so there is no call that could fail: no metric of claims, no span."""
    await gpu_provocations.driver_mismatch(rig)
    node = rig.node.name
    await rig.wait_until(lambda: bool(_of_node(rig)), "the Event of the Node")
    (event,) = _of_node(rig)
    assert event["involvedObject"]["name"] == node
    assert "libnvidia-ml.so.1" in event["message"]
    assert any(
        "libnvidia-ml.so.1" in str(line.get("error")) for line in reported_failures.log_records(rig)
    )
    assert "libnvidia-ml.so.1" in rig.process.get("/readyz?verbose")[1]


async def test_a_refusal_that_stands_is_one_event_with_the_time_it_began(rig: Rig) -> None:
    told = await gpu_provocations.unknown_device(rig)
    await asyncio.sleep(1.1)  # the time in the text has whole seconds
    again = (await rig.dra.prepare([told.claim]))[told.claim.uid].error
    assert again == told.answer
    trace = trace_ids.trace_id(told.claim.uid)
    reason = Reason.UNKNOWN_DEVICE
    await rig.wait_until(
        lambda: reported_failures.event_subjects(rig, reason, trace) == told.event_subjects,
        "the Events",
    )
    assert len(reported_failures.events(rig, reason, trace)) == len(told.event_subjects)


async def test_a_claim_that_was_refused_while_it_is_held_is_told_on_its_pods_too(rig: Rig) -> None:
    """A repeated prepare asks no API server, so the pods are found out for the Event alone."""
    await rig.start(reported_failures.JSON_LOGS)
    claim = rig.create_claim("gpu-0")
    assert not (await rig.dra.prepare([claim]))[claim.uid].error
    rig.node.simctl("gpu", "lose", "0")
    assert "DeviceUnhealthy" in (await rig.dra.prepare([claim]))[claim.uid].error
    trace = trace_ids.trace_id(claim.uid)
    reason = Reason.DEVICE_UNHEALTHY
    await rig.wait_until(
        lambda: (
            reported_failures.event_subjects(rig, reason, trace) == reported_failures.CLAIM_AND_POD
        ),
        "the Events",
    )


async def test_what_went_well_is_an_event_only_above_the_charts_verbosity(rig: Rig) -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    await rig.start(f"-v={values['global']['logVerbosity']}")
    claim, told = rig.create_claim("gpu-0"), rig.create_claim("gpu-1")
    assert not (await rig.dra.prepare([claim]))[claim.uid].error
    assert rig.process.put("/debug/flags/v", "5") == 200
    assert not (await rig.dra.prepare([told]))[told.uid].error
    await rig.wait_until(lambda: len(rig.events("Prepared")) == 2, "the Events")
    assert not (await rig.dra.unprepare([told]))[told.uid].error
    await rig.wait_until(lambda: bool(rig.events("Unprepared")), "the Event")
    for event in [*rig.events("Prepared"), *rig.events("Unprepared")]:
        assert event["type"] == "Normal"
        trace = event["metadata"]["annotations"]["nvdra.nvidia.com/trace-id"]
        assert trace == trace_ids.trace_id(told.uid)


async def test_every_call_is_counted_once_and_leads_to_its_trace(rig: Rig) -> None:
    """Two calls for one claim are one piece of work and two that were waited for."""
    await rig.start()
    rig.node.simctl("slow", "500", "--gpu", "0")
    claim = rig.create_claim("gpu-0")
    async with asyncio.TaskGroup() as group:
        for _ in range(2):
            group.create_task(rig.dra.prepare([claim]))
    for _ in range(2):  # the second time there is nothing to do
        assert not (await rig.dra.unprepare([claim]))[claim.uid].error
    text = rig.process.get("/metrics", accept="application/openmetrics-text")[1]
    counted = r'^nvdra_claim_operation_seconds_count{{[^}}]*operation="{}"[^}}]*}} (\S+)'
    calls = {
        operation: sum(map(float, re.findall(counted.format(operation), text, re.MULTILINE)))
        for operation in ("prepare", "unprepare")
    }
    assert calls == {"prepare": 2, "unprepare": 2}
    assert f'# {{trace_id="{trace_ids.trace_id(claim.uid)}"}}' in text
    assert "nvdra_operations_in_flight" in text


def _of_node(rig: Rig) -> list[dict[str, Any]]:
    events = rig.events(Reason.DRIVER_MISMATCH)
    return [event for event in events if event["involvedObject"]["kind"] == "Node"]
