# SPDX-License-Identifier: Apache-2.0
"""What can be made of GPUs is published, as far as the API server keeps what holds it apart."""

import re
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from nvdra_testing.control_plane import apiserver
from nvdra_testing.hardware.gpu_modes import gpu_instances
from nvdra_testing.node import rig as rigs
from nvdra_testing.node.rig import Rig

GATE = "--feature-gates=DynamicMIG=true"
H100_DEVICES = 26
WHOLE = {f"gpu-{minor}" for minor in range(8)}


def sets(rig: Rig) -> dict[str, dict[str, str]]:
    """The published counters by the name of their set."""
    return {
        each["name"]: {name: counter["value"] for name, counter in each["counters"].items()}
        for slice_ in rig.slices()
        for each in slice_["spec"].get("sharedCounters", ())
    }


def consumed(device: dict[str, Any]) -> dict[str, str]:
    """What a published device consumes of the one set."""
    (only,) = device["consumesCounters"]
    return {name: counter["value"] for name, counter in only["counters"].items()}


def versions(rig: Rig) -> list[str]:
    return [each["metadata"]["resourceVersion"] for each in rig.slices()]


async def test_a_gpu_is_published_whole_and_in_all_its_parts(rig: Rig) -> None:
    await rig.start(GATE)
    devices = rig.devices()
    assert len(devices) == 8 * H100_DEVICES
    assert set(devices) >= WHOLE
    assert list(sets(rig)) == [f"gpu-{minor}-counter-set" for minor in range(8)]
    everything = sets(rig)["gpu-3-counter-set"]
    assert everything == {
        "multiprocessors": "132",
        "copy-engines": "8",
        "decoders": "7",
        "encoders": "0",
        "jpeg-engines": "7",
        "ofa-engines": "1",
        "memory": "81152Mi",
        **{f"memory-slice-{number}": "1" for number in range(8)},
    }
    assert consumed(devices["gpu-3"]) == everything
    part = devices["gpu-3-mig-1g10gb-me-20-5"]
    assert part["consumesCounters"][0]["counterSet"] == "gpu-3-counter-set"
    assert consumed(part) == {
        "multiprocessors": "16",
        "copy-engines": "1",
        "decoders": "1",
        "encoders": "0",
        "jpeg-engines": "1",
        "ofa-engines": "1",
        "memory": "9984Mi",
        "memory-slice-5": "1",
    }
    attributes = part["attributes"]
    assert "uuid" not in attributes
    assert attributes["parentUUID"] == devices["gpu-3"]["attributes"]["uuid"]
    assert attributes["profile"] == {"string": "1g.10gb+me"}
    assert attributes["type"] == {"string": "mig"}


async def test_a_restart_writes_no_slice(rig: Rig) -> None:
    await rig.start(GATE)
    before = versions(rig)
    await rig.stop()
    await rig.start(GATE)
    assert versions(rig) == before
    await rig.stop()
    await rig.start()
    assert set(rig.devices()) == WHOLE, "without the gate, nothing of partitions is left"
    assert sets(rig) == {}
    assert all("consumesCounters" not in device for device in rig.devices().values())


@pytest.mark.soak
async def test_nothing_is_asked_again_while_nothing_changes(rig: Rig) -> None:
    await rig.start(GATE)
    function = "nvmlDeviceGetGpuInstancePossiblePlacements_v2"
    asked = rig.node.nvml_calls(function)
    before = rig.node.nvml_calls("nvmlDeviceGetMemoryInfo")
    await rig.wait_until(
        lambda: rig.node.nvml_calls("nvmlDeviceGetMemoryInfo") >= before + 8, "another look"
    )
    assert rig.node.nvml_calls(function) == asked


@pytest.mark.parametrize(
    "function",
    ["nvmlDeviceGetGpuInstancePossiblePlacements_v2", "nvmlDeviceGetGpuInstanceProfileInfoV"],
)
async def test_what_can_be_made_is_asked_again_after_a_call_that_has_failed_once(
    rig: Rig, function: str
) -> None:
    rule = (function, "--result", "unknown", "--gpu", "0", "--times", "1")
    rig.node.simctl("fault", "add", *rule)
    await rig.start(GATE)
    status, text = rig.process.get("/readyz?verbose")
    assert status == 200
    assert "can be made on gpu-0" in text
    assert "(NVML error 999)" in text
    await rig.wait_until(
        lambda: len(rig.devices()) == 8 * H100_DEVICES, "what can be made on gpu-0", 30
    )
    text = rig.process.get("/readyz?verbose")[1]
    assert "[+]partitions ok\n" in text


async def test_nothing_is_offered_to_be_made_while_procfs_lists_no_capabilities(rig: Rig) -> None:
    listing = rig.node.roots.proc / "devices"
    complete = listing.read_text()
    listing.write_text(complete.replace("nvidia-caps\n", "another\n"))
    await rig.start(GATE)
    assert set(rig.devices()) == WHOLE
    status, text = rig.process.get("/readyz?verbose")
    assert status == 200
    assert "gpu-0, gpu-1, gpu-2, gpu-3, gpu-4, gpu-5, gpu-6, gpu-7 now, and none are" in text
    assert f"{listing} does not list nvidia-caps; " in text
    assert "global.procRoot" in rig.status()
    listing.write_text(complete)
    await rig.wait_until(lambda: len(rig.devices()) == 8 * H100_DEVICES, "what can be made", 30)
    assert "[+]partitions ok\n" in rig.process.get("/readyz?verbose")[1]


SIXTEEN = {
    "gpus": [
        {"model": "rtx-pro-6000", "bus_id": f"0000:{number:02x}:00.0", "minor": number}
        for number in range(1, 17)
    ]
}


@pytest.mark.soak
@pytest.mark.parametrize("rig", [(None, SIXTEEN)], indirect=True)
async def test_sixteen_gpus_with_all_their_parts_are_within_the_limits(rig: Rig) -> None:
    await rig.start(GATE)
    devices = [len(each["spec"].get("devices", ())) for each in rig.slices()]
    counters = [len(each["spec"].get("sharedCounters", ())) for each in rig.slices()]
    assert counters == [8, 8, *[0] * 8]
    assert devices == [0, 0, *[62] * 8]
    assert Counter(name.partition("-mig-")[0] for name in rig.devices()) == {
        f"gpu-{minor}": 31 for minor in range(1, 17)
    }


@pytest.mark.soak
async def test_what_an_administrator_has_made_is_left_alone_and_subtracted(rig: Rig) -> None:
    rig.node.nvidia_smi("-i", "0", "-mig", "1")
    rig.node.make_mig_device(0, "3g.40gb", 4)
    await rig.start(GATE)
    of_gpu_0 = {name: each for name, each in rig.devices().items() if re.match("gpu-0(-|$)", name)}
    theirs = of_gpu_0["gpu-0-mig-3g40gb-9-4"]
    assert theirs["attributes"]["uuid"]["string"].startswith("MIG-")
    assert "consumesCounters" not in theirs
    assert set(of_gpu_0) == {
        "gpu-0-mig-3g40gb-9-4",
        *(f"gpu-0-mig-1g10gb-19-{start}" for start in range(4)),
        *(f"gpu-0-mig-1g10gb-me-20-{start}" for start in range(4)),
        *(f"gpu-0-mig-1g20gb-15-{start}" for start in (0, 2)),
        *(f"gpu-0-mig-2g20gb-14-{start}" for start in (0, 2)),
        "gpu-0-mig-3g40gb-9-0",
        "gpu-0-mig-4g40gb-5-0",
    }
    left = sets(rig)["gpu-0-counter-set"]
    assert [left[f"memory-slice-{number}"] for number in range(8)] == ["1"] * 4 + ["0"] * 4
    assert (left["multiprocessors"], left["decoders"], left["memory"]) == ("72", "4", "40704Mi")
    assert sets(rig)["gpu-1-counter-set"]["multiprocessors"] == "132"
    rig.node.destroy_mig_device(0, 2)
    await rig.wait_until(lambda: len(rig.devices()) == 8 * H100_DEVICES, "all of it")
    assert sets(rig)["gpu-0-counter-set"] == sets(rig)["gpu-1-counter-set"]


async def test_an_instance_without_a_compute_instance_takes_its_room(rig: Rig) -> None:
    rig.node.nvidia_smi("-i", "0", "-mig", "1")
    rig.node.make_mig_device(0, "3g.40gb", 4, compute="")
    await rig.start(GATE)
    of_gpu_0 = {name for name in rig.devices() if re.match("gpu-0(-|$)", name)}
    assert of_gpu_0 == {
        *(f"gpu-0-mig-1g10gb-19-{start}" for start in range(4)),
        *(f"gpu-0-mig-1g10gb-me-20-{start}" for start in range(4)),
        *(f"gpu-0-mig-1g20gb-15-{start}" for start in (0, 2)),
        *(f"gpu-0-mig-2g20gb-14-{start}" for start in (0, 2)),
        "gpu-0-mig-3g40gb-9-0",
        "gpu-0-mig-4g40gb-5-0",
    }
    left = sets(rig)["gpu-0-counter-set"]
    assert [left[f"memory-slice-{number}"] for number in range(8)] == ["1"] * 4 + ["0"] * 4
    assert "has no compute instance" in rig.process.log.read_text()


@pytest.mark.soak
async def test_such_an_instance_is_noticed_when_it_is_made_and_when_it_is_gone(rig: Rig) -> None:
    await rig.start(GATE)
    rig.node.nvidia_smi("-i", "0", "-mig", "1")
    rig.node.make_mig_device(0, "3g.40gb", 4, compute="")
    await rig.wait_until(lambda: "gpu-0" not in rig.devices(), "the instance", timeout_s=15)
    assert sets(rig)["gpu-0-counter-set"]["memory-slice-4"] == "0"
    rig.node.destroy_mig_device(0, 2)
    await rig.wait_until(lambda: len(rig.devices()) == 8 * H100_DEVICES, "all of it", timeout_s=15)
    assert sets(rig)["gpu-0-counter-set"] == sets(rig)["gpu-1-counter-set"]


@pytest.mark.soak
async def test_what_is_half_made_for_a_claim_is_no_change_of_the_node(rig: Rig) -> None:
    await rig.start(GATE)
    before = versions(rig)
    create, destroy = "nvmlGpuInstanceCreateComputeInstance", "nvmlGpuInstanceDestroy"
    rig.node.simctl("fault", "add", create, "--result", "UNKNOWN")
    rig.node.simctl("fault", "add", destroy, "--result", "IN_USE")
    claim = rig.create_claim("gpu-0-mig-3g40gb-9-4")
    assert (await rig.dra.prepare([claim]))[claim.uid].error
    looks = rig.node.nvml_calls("nvmlDeviceGetMaxMigDeviceCount")
    await rig.wait_until(
        lambda: rig.node.nvml_calls("nvmlDeviceGetMaxMigDeviceCount") >= looks + 2, "two looks"
    )
    assert gpu_instances(rig.node) == [(0, "3g.40gb", 4)]
    assert versions(rig) == before


A100 = {"overrides": {"gpus": [{"index": 0, "mig": {"mode": True}}]}}


@pytest.mark.parametrize("rig", [("dgx-a100", A100)], indirect=True)
async def test_a_gpu_that_needs_a_reset_is_offered_as_its_mode_says(rig: Rig) -> None:
    await rig.start(GATE)
    names = set(rig.devices())
    assert {name for name in names if "-mig-" not in name} == WHOLE - {"gpu-0"}
    assert {name.partition("-mig-")[0] for name in names - WHOLE} == {"gpu-0"}
    assert len(names - WHOLE) == H100_DEVICES - 1
    assert list(sets(rig)) == ["gpu-0-counter-set"]
    assert "consumesCounters" not in rig.devices()["gpu-1"]


GUEST = {"gpus": [{"model": "h100", "bus_id": "0000:10:00.0", "virtualization": 2}]}


@pytest.mark.parametrize("rig", [(None, GUEST), "l40s"], indirect=True)
async def test_a_gpu_without_mig_is_published_as_ever(rig: Rig) -> None:
    await rig.start(GATE)
    assert all("-mig-" not in name for name in rig.devices())
    assert sets(rig) == {}
    assert "partitions" in rig.process.get("/readyz?verbose")[1]


async def test_a_gpu_that_does_not_say_what_can_be_made_is_served_whole(rig: Rig) -> None:
    function = "nvmlDeviceGetGpuInstancePossiblePlacements_v2"
    rig.node.simctl("fault", "add", function, "--result", "NO_PERMISSION", "--gpu", "2")
    await rig.start(GATE)
    names = {name for name in rig.devices() if re.match("gpu-2(-|$)", name)}
    assert names == {"gpu-2"}
    assert len(rig.devices()) == 7 * H100_DEVICES + 1
    assert "No MIG devices can be made on a GPU" in rig.process.log.read_text()


@pytest_asyncio.fixture
async def unserved(tmp_path: Path) -> AsyncIterator[Rig]:
    """A node whose API server drops counters."""
    with apiserver.run_apiserver(tmp_path, feature_gates="DRAPartitionableDevices=false") as server:
        async with rigs.open_rig(server, "node-u") as rig:
            yield rig


@pytest.mark.soak
async def test_where_counters_are_dropped_no_partition_is_published_until_they_are_kept(
    unserved: Rig,
) -> None:
    rig = unserved
    await rig.start(GATE)
    assert set(rig.devices()) == WHOLE
    assert all("consumesCounters" not in device for device in rig.devices().values())
    status, text = rig.process.get("/readyz?verbose")
    assert status == 200
    assert "DRAPartitionableDevices" in text
    assert "enable the feature gate DRAPartitionableDevices" in rig.process.log.read_text()
    await rig.wait_until(lambda: bool(rig.events("FeatureGateDisabled")), "an Event of the Node")
    (event,) = rig.events("FeatureGateDisabled")
    assert event["involvedObject"]["kind"] == "Node"
    assert "kube-scheduler" in event["message"]
    (slice_,) = rig.slices()
    assert slice_["metadata"]["generation"] == 1, "written once"
    rig.server.restart_without_gates()
    await rig.wait_until(
        lambda: len(rig.devices()) == 8 * H100_DEVICES, "all partitions", timeout_s=60
    )
    await rig.wait_until(
        lambda: "DRAPartitionableDevices" not in rig.process.get("/readyz?verbose")[1],
        "the missing fields not to be a remark any more",
    )
