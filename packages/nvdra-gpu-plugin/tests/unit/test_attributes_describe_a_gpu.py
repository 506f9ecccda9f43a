"""What users select on: values, types, and what is left out."""

import pytest
from boards import board
from nvdra_api.types.ids import GpuUUID, PciAddress
from nvdra_api.types.slices import Attribute
from nvdra_gpu_plugin import attributes

H100 = board(
    0,
    uuid=GpuUUID("GPU-6f0d7c1e-3b52-4a5e-9d0c-0b1f2a3c4d5e"),
    pci=PciAddress("0000:18:00.0"),
)


def test_an_h100_has_the_attributes_of_the_worked_example() -> None:
    assert attributes.whole_gpu(H100) == {
        "type": Attribute("string", "gpu"),
        "uuid": Attribute("string", "GPU-6f0d7c1e-3b52-4a5e-9d0c-0b1f2a3c4d5e"),
        "productName": Attribute("string", "NVIDIA H100 80GB HBM3"),
        "brand": Attribute("string", "Nvidia"),
        "architecture": Attribute("string", "Hopper"),
        "cudaComputeCapability": Attribute("version", "9.0.0"),
        "driverVersion": Attribute("version", "580.95.5"),
        "cudaDriverVersion": Attribute("version", "13.0.0"),
        "addressingMode": Attribute("string", "HMM"),
        "pcieBusID": Attribute("string", "0000:18:00.0"),
        "resource.kubernetes.io/pciBusID": Attribute("string", "0000:18:00.0"),
        "resource.kubernetes.io/pcieRoot": Attribute("string", "pci0000:15"),
        "resource.kubernetes.io/numaNode": Attribute("int", 0),
    }
    assert {k: str(v) for k, v in attributes.whole_gpu_capacity(H100).items()} == {
        "memory": "81559Mi"
    }


def test_the_numa_node_is_a_list_where_the_gate_asks_for_one() -> None:
    found = attributes.whole_gpu(H100, numa_as_list=True)
    assert found["resource.kubernetes.io/numaNode"] == Attribute("ints", (0,))


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
    assert attributes.version(driver) == Attribute("version", published)


@pytest.mark.parametrize("driver", ["1.2.3.4", "", "unknown", "1." + "9" * 70])
def test_a_version_without_a_strict_form_is_left_out(driver: str) -> None:
    assert attributes.version(driver) is None
