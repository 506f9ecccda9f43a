# SPDX-License-Identifier: Apache-2.0
"""Claims that cannot be prepared: the answer has the reason, what to do, and the trace."""

import re
from typing import Any

import pytest
from nvdra_api.ids import ClaimUID
from nvdra_api.resource.claims import ClaimRef
from nvdra_testing.failures import reported_failures
from nvdra_testing.node import plugin
from nvdra_testing.node.rig import Rig

TIME_SLICING = {
    "apiVersion": "resource.nvidia.com/v1beta1",
    "kind": "GpuConfig",
    "sharing": {"strategy": "TimeSlicing"},
}
MPS = {**TIME_SLICING, "sharing": {"strategy": "MPS"}}
EMPTY: dict[str, object] = {**TIME_SLICING, "sharing": {}}
TYPO = {**TIME_SLICING, "sharing": {"strategy": "TimeSlicing", "interval": "Long"}}


async def refusal(rig: Rig, claim: ClaimRef) -> str:
    """Why the claim is not prepared; nothing may be held for it."""
    answer = (await rig.dra.prepare([claim], timeout_s=5))[claim.uid]
    assert not answer.devices
    assert claim.uid not in rig.recorded_claims()
    trace = claim.uid.replace("-", "")
    assert re.fullmatch(rf"[A-Z]\w+: .+; .+ \(trace {trace}\)", answer.error, re.DOTALL), (
        answer.error
    )
    return str(answer.error)


async def test_a_claim_that_does_not_exist(rig: Rig) -> None:
    await rig.start()
    gone = ClaimRef("default", "gone", ClaimUID("11111111-2222-4333-8444-555555555555"))
    assert (await refusal(rig, gone)).startswith("ClaimNotFound: claim default/gone")


async def test_a_claim_that_was_replaced_by_another_of_its_name(rig: Rig) -> None:
    await rig.start()
    claim = rig.create_claim("gpu-0")
    older = claim._replace(uid=ClaimUID("11111111-2222-4333-8444-555555555555"))
    text = await refusal(rig, older)
    assert text.startswith("ClaimUIDChanged: ")
    assert claim.uid in text


async def test_a_claim_that_is_not_allocated(rig: Rig) -> None:
    await rig.start()
    created = rig.server.create(
        plugin.CLAIMS,
        {
            "metadata": {"generateName": "unallocated-"},
            "spec": {
                "devices": {
                    "requests": [{"name": "g", "exactly": {"deviceClassName": "gpu.nvidia.com"}}]
                }
            },
        },
    )["metadata"]
    claim = ClaimRef("default", created["name"], ClaimUID(created["uid"]))
    assert (await refusal(rig, claim)).startswith("NotAllocated: ")


async def test_a_device_that_is_not_on_the_node(rig: Rig) -> None:
    await rig.start()
    text = await refusal(rig, rig.create_claim("gpu-77"))
    assert text.startswith("UnknownDevice: ")
    assert "gpu-77" in text


async def test_a_device_that_another_claim_holds(rig: Rig) -> None:
    await rig.start()
    holder = rig.create_claim("gpu-0")
    await rig.dra.prepare([holder])
    text = await refusal(rig, rig.create_claim("gpu-0"))
    assert text.startswith(f"DeviceInUse: gpu-0 is held by claim default/{holder.name}")
    assert holder.uid in text


@pytest.mark.parametrize(
    ("parameters", "reason", "says"),
    [
        (TYPO, "InvalidConfig", 'unknown field "sharing.interval"'),
        (
            {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfi"},
            "InvalidConfig",
            "GpuConfi",
        ),
        (EMPTY, "InvalidConfig", "unknown GPU sharing strategy"),
    ],
)
async def test_a_config_that_cannot_be_applied(
    rig: Rig, parameters: dict[str, object], reason: str, says: str
) -> None:
    await rig.start()
    text = await refusal(rig, rig.create_claim("gpu-0", config=[plugin.opaque_config(parameters)]))
    assert text.startswith(f"{reason}: ")
    assert says in text


@pytest.mark.parametrize(
    ("sharing", "gate"), [(TIME_SLICING, "TimeSlicingSettings"), (MPS, "MPSSupport")]
)
async def test_sharing_whose_gate_is_off(rig: Rig, sharing: dict[str, object], gate: str) -> None:
    await rig.start()
    text = await refusal(rig, rig.create_claim("gpu-0", config=[plugin.opaque_config(sharing)]))
    assert text.startswith("FeatureGateDisabled: ")
    assert gate in text


async def test_a_minimum_of_capacity_is_for_the_scheduler_and_the_log_says_so(rig: Rig) -> None:
    await rig.start("-v=2")
    for device, memory in (("gpu-0", "2Gi"), ("gpu-1", "80Gi")):
        claim = rig.create_claim(device, capacity={"memory": memory})
        assert not (await rig.dra.prepare([claim]))[claim.uid].error
        assert f'minimum="memory {memory}"' in rig.process.log.read_text()


async def test_gates_without_effect_are_named_at_the_start(rig: Rig) -> None:
    effective = "ComputeDomainCliques=true,HostManagedIMEXDaemon=true"
    idle = ["FabricManagerPartitioning"]
    gates = ",".join([effective, *(f"{gate}=true" for gate in idle)])
    await rig.start(reported_failures.JSON_LOGS, f"--feature-gates={gates}")
    (warning,) = (
        record
        for record in reported_failures.log_records(rig)
        if "have no effect" in record["message"]
    )
    assert warning["level"] == "WARNING"
    assert warning["gates"] == idle


async def test_a_device_node_that_vanished(rig: Rig) -> None:
    await rig.start()
    (rig.node.roots.dev / "nvidia1").unlink()
    text = await refusal(rig, rig.create_claim("gpu-1"))
    assert text.startswith("DeviceNodeMissing: gpu-1")
    assert "nvidia1" in text
    fine = rig.create_claim("gpu-0")
    assert not (await rig.dra.prepare([fine]))[fine.uid].error


async def test_the_reason_is_an_event_of_the_claim_and_of_its_pod(rig: Rig) -> None:
    await rig.start()
    rig.node.simctl("gpu", "lose", "3")
    claim = rig.create_claim("gpu-3")
    await refusal(rig, claim)

    def told() -> list[dict[str, Any]]:
        events = rig.events("DeviceUnhealthy")  # the Node has one as well, on its own account
        return [event for event in events if event["involvedObject"]["kind"] != "Node"]

    await rig.wait_until(lambda: len(told()) == 2, "the events")
    assert {event["involvedObject"]["kind"] for event in told()} == {"ResourceClaim", "Pod"}
    for event in told():
        assert event["type"] == "Warning"
        assert event["message"].startswith("gpu-3 (GPU-")
        assert "reset the GPU" in event["message"]
        trace = event["metadata"]["annotations"]["nvdra.nvidia.com/trace-id"]
        assert trace == claim.uid.replace("-", "")
