# SPDX-License-Identifier: Apache-2.0
"""What is said of claims of vfio devices, once the gate is on."""

import json
from typing import Any

import pytest
from nvdra_api.gates import FeatureGates
from nvdra_testing.admission import reviews
from nvdra_webhook.admission import review
from nvdra_webhook.admission.cluster_names import ClusterNames
from nvdra_webhook.admission.decision import Examiner
from nvdra_webhook.admission.review import Verdict

GATES = FeatureGates.parse("PassthroughSupport=true,TimeSlicingSettings=true,MPSSupport=true")
VFIO = "vfio.gpu.nvidia.com"


def decide(
    requests: list[dict[str, Any]],
    *configs: tuple[str, str],
    gates: FeatureGates = GATES,
    namespace: str = "vms",
    version: str = "v1",
) -> Verdict:
    claim = reviews.claim_text(configs, requests=requests, version=version)
    body = reviews.review(claim, version=version, namespace=namespace)
    return Examiner(gates).decide(review.decode(body), ClusterNames())


def request(name: str, device_class: str = VFIO, **asked: Any) -> dict[str, Any]:
    return {"name": name, "exactly": {"deviceClassName": device_class, **asked}}


def one_of(name: str, *classes: str) -> dict[str, Any]:
    found = [{"name": f"a{index}", "deviceClassName": each} for index, each in enumerate(classes)]
    return {"name": name, "firstAvailable": found}


def vfio(*requests: str, policy: str = "LegacyOnly", api: bool = True) -> tuple[str, str]:
    iommu = {"backendPolicy": policy, "enableAPIDevice": api}
    return config("VfioDeviceConfig", *requests, iommu=iommu)


def config(kind: str, *requests: str, **fields: Any) -> tuple[str, str]:
    head = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": kind}
    return reviews.entry(json.dumps({**head, **fields}), requests=requests)


def message(verdict: Verdict) -> str:
    assert verdict.status is not None
    return verdict.status.message


def test_a_usual_claim_is_admitted_without_a_word() -> None:
    verdict = decide([request("gpu-0"), request("gpu-1", count=1)], vfio())
    assert verdict == Verdict()


def test_two_back_ends_in_one_claim_are_refused_at_the_second_one() -> None:
    verdict = decide([request("a"), request("b")], vfio("a", policy="PreferIommuFD"), vfio("b"))
    assert "object at spec.devices.config[1].opaque.parameters.iommu.backendPolicy" in message(
        verdict
    )
    assert "LegacyOnly and PreferIommuFD are in one claim" in message(verdict)
    assert verdict.config_errors == ("VfioDeviceConfig",)
    assert verdict.status is not None
    assert verdict.status.details is not None
    (cause,) = verdict.status.details.causes
    assert cause.field == "spec.devices.config[1].opaque.parameters.iommu.backendPolicy"


@pytest.mark.parametrize(
    ("requests", "configs"),
    [
        # a later config for all overrides the first one
        ([request("a"), request("b")], [vfio("a", policy="PreferIommuFD"), vfio()]),
        # a class may say it, which is not known here
        ([request("a"), request("b")], [vfio("a", policy="PreferIommuFD")]),
        # only one of the alternatives is allocated
        ([one_of("a", VFIO, VFIO)], [vfio("a/a0"), vfio("a/a1", policy="PreferIommuFD")]),
        (
            [one_of("a", VFIO, VFIO), request("b")],
            [vfio("a/a0"), vfio("a/a1", policy="PreferIommuFD"), vfio("b")],
        ),
        # one alternative is no vfio device
        (
            [one_of("a", VFIO, "gpu.nvidia.com"), request("b")],
            [vfio("a/a0", policy="PreferIommuFD"), vfio("b")],
        ),
        # the control node is not a back end
        ([request("a"), request("b")], [vfio("a", api=False), vfio("b")]),
    ],
)
def test_what_may_be_prepared_is_admitted(
    requests: list[dict[str, Any]], configs: list[tuple[str, str]]
) -> None:
    assert decide(requests, *configs).is_allowed


@pytest.mark.parametrize(
    ("kind", "sharing"),
    [
        ("GpuConfig", {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long"}}),
        ("GpuConfig", {"strategy": "MPS", "mpsConfig": {}}),
        ("MigDeviceConfig", {"strategy": "MPS"}),
    ],
)
def test_sharing_a_gpu_of_a_virtual_machine_is_refused(kind: str, sharing: dict[str, Any]) -> None:
    verdict = decide([request("vm")], config(kind, "vm", sharing=sharing))
    assert f"{kind} shares devices, and a virtual machine has its GPU alone" in message(verdict)


def test_sharing_what_may_be_another_gpu_is_not_refused() -> None:
    sharing = {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long"}}
    shared = config("GpuConfig", "a", sharing=sharing)
    assert decide([one_of("a", VFIO, "gpu.nvidia.com")], shared).is_allowed
    for_all = config("GpuConfig", sharing=sharing)
    assert decide([request("a"), request("g", "gpu.nvidia.com")], for_all).is_allowed


@pytest.mark.parametrize(
    ("asked", "field"),
    [({"count": 2}, "count"), ({"allocationMode": "All"}, "allocationMode")],
)
def test_several_gpus_of_one_request_are_warned_of(asked: dict[str, Any], field: str) -> None:
    (warning,) = decide([request("vm", **asked)]).warnings
    assert warning.startswith(f"spec.devices.requests[0].exactly.{field}: KubeVirt takes one")
    assert len(warning) <= 256, "the API server cuts each there"
    assert decide([request("g", "gpu.nvidia.com", **asked)]).warnings == ()


def test_an_alternative_and_a_request_of_v1beta1_have_the_warning_too() -> None:
    alternative = one_of("vm", VFIO)
    alternative["firstAvailable"][0]["count"] = 2
    (warning,) = decide([alternative]).warnings
    assert warning.startswith("spec.devices.requests[0].firstAvailable[0].count")
    flat = {"name": "vm", "deviceClassName": VFIO, "count": 2}
    (warning,) = decide([flat], version="v1beta1").warnings
    assert warning.startswith("spec.devices.requests[0].count")


@pytest.mark.parametrize(
    ("capacity", "is_warned"),
    [
        ({"requests": {"shares": "1"}}, True),
        ({"requests": {"memory": "10Gi", "addressableMemory": "80Gi"}}, True),
        ({"requests": {"addressableMemory": "80Gi"}}, False),
        ({"requests": {}}, False),
        ({}, False),
        (None, False),
        ({"aFormOfALaterRelease": [1]}, False),
    ],
)
def test_a_capacity_that_no_vfio_device_has_is_warned_of(capacity: Any, is_warned: bool) -> None:
    verdict = decide([request("vm", capacity=capacity)])
    assert verdict.is_allowed
    assert any("stay Pending" in each for each in verdict.warnings) == is_warned


@pytest.mark.parametrize(
    ("namespace", "device_class", "api", "is_warned"),
    [
        ("vms", VFIO, False, False),
        ("kubevirt-vms", VFIO, False, True),
        ("vms", "gpu.kubevirt.example.com", False, True),
        ("kubevirt-vms", VFIO, True, False),
    ],
)
def test_a_virtual_machine_of_kubevirt_without_the_control_node_is_warned_of(
    namespace: str, device_class: str, api: bool, is_warned: bool
) -> None:
    warnings = decide([request("vm", device_class)], vfio(api=api), namespace=namespace).warnings
    assert any("enableAPIDevice: KubeVirt's" in each for each in warnings) == is_warned


def test_without_the_gate_nothing_of_this_is_said() -> None:
    asked = request("vm", count=2, capacity={"requests": {"shares": "1"}})
    verdict = decide([asked], vfio(api=False), gates=FeatureGates(), namespace="kubevirt")
    assert [each.partition(": ")[2][:30] for each in verdict.warnings] == [
        "no node offers devices for pas"
    ]
    assert "requires the" in message(verdict)
