# SPDX-License-Identifier: Apache-2.0
"""GPUs whose health NVML does not say, and GPUs that answer with errors."""

from typing import Any

import pytest
from nvdra_testing.node.rig import Rig

GATE = "--feature-gates=NVMLDeviceHealthCheck=true"
ALL = {f"gpu-{minor}" for minor in range(8)}
XID_119 = ["gpu.nvidia.com/xid=119:NoSchedule"]


def taints(rig: Rig) -> dict[str, list[str]]:
    """The published taints, as `key=value:effect`, of the devices that have some."""
    return {
        name: [f"{each['key']}={each.get('value', '')}:{each['effect']}" for each in found]
        for name, device in rig.devices().items()
        if (found := device.get("taints"))
    }


async def tainted(rig: Rig, expected: dict[str, list[str]], timeout_s: float = 60) -> None:
    await rig.wait_until(lambda: taints(rig) == expected, f"the taints {expected}", timeout_s)


def ready_text(rig: Rig) -> str:
    status, text = rig.process.get("/readyz?verbose")
    assert status == 200
    return text


def events_of(rig: Rig, name: str) -> list[dict[str, Any]]:
    found = rig.events("DeviceUnhealthy")
    return [each for each in found if each["involvedObject"]["name"] == name]


@pytest.mark.parametrize("rule", [("--result", "unknown"), ("--delay-ms", "7000")])
async def test_an_xid_counts_while_nvml_does_not_say_what_it_means(
    rig: Rig, rule: tuple[str, ...]
) -> None:
    await rig.start(GATE)
    rig.node.simctl("fault", "add", "nvmlDeviceGetFieldValues", "--gpu", "3", *rule)
    rig.node.simctl("xid", "3", "119")
    await tainted(rig, {"gpu-3": XID_119})
    rig.node.simctl("fault", "rm", "all")
    rig.node.simctl("recovery", "3", "none")
    await tainted(rig, {})


async def test_what_nvml_asks_for_is_named_wherever_the_taint_is(rig: Rig) -> None:
    await rig.start(GATE)
    for gpu in ("1", "2"):
        rig.node.simctl("recovery", gpu, "recover_imex_domain")  # of a rack, all at once
    rig.node.simctl("xid", "3", "48", "--recovery", "system_reboot")
    await tainted(
        rig,
        {
            "gpu-1": ["gpu.nvidia.com/fabric=recover-imex-domain:None"],
            "gpu-2": ["gpu.nvidia.com/fabric=recover-imex-domain:None"],
            "gpu-3": ["gpu.nvidia.com/xid=48:NoSchedule"],
        },
    )
    named = "gpu.nvidia.com/xid=48:NoSchedule (recovery action: system reboot)"
    assert f"gpu-3 has {named}" in ready_text(rig)
    assert f"tainted {named}" in rig.status()
    await rig.wait_until(lambda: bool(rig.events("DeviceUnhealthy")), "an Event of the Node")
    (event,) = rig.events("DeviceUnhealthy")
    assert "drain its node and reboot the whole system" in event["message"]
    assert "(recovery action: system reboot)" in event["message"]


@pytest.mark.soak
async def test_a_gpu_that_cannot_be_looked_at_for_a_minute_is_reported(rig: Rig) -> None:
    rule = ("nvmlDeviceGetFieldValues", "--gpu", "3", "--result", "unknown")
    rig.node.simctl("fault", "add", *rule)
    await rig.start(GATE)
    assert "gpu-3" not in ready_text(rig)
    await tainted(rig, {"gpu-3": ["gpu.nvidia.com/unmonitored=:None"]}, 90)
    text = ready_text(rig)
    assert "gpu-3 is not monitored: NVML does not say how it is: " in text
    assert "(NVML error 999)" in text
    rig.node.simctl("fault", "rm", "all")
    await tainted(rig, {})


async def test_a_gpu_that_has_to_be_reset_is_tainted_as_a_lost_one_and_its_users_have_events(
    rig: Rig,
) -> None:
    await rig.start(GATE, "--device-taint-effect=NoExecute")
    claim = rig.create_claim("gpu-3")
    assert not (await rig.dra.prepare([claim]))[claim.uid].error
    rule = ("nvmlDeviceGet[FM]*", "--gpu", "3", "--result", "reset_required")
    rig.node.simctl("fault", "add", *rule)
    await tainted(rig, {"gpu-3": ["gpu.nvidia.com/gpu-lost=reset-required:NoExecute"]})
    assert set(rig.devices()) == ALL
    await rig.wait_until(lambda: bool(events_of(rig, claim.name)), "an Event of the claim")
    (event,) = events_of(rig, claim.name)
    assert "has to be reset before it can be used again" in event["message"]
    await rig.wait_until(lambda: bool(events_of(rig, "p")), "an Event of the pod")
    said = [each["message"] for each in rig.events("DeviceUnhealthy")]
    assert not [text for text in said if "not offered" in text]
    rig.node.simctl("fault", "rm", "all")
    await tainted(rig, {})


async def test_a_gpu_with_a_taint_stays_in_the_slices_when_it_stops_working(rig: Rig) -> None:
    await rig.start(GATE)
    rig.node.simctl("xid", "3", "48")
    await tainted(rig, {"gpu-3": ["gpu.nvidia.com/xid=48:NoSchedule"]})
    rule = ("nvmlDeviceGet[FM]*", "--gpu", "3", "--result", "unknown")
    rig.node.simctl("fault", "add", *rule)
    await rig.wait_until(lambda: "does not work since" in rig.status(), "the error", 30)
    assert taints(rig) == {"gpu-3": ["gpu.nvidia.com/xid=48:NoSchedule"]}
    assert set(rig.devices()) == ALL
    assert not [each for each in rig.events("DeviceUnhealthy") if "not offered" in each["message"]]


@pytest.mark.soak
async def test_a_gpu_whose_errors_last_is_withdrawn_first_and_then_tainted_as_a_lost_one(
    rig: Rig,
) -> None:
    await rig.start(GATE)
    rule = ("nvmlDeviceGet[FM]*", "--gpu", "3", "--result", "unknown")
    rig.node.simctl("fault", "add", *rule)
    await rig.wait_until(lambda: set(rig.devices()) == ALL - {"gpu-3"}, "gpu-3 to be withdrawn")
    lost = {"gpu-3": ["gpu.nvidia.com/gpu-lost=nvml-errors:NoSchedule"]}
    await tainted(rig, lost, 90)
    assert set(rig.devices()) == ALL
    await rig.stop()
    await rig.start(GATE)
    await tainted(rig, lost)
    rig.node.simctl("fault", "rm", "all")
    await tainted(rig, {}, 90)
    assert set(rig.devices()) == ALL
