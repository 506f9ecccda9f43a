# SPDX-License-Identifier: Apache-2.0
"""What is offered of GPUs for virtual machines. The numbers are those of the acceptance cases."""

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any
from uuid import NAMESPACE_DNS, uuid4, uuid5

import pytest
import pytest_asyncio
from nvdra_api.resource.claims import ClaimRef
from nvdra_gpu_plugin.passthrough import pci_ids
from nvdra_sim.testing.passthrough_fixtures import PAIR_BEHIND_A_SWITCH
from nvdra_testing.control_plane import apiserver
from nvdra_testing.control_plane.apiserver import ApiServer
from nvdra_testing.node import passthrough_rig
from nvdra_testing.node.passthrough_rig import PassthroughRig
from nvdra_testing.node.rig import cdi_edits, cdi_names
from prometheus_client import parser

VFIO = "vfio-pci"
NVIDIA = "nvidia"
COUNTERS_OFF = "DRAPartitionableDevices=false"
ALL_ON_VFIO = {"gpus": [{"index": index, "bound_driver": VFIO} for index in range(4)]}
SECOND_ON_VFIO = {"gpus": [{"index": 1, "bound_driver": VFIO}]}
LOOKS_S = 11
"""Longer than two looks at the node."""
HOLDER = "import os, sys; os.open(sys.argv[1], os.O_PATH); print(flush=True); sys.stdin.read()"
"""Opens a device node whose driver this machine has not."""


@pytest_asyncio.fixture
async def rig(server: ApiServer, request: pytest.FixtureRequest) -> AsyncIterator[PassthroughRig]:
    """A node; the test's parameter is its profile, or that and sections of a node file."""
    parameter = getattr(request, "param", "t4")
    profile, sections = (parameter, {}) if isinstance(parameter, str) else parameter
    async with opened(server, profile, **sections) as rig:
        yield rig


@pytest_asyncio.fixture
async def unserved(tmp_path: Path) -> AsyncIterator[PassthroughRig]:
    """A node whose API server drops counters."""
    with apiserver.run_apiserver(tmp_path, feature_gates=COUNTERS_OFF) as server:
        async with opened(server, "t4") as rig:
            yield rig


@asynccontextmanager
async def opened(server: ApiServer, profile: str, **sections: Any) -> AsyncIterator[PassthroughRig]:
    name = f"node-{uuid4().hex[:6]}"
    async with passthrough_rig.open_rig(server, name, profile, **sections) as rig:
        yield rig


def names(form: str, *numbers: int) -> set[str]:
    return {f"{form}-{number}" for number in numbers}


def versions(rig: PassthroughRig) -> list[str]:
    return [slice_["metadata"]["resourceVersion"] for slice_ in rig.slices()]


def readyz(rig: PassthroughRig) -> tuple[int, str]:
    return rig.process.get("/readyz?verbose")


async def prepared(rig: PassthroughRig, claim: ClaimRef) -> Any:
    answer = (await rig.dra.prepare([claim]))[claim.uid]
    assert not answer.error, answer.error
    return answer


async def unprepared(rig: PassthroughRig, claim: ClaimRef) -> None:
    answer = (await rig.dra.unprepare([claim]))[claim.uid]
    assert not answer.error, answer.error


async def restart_after_kill(rig: PassthroughRig) -> None:
    await rig.stop(signal.SIGKILL)
    await rig.start_passing()


def hide_driver(rig: PassthroughRig) -> None:
    """Remove the driver's library, as on a node that never had a driver."""
    library = next(rig.node.roots.driver.glob("usr/lib/*/libnvidia-ml.so.1"))
    library.rename(library.with_name("hidden"))


@contextmanager
def holding(node: Path) -> Iterator[int]:
    """A process that has a device node open during the block."""
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", HOLDER, str(node)]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        yield process.pid
        process.communicate()


def devices_of_status(rig: PassthroughRig) -> dict[str, Any]:
    """The devices that the command `status` shows."""
    return {device["name"]: device for device in json.loads(rig.status("-o", "json"))["devices"]}


def sample(metrics: str, name: str, **labels: str) -> float:
    """The value of a series that has these labels."""
    return next(
        found.value
        for family in parser.text_string_to_metric_families(metrics)
        for found in family.samples
        if found.name == name and labels.items() <= found.labels.items()
    )


@pytest.mark.parametrize("rig", ["dgx-h100"], indirect=True)
async def test_each_of_eight_gpus_is_offered_in_both_forms(rig: PassthroughRig) -> None:
    """Case 1."""
    await rig.start_passing()
    devices = rig.devices()
    assert set(devices) == names("gpu", *range(8)) | names("gpu-vfio", *range(8))
    for number in range(8):
        whole, vfio = devices[f"gpu-{number}"], devices[f"gpu-vfio-{number}"]
        assert vfio["consumesCounters"] == whole["consumesCounters"]
        (consumed,) = whole["consumesCounters"]
        assert consumed["counters"] == {"gpu": {"value": "1"}}
        address = rig.served.address(number)
        assert vfio["capacity"] == {"addressableMemory": {"value": "256Gi"}}
        found = vfio["attributes"]
        common = {
            name: whole["attributes"][name]
            for name in (
                "resource.kubernetes.io/pciBusID",
                "resource.kubernetes.io/pcieRoot",
                "resource.kubernetes.io/numaNode",
            )
        }
        assert common["resource.kubernetes.io/pciBusID"] == {"string": address}
        assert found == {
            **common,
            "type": {"string": "vfio"},
            "uuid": {"string": str(uuid5(NAMESPACE_DNS, address))},
            "deviceID": {"string": "0x2330"},
            "vendorID": {"string": "0x10de"},
            "productName": {"string": pci_ids.read().get(0x2330, pci_ids.UNKNOWN)},
            "iommuFDEnabled": {"bool": True},
            "iommuGroup": {"int": rig.group_of(number)},
            "isolated": {"bool": True},
            "parentUUID": whole["attributes"]["uuid"],
            "parentProductName": whole["attributes"]["productName"],
        }


async def test_without_the_gate_the_slice_is_as_ever(rig: PassthroughRig) -> None:
    """Case 1."""
    await rig.start()
    assert set(rig.devices()) == names("gpu", *range(4))
    assert all("consumesCounters" not in device for device in rig.devices().values())
    assert not any("sharedCounters" in slice_["spec"] for slice_ in rig.slices())
    assert "passthrough" not in readyz(rig)[1]
    assert "vfio" not in rig.status("-o", "json")
    metrics = rig.process.get("/metrics")[1]
    assert 'device_kind="vfio"' not in metrics
    assert "nvdra_gpus_by_kernel_driver{" not in metrics


@pytest.mark.parametrize("times", [4, pytest.param(100, marks=pytest.mark.soak("100 races"))])
async def test_of_two_claims_of_one_gpu_the_second_is_prepared_when_the_first_has_ended(
    rig: PassthroughRig, times: int
) -> None:
    """Case 3."""
    await rig.start_passing()
    for _ in range(times):
        drivers = {
            rig.create_claim("gpu-3"): NVIDIA,
            rig.create_claim("gpu-vfio-3"): VFIO,
        }
        async with asyncio.TaskGroup() as group:
            calls = {group.create_task(prepared(rig, claim)): claim for claim in drivers}
            done, waiting = await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
            (winner,), (loser,) = done, waiting
            first, second = calls[winner], calls[loser]
            assert rig.driver_of(3) == drivers[first]
            assert set(rig.recorded_claims()) == {first.uid}
            await unprepared(rig, first)
            await loser
        assert rig.driver_of(3) == drivers[second]
        await unprepared(rig, second)
    assert rig.driver_of(3) == NVIDIA


@pytest.mark.parametrize(("first", "second"), [("gpu-3", "gpu-vfio-3"), ("gpu-vfio-3", "gpu-3")])
async def test_a_claim_of_the_other_form_is_told_who_has_the_gpu(
    rig: PassthroughRig, first: str, second: str
) -> None:
    """Case 3."""
    await rig.start_passing()
    holder, other = rig.create_claim(first), rig.create_claim(second)
    await prepared(rig, holder)
    driver = rig.driver_of(3)
    refusal = await rig.dra.refusal(other)
    assert refusal.startswith("DeviceInUse: "), refusal
    assert holder.name in refusal
    assert rig.driver_of(3) == driver


async def test_where_counters_are_dropped_the_other_form_is_withdrawn(
    unserved: PassthroughRig,
) -> None:
    """Cases 3 and 4."""
    rig = unserved
    await rig.start_passing()
    everything = names("gpu", *range(4)) | names("gpu-vfio", *range(4))
    assert set(rig.devices()) == everything
    assert all("consumesCounters" not in device for device in rig.devices().values())
    assert "DRAPartitionableDevices" in readyz(rig)[1]
    await rig.wait_until(lambda: bool(rig.events("FeatureGateDisabled")), "an Event of the Node")
    (event,) = rig.events("FeatureGateDisabled")
    assert event["message"].startswith("PassthroughSupport does not keep claims apart: the API")
    assert "DynamicMIG" not in event["message"]
    whole, vfio = rig.create_claim("gpu-2"), rig.create_claim("gpu-vfio-3")
    await prepared(rig, whole)
    await prepared(rig, vfio)
    left = everything - {"gpu-vfio-2", "gpu-3"}
    await rig.wait_until(lambda: set(rig.devices()) == left, "the others to be withdrawn")
    await restart_after_kill(rig)
    assert set(rig.devices()) == left
    refusal = await rig.dra.refusal(rig.create_claim("gpu-vfio-2"))
    assert whole.name in refusal
    await unprepared(rig, whole)
    await unprepared(rig, vfio)
    await rig.wait_until(lambda: set(rig.devices()) == everything, "both forms of all GPUs")


async def test_a_gpu_that_a_pod_uses_is_not_taken_from_it_after_a_restart(
    rig: PassthroughRig,
) -> None:
    """Case 4."""
    await rig.start_passing()
    claim = rig.create_claim("gpu-0")
    await prepared(rig, claim)
    before = rig.slices()
    await restart_after_kill(rig)
    assert rig.slices() == before, "the counters keep the vfio device from being allocated"
    refusal = await rig.dra.refusal(rig.create_claim("gpu-vfio-0"))
    assert refusal.startswith("DeviceInUse: "), refusal
    assert claim.name in refusal
    assert rig.driver_of(0) == NVIDIA
    assert rig.override_of(0) == "(null)"


@pytest.mark.parametrize("rig", [("t4", PAIR_BEHIND_A_SWITCH)], indirect=True)
async def test_boards_that_share_a_group_are_offered_as_gpus_only(rig: PassthroughRig) -> None:
    """Case 12."""
    await rig.start_passing()
    assert set(rig.devices()) == names("gpu", *range(4)) | names("gpu-vfio", 0, 1)
    code, text = readyz(rig)
    assert code == 200
    first, second = (rig.served.address(number) for number in (2, 3))
    assert f"GPU {first} cannot be passed through" in text
    assert f"has {second} (nvidia)" in text
    await rig.wait_until(lambda: bool(rig.events("VfioNotPossible")), "an Event of the Node")
    await asyncio.sleep(LOOKS_S)
    (event,) = rig.events("VfioNotPossible")
    assert (event["involvedObject"]["kind"], event["count"]) == ("Node", 1), "it is told once"
    assert f"has {first} (nvidia), too; enable ACS" in event["message"]
    found = devices_of_status(rig)
    assert found["gpu-vfio-2"]["state"] == "not offered"
    assert found["gpu-vfio-2"]["iommu_group_mates"] == [second]
    assert found["gpu-vfio-2"]["obstacle"] == "SharedIommuGroup"
    assert f"driver nvidia, IOMMU group {rig.group_of(3)} with {first}" in rig.status()
    metrics = rig.process.get("/metrics")[1]
    assert sample(metrics, "nvdra_vfio_devices_withheld", obstacle="SharedIommuGroup") == 2
    assert sample(metrics, "nvdra_gpus_by_kernel_driver", kernel_driver=NVIDIA) == 4
    assert sample(metrics, "nvdra_devices", device_kind="vfio", state="healthy") == 2
    await prepared(rig, rig.create_claim("gpu-2"))
    refusal = await rig.dra.refusal(rig.create_claim("gpu-vfio-3"))
    assert refusal
    assert rig.driver_of(3) == NVIDIA


@pytest.mark.parametrize("gate", ["", "DynamicMIG=true"])
@pytest.mark.parametrize(
    "rig", [("dgx-h100", {"node": {"iommu": {"enabled": False, "iommufd": False}}})], indirect=True
)
async def test_a_node_without_an_iommu_has_its_gpus_as_before(
    rig: PassthroughRig, gate: str
) -> None:
    """Case 13."""
    rig.gates = [*filter(None, (passthrough_rig.GATE, gate))]
    await rig.start_passing()
    assert not [name for name in rig.devices() if name.startswith("gpu-vfio-")]
    assert set(rig.devices()) >= names("gpu", *range(8))
    code, text = readyz(rig)
    assert code == 200
    assert "the node has no IOMMU groups" in text
    assert "intel_iommu=on" in text
    await prepared(rig, rig.create_claim("gpu-0-mig-1g10gb-19-0" if gate else "gpu-0"))


@pytest.mark.parametrize("rig", [("t4", {"overrides": SECOND_ON_VFIO})], indirect=True)
async def test_a_gpu_that_was_bound_at_boot_is_offered_for_virtual_machines_and_stays_bound(
    rig: PassthroughRig,
) -> None:
    """Case 14."""
    await rig.start_passing()
    assert set(rig.devices()) == names("gpu", 0, 2, 3) | names("gpu-vfio", *range(4))
    assert "parentUUID" not in rig.devices()["gpu-vfio-1"]["attributes"]
    before = versions(rig)
    override = rig.override_of(1)
    claim = rig.create_claim("gpu-vfio-1")
    answer = await prepared(rig, claim)
    (node,) = cdi_edits(rig, cdi_names(answer)[0])["deviceNodes"]
    assert node["path"] == f"/dev/vfio/{rig.group_of(1)}"
    await restart_after_kill(rig)
    await unprepared(rig, claim)
    assert (rig.driver_of(1), rig.override_of(1)) == (VFIO, override)
    await asyncio.sleep(LOOKS_S)
    assert versions(rig) == before


@pytest.mark.parametrize("rig", [("t4", {"overrides": SECOND_ON_VFIO})], indirect=True)
async def test_gpus_of_other_programs_are_left_out_where_the_setting_says_so(
    rig: PassthroughRig,
) -> None:
    """Case 14."""
    await rig.start_passing("--passthrough-prebound=ignore")
    assert set(rig.devices()) == names("gpu", 0, 2, 3) | names("gpu-vfio", 0, 2, 3)
    assert readyz(rig)[0] == 200
    assert await rig.dra.refusal(rig.create_claim("gpu-vfio-1"))
    assert rig.driver_of(1) == VFIO


NO_DRIVER = {"driver": {"module_loaded": False}, "overrides": ALL_ON_VFIO}


@pytest.mark.parametrize("rig", [("t4", NO_DRIVER)], indirect=True)
async def test_a_node_without_a_driver_of_nvidia_serves_virtual_machines(
    rig: PassthroughRig,
) -> None:
    """Case 14."""
    hide_driver(rig)
    await rig.start_passing()
    assert set(rig.devices()) == names("gpu-vfio", *range(4))
    code, text = readyz(rig)
    assert code == 200
    assert "libnvidia-ml.so.1" in text
    assert not rig.events("DriverMismatch")
    claim = rig.create_claim("gpu-vfio-2")
    answer = await prepared(rig, claim)
    assert rig.driver_of(2) == VFIO
    await restart_after_kill(rig)
    assert await prepared(rig, claim) == answer
    await unprepared(rig, claim)
    assert rig.driver_of(2) == VFIO
    assert not rig.recorded_claims()
    refusal = await rig.dra.refusal(rig.create_claim("gpu-2"))
    assert refusal.startswith("DriverMismatch: "), refusal


async def test_a_claim_ends_at_once_while_the_driver_is_unloaded(rig: PassthroughRig) -> None:
    """Case 15."""
    await rig.start_passing()
    others = [rig.create_claim(f"gpu-vfio-{number}") for number in (0, 2, 3)]
    claim = rig.create_claim("gpu-vfio-1")
    for each in (*others, claim):
        await prepared(rig, each)
    rig.command("release")
    rig.node.simctl("driver", "unload")
    rig.command("resume")
    await asyncio.sleep(LOOKS_S)
    started = asyncio.get_running_loop().time()
    await unprepared(rig, claim)
    assert asyncio.get_running_loop().time() - started < 3
    assert rig.driver_of(1) is None
    assert rig.override_of(1) == "(null)"
    assert claim.uid not in rig.recorded_claims()
    rig.node.simctl("driver", "load")
    assert rig.driver_of(1) == NVIDIA
    await rig.wait_until(
        lambda: devices_of_status(rig).get("gpu-1", {}).get("state") == "free", "the GPU", 10
    )
    assert "gpu-1" in rig.devices()
    await prepared(rig, rig.create_claim("gpu-1"))
    for each in others:
        await unprepared(rig, each)
    assert rig.driver_of(0) == NVIDIA


async def test_a_gpu_that_returns_with_another_minor_number_renames_none(
    rig: PassthroughRig,
) -> None:
    """Case 16."""
    await rig.start_passing()
    uuids = {name: each["attributes"]["uuid"] for name, each in rig.devices().items()}
    before = versions(rig)
    held = rig.create_claim("gpu-2")
    answer = await prepared(rig, held)
    claims = [rig.create_claim(f"gpu-vfio-{number}") for number in (0, 1)]
    for claim in claims:
        await prepared(rig, claim)
    for claim in reversed(claims):
        await unprepared(rig, claim)
    for number, minor in ((1, 0), (0, 1)):
        whole = rig.create_claim(f"gpu-{number}")
        nodes = cdi_edits(rig, cdi_names(await prepared(rig, whole))[0])["deviceNodes"]
        paths = {node["path"] for node in nodes}
        assert f"/dev/nvidia{minor}" in paths
        assert f"/dev/nvidia{number}" not in paths
    assert await prepared(rig, held) == answer
    await asyncio.sleep(LOOKS_S)
    assert {name: each["attributes"]["uuid"] for name, each in rig.devices().items()} == uuids
    assert versions(rig) == before
    await restart_after_kill(rig)
    assert {name: each["attributes"]["uuid"] for name, each in rig.devices().items()} == uuids


@pytest.mark.parametrize("rig", ["dgx-h100"], indirect=True)
async def test_a_gpu_is_divided_then_passed_then_divided(rig: PassthroughRig) -> None:
    """Case 22."""
    rig.gates = (passthrough_rig.GATE, "DynamicMIG=true")
    await rig.start_passing()
    before = versions(rig)
    devices = rig.devices()
    assert devices["gpu-vfio-0"]["consumesCounters"] == devices["gpu-0"]["consumesCounters"]
    for device in ("gpu-0-mig-1g10gb-19-0", "gpu-vfio-0", "gpu-0-mig-3g40gb-9-4", "gpu-0"):
        claim = rig.create_claim(device)
        await prepared(rig, claim)
        assert rig.driver_of(0) == (VFIO if "vfio" in device else NVIDIA)
        await unprepared(rig, claim)
    await asyncio.sleep(LOOKS_S)
    assert versions(rig) == before


STATIC_MIG = {"gpus": [{"index": 0, "mig": {"mode": True, "instances": []}}]}


@pytest.mark.parametrize("rig", [("dgx-h100", {"overrides": STATIC_MIG})], indirect=True)
async def test_a_gpu_in_mig_mode_is_not_offered_for_virtual_machines(
    rig: PassthroughRig,
) -> None:
    """Case 22."""
    await rig.start_passing()
    assert {name for name in rig.devices() if "vfio" in name} == names("gpu-vfio", *range(1, 8))
    code, text = readyz(rig)
    assert code == 200
    assert "it is in MIG mode, or has MIG devices" in text


async def test_twenty_claims_in_a_row_write_no_slice(rig: PassthroughRig) -> None:
    """Case 30."""
    await rig.start_passing()
    before = versions(rig)
    for _ in range(20):
        claim = rig.create_claim("gpu-vfio-1")
        await prepared(rig, claim)
        await unprepared(rig, claim)
    await asyncio.sleep(LOOKS_S)
    assert versions(rig) == before


async def test_a_gpu_that_does_not_work_is_offered_in_neither_form(rig: PassthroughRig) -> None:
    """As without passthrough, it is withdrawn; also after a restart, which remembers it."""
    await rig.start_passing()
    everything = set(rig.devices())
    rig.node.simctl("gpu", "lose", "2")
    left = everything - {"gpu-2", "gpu-vfio-2"}
    await rig.wait_until(lambda: set(rig.devices()) == left, "it to be withdrawn", timeout_s=20)
    assert (
        sample(
            rig.process.get("/metrics")[1], "nvdra_devices", device_kind="vfio", state="unhealthy"
        )
        == 1
    )
    await restart_after_kill(rig)
    await rig.wait_until(lambda: set(rig.devices()) == left, "it to be left out", timeout_s=20)
    rig.node.simctl("gpu", "restore", "2")
    await rig.wait_until(lambda: set(rig.devices()) == everything, "both forms", timeout_s=30)


async def test_a_gpu_that_a_process_uses_has_a_taint_until_it_has_ended(
    rig: PassthroughRig,
) -> None:
    """Case 8."""
    await rig.start_passing()
    before = versions(rig)
    claim = rig.create_claim("gpu-vfio-1")
    with holding(rig.served.roots.dev / "nvidia1") as pid:
        refusal = await rig.dra.refusal(claim)
        assert refusal.startswith("VfioDeviceBusy: "), refusal
        name = Path(f"/proc/{pid}/comm").read_text().strip()
        busy = {"key": "gpu.nvidia.com/passthrough-busy", "value": name, "effect": "NoSchedule"}
        await rig.wait_until(lambda: tainted(rig) == {"gpu-vfio-1": [busy]}, "the taint")
        assert (
            sample(
                rig.process.get("/metrics")[1], "nvdra_devices", device_kind="vfio", state="tainted"
            )
            == 1
        )
        assert devices_of_status(rig)["gpu-vfio-1"]["state"] == "free, tainted"
        with_taint = versions(rig)
        assert with_taint != before
        await asyncio.sleep(LOOKS_S)
        assert versions(rig) == with_taint, "nothing is written while it lasts"
    await rig.wait_until(lambda: not tainted(rig), "the taint to go", timeout_s=15)
    await prepared(rig, claim)
    assert rig.driver_of(1) == VFIO


async def test_the_taint_goes_with_the_claim_that_gets_the_gpu(rig: PassthroughRig) -> None:
    """Case 8."""
    await rig.start_passing()
    claim = rig.create_claim("gpu-vfio-1")
    with holding(rig.served.roots.dev / "nvidia1"):
        assert await rig.dra.refusal(claim)
        await rig.wait_until(lambda: bool(tainted(rig)), "the taint")
    await prepared(rig, claim)
    await rig.wait_until(lambda: not tainted(rig), "the taint to go", timeout_s=5)


def tainted(rig: PassthroughRig) -> dict[str, list[dict[str, Any]]]:
    """The taints of the devices that have some, without their times."""
    return {
        name: [{key: taint.get(key) for key in ("key", "value", "effect")} for taint in taints]
        for name, device in rig.devices().items()
        if (taints := device.get("taints"))
    }
