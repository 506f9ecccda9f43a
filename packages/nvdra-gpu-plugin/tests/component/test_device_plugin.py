# SPDX-License-Identifier: Apache-2.0
"""A device plugin on the same node, which the kubelet's checkpoint tells of."""

import json
from typing import Any

import pytest
from nvdra_testing.kubelet.device_plugin_file import DevicePluginFile
from nvdra_testing.node.rig import Rig

GPU = "nvidia.com/gpu"
GPUS = [f"GPU-{index}" for index in range(8)]


@pytest.fixture
def kubelet(rig: Rig) -> DevicePluginFile:
    return DevicePluginFile(rig.node.kubelet)


def remark(rig: Rig) -> str:
    """What `/readyz?verbose` says of a device plugin; the plugin is ready in any case."""
    status, page = rig.process.get("/readyz?verbose")
    assert status == 200, page
    (line,) = [each for each in page.splitlines() if each.startswith("[+]device-plugin ok")]
    return line.removeprefix("[+]device-plugin ok").removeprefix(": ")


def events(rig: Rig, reason: str = "DevicePluginPresent") -> list[dict[str, Any]]:
    found = rig.events(reason)
    assert all(each["involvedObject"]["kind"] == "Node" for each in found)
    return found


async def test_a_device_plugin_that_is_there_is_told_before_a_claim_is_prepared(
    rig: Rig, kubelet: DevicePluginFile
) -> None:
    kubelet.register(GPU, GPUS)
    kubelet.give(GPU, "pod-of-the-plugin", ["GPU-0"])
    await rig.start()
    await rig.wait_until(lambda: bool(events(rig)), "an Event of the Node")
    (event,) = events(rig)
    assert event["type"] == "Warning"
    for text in (event["message"], remark(rig), rig.status()):
        assert "a device plugin offers nvidia.com/gpu (8 devices)" in text
        assert "nvidia.com/gpu (1 pod)" in text
        assert "docs/device-plugin.md" in text
    remarks = json.loads(rig.status("-o", "json"))["remarks"]
    assert remarks["device-plugin"] == remark(rig)
    claim = rig.create_claim("gpu-0")
    assert not (await rig.dra.prepare([claim]))[claim.uid].error  # it is only told


async def test_a_device_plugin_that_comes_later_and_goes_is_told(
    rig: Rig, kubelet: DevicePluginFile
) -> None:
    await rig.start()
    assert remark(rig) == ""
    kubelet.register(GPU, [])
    kubelet.register(GPU, GPUS)
    await rig.wait_until(lambda: "offers nvidia.com/gpu" in remark(rig), "the remark")
    await rig.wait_until(lambda: bool(events(rig)), "an Event of the Node")
    kubelet.give(GPU, "pod-1", ["GPU-1"])
    kubelet.disconnect(GPU)
    await rig.wait_until(lambda: remark(rig).startswith("devices of a device plugin"), "the pod")
    assert not events(rig, "DevicePluginGone")
    (rig.node.kubelet / "pods" / "pod-1").rmdir()
    await rig.wait_until(lambda: remark(rig) == "", "the remark to go")
    await rig.wait_until(lambda: bool(events(rig, "DevicePluginGone")), "the other Event")
    assert [each["count"] for each in events(rig)] == [1]


async def test_a_damaged_file_is_told_until_it_can_be_read(
    rig: Rig, kubelet: DevicePluginFile
) -> None:
    kubelet.replace('{"Data":{"PodDev')
    await rig.start()
    await rig.wait_until(lambda: remark(rig).startswith("it is not known whether"), "the remark")
    assert str(kubelet.path) in remark(rig)
    assert not events(rig)
    kubelet.register(GPU, GPUS)
    await rig.wait_until(lambda: bool(events(rig)), "an Event of the Node")
    assert "a device plugin offers nvidia.com/gpu" in remark(rig)


async def test_device_plugins_of_other_devices_are_no_matter(
    rig: Rig, kubelet: DevicePluginFile
) -> None:
    kubelet.register("amd.com/gpu", ["a"])
    kubelet.register("nvidia.com/hostdev", ["b"])
    kubelet.register("intel.com/qat", ["c"])
    kubelet.give("amd.com/gpu", "pod-1", ["a"])
    await rig.start()
    # It has looked at least once when it says something of another file.
    assert remark(rig) == ""
    kubelet.register("nvidia.com/mig-1g.10gb", ["MIG-a"])
    await rig.wait_until(lambda: bool(events(rig)), "an Event of the Node")
    assert remark(rig).startswith("a device plugin offers nvidia.com/mig-1g.10gb (1 device) on")


@pytest.mark.parametrize("rig", ["none"], indirect=True)
async def test_a_node_without_gpus_of_this_driver_has_nothing_to_share(
    rig: Rig, kubelet: DevicePluginFile
) -> None:
    kubelet.register(GPU, GPUS)
    await rig.start()
    await rig.wait_until(lambda: bool(rig.events("NoGPU")), "the state of the node")
    assert remark(rig) == ""
    assert not events(rig)
