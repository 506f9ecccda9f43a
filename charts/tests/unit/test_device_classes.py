"""The device classes that users name in their claims."""

from collections.abc import Callable
from typing import Any

import pytest

Render = Callable[..., dict[str, dict[str, Any]]]


def test_each_class_selects_one_kind_of_device(render: Render) -> None:
    for name, kind in (
        ("gpu.nvidia.com", "gpu"),
        ("mig.nvidia.com", "mig"),
        ("vfio.gpu.nvidia.com", "vfio"),
    ):
        (selector,) = render("nvdra-gpu-plugin")["DeviceClass"][name]["spec"]["selectors"]
        assert selector["cel"]["expression"] == (
            "device.driver == 'gpu.nvidia.com' && "
            f"device.attributes['gpu.nvidia.com'].type == '{kind}'"
        )


def test_v1_is_used_if_it_is_served(render: Render) -> None:
    versions = ("--api-versions", "resource.k8s.io/v1beta1,resource.k8s.io/v1beta2")
    classes = render("nvdra-gpu-plugin", None, *versions)["DeviceClass"]
    assert [item["apiVersion"] for item in classes.values()] == ["resource.k8s.io/v1"] * 3


def test_only_whole_gpus_are_an_extended_resource(render: Render) -> None:
    classes = render("nvdra-gpu-plugin")["DeviceClass"]
    assert {name: item["spec"].get("extendedResourceName") for name, item in classes.items()} == {
        "gpu.nvidia.com": "nvidia.com/gpu",
        "mig.nvidia.com": None,
        "vfio.gpu.nvidia.com": None,
    }


@pytest.mark.parametrize("version", ["resource.k8s.io/v1beta1", "resource.k8s.io/v1beta2"])
def test_an_older_version_has_no_extended_resource(render: Render, version: str) -> None:
    values = {"global": {"resourceApiVersion": version}}
    classes = render("nvdra-gpu-plugin", values)["DeviceClass"]
    assert [item["apiVersion"] for item in classes.values()] == [version] * 3
    assert not [
        "extendedResourceName"
        for each in classes.values()
        if "extendedResourceName" in each["spec"]
    ]


@pytest.mark.parametrize("name", ["", "example.com/gpu"])
def test_the_extended_resource_is_the_administrators_choice(render: Render, name: str) -> None:
    values = {"deviceClasses": {"extendedResourceName": name}}
    gpu = render("nvdra-gpu-plugin", values)["DeviceClass"]["gpu.nvidia.com"]
    assert gpu["spec"].get("extendedResourceName", "") == name


def test_other_objects_do_not_depend_on_the_version(render: Render) -> None:
    older = render(
        "nvdra-gpu-plugin", {"global": {"resourceApiVersion": "resource.k8s.io/v1beta1"}}
    )
    newer = render("nvdra-gpu-plugin")
    del older["DeviceClass"], newer["DeviceClass"]
    assert older == newer
