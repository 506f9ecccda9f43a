# SPDX-License-Identifier: Apache-2.0
"""The health of GPUs reaches the kubelet (gate NVMLDeviceHealthCheck); the test is the kubelet."""

import asyncio
import signal
from functools import partial

import pytest
from nvdra_runtime.kubeletplugin import registration
from nvdra_runtime.process import background_tasks
from nvdra_testing.hardware import driver_installation
from nvdra_testing.kubelet.health_watch import HealthCache
from nvdra_testing.node.rig import Rig
from nvdra_testing.node.rollouts import start_next, wait_takeover

GATE = "--feature-gates=NVMLDeviceHealthCheck=true"
ALL = {f"gpu-{minor}": "Healthy" for minor in range(8)}
MADE = "gpu-0-mig-1g10gb-19-0"
HEALED_S = 60
ALL_SERVICES = registration.HEALTH_SERVICES
KUBELETS = pytest.mark.parametrize("asks_first", [False, True], ids=["1.36", "1.37"])


def watch(rig: Rig, *, asks_first: bool = True) -> HealthCache:
    """Have the kubelet watch the health of devices."""
    rig.kubelet.health = HealthCache(asks_first=asks_first, retry_s=1)
    return rig.kubelet.health


async def started(rig: Rig) -> None:
    """Start the plugin, and wait until every GPU is registered for events."""
    before = rig.node.nvml_calls("nvmlDeviceRegisterEvents")
    await rig.start(GATE)
    await rig.wait_until(
        lambda: rig.node.nvml_calls("nvmlDeviceRegisterEvents") == before + len(ALL),
        "the registrations",
    )


async def told(rig: Rig, cache: HealthCache, **expected: str) -> None:
    """Wait until the kubelet knows exactly this, and of all other GPUs that they are healthy."""
    wanted = {**ALL, **{name.replace("_", "-"): each for name, each in expected.items()}}
    await rig.wait_until(lambda: cache.statuses(rig.driver) == wanted, f"health {wanted}", HEALED_S)


@KUBELETS
@pytest.mark.protocol("H1", "H4", "H5")
async def test_the_kubelet_is_told_of_a_gpu_that_falls_ill_why_and_that_it_is_well_again(
    rig: Rig, asks_first: bool
) -> None:
    cache = watch(rig, asks_first=asks_first)
    await started(rig)
    await told(rig, cache)
    claim = rig.create_claim("gpu-1")
    assert not (await rig.dra.prepare([claim]))[claim.uid].error  # while the stream is open
    rig.node.simctl("xid", "3", "48")
    await told(rig, cache, gpu_3="Unhealthy")
    device = cache.device(rig.driver, "gpu-3")
    assert device.device.pool_name == rig.node.name
    assert device.message.startswith("gpu-3 has reported XID 48: drain and reset it")
    rig.node.simctl("gpu", "lose", "6")
    await told(rig, cache, gpu_3="Unhealthy", gpu_6="Unhealthy")
    # A call that failed is told first, what it means as soon as the GPU has been looked at.
    await rig.wait_until(
        lambda: "has fallen off the bus" in cache.device(rig.driver, "gpu-6").message, "the reason"
    )
    rig.node.simctl("recovery", "3", "none")
    rig.node.simctl("gpu", "restore", "6")
    await told(rig, cache)
    assert cache.device(rig.driver, "gpu-3").message == ""


async def test_the_kubelet_is_told_of_a_mig_device_that_was_made_for_a_claim(rig: Rig) -> None:
    cache = watch(rig)
    await rig.start(f"{GATE},DynamicMIG=true")
    claim = rig.create_claim(MADE)
    assert not (await rig.dra.prepare([claim]))[claim.uid].error

    def knows(ill: str, text: str = "") -> bool:
        """Of every published device, and that only those of this GPU are ill, and why."""
        wanted = {
            name: "Unhealthy" if (name + "-").startswith(ill) else "Healthy"
            for name in rig.devices()
        }
        return (
            MADE in wanted
            and cache.statuses(rig.driver) == wanted
            and text in cache.device(rig.driver, MADE).message
        )

    await rig.wait_until(lambda: knows("none"), "all to be healthy")
    rig.node.simctl("xid", "0", "48")
    await rig.wait_until(lambda: knows("gpu-0-", "gpu-0 has reported XID 48"), "what XID 48 means")
    assert cache.device(rig.driver, MADE).device.pool_name == rig.node.name
    rig.node.simctl("recovery", "0", "none")
    await rig.wait_until(lambda: knows("none"), "all to be healthy again")
    rig.node.simctl("gpu", "lose", "0")
    await rig.wait_until(lambda: knows("gpu-0-", "has fallen off the bus"), "what a loss means")
    rig.node.simctl("gpu", "restore", "0")
    await rig.wait_until(lambda: knows("none"), "all to be healthy after the loss")


async def test_nothing_is_known_of_a_gpu_that_does_not_report_xids(rig: Rig) -> None:
    cache = watch(rig)
    rule = ("nvmlDeviceRegisterEvents", "--result", "unknown", "--gpu", "4")
    rig.node.simctl("fault", "add", *rule)
    await rig.start(GATE)
    await told(rig, cache, gpu_4="Unknown")


async def test_during_a_release_of_nvml_only_what_was_wrong_before_is_known(rig: Rig) -> None:
    cache = watch(rig)
    await started(rig)
    rig.node.simctl("xid", "3", "48")
    await told(rig, cache, gpu_3="Unhealthy")
    rig.command("release")
    await told(rig, cache, **{**dict.fromkeys(ALL, "Unknown"), "gpu-3": "Unhealthy"})
    rig.node.simctl("gpu", "reset", "3")
    rig.command("resume")
    await told(rig, cache)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=["stopped", "killed"])
async def test_after_a_restart_the_kubelet_knows_what_it_knew_before(
    rig: Rig, number: signal.Signals
) -> None:
    cache = watch(rig)
    await started(rig)
    rig.node.simctl("xid", "3", "48")
    await told(rig, cache, gpu_3="Unhealthy")
    before = cache.device(rig.driver, "gpu-3")
    await rig.stop(number)
    await rig.wait_until(lambda: cache.statuses(rig.driver) == {}, "nothing to be known")
    await started(rig)
    await told(rig, cache, gpu_3="Unhealthy")
    assert cache.device(rig.driver, "gpu-3") == before


async def test_after_minor_numbers_were_swapped_the_kubelet_is_told_of_the_gpu_that_a_pod_has(
    rig: Rig,
) -> None:
    cache = watch(rig)
    await started(rig)
    claim = rig.create_claim("gpu-0")
    assert not (await rig.dra.prepare([claim]))[claim.uid].error
    await rig.stop(signal.SIGKILL)
    swapped = {"gpus": [{"index": 0, "minor": 1}, {"index": 1, "minor": 0}]}
    driver_installation.reboot(rig.node, overrides=swapped)
    await rig.kubelet.restart()
    await started(rig)
    # The claim's GPU keeps its name, and the one that has its number now has a name of no other.
    others = dict.fromkeys(ALL.keys() - {"gpu-0", "gpu-1"}, "Healthy")

    def knows(ours: str, other: str) -> bool:
        return cache.statuses(rig.driver) == {**others, "gpu-0": ours, "gpu-32": other}

    await rig.wait_until(lambda: knows("Healthy", "Healthy"), "all to be healthy", HEALED_S)
    rig.node.simctl("xid", "0", "48")
    await rig.wait_until(lambda: knows("Unhealthy", "Healthy"), "the claim's GPU to be ill")
    rig.node.simctl("recovery", "0", "none")
    rig.node.simctl("xid", "1", "48")
    await rig.wait_until(lambda: knows("Healthy", "Unhealthy"), "the other one to be", HEALED_S)


@KUBELETS
async def test_in_a_rollout_the_kubelet_is_told_the_same_by_both_instances(
    rig: Rig, asks_first: bool
) -> None:
    cache = watch(rig, asks_first=asks_first)
    await started(rig)
    await told(rig, cache)
    second = await start_next(rig, GATE)
    newest = HealthCache(asks_first=asks_first)
    channel = rig.kubelet.instances[rig.driver][-1].channel
    async with background_tasks.running(
        newest=partial(newest.watch, rig.driver, channel, ALL_SERVICES)
    ):
        await told(rig, newest)
        rig.node.simctl("xid", "3", "48")
        await told(rig, cache, gpu_3="Unhealthy")
        await told(rig, newest, gpu_3="Unhealthy")
    assert await asyncio.to_thread(rig.process.stop) == 0
    await wait_takeover(rig, second)
    await told(rig, cache, gpu_3="Unhealthy")
    rig.node.simctl("recovery", "3", "none")
    await told(rig, cache)


@pytest.mark.protocol("H7")
async def test_without_the_gate_no_health_is_offered(rig: Rig) -> None:
    cache = watch(rig)
    await rig.start()
    assert rig.dra.services == ("v1.DRAPlugin", "v1beta1.DRAPlugin")
    assert cache.messages == []
