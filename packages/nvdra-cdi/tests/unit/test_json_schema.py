# SPDX-License-Identifier: Apache-2.0
"""The JSON schema that we hand out, against the code that decides (docs/reference/cdi.md §11)."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from nvdra_cdi import codec, json_schema, validation, version
from nvdra_cdi.model import (
    ContainerEdits,
    Device,
    DeviceNode,
    Hook,
    IntelRdt,
    Mount,
    NetDevice,
    Spec,
)

VALIDATOR = Draft202012Validator(json_schema.document())
GOOD = Spec("vendor.com/class", (Device("a", ContainerEdits(env=("A=b",))),), version="1.1.0")


def accepts(spec: Spec) -> bool:
    return bool(VALIDATOR.is_valid(json.loads(codec.dumps(spec, "json"))))


def is_valid(spec: Spec) -> bool:
    return all(problem.is_warning for problem in validation.problems(spec))


def edited(**edits: Any) -> Spec:
    return replace(GOOD, devices=(Device("a", ContainerEdits(**edits)),))


def test_the_schema_is_one() -> None:
    Draft202012Validator.check_schema(json_schema.document())


@pytest.mark.parametrize(
    "spec",
    [
        replace(GOOD, version="2.0.0"),
        replace(GOOD, version="0.2.0"),
        replace(GOOD, version=""),
        replace(GOOD, kind="class"),
        replace(GOOD, kind="vendor-/class"),
        replace(GOOD, kind="a/b/c"),
        replace(GOOD, devices=()),
        replace(GOOD, devices=(Device("-", ContainerEdits(env=("A=b",))),)),
        edited(),
        edited(env=("A",)),
        edited(env=("=b",)),
        edited(device_nodes=(DeviceNode(""),)),
        edited(device_nodes=(DeviceNode("/a", type="x"),)),
        edited(device_nodes=(DeviceNode("/a", permissions="rx"),)),
        edited(hooks=(Hook("prestop", "/a"),)),
        edited(hooks=(Hook("poststop", ""),)),
        edited(hooks=(Hook("poststop", "/a", (), ("A",)),)),
        edited(mounts=(Mount("", "/a"),)),
        edited(mounts=(Mount("/a", ""),)),
        edited(intel_rdt=IntelRdt("a/b")),
        edited(intel_rdt=IntelRdt("..")),
        edited(intel_rdt=IntelRdt(enable_cmt=True)),
        edited(net_devices=(NetDevice("", "a"),)),
        edited(net_devices=(NetDevice("a", ""),)),
        replace(GOOD, container_edits=ContainerEdits(env=("A",))),
    ],
)
def test_what_the_code_refuses_the_schema_refuses(spec: Spec) -> None:
    assert not is_valid(spec)
    assert not accepts(spec)


@pytest.mark.parametrize("text", [b"{}", b'{"x": 1}', b'{"kind": 5}'])
def test_what_is_no_document_the_schema_refuses(text: bytes) -> None:
    assert not VALIDATOR.is_valid(json.loads(text))


@pytest.mark.parametrize(
    "text",
    [
        b'{"containerEdits": {"deviceNodes": [{"path": "/a", "fileMode": -1}]}}',
        b'{"containerEdits": {"hooks": [{"hookName": "poststop", "path": "/a", "x": 1}]}}',
        b'{"annotations": {"a": 1}}',
    ],
)
def test_fields_are_checked_on_every_level(text: bytes) -> None:
    good = json.loads(codec.dumps(GOOD, "json"))
    assert VALIDATOR.is_valid(good)
    assert not VALIDATOR.is_valid({**good, **json.loads(text)})


_names = st.sampled_from(["a", "0", "a:b"])
_edits = st.builds(
    ContainerEdits,
    env=st.sampled_from([("A=b",), ("A=b", "C=")]),
    device_nodes=st.sampled_from([(), (DeviceNode("/a", "/b", "c", 1, 2, 0o666, "none", 0, 1),)]),
    net_devices=st.sampled_from([(), (NetDevice("eth0", "a"),)]),
    hooks=st.sampled_from([(), (Hook("poststop", "/a", ("a",), ("A=b",), 5),)]),
    mounts=st.sampled_from([(), (Mount("/a", "/b", ("ro",)),), (Mount("/a", "/b", (), "x"),)]),
    intel_rdt=st.sampled_from(
        [
            *(None, IntelRdt("/"), IntelRdt(schemata=("a",))),
            *(IntelRdt(enable_cmt=True), IntelRdt(enable_monitoring=True)),
        ]
    ),
    additional_gids=st.sampled_from([(), (0, 1)]),
)
_annotations = st.sampled_from([{}, {"a": "b"}])
_specs = st.builds(
    Spec,
    kind=st.sampled_from(["vendor.com/class", "vendor.com/cla.ss", "v/c"]),
    devices=st.builds(Device, _names, _edits, _annotations).map(lambda device: (device,)),
    container_edits=_edits | st.just(ContainerEdits()),
    annotations=_annotations,
    version=st.sampled_from([*version.KNOWN_VERSIONS, "v0.5.0"]),
)


@given(_specs)
def test_code_and_schema_agree_on_what_each_version_may_use(spec: Spec) -> None:
    assert accepts(spec) == is_valid(spec)
