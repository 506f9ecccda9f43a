# SPDX-License-Identifier: Apache-2.0
"""What users select on: values, types, and what is left out."""

from dataclasses import replace

import pytest
from nvdra_api.ids import GpuUUID, PciAddress
from nvdra_api.resource.slices import DeviceAttribute
from nvdra_gpu_plugin.devices.mig_profiles import Placement
from nvdra_gpu_plugin.publishing import attributes
from nvdra_testing.hardware.gpus import h100, in_mig_mode, mig_device, vfio_h100

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


def test_a_mig_device_has_the_attributes_of_its_gpu_and_some_of_its_own() -> None:
    gpu = in_mig_mode(0, (9, 4), uuid=H100.uuid, pci=H100.pci)
    (mig,) = gpu.mig_devices
    found = attributes.mig_device(mig, gpu)
    of_gpu = attributes.whole_gpu(gpu)
    own = {
        "type": DeviceAttribute(string_value="mig"),
        "uuid": DeviceAttribute(string_value="MIG-0-2-0"),
        "parentUUID": DeviceAttribute(string_value=H100.uuid),
        "profile": DeviceAttribute(string_value="3g.40gb"),
        "migProfile": DeviceAttribute(string_value="3g.40gb"),
    }
    assert found == {**of_gpu, **own}
    capacity = attributes.mig_capacity(mig, len(found))
    assert {name: str(each.value) for name, each in capacity.items()} == {
        "multiprocessors": "60",
        "copyEngines": "3",
        "decoders": "3",
        "encoders": "0",
        "jpegEngines": "3",
        "ofaEngines": "0",
        "memory": "40448Mi",
        **{f"memorySlice{number}": "1" for number in (4, 5, 6, 7)},
    }


def test_a_part_of_a_gpu_instance_has_its_own_multiprocessors_and_shared_memory() -> None:
    gpu = in_mig_mode(0)
    part = mig_device(gpu, 9, 0, compute_slices=1, multiprocessors=16, compute_start=2)
    assert attributes.mig_device(part, gpu)["profile"] == DeviceAttribute(string_value="1c.3g.40gb")
    capacity = attributes.mig_capacity(part, 0)
    assert (str(capacity["multiprocessors"].value), str(capacity["memory"].value)) == (
        "16",
        "40448Mi",
    )


@pytest.mark.parametrize(("slices", "are_published"), [(8, True), (12, False)])
def test_a_device_has_no_more_attributes_and_capacities_than_the_api_server_takes(
    slices: int, are_published: bool
) -> None:
    """The whole of an RTX PRO 6000 has twelve memory slices."""
    gpu = in_mig_mode(0)
    whole = mig_device(gpu, 0, 0, placement=Placement(0, slices))
    found = attributes.mig_device(whole, gpu)
    capacity = attributes.mig_capacity(whole, len(found))
    assert len(found) + len(capacity) <= 32
    assert ("memorySlice0" in capacity) is are_published
    assert str(capacity["memory"].value) == "81152Mi"


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


VFIO_H100 = vfio_h100(2, pci=PciAddress("0000:1b:00.0"), iommu_group=42)


def test_a_vfio_device_has_the_references_attributes_and_its_group() -> None:
    assert attributes.vfio_device(VFIO_H100) == {
        "type": DeviceAttribute(string_value="vfio"),
        "uuid": DeviceAttribute(string_value="90d1ede6-4660-56ab-bea3-b9875fe7e5eb"),
        "deviceID": DeviceAttribute(string_value="0x2330"),
        "vendorID": DeviceAttribute(string_value="0x10de"),
        "productName": DeviceAttribute(string_value="GH100 [H100 SXM5 80GB]"),
        "iommuFDEnabled": DeviceAttribute(bool_value=False),
        "iommuGroup": DeviceAttribute(int_value=42),
        "isolated": DeviceAttribute(bool_value=True),
        "resource.kubernetes.io/pciBusID": DeviceAttribute(string_value="0000:1b:00.0"),
        "resource.kubernetes.io/pcieRoot": DeviceAttribute(string_value="pci0000:15"),
        "resource.kubernetes.io/numaNode": DeviceAttribute(int_value=0),
    }
    assert {k: str(v.value) for k, v in attributes.vfio_capacity(VFIO_H100).items()} == {
        "addressableMemory": "256Gi"
    }


def test_what_nvml_calls_the_gpu_is_beside_its_name_in_the_pci_id_database() -> None:
    known = replace(VFIO_H100, parent_uuid=H100.uuid, parent_product_name=H100.product_name)
    found = attributes.vfio_device(known)
    added = found.items() - attributes.vfio_device(VFIO_H100).items()
    assert dict(added) == {
        "parentUUID": DeviceAttribute(string_value=H100.uuid),
        "parentProductName": DeviceAttribute(string_value="NVIDIA H100 80GB HBM3"),
    }


def test_a_vfio_device_is_never_taken_for_a_mediated_one() -> None:
    """KubeVirt looks for `mdevUUID` first (pkg/dra/utils.go)."""
    assert not [name for name in attributes.vfio_device(VFIO_H100) if "mdev" in name.lower()]


def test_the_numa_node_of_a_vfio_device_follows_the_gate_too() -> None:
    found = attributes.vfio_device(VFIO_H100, numa_as_list=True)
    assert found["resource.kubernetes.io/numaNode"] == DeviceAttribute(int_values=(0,))
    unknown = attributes.vfio_device(replace(VFIO_H100, numa_node=None, pcie_root=None))
    assert {"resource.kubernetes.io/numaNode", "resource.kubernetes.io/pcieRoot"}.isdisjoint(
        unknown
    )
