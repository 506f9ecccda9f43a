# SPDX-License-Identifier: Apache-2.0
"""The cases of the reference driver's webhook tests, and those observed of it, over HTTPS.

Source: docs/reference/webhook.md, "Request handling", "Evaluation".
"""

import json
from typing import Any

import pytest
from nvdra_testing.admission import reviews, served
from nvdra_webhook.admission.review import API_VERSION

ALL = "TimeSlicingSettings=true,MPSSupport=true,PassthroughSupport=true"
TS, MPS = "TimeSlicingSettings=true", "MPSSupport=true"
VERSION = "resource.nvidia.com/v1beta1"
CLAIMS, TEMPLATES = reviews.CLAIMS, reviews.TEMPLATES
DOMAIN_UID = "6a1f6a34-38c9-4d2e-9f5c-0f3f2b7c9d10"
DOMAINS = "compute-domain.nvidia.com"
GPU_CLASS = "gpu.nvidia.com"
CLASSES = {"MigDeviceConfig": "mig.nvidia.com", "VfioDeviceConfig": "vfio.gpu.nvidia.com"}

INTERVAL_TEXT = (
    "unknown time-slice interval: Invalid Interval, supported time-slice intervals: Default, "
    "Short, Medium, Long"
)
NEGATIVE = "active thread percentage must not be negative"


def config(kind: str, **fields: Any) -> str:
    return json.dumps({"apiVersion": VERSION, "kind": kind, **fields}, separators=(",", ":"))


def gpu(**fields: Any) -> str:
    return config("GpuConfig", **fields)


def ts(interval: object) -> str:
    slicing = {"interval": interval}
    return gpu(sharing={"strategy": "TimeSlicing", "timeSlicingConfig": slicing})


def mps(**fields: object) -> str:
    return gpu(sharing={"strategy": "MPS", "mpsConfig": fields})


def percentage(value: object) -> str:
    return mps(defaultActiveThreadPercentage=value)


def gate_text(strategy: str, gate: str) -> str:
    return (
        f'"{strategy}" is selected as the GPU sharing strategy, but the "{gate}" feature gate is '
        "not enabled"
    )


def body(*parameters: str, resource: str = CLAIMS, version: str = "v1", **request: Any) -> bytes:
    """A claim of devices that the first config fits."""
    entries = [reviews.entry(each) for each in parameters]
    fitting = next((c for kind, c in CLASSES.items() if f'"{kind}"' in parameters[0]), GPU_CLASS)
    asked: dict[str, object] = {"deviceClassName": fitting}
    requests = [{"name": "gpu", **(asked if version == "v1beta1" else {"exactly": asked})}]
    text = reviews.claim_text(entries, resource=resource, version=version, requests=requests)
    return reviews.review(text, resource=resource, version=version, **request)


def invalid(resource: str, *texts: str) -> str:
    prefix = "spec" if resource == CLAIMS else "spec.spec"
    sentences = (
        f"object at {prefix}.devices.config[{index}].opaque.parameters is invalid: {text}"
        for index, text in enumerate(texts)
    )
    return f"{len(texts)} configs failed to validate: {'; '.join(sentences)}"


async def test_readiness() -> None:
    async with served.serving() as webhook:
        answer = await webhook.request("GET", "/readyz")
    assert (answer.status, answer.text) == (200, "ok")
    assert answer.headers["Content-Type"].startswith("text/plain")


async def test_case_1_bad_content_type() -> None:
    path = "/validate-resource-claim-parameters"
    async with served.serving() as webhook:
        answer = await webhook.request("POST", path, content_type="invalid type")
    assert answer.status == 415
    assert answer.text == "contentType=invalid type, expected application/json\n"


async def test_case_2_empty_review() -> None:
    async with served.serving() as webhook:
        answer = await webhook.request("POST", "/validate-resource-claim-parameters", b"{}")
    assert answer.status == 400
    assert answer.text.startswith(
        "failed to read AdmissionReview from request body: request could not be decoded: "
        "Object 'Kind' is missing in"
    )


CASES: list[Any] = [
    pytest.param(3, TS, CLAIMS, "v1beta1", [ts("Default")], []),
    pytest.param(
        4,
        f"{TS},{MPS}",
        CLAIMS,
        "v1beta1",
        [ts("Invalid Interval"), percentage(-1)],
        [INTERVAL_TEXT, NEGATIVE],
    ),
    pytest.param(5, TS, TEMPLATES, "v1beta1", [ts("Default")], []),
    pytest.param(
        6,
        f"{TS},{MPS}",
        TEMPLATES,
        "v1beta1",
        [ts("Invalid Interval"), percentage(-1)],
        [INTERVAL_TEXT, NEGATIVE],
    ),
    pytest.param(7, TS, CLAIMS, "v1", [ts("Default")], []),
    pytest.param(8, TS, TEMPLATES, "v1", [ts("Default")], []),
    pytest.param(9, TS, CLAIMS, "v1", [ts("Invalid Interval")], [INTERVAL_TEXT]),
    pytest.param(10, MPS, TEMPLATES, "v1", [percentage(-1)], [NEGATIVE]),
    pytest.param(11, TS, CLAIMS, "v1beta2", [ts("Default")], []),
    pytest.param(12, TS, TEMPLATES, "v1beta2", [ts("Default")], []),
    pytest.param(13, MPS, CLAIMS, "v1beta2", [percentage(-1)], [NEGATIVE]),
    pytest.param(14, TS, TEMPLATES, "v1beta2", [ts("Invalid Interval")], [INTERVAL_TEXT]),
    pytest.param(
        15,
        "",
        CLAIMS,
        "v1beta1",
        [ts("Default")],
        [gate_text("TimeSlicing", "TimeSlicingSettings")],
    ),
    pytest.param(16, "", CLAIMS, "v1beta1", [percentage(50)], [gate_text("MPS", "MPSSupport")]),
    pytest.param(
        17,
        "",
        TEMPLATES,
        "v1beta1",
        [ts("Default")],
        [gate_text("TimeSlicing", "TimeSlicingSettings")],
    ),
    pytest.param(18, "", TEMPLATES, "v1beta1", [percentage(50)], [gate_text("MPS", "MPSSupport")]),
]


@pytest.mark.parametrize(("number", "gates", "resource", "version", "configs", "texts"), CASES)
async def test_a_case_of_the_reference_drivers_tests(
    number: int, gates: str, resource: str, version: str, configs: list[str], texts: list[str]
) -> None:
    async with served.serving(gates) as webhook:
        sent = body(*configs, resource=resource, version=version, uid=f"case-{number}")
        answer = await webhook.review(sent)
    assert answer.response["uid"] == f"case-{number}"
    assert answer.response["allowed"] == (not texts)
    if texts:
        status = answer.response["status"]
        assert answer.message == invalid(resource, *texts)
        assert (status["status"], status["reason"], status["code"]) == ("Failure", "Invalid", 422)
        assert [each["field"].split(".opaque")[0] for each in status["details"]["causes"]] == [
            f"{'spec' if resource == CLAIMS else 'spec.spec'}.devices.config[{index}]"
            for index in range(len(texts))
        ]


ALLOWED: dict[str, str] = {
    "without sharing": gpu(),
    "sharing null": gpu(sharing=None),
    "TimeSlicing without config": gpu(sharing={"strategy": "TimeSlicing"}),
    "timeSlicingConfig empty": gpu(sharing={"strategy": "TimeSlicing", "timeSlicingConfig": {}}),
    "interval null": ts(None),
    "MPS without config": gpu(sharing={"strategy": "MPS"}),
    "VFIO": config("VfioDeviceConfig", iommu={"backendPolicy": "PreferIommuFD"}),
    "MIG": config("MigDeviceConfig", sharing={"strategy": "MPS"}),
}

QUANTITY = "quantities must match the regular expression"
DENIED: dict[str, tuple[str, str]] = {
    "interval empty": (ts(""), "unknown time-slice interval: ,"),
    "TimeSlicing with mpsConfig": (
        gpu(sharing={"strategy": "TimeSlicing", "mpsConfig": {}}),
        "cannot use MpsConfig with the 'TimeSlicing' strategy",
    ),
    "MPS with timeSlicingConfig": (
        gpu(sharing={"strategy": "MPS", "timeSlicingConfig": {"interval": "Long"}}),
        "cannot use TimeSlicingConfig with the 'MPS' strategy",
    ),
    "percentage 101": (percentage(101), "must not be greater than 100"),
    "percentage -1": (percentage(-1), NEGATIVE),
    "percentage 50.5": (percentage(50.5), "expected integer"),
    "percentage as text": (percentage("50"), "expected integer"),
    "limit abc": (mps(defaultPinnedDeviceMemoryLimit="abc"), QUANTITY),
    "limit -5Gi": (mps(defaultPinnedDeviceMemoryLimit="-5Gi"), "set too low: -5Gi"),
    "per-device key": (
        mps(defaultPerDevicePinnedMemoryLimit={"nope": "1Ki"}),
        '"nope" is neither an index nor a UUID',
    ),
    "per-device limit": (
        mps(defaultPerDevicePinnedMemoryLimit={"0": "1Ki"}),
        "value set too low: 0: 1Ki",
    ),
    "strategy empty": (gpu(sharing={"strategy": ""}), "unknown GPU sharing strategy: ,"),
    "strategy Foo": (gpu(sharing={"strategy": "Foo"}), "unknown GPU sharing strategy: Foo,"),
    "unknown field": (
        gpu(unexpectedField=1),
        'strict decoding error: unknown field "unexpectedField"',
    ),
    "duplicate field": (
        f'{{"apiVersion":"{VERSION}","kind":"GpuConfig","sharing":null,"sharing":null}}',
        'strict decoding error: duplicate field "sharing"',
    ),
    "wrong case": (gpu(Sharing={}), 'unknown field "Sharing"'),
    "missing kind": (f'{{"apiVersion":"{VERSION}"}}', "Object 'Kind' is missing in"),
    "missing apiVersion": ('{"kind":"GpuConfig"}', "Object 'apiVersion' is missing in"),
    "missing both": ('{"a":1}', "Object 'Kind' is missing in"),
    "version v1": (
        '{"apiVersion":"v1","kind":"GpuConfig"}',
        'no kind "GpuConfig" is registered for version "v1" in scheme "resource.nvidia.com"',
    ),
    "kind Nope": (config("Nope"), 'no kind "Nope" is registered for version'),
    "parameters a string": ('"text"', "expected an object, got string"),
    "parameters null": ("null", "parameters are required"),
    "VFIO wrong": (
        config("VfioDeviceConfig", iommu={"backendPolicy": "Legacy"}),
        "unknown IOMMU backend policy: Legacy",
    ),
    "ComputeDomain as parameters": (config("ComputeDomain"), 'no kind "ComputeDomain"'),
    "channel config under the GPU driver": (
        config("ComputeDomainChannelConfig", domainID=DOMAIN_UID),
        "gpu.nvidia.com does not accept ComputeDomainChannelConfig",
    ),
}


@pytest.mark.parametrize("name", ALLOWED)
async def test_parameters_that_are_right(name: str) -> None:
    async with served.serving(ALL) as webhook:
        answer = await webhook.review(body(ALLOWED[name]))
    assert answer.response["allowed"], answer
    assert "warnings" not in answer.response


@pytest.mark.parametrize("name", DENIED)
async def test_parameters_that_are_wrong(name: str) -> None:
    parameters, text = DENIED[name]
    async with served.serving(ALL) as webhook:
        answer = await webhook.review(body(parameters))
    assert text in answer.message
    assert answer.message.startswith("1 configs failed to validate: ")


async def test_absent_parameters_are_required() -> None:
    text = reviews.claim_text([reviews.entry("null")]).replace(',"parameters":null', "")
    async with served.serving(ALL) as webhook:
        answer = await webhook.review(reviews.review(text))
    assert answer.message.endswith(".opaque.parameters is invalid: parameters are required")


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        (config("ComputeDomainChannelConfig", domainID=DOMAIN_UID), ""),
        (config("ComputeDomainDaemonConfig", domainID=DOMAIN_UID), ""),
        (config("ComputeDomainChannelConfig", domainID=""), "domainID cannot be empty"),
        (
            config("ComputeDomainChannelConfig", domainID=DOMAIN_UID, allocationMode="Some"),
            "unknown allocation mode: Some",
        ),
        (
            config("ComputeDomainDaemonConfig", domainID="not-needed-for-test", unexpectedField=1),
            'strict decoding error: unknown field "unexpectedField"',
        ),
        (gpu(), "compute-domain.nvidia.com does not accept GpuConfig"),
    ],
)
async def test_configs_of_compute_domains_are_validated(parameters: str, text: str) -> None:
    claim = reviews.claim_text([reviews.entry(parameters, DOMAINS)])
    async with served.serving(ALL) as webhook:
        answer = await webhook.review(reviews.review(claim))
    assert text in answer.message
    assert bool(text) != answer.response["allowed"]


async def test_time_slicing_of_a_mig_device_is_allowed_with_a_warning() -> None:
    parameters = config("MigDeviceConfig", sharing={"strategy": "TimeSlicing"})
    async with served.serving(ALL) as webhook:
        response = (await webhook.review(body(parameters))).response
    assert response["allowed"]
    assert response["warnings"] == [
        "spec.devices.config[0].opaque.parameters.sharing.strategy: TimeSlicing has no effect on "
        "MIG devices"
    ]


@pytest.mark.parametrize(
    "text",
    [
        reviews.claim_text([reviews.entry('{"anything":1}', "other.example.com")]),
        reviews.claim_text([]),
        reviews.claim_text([reviews.entry(gpu())]).replace('"spec":{', '"spec":{"newer":[1],'),
    ],
    ids=["another driver's parameters", "no config", "unknown claim field"],
)
async def test_what_does_not_concern_us_is_allowed(text: str) -> None:
    async with served.serving() as webhook:
        assert (await webhook.review(reviews.review(text))).response["allowed"]


async def test_an_object_of_another_version_than_the_resource_is_denied() -> None:
    claim = reviews.claim_text([reviews.entry(ts("Invalid Interval"))], version="v1")
    async with served.serving(ALL) as webhook:
        answer = await webhook.review(reviews.review(claim, version="v1beta1"))
    assert answer.response["status"]["reason"] == "BadRequest"
    assert answer.response["status"]["code"] == 400
    assert 'its object is "ResourceClaim" of "resource.k8s.io/v1"' in answer.message


async def test_an_object_of_another_kind_is_denied() -> None:
    claim = reviews.claim_text([]).replace('"ResourceClaim"', '"Pod"')
    async with served.serving(ALL) as webhook:
        answer = await webhook.review(reviews.review(claim))
    assert answer.response["status"]["reason"] == "BadRequest"


async def test_an_object_without_kind_and_version_is_one_of_the_resource() -> None:
    claim = reviews.claim_text([reviews.entry(percentage(-1))])
    bare = claim.replace('"apiVersion":"resource.k8s.io/v1","kind":"ResourceClaim",', "", 1)
    assert bare != claim
    async with served.serving(ALL) as webhook:
        answer = await webhook.review(reviews.review(bare))
    assert answer.message == invalid(CLAIMS, NEGATIVE)


async def test_a_deletion_without_object_is_allowed() -> None:
    async with served.serving() as webhook:
        answer = await webhook.review(reviews.review(None, operation="DELETE"))
    assert answer.response["allowed"]


async def test_a_review_without_request_is_a_bad_request() -> None:
    sent = json.dumps({"apiVersion": API_VERSION, "kind": "AdmissionReview"}).encode()
    async with served.serving() as webhook:
        answer = await webhook.request("POST", "/validate-resource-claim-parameters", sent)
    assert answer.status == 400
    assert answer.text == (
        "failed to read AdmissionReview from request body: AdmissionReview has no request\n"
    )


@pytest.mark.parametrize(
    ("resource", "version", "group"),
    [("pods", "v1", ""), ("resourceclaims", "v1alpha3", "resource.k8s.io")],
)
async def test_other_resources_are_denied(resource: str, version: str, group: str) -> None:
    asked = {"group": group, "version": version, "resource": resource}
    sent = body(gpu(), resource=CLAIMS).replace(
        b'"resource":{"group":"resource.k8s.io","version":"v1","resource":"resourceclaims"}',
        b'"resource":' + json.dumps(asked).encode(),
    )
    async with served.serving() as webhook:
        answer = await webhook.review(sent)
    assert answer.response["status"]["reason"] == "BadRequest"
    assert answer.message == (
        "expected resource to be one of the supported versions for resourceclaims or "
        f"resourceclaimtemplates, got {{{group} {version} {resource}}}"
    )
