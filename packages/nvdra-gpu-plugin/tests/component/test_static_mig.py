# SPDX-License-Identifier: Apache-2.0
"""MIG devices that an administrator has made: published, prepared, destroyed."""

import asyncio
import json
import re
from typing import Any

import pytest
from nvdra_testing.node import plugin
from nvdra_testing.node.rig import Rig, cdi_edits, cdi_names

PARENT = "GPU-2b9c1d70-8e44-4f6a-b1f3-5a6c7d8e9f01"
A100 = {
    "driver": {"version": "570.124.06", "cuda": "12.8"},
    "overrides": {
        "gpus": [
            {
                "index": 0,
                "uuid": PARENT,
                "mig": {
                    "mode": True,
                    "instances": [
                        {"profile": "3g.20gb", "start": 0, "compute": ["3c"]},
                        {"profile": "1g.5gb", "start": 4, "compute": ["1c"]},
                    ],
                },
            }
        ]
    },
}

WHOLE = {f"gpu-{minor}" for minor in range(1, 8)}
ONE_SLICE = tuple(f"gpu-0-mig-1g10gb-19-{start}" for start in range(7))
"""The 1g.10gb devices of the first H100; NVML numbers their GPU instances from 7 on."""


async def offered(rig: Rig, mig: set[str]) -> None:
    """Wait until the first GPU offers these MIG devices, and the others themselves."""
    await rig.wait_until(lambda: set(rig.devices()) == WHOLE | mig, f"{sorted(mig)}")


async def start_with_slices(rig: Rig, count: int, *flags: str) -> tuple[str, ...]:
    """Start the plugin on a node whose first GPU has so many MIG devices of one slice."""
    rig.node.nvidia_smi("-i", "0", "-mig", "1")
    for start in range(count):
        rig.node.make_mig_device(0, "1g.10gb", start)
    await rig.start(*flags)
    assert set(rig.devices()) == WHOLE | set(ONE_SLICE[:count])
    return ONE_SLICE[:count]


async def prepare(rig: Rig, *devices: str, **how: Any) -> Any:
    claim = rig.create_claim(*devices, **how)
    return claim, (await rig.dra.prepare([claim]))[claim.uid]


@pytest.mark.parametrize("rig", [("dgx-a100", A100)], indirect=True)
async def test_an_a100_with_two_mig_devices_is_published_as_in_the_worked_example(rig: Rig) -> None:
    """Without the addressing mode, which the simulated driver of this branch does not know."""
    await rig.start()
    devices = rig.devices()
    small, large = (devices[f"gpu-0-mig-{name}"] for name in ("1g5gb-19-4", "3g20gb-9-0"))
    assert set(devices) == WHOLE | {small["name"], large["name"]}
    made = {
        each["profile"]: each["uuid"]
        for each in json.loads(rig.node.simctl("mig", "list", "--json"))
    }
    assert small["attributes"] == {
        "architecture": {"string": "Ampere"},
        "brand": {"string": "Nvidia"},
        "cudaComputeCapability": {"version": "8.0.0"},
        "cudaDriverVersion": {"version": "12.8.0"},
        "driverVersion": {"version": "570.124.6"},
        "migProfile": {"string": "1g.5gb"},
        "parentUUID": {"string": PARENT},
        "pcieBusID": {"string": "0000:07:00.0"},
        "productName": {"string": "NVIDIA A100-SXM4-40GB"},
        "profile": {"string": "1g.5gb"},
        "resource.kubernetes.io/numaNode": {"int": 0},
        "resource.kubernetes.io/pciBusID": {"string": "0000:07:00.0"},
        "resource.kubernetes.io/pcieRoot": {"string": "pci0000:06"},
        "type": {"string": "mig"},
        "uuid": {"string": made["1g.5gb"]},
    }
    assert small["capacity"] == {
        "copyEngines": {"value": "1"},
        "decoders": {"value": "0"},
        "encoders": {"value": "0"},
        "jpegEngines": {"value": "0"},
        "memory": {"value": "4864Mi"},
        "memorySlice4": {"value": "1"},
        "multiprocessors": {"value": "14"},
        "ofaEngines": {"value": "0"},
    }
    assert large["attributes"]["uuid"] == {"string": made["3g.20gb"]}
    assert large["capacity"] == {
        "copyEngines": {"value": "3"},
        "decoders": {"value": "2"},
        "encoders": {"value": "0"},
        "jpegEngines": {"value": "0"},
        "memory": {"value": "19968Mi"},
        **{f"memorySlice{number}": {"value": "1"} for number in range(4)},
        "multiprocessors": {"value": "42"},
        "ofaEngines": {"value": "0"},
    }


async def test_four_slices_of_one_gpu_are_prepared_in_one_claim(rig: Rig) -> None:
    slices = await start_with_slices(rig, 4)
    parents = {rig.devices()[name]["attributes"]["parentUUID"]["string"] for name in slices}
    assert len(parents) == 1
    claim, answer = await prepare(rig, *slices)
    found = cdi_names(answer)
    assert [name.partition("=")[2].rpartition("-")[0] for name in found] == list(slices)
    capabilities = [
        [node["path"] for node in cdi_edits(rig, name)["deviceNodes"]] for name in found
    ]
    assert capabilities == [
        [
            "/dev/nvidia0",
            *(f"/dev/nvidia-caps/nvidia-cap{3 + 9 * gpu_instance + more}" for more in (0, 1)),
        ]
        for gpu_instance in (7, 8, 9, 10)
    ]
    (record,) = rig.recorded_claims().values()
    assert [device["kind"] for device in json.loads(record)["devices"]] == ["mig"] * 4
    assert (await rig.dra.prepare([claim]))[claim.uid] == answer
    assert not (await rig.dra.unprepare([claim]))[claim.uid].error
    assert rig.recorded_claims() == {}


async def test_two_claims_hold_two_slices_of_one_gpu_and_no_third_one_gets_theirs(rig: Rig) -> None:
    first, second, _ = await start_with_slices(rig, 3)
    one, two = rig.create_claim(first), rig.create_claim(second)
    answers = await rig.dra.prepare([one, two])
    assert [answers[claim.uid].error for claim in (one, two)] == ["", ""]
    waiting = rig.create_claim(second)
    text = await rig.dra.refusal(waiting)
    assert text.startswith("DeviceInUse: ")
    assert two.name in text
    await rig.dra.unprepare([two])
    assert not (await rig.dra.prepare([waiting]))[waiting.uid].error


async def test_a_held_slice_keeps_the_whole_gpu_from_being_offered_or_given(rig: Rig) -> None:
    (name,) = await start_with_slices(rig, 1)
    _, answer = await prepare(rig, name)
    assert not answer.error
    _, refused = await prepare(rig, "gpu-0")
    assert refused.error.startswith("UnknownDevice: ")
    assert "in MIG mode" in refused.error


@pytest.mark.parametrize("flags", [(), ("--feature-gates=NVMLDeviceHealthCheck=true",)])
async def test_mig_devices_that_come_and_go_are_published_soon(
    rig: Rig, flags: tuple[str, ...]
) -> None:
    await start_with_slices(rig, 1, *flags)
    rig.node.make_mig_device(0, "3g.40gb", 4)
    await offered(rig, {ONE_SLICE[0], "gpu-0-mig-3g40gb-9-4"})
    rig.node.make_mig_device(0, "2g.20gb", 2, compute="")
    rig.node.destroy_mig_device(0, 7)
    await offered(rig, {"gpu-0-mig-3g40gb-9-4"})
    _, answer = await prepare(rig, "gpu-0-mig-3g40gb-9-4")
    assert not answer.error


@pytest.mark.soak
async def test_parts_of_one_gpu_instance_are_devices_of_their_own(rig: Rig) -> None:
    rig.node.nvidia_smi("-i", "0", "-mig", "1")
    rig.node.make_mig_device(0, "3g.40gb", 4, compute="2c,1c")
    await rig.start()
    large, small = "gpu-0-mig-2c3g40gb-c0-9-4", "gpu-0-mig-1c3g40gb-c2-9-4"
    await offered(rig, {large, small})
    profiles = [rig.devices()[name]["attributes"]["profile"]["string"] for name in (large, small)]
    assert profiles == ["2c.3g.40gb", "1c.3g.40gb"]
    for name in (large, small):
        assert not (await prepare(rig, name))[1].error


async def test_a_claim_of_a_device_that_was_destroyed_is_refused_and_others_are_not(
    rig: Rig,
) -> None:
    first, second = await start_with_slices(rig, 2)
    rig.node.destroy_mig_device(0, 7)
    _, refused = await prepare(rig, first)
    assert refused.error.startswith("UnknownDevice: ")
    assert "delete the pod" in refused.error
    assert not (await prepare(rig, second))[1].error
    await offered(rig, {second})


@pytest.mark.soak
async def test_a_prepared_claim_of_a_destroyed_device_says_so_until_the_device_is_back(
    rig: Rig,
) -> None:
    (name,) = await start_with_slices(rig, 1)
    claim, before = await prepare(rig, name)
    assert not before.error
    rig.node.destroy_mig_device(0, 7)
    await offered(rig, set())
    text = (await rig.dra.prepare([claim]))[claim.uid].error
    assert text.startswith("DeviceUnhealthy: ")
    assert "nvidia-smi mig -cgi" in text
    rig.node.make_mig_device(0, "1g.10gb", 0)
    await offered(rig, {name})
    assert (await rig.dra.prepare([claim]))[claim.uid] == before
    assert not (await rig.dra.unprepare([claim]))[claim.uid].error


@pytest.mark.soak
async def test_a_device_of_another_profile_in_its_place_is_not_the_one_of_the_claim(
    rig: Rig,
) -> None:
    """NVML gives it the same UUID."""
    rig.node.nvidia_smi("-i", "0", "-mig", "1")
    rig.node.make_mig_device(0, "3g.40gb", 0)
    await rig.start()
    large = "gpu-0-mig-3g40gb-9-0"
    uuid = rig.devices()[large]["attributes"]["uuid"]
    claim, answer = await prepare(rig, large)
    rig.node.destroy_mig_device(0, 1)
    rig.node.make_mig_device(0, "4g.40gb", 0)
    text = (await rig.dra.prepare([claim]))[claim.uid].error
    assert text.startswith(("UnknownDevice: ", "DeviceUnhealthy: "))
    await offered(rig, {"gpu-0-mig-4g40gb-5-0"})
    assert rig.devices()["gpu-0-mig-4g40gb-5-0"]["attributes"]["uuid"] == uuid
    text = (await rig.dra.prepare([claim]))[claim.uid].error
    assert text.startswith("DeviceUnhealthy: ")
    (name,) = cdi_names(answer)
    with pytest.raises(AssertionError, match="no CDI spec"):
        cdi_edits(rig, name)


@pytest.mark.soak
async def test_with_mig_mode_off_the_whole_gpu_is_offered_and_held_slices_keep_it(rig: Rig) -> None:
    (name,) = await start_with_slices(rig, 1)
    claim, answer = await prepare(rig, name)
    assert not answer.error
    rig.node.destroy_mig_device(0, 7)
    rig.node.nvidia_smi("-i", "0", "-mig", "0")
    await offered(rig, {"gpu-0"})
    whole = rig.create_claim("gpu-0")
    text = await rig.dra.refusal(whole)
    assert text.startswith("DeviceInUse: ")
    await rig.dra.unprepare([claim])
    assert not (await rig.dra.prepare([whole]))[whole.uid].error


@pytest.mark.soak
async def test_a_whole_gpu_that_a_claim_holds_keeps_its_slices_from_others(rig: Rig) -> None:
    await rig.start()
    whole, answer = await prepare(rig, "gpu-0")
    assert not answer.error
    rig.node.nvidia_smi("-i", "0", "-mig", "1")
    rig.node.make_mig_device(0, "1g.10gb", 0)
    await offered(rig, {ONE_SLICE[0]})
    part = rig.create_claim(ONE_SLICE[0])
    text = await rig.dra.refusal(part)
    assert text.startswith("DeviceInUse: ")
    await rig.dra.unprepare([whole])
    assert not (await rig.dra.prepare([part]))[part.uid].error


@pytest.mark.soak
async def test_a_sick_gpu_taints_all_its_mig_devices_and_no_other(rig: Rig) -> None:
    slices = await start_with_slices(rig, 2, "--feature-gates=NVMLDeviceHealthCheck=true")
    rig.node.simctl("xid", "0", "48")

    def tainted() -> set[str]:
        return {name for name, device in rig.devices().items() if device.get("taints")}

    await rig.wait_until(lambda: tainted() == set(slices), "the taints of the MIG devices")


async def test_configs_of_mig_devices_are_those_of_their_kind(rig: Rig) -> None:
    (name,) = await start_with_slices(rig, 1)
    kinds = {
        kind: {"apiVersion": "resource.nvidia.com/v1beta1", "kind": kind}
        for kind in ("GpuConfig", "MigDeviceConfig")
    }
    for kind, device, is_refused in (
        ("MigDeviceConfig", name, False),
        ("GpuConfig", name, True),
        ("MigDeviceConfig", "gpu-1", True),
    ):
        config = {**plugin.opaque_config(kinds[kind]), "requests": ["gpu"]}
        claim, answer = await prepare(rig, device, config=[config])
        assert answer.error.startswith("InvalidConfig: ") is is_refused, (kind, device)
        if not is_refused:
            await rig.dra.unprepare([claim])


async def test_a_config_that_fits_no_device_is_told_as_an_event(rig: Rig) -> None:
    (name,) = await start_with_slices(rig, 1)
    parameters = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig"}
    claim, answer = await prepare(rig, name, config=[plugin.opaque_config(parameters)])
    assert not answer.error
    await rig.wait_until(lambda: len(rig.events("ConfigNotApplied")) == 2, "claim and pod be told")
    for event in rig.events("ConfigNotApplied"):
        assert event["involvedObject"]["name"] in (claim.name, "p")
        assert event["message"] == (
            "status.allocation.devices.config[0], a GpuConfig, has no effect: "
            f"{name} of request gpu takes MigDeviceConfig"
        )


async def test_mig_devices_are_in_status_and_metrics_and_traces(rig: Rig) -> None:
    held, _ = await start_with_slices(rig, 2)
    claim, answer = await prepare(rig, held)
    assert not answer.error
    status = rig.status()
    for name in ONE_SLICE[:2]:
        assert name in status
    healthy = re.compile(r'nvdra_devices\{device_kind="mig",.*state="healthy"\} 2\.0')
    await rig.wait_until(
        lambda: healthy.search(rig.process.get("/metrics")[1]) is not None, "the metric"
    )
    await rig.wait_until(lambda: bool(rig.spans(claim, "verify devices")), "the trace")
    (span,) = rig.spans(claim, "verify devices")
    assert rig.devices()[held]["attributes"]["uuid"]["string"] in str(span["attributes"])


@pytest.mark.soak
async def test_slices_and_claims_stay_as_they_are_when_the_plugin_restarts(rig: Rig) -> None:
    slices = await start_with_slices(rig, 2)
    claim, before = await prepare(rig, *slices)
    published = rig.slices()
    await rig.stop()
    await rig.start()
    assert rig.slices() == published
    assert (await rig.dra.prepare([claim]))[claim.uid] == before


@pytest.mark.soak
async def test_a_claims_mig_device_is_gone_after_a_reboot_and_may_be_made_again(rig: Rig) -> None:
    (name,) = await start_with_slices(rig, 1)
    claim, before = await prepare(rig, name)
    assert not before.error
    await rig.stop()
    rig.node.simctl("reboot", f"--proc-root={rig.node.roots.proc}")
    await rig.start()
    await offered(rig, {"gpu-0"})
    text = (await rig.dra.prepare([claim]))[claim.uid].error
    assert text.startswith("DeviceUnhealthy: ")
    rig.node.nvidia_smi("-i", "0", "-mig", "1")
    rig.node.make_mig_device(0, "1g.10gb", 0)
    await offered(rig, {name})
    assert (await rig.dra.prepare([claim]))[claim.uid] == before
    assert cdi_edits(rig, cdi_names(before)[0])["deviceNodes"]


@pytest.mark.soak
async def test_a_gpu_that_hangs_stops_the_claims_of_its_own_mig_devices_only(rig: Rig) -> None:
    (name,) = await start_with_slices(rig, 1)
    rig.node.simctl("slow", "-1", "--function", "nvmlDeviceGetMemoryInfo", "--gpu", "0")
    stuck, other = rig.create_claim(name), rig.create_claim("gpu-1")
    async with asyncio.TaskGroup() as group:
        call = group.create_task(rig.dra.prepare([stuck], timeout_s=20))
        assert not (await rig.dra.prepare([other]))[other.uid].error
    assert call.result()[stuck.uid].error.startswith("DeadlineExceeded: ")
    assert not (await prepare(rig, "gpu-2"))[1].error
    rig.node.simctl("fault", "rm", "all")
    await rig.wait_until(lambda: name in rig.devices(), "the MIG device to be offered again")
    assert not (await rig.dra.prepare([stuck]))[stuck.uid].error


EQUAL_TO_THE_EYE = {
    "a100-40": (("1g.5gb+me", "1g.5gb"), ("1g.5gb", "1g.5gb+me")),
    "rtx-pro-6000": (
        ("1g.24gb", "1g.24gb+gfx"),
        ("1g.24gb+gfx", "1g.24gb+me"),
        ("1g.24gb+me", "1g.24gb+me.all"),
        ("1g.24gb+me.all", "1g.24gb-me"),
        ("1g.24gb-me", "1g.24gb"),
    ),
}
"""Profiles of the same slices, multiprocessors and memory, so with the same UUID at a place."""


@pytest.mark.parametrize(
    ("rig", "before", "after"),
    [
        pytest.param(
            (None, {"gpus": [{"model": model, "bus_id": "0000:10:00.0", "mig": {"mode": True}}]}),
            *pair,
            id=f"{model} {' '.join(pair)}",
        )
        for model, pairs in EQUAL_TO_THE_EYE.items()
        for pair in pairs
    ],
    indirect=["rig"],
)
async def test_a_device_of_a_profile_that_looks_the_same_is_another_device(
    rig: Rig, before: str, after: str
) -> None:
    def profiles() -> dict[str, str]:
        found = rig.devices().items()
        return {name: each["attributes"]["profile"]["string"] for name, each in found}

    rig.node.make_mig_device(0, before, 0)
    await rig.start()
    (former,) = profiles()
    (made,) = json.loads(rig.node.simctl("mig", "list", "--json"))
    rig.node.destroy_mig_device(0, made["gpu_instance"])
    rig.node.make_mig_device(0, after, 0)
    (now,) = json.loads(rig.node.simctl("mig", "list", "--json"))
    assert now["uuid"] == made["uuid"]
    await rig.wait_until(lambda: list(profiles().values()) == [after], f"{after} to be offered")
    _, answer = await prepare(rig, former)
    assert answer.error.startswith("UnknownDevice")
