# SPDX-License-Identifier: Apache-2.0
"""ResourceClaims and templates of every API version, and references to claims."""

from typing import Any

import pytest
from nvdra_api.decoding import CONFIGS
from nvdra_api.ids import ClaimUID
from nvdra_api.quantity import Quantity
from nvdra_api.resource import ClaimRef, ResourceClaim, ResourceClaimTemplate
from nvdra_api.resource.claims import MAX_ITEMS
from nvdra_api.v1beta1 import GpuConfig
from pydantic import ValidationError

EXACTLY = {
    "deviceClassName": "gpu.nvidia.com",
    "allocationMode": "ExactCount",
    "count": 2,
    "selectors": [{"cel": {"expression": "true"}}],
}
ALTERNATIVES = [{"name": "large", "deviceClassName": "gpu.nvidia.com"}]
CONFIG = [
    {
        "requests": ["gpu"],
        "opaque": {
            "driver": "gpu.nvidia.com",
            "parameters": {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig"},
        },
    }
]


def claim(version: str, *requests: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": f"resource.k8s.io/{version}",
        "kind": "ResourceClaim",
        "metadata": {"namespace": "ml", "name": "training", "uid": "u"},
        "spec": {"devices": {"requests": list(requests), "config": CONFIG}},
    }


@pytest.mark.parametrize(
    "document",
    [
        claim("v1", {"name": "gpu", "exactly": EXACTLY}),
        claim("v1beta2", {"name": "gpu", "exactly": EXACTLY}),
        claim("v1beta1", {"name": "gpu", **EXACTLY}),
    ],
)
def test_the_requests_of_a_claim_are_read_from_every_api_version(document: dict[str, Any]) -> None:
    devices = ResourceClaim.model_validate(document).spec.devices
    assert devices.requests is not None
    (request,) = devices.requests
    assert request.name == "gpu"
    assert request.exactly is not None
    assert (request.exactly.device_class_name, request.exactly.count) == ("gpu.nvidia.com", 2)
    assert request.exactly.selectors[0].cel is not None
    assert request.exactly.selectors[0].cel.expression == "true"


@pytest.mark.parametrize("version", ["v1", "v1beta2", "v1beta1"])
def test_the_alternatives_of_a_request_are_read_from_every_api_version(version: str) -> None:
    document = claim(version, {"name": "gpu", "firstAvailable": ALTERNATIVES})
    requests = ResourceClaim.model_validate(document).spec.devices.requests
    assert requests is not None
    assert requests[0].exactly is None
    assert [each.name for each in requests[0].first_available] == ["large"]


@pytest.mark.parametrize("version", ["v1", "v1beta2", "v1beta1"])
def test_the_capacity_that_a_request_asks_for_is_read_from_every_api_version(version: str) -> None:
    capacity = {"capacity": {"requests": {"memory": "2Gi"}}}
    exactly = {**EXACTLY, **capacity}
    request = {"name": "one", **(exactly if version == "v1beta1" else {"exactly": exactly})}
    alternatives = [{**each, **capacity} for each in ALTERNATIVES]
    read = ResourceClaim.model_validate(
        claim(version, request, {"name": "any", "firstAvailable": alternatives})
    )
    for name in ("one", "any/large"):
        assert read.requested_capacity(name) == {"memory": Quantity.parse("2Gi")}
    for name in ("any/small", "one/large", "other"):
        assert read.requested_capacity(name) == {}


def test_a_request_without_capacity_asks_for_none() -> None:
    for exactly in (EXACTLY, {**EXACTLY, "capacity": {}}, {**EXACTLY, "capacity": None}):
        read = ResourceClaim.model_validate(claim("v1", {"name": "gpu", "exactly": exactly}))
        assert read.requested_capacity("gpu") == {}


def test_the_configs_of_a_template_can_be_decoded() -> None:
    template = ResourceClaimTemplate.model_validate(
        {"metadata": {"name": "t"}, "spec": {"spec": {"devices": {"config": CONFIG}}}}
    )
    config = template.spec.spec.devices.config
    assert config is not None
    assert config[0].opaque is not None
    assert CONFIGS.decode_value(config[0].opaque.parameters, strict=True) == GpuConfig()


def test_a_reference_to_a_claim_has_namespace_name_and_uid() -> None:
    read = ResourceClaim.model_validate(claim("v1"))
    assert read.ref == ClaimRef("ml", "training", ClaimUID("u"))
    assert str(read.ref) == "ml/training:u"


def test_a_result_has_the_name_of_the_request_without_the_subrequest() -> None:
    result = {"request": "gpu/large", "driver": "d", "pool": "p", "device": "gpu-0"}
    document = {
        **claim("v1"),
        "status": {"allocation": {"devices": {"results": [result]}}},
    }
    allocation = ResourceClaim.model_validate(document).status.allocation
    assert allocation is not None
    assert allocation.devices.results[0].base_request == "gpu"


LISTS = [
    ("spec", "devices", "requests"),
    ("spec", "devices", "constraints"),
    ("spec", "devices", "config"),
    ("status", "allocation", "devices", "results"),
    ("status", "allocation", "devices", "config"),
    ("status", "reservedFor"),
]


def claim_with(path: tuple[str, ...], items: list[Any]) -> dict[str, Any]:
    body: Any = items
    for name in reversed(path):
        body = {name: body}
    return {"metadata": {"name": "training"}, **body}


@pytest.mark.parametrize("path", LISTS, ids=".".join)
def test_a_list_of_wrong_items_is_one_error(path: tuple[str, ...]) -> None:
    with pytest.raises(ValidationError) as refused:
        ResourceClaim.model_validate(claim_with(path, [True] * 1000))
    assert [error["loc"][-1] for error in refused.value.errors()] == [0]


@pytest.mark.parametrize("path", LISTS, ids=".".join)
def test_a_list_has_at_most_four_times_as_many_items_as_the_api_server_stores(
    path: tuple[str, ...],
) -> None:
    item = {"name": "n", "request": "r", "driver": "d", "pool": "p", "device": "d"}
    ResourceClaim.model_validate(claim_with(path, [item] * MAX_ITEMS))
    with pytest.raises(ValidationError, match="should have at most 1024 items"):
        ResourceClaim.model_validate(claim_with(path, [item] * (MAX_ITEMS + 1)))
