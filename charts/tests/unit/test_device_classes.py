# SPDX-License-Identifier: Apache-2.0
"""The device classes that users name in their claims."""

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
import yaml
from nvdra_api import decoding
from nvdra_api.v1beta1 import VfioDeviceConfig
from nvdra_api.v1beta1.vfio_device_config import IommuConfig
from nvdra_testing.charts import CHARTS

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


@pytest.mark.parametrize("version", ["v1", "v1beta2", "v1beta1"])
def test_the_class_of_virtual_machines_can_bring_the_control_node(
    render: Render, version: str
) -> None:
    values: dict[str, Any] = {
        "deviceClasses": {"vfio": {"enableAPIDevice": True}},
        "global": {"resourceApiVersion": f"resource.k8s.io/{version}"},
    }
    classes = render("nvdra-gpu-plugin", values)["DeviceClass"]
    (config,) = classes["vfio.gpu.nvidia.com"]["spec"].pop("config")
    opaque = config["opaque"]
    decoded = decoding.decode_config(opaque["driver"], json.dumps(opaque["parameters"]).encode())
    assert decoded == VfioDeviceConfig(iommu=IommuConfig(enable_api_device=True))
    values["deviceClasses"]["vfio"]["enableAPIDevice"] = False
    assert render("nvdra-gpu-plugin", values)["DeviceClass"] == classes, "only this differs"


def test_the_quota_of_the_questions_has_a_line_for_each_class_that_gives_gpus(
    render: Render,
) -> None:
    page = (CHARTS.parent / "docs/faq.md").read_text()
    (block,) = re.findall(
        r"^```yaml\n(.*?kind: ResourceQuota.*?)^```$", page, re.DOTALL | re.MULTILINE
    )
    limited = yaml.safe_load(block)["spec"]["hard"]
    given = {"deviceClasses": {"migExtendedResources": ["1g.10gb"]}}
    classes = set(render("nvdra-gpu-plugin", given)["DeviceClass"])
    without_devices = {"vfio.gpu.nvidia.com"}
    suffix = ".deviceclass.resource.k8s.io/devices"
    assert set(limited) == {f"{name}{suffix}" for name in classes - without_devices}


OF_A_CLUSTER = "v1/Namespace"
"""A kind: helm, and Argo CD, name kinds only where they have asked a cluster."""


@pytest.mark.parametrize(
    ("kube", "flags", "version"),
    [
        ("1.32.0", (), "v1beta1"),
        ("1.33.9", (), "v1beta2"),
        ("1.34.0-rc.1", (), "v1"),
        ("v1.35.2-gke.100", (), "v1"),
        ("1.36.3", ("resource.k8s.io/v1beta1", "resource.k8s.io/v1beta2"), "v1"),
        # What a cluster serves counts, whatever its version: helm's own libraries know v1.
        ("1.33.9", (OF_A_CLUSTER,), "v1"),
    ],
)
def test_the_newest_version_is_used_that_is_served_or_without_a_cluster_that_kubernetes_has(
    render: Render, kube: str, flags: tuple[str, ...], version: str
) -> None:
    served = [f"--api-versions={each}" for each in flags]
    classes = render("nvdra-gpu-plugin", None, *served, kube=kube)["DeviceClass"]
    assert {item["apiVersion"] for item in classes.values()} == {f"resource.k8s.io/{version}"}


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


def of_profiles(*profiles: str) -> dict[str, Any]:
    return {"deviceClasses": {"migExtendedResources": list(profiles)}}


@pytest.mark.parametrize(
    ("profile", "name"),
    [
        ("1g.10gb", "mig-1g.10gb"),
        ("1g.10gb+me", "mig-1g.10gb.me"),
        ("1g.10gb-me", "mig-1g.10gb-me"),
        ("4g.96gb+gfx", "mig-4g.96gb.gfx"),
        ("2g.48gb+me.all", "mig-2g.48gb.me.all"),
        ("1c.3g.40gb", "mig-1c.3g.40gb"),
    ],
)
def test_a_mig_profile_has_a_class_and_the_device_plugins_name(
    render: Render, profile: str, name: str
) -> None:
    class_name = f"{name}.gpu.nvidia.com"
    found = render("nvdra-gpu-plugin", of_profiles(profile))["DeviceClass"][class_name]["spec"]
    assert found["extendedResourceName"] == f"nvidia.com/{name}"
    (selector,) = found["selectors"]
    assert selector["cel"]["expression"] == (
        "device.driver == 'gpu.nvidia.com' && "
        "device.attributes['gpu.nvidia.com'].type == 'mig' && "
        f"device.attributes['gpu.nvidia.com'].profile == '{profile}'"
    )


def test_profiles_are_listed_for_the_plugin_of_the_umbrella_chart_too(render: Render) -> None:
    values = {"nvdra-gpu-plugin": of_profiles("1g.10gb", "3g.40gb")}
    classes = render("nvdra", values)["DeviceClass"]
    named = {each["spec"].get("extendedResourceName") for each in classes.values()}
    assert named >= {"nvidia.com/mig-1g.10gb", "nvidia.com/mig-3g.40gb", "nvidia.com/gpu"}


@pytest.mark.parametrize(
    "profile",
    [
        "mig-1g.10gb",
        "nvidia.com/mig-1g.10gb",
        "1g.10gb.me",
        "1g",
        "all-1g.10gb",
        "",
        "1G.10GB",
        "'",
    ],
)
def test_what_is_no_mig_profile_is_refused_with_what_would_be(
    refusal: Callable[..., str], profile: str
) -> None:
    text = refusal("nvdra-gpu-plugin", of_profiles("3g.40gb", profile))
    assert f'deviceClasses.migExtendedResources: "{profile}" is no MIG profile' in text
    assert "such as 1g.10gb, 3g.40gb or 1g.10gb+me" in text


def test_a_profile_that_is_listed_twice_is_refused(refusal: Callable[..., str]) -> None:
    assert "migExtendedResources" in refusal("nvdra-gpu-plugin", of_profiles("1g.10gb", "1g.10gb"))


def test_profiles_need_a_version_with_extended_resources(
    render: Render, refusal: Callable[..., str]
) -> None:
    older = {"global": {"resourceApiVersion": "resource.k8s.io/v1beta2"}}
    text = refusal("nvdra-gpu-plugin", {**older, **of_profiles("1g.10gb")})
    assert "needs resource.k8s.io/v1 (Kubernetes 1.34 or later)" in text
    assert len(render("nvdra-gpu-plugin", {**older, **of_profiles()})["DeviceClass"]) == 3


def test_other_objects_do_not_depend_on_the_version(render: Render) -> None:
    older = render(
        "nvdra-gpu-plugin", {"global": {"resourceApiVersion": "resource.k8s.io/v1beta1"}}
    )
    newer = render("nvdra-gpu-plugin")
    del older["DeviceClass"], newer["DeviceClass"]
    assert older == newer


def test_the_alias_selects_what_the_default_channels_class_selects(render: Render) -> None:
    values = {"deviceClasses": {"computeDomainAlias": True}}
    default = "compute-domain-default-channel.nvidia.com"
    assert "computedomain.nvidia.com" not in render("nvdra-cd-plugin")["DeviceClass"]
    classes = render("nvdra-cd-plugin", values)["DeviceClass"]
    assert classes["computedomain.nvidia.com"]["spec"] == classes[default]["spec"]
