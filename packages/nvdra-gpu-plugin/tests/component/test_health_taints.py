# SPDX-License-Identifier: Apache-2.0
"""What GPUs report becomes taints of their devices, and heals (gate NVMLDeviceHealthCheck)."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import pytest_asyncio
from nvdra_testing.control_plane import apiserver
from nvdra_testing.control_plane.apiserver import ApiServer
from nvdra_testing.node import rig as rigs
from nvdra_testing.node.rig import Rig

GATE = "--feature-gates=NVMLDeviceHealthCheck=true"
ALL = {f"gpu-{minor}" for minor in range(8)}
HEALED_S = 60


async def started(rig: Rig, *flags: str) -> None:
    """Start the plugin, and wait until every GPU is registered for events."""
    before = rig.node.nvml_calls("nvmlDeviceRegisterEvents")
    await rig.start(GATE, *flags)
    await rig.wait_until(
        lambda: rig.node.nvml_calls("nvmlDeviceRegisterEvents") == before + len(ALL),
        "the registrations",
    )


def taints(rig: Rig) -> dict[str, list[str]]:
    """The published taints, as `key=value:effect`, of the devices that have some."""
    return {
        name: [f"{each['key']}={each.get('value', '')}:{each['effect']}" for each in found]
        for name, device in rig.devices().items()
        if (found := device.get("taints"))
    }


async def tainted(rig: Rig, **expected: list[str]) -> None:
    """Wait for exactly these taints, by device names with _ for -."""
    wanted = {name.replace("_", "-"): each for name, each in expected.items()}
    await rig.wait_until(lambda: taints(rig) == wanted, f"the taints {wanted}", HEALED_S)


def counted(rig: Rig) -> dict[str, int]:
    """`nvdra_devices` by state."""
    text = rig.process.get("/metrics")[1]
    found = re.findall(r'^nvdra_devices\{.*state="(\w+)"\} (\S+)$', text, re.MULTILINE)
    return {state: int(float(count)) for state, count in found}


def of_node(rig: Rig, reason: str) -> list[dict[str, Any]]:
    return [each for each in rig.events(reason) if each["involvedObject"]["kind"] == "Node"]


def told_of(rig: Rig) -> set[str]:
    """The GPUs with which Events of the Node begin."""
    return {each["message"].partition(" ")[0] for each in of_node(rig, "DeviceUnhealthy")}


def versions(rig: Rig) -> list[str]:
    return [each["metadata"]["resourceVersion"] for each in rig.slices()]


XID_48 = ["gpu.nvidia.com/xid=48:NoSchedule"]
LOST = ["gpu.nvidia.com/gpu-lost=:NoSchedule"]


async def test_an_xid_that_needs_a_reset_taints_its_gpu_and_no_other(rig: Rig) -> None:
    await started(rig)
    rig.node.simctl("xid", "3", "48")
    await tainted(rig, gpu_3=XID_48)
    assert set(rig.devices()) == ALL
    assert rig.devices()["gpu-3"]["taints"][0]["timeAdded"]
    status, text = rig.process.get("/readyz?verbose")
    assert (status, "gpu-3 has gpu.nvidia.com/xid=48:NoSchedule" in text) == (200, True), text
    assert "tainted gpu.nvidia.com/xid=48:NoSchedule" in rig.status()
    await rig.wait_until(lambda: bool(of_node(rig, "DeviceUnhealthy")), "an Event of the Node")
    assert "gpu-3" in of_node(rig, "DeviceUnhealthy")[0]["message"]
    lines = rig.process.get("/metrics")[1].splitlines()
    assert 'nvdra_device_health_events_total{kind="xid"} 1.0' in lines
    rig.node.simctl("gpu", "lose", "6")
    await tainted(rig, gpu_3=XID_48, gpu_6=LOST)
    counts = {"healthy": 6, "tainted": 1, "unhealthy": 1}
    await rig.wait_until(lambda: counted(rig) == counts, f"the counts {counts}")
    await rig.wait_until(
        lambda: told_of(rig) == {"gpu-3", "gpu-6"}, "an Event of each GPU, although one was before"
    )
    rig.node.simctl("recovery", "3", "none")
    await tainted(rig, gpu_6=LOST)
    counts = {"healthy": 7, "tainted": 0, "unhealthy": 1}
    await rig.wait_until(lambda: counted(rig) == counts, f"the counts {counts}")


async def test_who_has_a_gpu_that_falls_ill_is_told_and_the_status_says_it(rig: Rig) -> None:
    await started(rig)
    both, other = rig.create_claim("gpu-3", "gpu-4"), rig.create_claim("gpu-5")
    watcher = rig.create_claim("gpu-3", admin=True)
    answers = await rig.dra.prepare([both, other, watcher])
    assert not any(each.error for each in answers.values())
    rig.node.simctl("xid", "3", "48")
    rig.node.simctl("xid", "6", "48")
    rig.node.simctl("gpu", "lose", "4")
    await tainted(rig, gpu_3=XID_48, gpu_4=LOST, gpu_6=XID_48)

    def told() -> set[tuple[str, str, str]]:
        """The kind and name of who is told, and the GPUs that the text names."""
        return {
            (about["kind"], about["name"], gpu)
            for each in rig.events("DeviceUnhealthy")
            if (about := each["involvedObject"])["kind"] != "Node"
            for gpu in re.findall(r"gpu-[0-9]", each["message"])
        }

    wanted = {
        (kind, name, gpu)
        for kind, name in (("ResourceClaim", both.name), ("Pod", "p"))
        for gpu in ("gpu-3", "gpu-4")
    }
    await rig.wait_until(lambda: told() == wanted, f"Events of {wanted}")
    states = {
        each["name"]: each["state"] for each in json.loads(rig.status("-o", "json"))["devices"]
    }
    held, tainted_ones = {"gpu-3", "gpu-4"}, {"gpu-6"}
    assert states == {
        **dict.fromkeys(ALL, "free"),
        **dict.fromkeys(held, "held, tainted"),
        **dict.fromkeys(tainted_ones, "tainted"),
        "gpu-5": "held",
    }
    written = {each["metadata"]["name"] for each in rig.events("DeviceUnhealthy")}
    await rig.stop()
    await rig.start(GATE)
    await rig.wait_until(
        lambda: len({each["metadata"]["name"] for each in of_node(rig, "DeviceUnhealthy")}) == 6,
        "the Node to be told again",
    )
    again = [
        each for each in rig.events("DeviceUnhealthy") if each["metadata"]["name"] not in written
    ]
    assert {each["involvedObject"]["kind"] for each in again} == {"Node"}


@pytest.mark.soak
async def test_errors_of_applications_and_those_that_need_nothing_taint_no_gpu(rig: Rig) -> None:
    await started(rig)
    for gpu, xid in (("1", "13"), ("2", "31"), ("4", "63")):
        rig.node.simctl("xid", gpu, xid)
    rig.node.simctl("ecc", "5", "sbe")
    rig.node.simctl("xid", "6", "95")
    await tainted(rig, gpu_6=["gpu.nvidia.com/xid=95:NoSchedule"])
    await asyncio.sleep(6)  # longer than the driver is given to change its mind
    await tainted(rig, gpu_6=["gpu.nvidia.com/xid=95:NoSchedule"])


@pytest.mark.soak
async def test_an_xid_that_an_administrator_ignores_taints_no_gpu(rig: Rig) -> None:
    await started(rig, "--additional-xids-to-ignore=48, 62")
    rig.node.simctl("xid", "1", "48")
    rig.node.simctl("xid", "2", "95")
    await tainted(rig, gpu_2=["gpu.nvidia.com/xid=95:NoSchedule"])
    await asyncio.sleep(3)
    await tainted(rig, gpu_2=["gpu.nvidia.com/xid=95:NoSchedule"])


async def test_an_ignored_xid_taints_no_gpu_after_a_restart_or_a_release(rig: Rig) -> None:
    ignores = "--additional-xids-to-ignore=48"
    xid_95 = ["gpu.nvidia.com/xid=95:NoSchedule"]
    await started(rig, ignores)
    rig.node.simctl("xid", "1", "48")
    rig.node.simctl("xid", "2", "95")
    await tainted(rig, gpu_2=xid_95)
    await rig.stop()
    await started(rig, ignores)
    rig.node.simctl("xid", "3", "95")  # all GPUs are looked at side by side
    await tainted(rig, gpu_2=xid_95, gpu_3=xid_95)
    rig.command("release")
    rig.command("resume")
    await rig.wait_until(lambda: rig.process.get("/readyz")[0] == 200, "the GPUs to be back")
    rig.node.simctl("recovery", "4", "gpu_reset")
    unknown = ["gpu.nvidia.com/xid=154:NoSchedule"]
    await tainted(rig, gpu_2=xid_95, gpu_3=xid_95, gpu_4=unknown)
    rig.node.simctl("xid", "1", "95")
    await tainted(rig, gpu_1=xid_95, gpu_2=xid_95, gpu_3=xid_95, gpu_4=unknown)


async def test_whoever_ignores_the_xid_of_a_tainted_gpu_and_restarts_the_plugin_has_it_offered(
    rig: Rig,
) -> None:
    await started(rig)
    rig.node.simctl("xid", "3", "48")
    await tainted(rig, gpu_3=XID_48)
    await rig.stop()
    await started(rig, "--additional-xids-to-ignore=48")
    await tainted(rig)
    await rig.stop()
    await started(rig)
    await tainted(rig, gpu_3=XID_48)


async def test_a_recovery_action_is_noticed_without_any_event(rig: Rig) -> None:
    """The plugin was away when it was reported."""
    rig.node.simctl("recovery", "5", "gpu_reset")
    await started(rig)
    await tainted(rig, gpu_5=["gpu.nvidia.com/xid=154:NoSchedule"])


@pytest.mark.soak
async def test_a_restart_keeps_the_taints_and_writes_no_slice(rig: Rig) -> None:
    await started(rig)
    rig.node.simctl("xid", "3", "48")
    rig.node.simctl("gpu", "lose", "6")
    await tainted(rig, gpu_3=XID_48, gpu_6=LOST)
    before = versions(rig)
    await rig.stop()
    await rig.start(GATE)
    await asyncio.sleep(4)
    assert taints(rig) == {"gpu-3": XID_48, "gpu-6": LOST}
    assert versions(rig) == before
    said = [each["message"] for each in of_node(rig, "DeviceUnhealthy")]
    assert not [text for text in said if "not offered" in text]


@pytest.mark.soak
async def test_a_gpu_that_was_reset_during_a_release_heals(rig: Rig) -> None:
    await started(rig)
    rig.node.simctl("xid", "3", "48")
    await tainted(rig, gpu_3=XID_48)
    rig.command("release")
    rig.node.simctl("gpu", "reset", "3")
    assert taints(rig) == {"gpu-3": XID_48}
    rig.command("resume")
    await tainted(rig)
    await rig.wait_until(lambda: bool(of_node(rig, "DeviceHealed")), "an Event of the Node")
    rig.node.simctl("xid", "3", "95")
    await tainted(rig, gpu_3=["gpu.nvidia.com/xid=95:NoSchedule"])


@pytest.mark.soak
async def test_where_the_driver_cannot_tell_an_xid_is_enough_until_an_administrator_resumes(
    rig: Rig,
) -> None:
    rig.node.simctl("fault", "add", "nvmlDeviceGetFieldValues", "--result", "function_not_found")
    await started(rig)
    rig.node.simctl("xid", "1", "13")
    rig.node.simctl("xid", "3", "63")
    await tainted(rig, gpu_3=["gpu.nvidia.com/xid=63:NoSchedule"])
    rig.command("release")
    rig.node.simctl("gpu", "reset", "3")
    rig.command("resume")
    await tainted(rig)


async def test_a_lost_gpu_alone_is_tainted_not_withdrawn_and_heals_when_it_is_back(
    rig: Rig,
) -> None:
    await started(rig)
    rig.node.simctl("gpu", "lose", "2", "--xid", "79")
    await tainted(rig, gpu_2=LOST)
    assert set(rig.devices()) == ALL
    lost, other = rig.create_claim("gpu-2"), rig.create_claim("gpu-1")
    answers = await rig.dra.prepare([lost, other])
    assert answers[lost.uid].error.startswith("DeviceUnhealthy: ")
    assert not answers[other.uid].error
    await rig.dra.unprepare([lost, other])
    rig.node.simctl("gpu", "restore", "2")
    await tainted(rig)
    assert not (await rig.dra.prepare([lost]))[lost.uid].error


async def test_a_gpu_that_was_lost_while_no_plugin_ran_is_offered_again_when_it_is_back(
    rig: Rig,
) -> None:
    """It has never described itself to this process, so no taint of its own is known."""
    await started(rig)
    await rig.stop()
    rig.node.simctl("gpu", "lose", "2", "--xid", "79")
    await rig.start(GATE)
    await rig.wait_until(lambda: set(rig.devices()) == ALL - {"gpu-2"}, "gpu-2 to be withdrawn")
    await rig.wait_until(
        lambda: any("gpu-2" in each["message"] for each in of_node(rig, "DeviceUnhealthy")),
        "an Event of the Node",
    )
    rig.node.simctl("gpu", "restore", "2")
    await rig.wait_until(lambda: set(rig.devices()) == ALL, "gpu-2 to be offered again", 90)
    await tainted(rig)


async def test_a_gpu_that_cannot_be_listened_to_says_so_and_keeps_nobody_away(rig: Rig) -> None:
    rule = ("nvmlDeviceRegisterEvents", "--result", "unknown", "--gpu", "4")
    rig.node.simctl("fault", "add", *rule)
    await rig.start(GATE)
    await tainted(rig, gpu_4=["gpu.nvidia.com/unmonitored=:None"])


@pytest.mark.soak
async def test_broken_memory_taints_a_gpu_once_no_row_is_left_to_replace_it(rig: Rig) -> None:
    await started(rig)
    rig.node.simctl("row-remapping", "1", "pending")
    rig.node.simctl("row-remapping", "2", "failed")
    rig.node.simctl("ecc", "3", "dbe")  # the driver can tell, and asks for nothing
    failed = ["gpu.nvidia.com/row-remapping=failed:NoSchedule"]
    await tainted(rig, gpu_1=["gpu.nvidia.com/row-remapping=pending:None"], gpu_2=failed)
    await rig.wait_until(lambda: bool(of_node(rig, "DeviceUnhealthy")), "an Event of the Node")
    (event,) = of_node(rig, "DeviceUnhealthy")
    assert event["message"].startswith("gpu-2 (")
    assert "replace the GPU" in event["message"]
    rig.command("release")
    for gpu in ("1", "2"):
        rig.node.simctl("gpu", "reset", gpu)
    rig.command("resume")
    await tainted(rig, gpu_2=failed)


async def test_a_gpu_that_does_not_work_in_its_fabric_is_tainted_until_it_does(rig: Rig) -> None:
    rig.node.simctl("fabric", "1", "--status", "999")
    rig.node.simctl("fabric", "2", "--health", "0xA9")  # degraded bandwidth
    rig.node.simctl("fabric", "3", "--health", "0x9A")  # a route is unhealthy
    rig.node.simctl("fabric", "4", "--fabric-state", "in_progress")
    rig.node.simctl("fabric", "5", "--health", "0x3AA")  # of another chassis
    rig.node.simctl("fabric", "6", "--health", "0x16A")  # recovers from an access timeout
    rig.node.simctl("fabric", "7", "--health", "0x4AA")  # has no partition yet
    await started(rig)
    await tainted(
        rig,
        gpu_1=["gpu.nvidia.com/fabric=failed:NoSchedule"],
        gpu_2=["gpu.nvidia.com/fabric=degraded-bandwidth:None"],
        gpu_3=["gpu.nvidia.com/fabric=route-unhealthy:NoSchedule"],
        gpu_5=["gpu.nvidia.com/fabric=incorrect-configuration:NoSchedule"],
        gpu_6=["gpu.nvidia.com/fabric=access-timeout:None"],
    )


@pytest.mark.soak
async def test_a_look_costs_one_call_for_each_gpu_and_a_second_one_every_half_minute(
    rig: Rig,
) -> None:
    await started(rig)
    before = rig.node.nvml_calls("nvmlDeviceGetFieldValues")
    rig.node.simctl("ecc", "3", "dbe")  # five looks, one second apart
    await asyncio.sleep(6)
    assert 5 * len(ALL) <= rig.node.nvml_calls("nvmlDeviceGetFieldValues") - before <= 7 * len(ALL)
    assert rig.node.nvml_calls("nvmlDeviceGetGpuFabricInfoV") <= 2 * len(ALL)


async def test_an_operator_may_choose_that_pods_of_a_gpu_that_is_not_well_are_deleted(
    rig: Rig,
) -> None:
    await started(rig, "--device-taint-effect=NoExecute")
    rig.node.simctl("xid", "3", "48")
    rig.node.simctl("gpu", "lose", "6")
    both = {
        "gpu_3": ["gpu.nvidia.com/xid=48:NoExecute"],
        "gpu_6": ["gpu.nvidia.com/gpu-lost=:NoExecute"],
    }
    await tainted(rig, **both)
    await rig.wait_until(lambda: bool(of_node(rig, "DeviceUnhealthy")), "an Event of the Node")
    assert "its pods are deleted" in of_node(rig, "DeviceUnhealthy")[0]["message"]
    await rig.stop()
    await rig.start(GATE)
    await tainted(rig, gpu_3=XID_48, gpu_6=LOST)


@pytest.fixture(scope="module")
def server_without_taints(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    gates = "DRADeviceTaints=false,DRADeviceTaintRules=false"
    with apiserver.run_apiserver(tmp_path_factory.mktemp("api"), feature_gates=gates) as server:
        yield server


@pytest_asyncio.fixture
async def rig_without_taints(server_without_taints: ApiServer) -> AsyncIterator[Rig]:
    async with rigs.open_rig(server_without_taints, "node-a") as rig:
        yield rig


async def test_where_taints_are_dropped_it_is_said_and_a_lost_gpu_is_withdrawn(
    rig_without_taints: Rig,
) -> None:
    rig = rig_without_taints
    await started(rig)
    rig.node.simctl("xid", "3", "48")
    await rig.wait_until(
        lambda: "DRADeviceTaints" in rig.process.get("/readyz?verbose")[1], "what is missing"
    )
    assert rig.process.get("/readyz")[0] == 200
    assert set(rig.devices()) == ALL
    await rig.wait_until(lambda: bool(of_node(rig, "DeviceUnhealthy")), "an Event of gpu-3")
    (told,) = of_node(rig, "DeviceUnhealthy")
    assert "gpu-3" in told["message"]
    assert "DRADeviceTaints" in told["message"], "not that pods are kept away from it"
    before = versions(rig)
    rig.node.simctl("xid", "5", "48")
    await asyncio.sleep(4)
    assert versions(rig) == before, "what the API server drops is not written again and again"
    rig.node.simctl("gpu", "lose", "2")
    await rig.wait_until(lambda: set(rig.devices()) == ALL - {"gpu-2"}, "gpu-2 to be withdrawn")
    rig.node.simctl("gpu", "restore", "2")
    await rig.wait_until(lambda: set(rig.devices()) == ALL, "gpu-2 to be back")
