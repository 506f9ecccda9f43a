# SPDX-License-Identifier: Apache-2.0
"""ResourceSlices of every API version are read; devices are written as v1 has them."""

from typing import Any

import pytest
from nvdra_api.ids import DeviceName
from nvdra_api.quantity import Quantity
from nvdra_api.resource import Device, DeviceAttribute, ResourceSlice
from nvdra_api.resource.slices import Counter, DeviceCapacity, DeviceCounterConsumption, DeviceTaint
from pydantic import ValidationError

BODY = {
    "attributes": {
        "productName": {"string": "NVIDIA H100 80GB HBM3"},
        "driverVersion": {"version": "580.95.5"},
        "resource.kubernetes.io/numaNode": {"int": 0},
    },
    "capacity": {"memory": {"value": "81559Mi"}},
}


def resource_slice(version: str, *devices: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": f"resource.k8s.io/{version}",
        "kind": "ResourceSlice",
        "metadata": {"name": "00000-gpu.nvidia.com-node-a-x7k2p"},
        "spec": {
            "driver": "gpu.nvidia.com",
            "nodeName": "node-a",
            "pool": {"name": "node-a", "generation": 3, "resourceSliceCount": 1},
            "devices": list(devices),
        },
    }


@pytest.mark.parametrize(
    "document",
    [
        resource_slice("v1", {"name": "gpu-0", **BODY}),
        resource_slice("v1beta2", {"name": "gpu-0", **BODY}),
        resource_slice("v1beta1", {"name": "gpu-0", "basic": BODY}),
    ],
)
def test_the_devices_of_a_slice_are_read_from_every_api_version(document: dict[str, Any]) -> None:
    spec = ResourceSlice.model_validate(document).spec
    assert (spec.driver, spec.node_name, spec.pool.generation) == ("gpu.nvidia.com", "node-a", 3)
    (device,) = spec.devices
    assert device.name == "gpu-0"
    assert {name: each.value for name, each in device.attributes.items()} == {
        "productName": "NVIDIA H100 80GB HBM3",
        "driverVersion": "580.95.5",
        "resource.kubernetes.io/numaNode": 0,
    }
    assert device.capacity["memory"].value == Quantity.parse("81559Mi")


def test_a_v1beta1_device_without_a_body_has_a_name() -> None:
    document = resource_slice("v1beta1", {"name": "gpu-0", "basic": None})
    assert ResourceSlice.model_validate(document).spec.devices == (
        Device(name=DeviceName("gpu-0")),
    )


@pytest.mark.parametrize("basic", [5, "text", [], [["a", 1]], False])
def test_a_v1beta1_device_whose_body_is_no_object_is_refused(basic: Any) -> None:
    with pytest.raises(ValidationError, match="basic should be an object"):
        ResourceSlice.model_validate(resource_slice("v1beta1", {"name": "gpu-0", "basic": basic}))


@pytest.mark.parametrize(
    ("document", "value"),
    [
        ({"int": 0}, 0),
        ({"bool": False}, False),
        ({"string": ""}, ""),
        ({"version": "9.0.0"}, "9.0.0"),
        ({"ints": [0, 1]}, (0, 1)),
        ({"strings": ["a"]}, ("a",)),
        ({"types-of-tomorrow": 1}, None),
    ],
)
def test_an_attribute_has_the_value_of_the_type_that_is_set(
    document: dict[str, Any], value: object
) -> None:
    found = DeviceAttribute.model_validate(document).value
    assert (found, type(found)) == (value, type(value))


def test_a_device_is_written_as_it_was_read() -> None:
    device = Device(
        name=DeviceName("gpu-0-mig-1g10gb-19-0"),
        attributes={"type": DeviceAttribute(string_value="mig")},
        capacity={"memory": DeviceCapacity(value=Quantity.binary(10 << 30))},
        consumes_counters=(
            DeviceCounterConsumption(
                counter_set="gpu-0-counter-set",
                counters={"memory-slice-0": Counter(value=Quantity.decimal(1))},
            ),
        ),
        taints=(DeviceTaint(key="gpu.nvidia.com/lost", effect="NoExecute"),),
    )
    document = device.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    assert document == {
        "name": "gpu-0-mig-1g10gb-19-0",
        "attributes": {"type": {"string": "mig"}},
        "capacity": {"memory": {"value": "10Gi"}},
        "consumesCounters": [
            {"counterSet": "gpu-0-counter-set", "counters": {"memory-slice-0": {"value": "1"}}}
        ],
        "taints": [{"key": "gpu.nvidia.com/lost", "effect": "NoExecute"}],
    }
    assert Device.model_validate(document) == device


def test_unknown_fields_of_a_newer_server_are_kept() -> None:
    document = resource_slice("v1", {"name": "gpu-0", "bindsToNode": True})
    (device,) = ResourceSlice.model_validate(document).spec.devices
    assert device.model_dump(by_alias=True, exclude_defaults=True)["bindsToNode"] is True
