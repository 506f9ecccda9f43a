# SPDX-License-Identifier: Apache-2.0
"""Processes take turns on a GPU: the time slice of a claim is set, and put back after it.

The node has no persistence mode: settings of a GPU last as long as the plugin has NVML open.
"""

import signal

from nvdra_testing.hardware import driver_installation
from nvdra_testing.hardware.gpu_modes import is_exclusive, time_slice
from nvdra_testing.node import plugin
from nvdra_testing.node.rig import Rig

GATE = "--feature-gates=TimeSlicingSettings=true"


async def test_the_time_slice_is_set_for_the_claims_gpu_alone_and_put_back(rig: Rig) -> None:
    await rig.start(GATE)
    rig.node.nvidia_smi("-i", "2", "-c", "EXCLUSIVE_PROCESS")
    rig.node.nvidia_smi("compute-policy", "-i", "2", "--set-timeslice=1")
    claim = rig.create_claim("gpu-1", "gpu-2", config=plugin.shared_by_time("Long"))
    answer = (await rig.dra.prepare([claim]))[claim.uid]
    assert not answer.error
    assert [time_slice(rig.node, index) for index in (0, 1, 2)] == ["Default", "Long", "Long"]
    assert not is_exclusive(rig.node, 2)
    assert (await rig.dra.prepare([claim]))[claim.uid] == answer
    await rig.dra.unprepare([claim])
    assert [time_slice(rig.node, index) for index in (0, 1, 2)] == ["Default", "Default", "Short"]
    assert is_exclusive(rig.node, 2)
    assert rig.recorded_claims() == {}


async def test_without_an_interval_it_is_the_default_and_a_plain_claim_changes_nothing(
    rig: Rig,
) -> None:
    await rig.start(GATE)
    for index in ("0", "1"):
        rig.node.nvidia_smi("compute-policy", "-i", index, "--set-timeslice=2")
    claim = rig.create_claim("gpu-0", config=plugin.shared_by_time())
    plain = rig.create_claim("gpu-1")
    answers = await rig.dra.prepare([claim, plain])
    assert not any(answer.error for answer in answers.values())
    assert [time_slice(rig.node, index) for index in (0, 1)] == ["Default", "Medium"]
    await rig.dra.unprepare([claim, plain])
    assert [time_slice(rig.node, index) for index in (0, 1)] == ["Medium", "Medium"]


async def test_a_monitoring_claim_does_not_change_the_gpu_of_another(rig: Rig) -> None:
    await rig.start(GATE)
    monitor = rig.create_claim("gpu-0", admin=True, config=plugin.shared_by_time("Long"))
    assert not (await rig.dra.prepare([monitor]))[monitor.uid].error
    assert time_slice(rig.node, 0) == "Default"


async def test_if_nvidia_smi_fails_the_claim_says_so_and_nothing_is_left(rig: Rig) -> None:
    await rig.start(GATE)
    rig.node.nvidia_smi("-i", "3", "-c", "EXCLUSIVE_PROCESS")
    rig.node.simctl("fault", "add", "smi:compute-policy", "--result", "NOT_SUPPORTED")
    claim = rig.create_claim("gpu-3", config=plugin.shared_by_time("Short"))
    text = (await rig.dra.prepare([claim]))[claim.uid].error
    assert text.startswith("DeviceUnhealthy: ")
    assert "the time slice of gpu-3" in text
    assert "nvidia-smi compute-policy" in text
    rig.node.simctl("fault", "rm", "all")
    await rig.wait_until(lambda: rig.recorded_claims() == {}, "the record to be gone")
    assert is_exclusive(rig.node, 3)
    assert not (await rig.dra.prepare([claim]))[claim.uid].error
    assert time_slice(rig.node, 3) == "Short"


async def test_a_plugin_that_was_killed_puts_back_what_was_before_its_first_start(
    rig: Rig,
) -> None:
    await rig.start(GATE)
    rig.node.nvidia_smi("compute-policy", "-i", "4", "--set-timeslice=3")
    claim = rig.create_claim("gpu-4", config=plugin.shared_by_time("Short"))
    assert not (await rig.dra.prepare([claim]))[claim.uid].error
    rig.process.stop(signal.SIGKILL)
    assert time_slice(rig.node, 4) == "Default", "without persistence it goes with the last client"
    await rig.start(GATE)
    await rig.wait_until(lambda: time_slice(rig.node, 4) == "Short", "the time slice")
    await rig.dra.unprepare([claim])
    assert time_slice(rig.node, 4) == "Long"


async def test_after_a_reboot_the_time_slice_of_a_held_claim_is_set_again(rig: Rig) -> None:
    await rig.start(GATE)
    claim = rig.create_claim("gpu-5", config=plugin.shared_by_time("Medium"))
    assert not (await rig.dra.prepare([claim]))[claim.uid].error
    await rig.stop()
    driver_installation.reboot(rig.node)
    assert time_slice(rig.node, 5) == "Default"
    await rig.start(GATE)
    await rig.wait_until(lambda: time_slice(rig.node, 5) == "Medium", "the time slice")
    await rig.dra.unprepare([claim])
    assert time_slice(rig.node, 5) == "Default"


async def test_a_claim_is_unprepared_properly_after_the_gate_was_switched_off(rig: Rig) -> None:
    await rig.start(GATE)
    claim = rig.create_claim("gpu-6", config=plugin.shared_by_time("Long"))
    assert not (await rig.dra.prepare([claim]))[claim.uid].error
    await rig.stop()
    await rig.start()
    await rig.dra.unprepare([claim])
    assert time_slice(rig.node, 6) == "Default"


async def test_a_gpu_without_time_slices_has_the_default_and_is_let_go(rig: Rig) -> None:
    await rig.start(GATE)
    rig.node.simctl("fault", "add", "smi:compute-policy", "--result", "NOT_SUPPORTED")
    default = rig.create_claim("gpu-0", config=plugin.shared_by_time())
    assert not (await rig.dra.prepare([default]))[default.uid].error
    long = rig.create_claim("gpu-1", config=plugin.shared_by_time("Long"))
    error = (await rig.dra.prepare([long]))[long.uid].error
    assert error.startswith("DeviceUnhealthy: "), error
    assert "if the GPU has no time slices" in error
    answers = await rig.dra.unprepare([default, long])
    assert not any(answer.error for answer in answers.values())
    plain = rig.create_claim("gpu-0", "gpu-1")
    assert not (await rig.dra.prepare([plain]))[plain.uid].error
