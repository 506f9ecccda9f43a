"""What users select on: values, types, and what is left out."""

import pytest
from nvdra_api.ids import GpuUUID, PciAddress
from nvdra_api.resource.slices import DeviceAttribute
from nvdra_gpu_plugin.publishing import attributes
from nvdra_testing.hardware.gpus import h100

H100 = h100(
    0,
    uuid=GpuUUID("GPU-6f0d7c1e-3b52-4a5e-9d0c-0b1f2a3c4d5e"),
    pci=PciAddress("0000:18:00.0"),
)


def test_an_h100_has_the_attributes_of_the_worked_example() -> None:
    assert attributes.whole_gpu(H100) == {
        "type": DeviceAttribute(string_value="gpu"),
        "uuid": DeviceAttribute(string_value="GPU-6f0d7c1e-3b52-4a5e-9d0c-0b1f2a3c4d5e"),
        "productName": DeviceAttribute(string_value="NVIDIA H100 80GB HBM3"),
        "brand": DeviceAttribute(string_value="Nvidia"),
        "architecture": DeviceAttribute(string_value="Hopper"),
        "cudaComputeCapability": DeviceAttribute(version_value="9.0.0"),
        "driverVersion": DeviceAttribute(version_value="580.95.5"),
        "cudaDriverVersion": DeviceAttribute(version_value="13.0.0"),
        "addressingMode": DeviceAttribute(string_value="HMM"),
        "pcieBusID": DeviceAttribute(string_value="0000:18:00.0"),
        "resource.kubernetes.io/pciBusID": DeviceAttribute(string_value="0000:18:00.0"),
        "resource.kubernetes.io/pcieRoot": DeviceAttribute(string_value="pci0000:15"),
        "resource.kubernetes.io/numaNode": DeviceAttribute(int_value=0),
    }
    assert {k: str(v.value) for k, v in attributes.whole_gpu_capacity(H100).items()} == {
        "memory": "81559Mi"
    }


def test_the_numa_node_is_a_list_where_the_gate_asks_for_one() -> None:
    found = attributes.whole_gpu(H100, numa_as_list=True)
    assert found["resource.kubernetes.io/numaNode"] == DeviceAttribute(int_values=(0,))


@pytest.mark.parametrize(
    ("driver", "published"),
    [
        ("9.0", "9.0.0"),
        ("580.126.09", "580.126.9"),
        ("570.124.06", "570.124.6"),
        ("550.54.15", "550.54.15"),
        ("v12", "12.0.0"),
        ("535.05.01-rc.1+abc", "535.5.1-rc.1+abc"),
    ],
)
def test_versions_become_strict_semver(driver: str, published: str) -> None:
    assert attributes.semver_attribute(driver) == DeviceAttribute(version_value=published)


@pytest.mark.parametrize("driver", ["1.2.3.4", "", "unknown", "1." + "9" * 70])
def test_a_version_without_a_strict_form_is_left_out(driver: str) -> None:
    assert attributes.semver_attribute(driver) is None
