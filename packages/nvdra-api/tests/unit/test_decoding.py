# SPDX-License-Identifier: Apache-2.0
"""Strict and tolerant decoding of configs and custom resources."""

import json
import time

import pytest
from nvdra_api import decoding
from nvdra_api.decoding import DecodeError
from nvdra_api.names import GPU_DRIVER, NVIDIA_API_VERSION
from nvdra_api.quantity import Quantity
from nvdra_api.v1beta1 import ComputeDomain, ComputeDomainClique, GpuConfig
from nvdra_api.v1beta1.gpu_config import GpuSharing
from nvdra_api.v1beta1.sharing import MpsConfig

HEAD = '"apiVersion":"resource.nvidia.com/v1beta1","kind":'
SHAPE = (
    "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
)


def gpu(body: str) -> str:
    return f'{{{HEAD}"GpuConfig"{body}}}'


def mps(body: str) -> str:
    return gpu(f',"sharing":{{"strategy":"MPS","mpsConfig":{{{body}}}}}')


def limit(text: str) -> str:
    return mps(f'"defaultPinnedDeviceMemoryLimit":{text}')


def refused(text: str | bytes) -> str:
    with pytest.raises(DecodeError) as caught:
        decoding.CONFIGS.decode(text, strict=True)
    return str(caught.value)


@pytest.mark.parametrize("body", ["", ',"sharing":null', " "])
def test_a_config_without_fields_is_the_default(body: str) -> None:
    assert decoding.CONFIGS.decode(gpu(body), strict=True) == GpuConfig()


def test_bytes_with_surrounding_blanks_are_decoded() -> None:
    assert decoding.CONFIGS.decode(f"\n {gpu('')} ".encode(), strict=True) == GpuConfig()


@pytest.mark.parametrize(
    ("body", "fields"),
    [
        (',"foo":1', 'unknown field "foo"'),
        (',"unexpectedField":true', 'unknown field "unexpectedField"'),
        (',"metadata":{}', 'unknown field "metadata"'),
        (',"Sharing":{}', 'unknown field "Sharing"'),
        (
            ',"foo":1,"sharing":{"strategy":"MPS","bar":2}',
            'unknown field "foo", unknown field "sharing.bar"',
        ),
        (
            ',"sharing":{"bar":2,"strategy":"MPS"},"foo":1',
            'unknown field "sharing.bar", unknown field "foo"',
        ),
        (
            ',"sharing":{"strategy":"MPS","time_slicing_config":{}}',
            'unknown field "sharing.time_slicing_config"',
        ),
        (
            ',"kind":"GpuConfig","sharing":{},"sharing":{}',
            'duplicate field "kind", duplicate field "sharing"',
        ),
        (
            ',"sharing":{"mpsConfig":{"defaultPerDevicePinnedMemoryLimit":{"0":"1Gi","0":"2Gi"}}}',
            'duplicate field "sharing.mpsConfig.defaultPerDevicePinnedMemoryLimit.0"',
        ),
    ],
)
def test_unknown_and_duplicate_fields_are_refused_with_their_paths(body: str, fields: str) -> None:
    assert refused(gpu(body)) == f"strict decoding error: {fields}"


def test_a_mig_config_has_no_time_slicing_settings() -> None:
    text = f'{{{HEAD}"MigDeviceConfig","sharing":{{"strategy":"MPS","timeSlicingConfig":{{}}}}}}'
    assert refused(text) == 'strict decoding error: unknown field "sharing.timeSlicingConfig"'


def test_an_error_names_at_most_ten_fields() -> None:
    body = "".join(f',"f{number}":1' for number in range(150))
    assert refused(gpu(body)).count("unknown field") == 10


def test_tolerant_decoding_ignores_unknown_and_duplicate_fields() -> None:
    text = gpu(',"new":1,"sharing":{"strategy":"MPS","newer":{},"strategy":"TimeSlicing"}')
    assert decoding.CONFIGS.decode(text, strict=False) == GpuConfig(
        sharing=GpuSharing(strategy="TimeSlicing")
    )


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (
            mps('"defaultActiveThreadPercentage":50.5'),
            'cannot decode number into field "sharing.mpsConfig.defaultActiveThreadPercentage": '
            "expected integer",
        ),
        (
            mps('"defaultActiveThreadPercentage":5e1'),
            'cannot decode number into field "sharing.mpsConfig.defaultActiveThreadPercentage": '
            "expected integer",
        ),
        (
            mps('"defaultActiveThreadPercentage":"50"'),
            'cannot decode string into field "sharing.mpsConfig.defaultActiveThreadPercentage": '
            "expected integer",
        ),
        (
            mps('"defaultActiveThreadPercentage":true'),
            'cannot decode boolean into field "sharing.mpsConfig.defaultActiveThreadPercentage": '
            "expected integer",
        ),
        (
            mps('"multiUser":1'),
            'cannot decode number into field "sharing.mpsConfig.multiUser": expected boolean',
        ),
        (gpu(',"sharing":[]'), 'cannot decode array into field "sharing": expected object'),
        (
            gpu(',"sharing":{"strategy":7}'),
            'cannot decode number into field "sharing.strategy": expected string',
        ),
        (
            gpu(',"foo":1,"sharing":"MPS"'),
            'cannot decode string into field "sharing": expected object',
        ),
        (
            mps('"defaultPerDevicePinnedMemoryLimit":{"0":null}'),
            'cannot decode null into field "sharing.mpsConfig.defaultPerDevicePinnedMemoryLimit.0"'
            ": expected quantity",
        ),
        (
            limit("true"),
            'cannot decode boolean into field "sharing.mpsConfig.defaultPinnedDeviceMemoryLimit": '
            "expected quantity",
        ),
    ],
)
def test_an_error_for_a_wrong_type_names_the_expected_type(text: str, why: str) -> None:
    assert refused(text) == why


@pytest.mark.parametrize("text", ['"abc"', '""', '"10 Gi"', '"10GB"', '"1.2.3"'])
def test_a_value_that_is_no_quantity_is_refused(text: str) -> None:
    assert refused(limit(text)) == SHAPE


@pytest.mark.parametrize("text", ['"10K"', '"1ki"', '"5e"'])
def test_a_quantity_with_an_unknown_suffix_is_refused(text: str) -> None:
    assert refused(limit(text)) == "unable to parse quantity's suffix"


@pytest.mark.parametrize(
    ("text", "amount"), [("1024", "1024"), ("1.5", "1500m"), ('" 1Gi "', "1Gi"), ('"1e9"', "1G")]
)
def test_a_quantity_is_a_string_or_a_number(text: str, amount: str) -> None:
    config = decoding.CONFIGS.decode(limit(text), strict=True)
    assert config == GpuConfig(
        sharing=GpuSharing(
            strategy="MPS",
            mps_config=MpsConfig(default_pinned_device_memory_limit=Quantity.parse(amount)),
        )
    )


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"a":1}', "Object 'Kind' is missing in '{\"a\":1}'"),
        ("null", "Object 'Kind' is missing in 'null'"),
        ('{"kind":null}', "Object 'Kind' is missing in '{\"kind\":null}'"),
        ('{"kind":"GpuConfig"}', "Object 'apiVersion' is missing in '{\"kind\":\"GpuConfig\"}'"),
        ('{"kind":"GpuConfig","apiVersion":"a/b/c"}', "unexpected GroupVersion string: a/b/c"),
        (
            '{"kind":"GpuConfig","apiVersion":"v1"}',
            'no kind "GpuConfig" is registered for version "v1" in scheme "resource.nvidia.com"',
        ),
        (
            f'{{{HEAD}"ComputeDomain"}}',
            'no kind "ComputeDomain" is registered for version "resource.nvidia.com/v1beta1" '
            'in scheme "resource.nvidia.com"',
        ),
        (
            f'{{{HEAD}"gpuconfig"}}',
            'no kind "gpuconfig" is registered for version "resource.nvidia.com/v1beta1" '
            'in scheme "resource.nvidia.com"',
        ),
    ],
)
def test_a_document_of_an_unknown_kind_is_refused(text: str, why: str) -> None:
    assert refused(text) == why


@pytest.mark.parametrize(
    "text",
    ["", "kind: GpuConfig", '"x"', "[]", "{} {}", '{"kind":5,"apiVersion":"v1"}', '{"kind":NaN}'],
)
def test_a_text_that_is_no_json_object_is_refused(text: str) -> None:
    assert refused(text).startswith("couldn't get version/kind; json parse error: ")


def test_deep_nesting_is_refused() -> None:
    deep = gpu(',"x":' + '{"x":' * 100_000 + "1" + "}" * 100_000)
    assert "nested more than 200 levels deep" in refused(deep)


def test_parsed_json_is_decoded() -> None:
    value = json.loads(gpu(',"sharing":{"strategy":"MPS"}'))
    assert decoding.CONFIGS.decode_value(value, strict=True) == GpuConfig(
        sharing=GpuSharing(strategy="MPS")
    )


def test_tolerant_decoding_reads_a_null_limit_as_zero() -> None:
    text = mps('"defaultPerDevicePinnedMemoryLimit":{"0":null}')
    config = decoding.CONFIGS.decode(text, strict=False)
    assert config == GpuConfig(
        sharing=GpuSharing(
            strategy="MPS",
            mps_config=MpsConfig(default_per_device_pinned_memory_limit={"0": Quantity.decimal(0)}),
        )
    )


def domain(body: str) -> str:
    return f'{{{HEAD}"ComputeDomain",{body}}}'


SPEC = '"spec":{"channel":{"resourceClaimTemplate":{"name":"ring-channel"}}}'


def test_a_compute_domain_is_decoded() -> None:
    text = domain(f'"metadata":{{"name":"ring","creationTimestamp":null}},{SPEC}')
    decoded = decoding.OBJECTS.decode(text, strict=True)
    assert isinstance(decoded, ComputeDomain)
    assert decoded.metadata.name == "ring"
    assert decoded.problems() == ()


def test_a_clique_is_decoded() -> None:
    entry = '{"nodeName":"a","ipAddress":"10.4.1.7","cliqueID":""}'
    text = f'{{{HEAD}"ComputeDomainClique","metadata":{{"name":"u.c"}},"daemons":[{entry}]}}'
    decoded = decoding.OBJECTS.decode(text, strict=True)
    assert isinstance(decoded, ComputeDomainClique)
    assert decoded.daemons[0].node_name == "a"


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (
            '"metadata":{"name":"ring"},"spec":{"numNods":2}',
            'strict decoding error: unknown field "spec.numNods"',
        ),
        (
            '"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"Pod","name":"a","uid":"u",'
            '"x":1}]}',
            'strict decoding error: unknown field "metadata.ownerReferences[0].x"',
        ),
        (
            '"metadata":{},"status":{"status":"Ready","nodes":[{"name":"a","name":"b"}]}',
            'strict decoding error: duplicate field "status.nodes[0].name"',
        ),
        (
            '"metadata":{},"spec":{"numNodes":"2"}',
            'cannot decode string into field "spec.numNodes": expected integer',
        ),
        (
            '"metadata":{},"status":{"status":"Ready","nodes":{}}',
            'cannot decode object into field "status.nodes": expected array',
        ),
        ('"spec":{}', 'missing required field "metadata"'),
    ],
)
def test_strict_decoding_refuses_mistakes_in_a_compute_domain(body: str, why: str) -> None:
    with pytest.raises(DecodeError) as caught:
        decoding.OBJECTS.decode(domain(body), strict=True)
    assert str(caught.value) == why


def test_tolerant_decoding_keeps_the_unknown_fields_of_a_compute_domain() -> None:
    text = domain('"metadata":{"name":"ring"},"spec":{"topology":{"block":"a"}}')
    decoded = decoding.OBJECTS.decode(text, strict=False)
    assert isinstance(decoded, ComputeDomain)
    assert decoded.to_manifest()["spec"] == {"topology": {"block": "a"}}


def test_a_config_is_no_custom_resource() -> None:
    with pytest.raises(DecodeError, match='no kind "GpuConfig" is registered'):
        decoding.OBJECTS.decode(gpu(""), strict=True)


@pytest.mark.parametrize(
    ("text", "fields", "remedy"),
    [
        (gpu(',"sharng":{}'), ["sharng"], 'did you mean "sharing"?'),
        (gpu(',"Sharing":{}'), ["Sharing"], 'did you mean "sharing"?'),
        (gpu(',"foo":1'), ["foo"], "known here: apiVersion, kind, sharing"),
        (mps('"multiuser":true'), ["sharing.mpsConfig.multiuser"], 'did you mean "multiUser"?'),
        (gpu(',"sharing":{},"sharing":{}'), ["sharing"], "write it once"),
        (limit('"10K"'), ["sharing.mpsConfig.defaultPinnedDeviceMemoryLimit"], "512Mi"),
        (gpu(',"a":1,"b":2'), ["a", "b"], "known here"),
        (
            mps('"defaultActiveThreadPercentage":"50"'),
            ["sharing.mpsConfig.defaultActiveThreadPercentage"],
            "write a whole number without quotes",
        ),
        (
            mps('"multiUser":"true"'),
            ["sharing.mpsConfig.multiUser"],
            "write true or false without quotes",
        ),
        (gpu(',"sharing":{"strategy":7}'), ["sharing.strategy"], "write it in quotes"),
        (limit("true"), ["sharing.mpsConfig.defaultPinnedDeviceMemoryLimit"], "512Mi"),
        ("{}", [""], ""),
    ],
)
def test_an_error_lists_its_problems_with_field_and_remedy(
    text: str, fields: list[str], remedy: str
) -> None:
    with pytest.raises(DecodeError) as caught:
        decoding.CONFIGS.decode(text, strict=True)
    assert [problem.field for problem in caught.value.problems] == fields
    assert remedy in caught.value.problems[0].remedy


def test_a_driver_takes_its_own_kinds_only() -> None:
    assert decoding.decode_config("gpu.nvidia.com", gpu("")) == GpuConfig()
    with pytest.raises(DecodeError) as caught:
        decoding.decode_config("compute-domain.nvidia.com", gpu(""))
    assert str(caught.value) == "compute-domain.nvidia.com does not accept GpuConfig"
    assert caught.value.remedy == decoding.kinds_remedy("compute-domain.nvidia.com")
    assert "ComputeDomainChannelConfig" in caught.value.remedy


def test_a_field_that_is_duplicate_in_a_parsed_document_is_noticed() -> None:
    document = decoding.parse("[" + gpu(',"sharing":null,"sharing":null') + "]")
    with pytest.raises(DecodeError, match='duplicate field "sharing"'):
        decoding.decode_config_value("gpu.nvidia.com", document[0])


@pytest.mark.parametrize(
    ("text", "field", "says"),
    [
        (limit('"1e999999999"'), "sharing.mpsConfig.defaultPinnedDeviceMemoryLimit", "exponent"),
        (limit(f'"{"1" * 5000}x"'), "sharing.mpsConfig.defaultPinnedDeviceMemoryLimit", "256 char"),
        (limit("9" * 5000), "sharing.mpsConfig.defaultPinnedDeviceMemoryLimit", "4300 digits"),
        (limit("1e400"), "sharing.mpsConfig.defaultPinnedDeviceMemoryLimit", "64-bit floats"),
        (gpu(r',"sharing":{"strategy":"\ud800"}'), "sharing.strategy", "surrogate"),
        (gpu(r',"\ud800":1'), r"\ud800", "surrogate"),
        (r'{"kind":"\udfff"}', "kind", "surrogate"),
    ],
)
def test_what_exceeds_a_bound_is_refused_with_its_field(text: str, field: str, says: str) -> None:
    for given in (text, text.encode()):
        with pytest.raises(DecodeError) as refused:
            decoding.decode_config(GPU_DRIVER, given)
        assert refused.value.problems[0].field == field
        assert field in str(refused.value)
        assert says in str(refused.value)
        assert str(refused.value).encode()


def test_an_error_quotes_little_of_a_long_document() -> None:
    long = "k" * 15_000
    for text in (
        f'{{"{long}":1}}',
        f'{{"kind":"{long}","apiVersion":"{long}"}}',
        f'{{"kind":"x","apiVersion":"{long}/{long[:100]}/"}}',
        gpu(f',"{long}":1'),
        gpu(f',"{long}":1,"{long}":2'),
        gpu(f',"sharing":{{"{long}":{{"{long[:900]}":1}}}}'),
        limit(f'"{long}"'),
    ):
        with pytest.raises(DecodeError) as refused:
            decoding.decode_config(GPU_DRIVER, text)
        assert len(str(refused.value)) < 1000
        assert all(len(problem.field) < 500 for problem in refused.value.problems)


def test_many_wrong_fields_are_refused_in_time_that_grows_with_their_number() -> None:
    fields = ",".join(f'"k{number}":1' for number in range(20_000))
    limits = ",".join(f'"k{number}":"x"' for number in range(20_000))
    mps_config = f'{{"defaultPerDevicePinnedMemoryLimit":{{{limits}}}}}'
    for text in (gpu(f",{fields}"), gpu(f',"sharing":{{"mpsConfig":{mps_config}}}')):
        started = time.process_time()
        with pytest.raises(DecodeError) as refused:
            decoding.decode_config_value(GPU_DRIVER, decoding.parse(text))
        assert len(refused.value.problems) <= decoding.MAX_REPORTED_FIELDS
        assert time.process_time() - started < 5


def test_parameters_that_are_too_long_are_refused_unread() -> None:
    with pytest.raises(DecodeError, match="bytes, more than 16384"):
        decoding.decode_config(GPU_DRIVER, gpu("," + " " * 20_000))


@pytest.mark.parametrize(
    "parameters",
    [
        {"apiVersion": "gpu.nvidia.com/v1alpha1", "kind": "GpuConfig"},
        {"apiVersion": NVIDIA_API_VERSION, "kind": "ComputeDomainChannelConfig"},
        {"kind": "GpuConfig"},
        {},
        [],
    ],
)
def test_what_is_no_config_of_a_driver_is_told_which_kinds_there_are(parameters: object) -> None:
    remedy = (
        "kinds of gpu.nvidia.com are GpuConfig, MigDeviceConfig, VfioDeviceConfig, "
        "of resource.nvidia.com/v1beta1"
    )
    with pytest.raises(DecodeError) as caught:
        decoding.decode_config(GPU_DRIVER, json.dumps(parameters))
    assert caught.value.remedy == remedy
    with pytest.raises(DecodeError) as caught:
        decoding.decode_config_value(GPU_DRIVER, parameters)
    assert caught.value.remedy == remedy


def test_a_mistake_in_a_field_keeps_its_own_remedy() -> None:
    parameters = {"apiVersion": NVIDIA_API_VERSION, "kind": "GpuConfig", "sharin": {}}
    with pytest.raises(DecodeError) as caught:
        decoding.decode_config_value(GPU_DRIVER, parameters)
    assert "kinds of" not in caught.value.remedy
