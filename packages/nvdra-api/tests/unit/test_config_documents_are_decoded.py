"""JSON → config: strict for users, tolerant for what is stored, in the API machinery's words."""

import json

import pytest
from nvdra_api.protocol import decoding
from nvdra_api.protocol.decoding import DecodeError
from nvdra_api.types.configs import GpuConfig, GpuSharing, MpsConfig
from nvdra_api.types.quantity import Quantity

HEAD = '"apiVersion":"resource.nvidia.com/v1beta1","kind":'
SHAPE = (
    "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
)


def gpu(body):
    return f'{{{HEAD}"GpuConfig"{body}}}'


def mps(body):
    return gpu(f',"sharing":{{"strategy":"MPS","mpsConfig":{{{body}}}}}')


def limit(text):
    return mps(f'"defaultPinnedDeviceMemoryLimit":{text}')


def refused(text):
    with pytest.raises(DecodeError) as caught:
        decoding.decode(text, strict=True)
    return str(caught.value)


@pytest.mark.parametrize("body", ["", ',"sharing":null', " "])
def test_a_config_without_fields_is_the_default(body):
    assert decoding.decode(gpu(body), strict=True) == GpuConfig()


def test_bytes_with_blanks_around_are_read():
    assert decoding.decode(f"\n {gpu('')} ".encode(), strict=True) == GpuConfig()


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
def test_unknown_and_duplicate_fields_are_told_with_their_paths(body, fields):
    assert refused(gpu(body)) == f"strict decoding error: {fields}"


def test_time_slicing_settings_are_no_field_of_a_mig_config():
    text = f'{{{HEAD}"MigDeviceConfig","sharing":{{"strategy":"MPS","timeSlicingConfig":{{}}}}}}'
    assert refused(text) == 'strict decoding error: unknown field "sharing.timeSlicingConfig"'


def test_no_more_than_a_hundred_fields_are_told():
    body = "".join(f',"f{number}":1' for number in range(150))
    assert refused(gpu(body)).count("unknown field") == 100


def test_a_stored_config_may_have_fields_of_another_release():
    text = gpu(',"new":1,"sharing":{"strategy":"MPS","newer":{},"strategy":"TimeSlicing"}')
    assert decoding.decode(text, strict=False) == GpuConfig(
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
def test_a_wrong_type_is_told_with_what_would_be_right(text, why):
    assert refused(text) == why


@pytest.mark.parametrize("text", ['"abc"', '""', '"10 Gi"', '"10GB"', '"1.2.3"'])
def test_what_is_no_quantity_is_refused(text):
    assert refused(limit(text)) == SHAPE


@pytest.mark.parametrize("text", ['"10K"', '"1ki"', '"5e"'])
def test_a_suffix_that_does_not_exist_is_refused(text):
    assert refused(limit(text)) == "unable to parse quantity's suffix"


@pytest.mark.parametrize(
    ("text", "amount"), [("1024", "1024"), ("1.5", "1500m"), ('" 1Gi "', "1Gi"), ('"1e9"', "1G")]
)
def test_a_quantity_is_a_string_or_a_number(text, amount):
    config = decoding.decode(limit(text), strict=True)
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
def test_a_document_of_no_known_kind_is_told_what_is_missing(text, why):
    assert refused(text) == why


@pytest.mark.parametrize(
    "text",
    ["", "kind: GpuConfig", '"x"', "[]", "{} {}", '{"kind":5,"apiVersion":"v1"}', '{"kind":NaN}'],
)
def test_what_is_no_json_object_cannot_be_read(text):
    assert refused(text).startswith("couldn't get version/kind; json parse error: ")


def test_nesting_without_end_is_refused_and_nothing_worse():
    deep = gpu(',"x":' + '{"x":' * 100_000 + "1" + "}" * 100_000)
    assert "nested too deeply" in refused(deep)


def test_parameters_of_an_api_object_are_read_as_they_are():
    value = json.loads(gpu(',"sharing":{"strategy":"MPS"}'))
    assert decoding.decode_value(value, strict=True) == GpuConfig(
        sharing=GpuSharing(strategy="MPS")
    )


def test_null_limits_of_a_stored_config_read_as_zero():
    text = mps('"defaultPerDevicePinnedMemoryLimit":{"0":null}')
    config = decoding.decode(text, strict=False)
    assert config == GpuConfig(
        sharing=GpuSharing(
            strategy="MPS",
            mps_config=MpsConfig(default_per_device_pinned_memory_limit={"0": Quantity.decimal(0)}),
        )
    )
