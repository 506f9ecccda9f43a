# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import pytest
from nvdra_gpu_plugin.device_plugin import gpu_resources
from nvdra_gpu_plugin.device_plugin.allocation_file import AllocationFile, AllocationsUnreadable
from nvdra_gpu_plugin.device_plugin.gpu_resources import OfferedGpus
from nvdra_testing.kubelet.device_plugin_file import DevicePluginFile

GPU = "nvidia.com/gpu"


@pytest.fixture
def kubelet(tmp_path: Path) -> DevicePluginFile:
    return DevicePluginFile(tmp_path)


@pytest.mark.parametrize(
    ("resource", "is_of_gpus"),
    [
        ("nvidia.com/gpu", True),
        ("nvidia.com/gpu.shared", True),
        ("nvidia.com/pgpu", True),
        ("nvidia.com/mig-1g.10gb", True),
        ("nvidia.com/mig-1g.10gb.me", True),
        ("nvidia.com/mig-1g.10gb.shared", True),
        ("nvidia.com/hostdev", False),
        ("nvidia.com/gpux", False),
        ("amd.com/gpu", False),
        ("x/nvidia.com/gpu", False),
    ],
)
def test_only_resources_of_nvidias_gpus_count(resource: str, *, is_of_gpus: bool) -> None:
    assert gpu_resources.is_of_gpus(resource) is is_of_gpus


def test_no_file_means_no_device_plugin(kubelet: DevicePluginFile) -> None:
    assert AllocationFile(kubelet.root).read() == OfferedGpus()


def test_devices_and_pods_are_counted_by_resource(kubelet: DevicePluginFile) -> None:
    kubelet.register(GPU, ["GPU-a", "GPU-b"])
    kubelet.register("nvidia.com/mig-1g.10gb", ["MIG-a"])
    kubelet.register("intel.com/qat", ["q"])
    kubelet.give(GPU, "pod-1", ["GPU-a"])
    kubelet.give(GPU, "pod-1", ["GPU-b"])
    kubelet.give("intel.com/qat", "pod-2", ["q"])
    assert AllocationFile(kubelet.root).read() == OfferedGpus(
        devices={GPU: 2, "nvidia.com/mig-1g.10gb": 1}, pods={GPU: 1}
    )


def test_a_plugin_that_has_gone_offers_nothing_and_its_pods_still_hold(
    kubelet: DevicePluginFile,
) -> None:
    kubelet.register(GPU, ["GPU-a"])
    kubelet.give(GPU, "pod-1", ["GPU-a"])
    kubelet.disconnect(GPU)
    found = AllocationFile(kubelet.root).read()
    assert found == OfferedGpus(pods={GPU: 1})
    assert found.text.startswith("devices of a device plugin are held: nvidia.com/gpu (1 pod)")
    (kubelet.root / "pods" / "pod-1").rmdir()  # the kubelet's entry stays for now
    assert AllocationFile(kubelet.root).read().text == ""


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "Invalid JSON"),
        ('{"Data":{"PodDevice', "Invalid JSON"),
        ("[]", "Input should be an object"),
        ('{"Data": 3}', "Data: "),
        ('{"Data":{"PodDeviceEntries":[{}],"RegisteredDevices":{}}}', "PodUID: Field required"),
        ('{"Data":{"PodDeviceEntries":[],"RegisteredDevices":0}}', "RegisteredDevices: Input"),
        ('{"Data":{"PodDeviceEntries":[],"RegisteredDevices":""}}', "RegisteredDevices: Input"),
    ],
)
def test_a_damaged_file_is_named_with_the_reason(
    kubelet: DevicePluginFile, text: str, why: str
) -> None:
    kubelet.replace(text)
    with pytest.raises(AllocationsUnreadable, match=f"kubelet_internal_checkpoint: .*{why}"):
        AllocationFile(kubelet.root).read()


def test_what_an_earlier_kubelet_wrote_without_devices_is_read(kubelet: DevicePluginFile) -> None:
    kubelet.replace('{"Data":{"PodDeviceEntries":null,"RegisteredDevices":null},"Checksum":1}')
    assert AllocationFile(kubelet.root).read() == OfferedGpus()
    kubelet.replace(
        '{"Data":{"PodDeviceEntries":null,"RegisteredDevices":{"nvidia.com/gpu":null}},'
        '"Checksum":1,"BootID":"b"}'
    )
    assert AllocationFile(kubelet.root).read() == OfferedGpus()


def test_the_text_names_what_and_what_to_do() -> None:
    text = OfferedGpus(devices={GPU: 8}, pods={GPU: 2}).text
    assert text == (
        "a device plugin offers nvidia.com/gpu (8 devices) and devices of a device plugin are "
        "held: nvidia.com/gpu (2 pods) on this node: it and this driver do not see each other's "
        "pods, so that two can be given the same GPU; remove the device plugin from this node, or "
        "this driver (docs/device-plugin.md says how)"
    )
