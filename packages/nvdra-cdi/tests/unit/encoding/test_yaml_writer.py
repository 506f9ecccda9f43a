# SPDX-License-Identifier: Apache-2.0
"""Documents to bytes: golden files, and round trips of anything the model can hold."""

import json
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from nvdra_cdi import codec
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

EVERYTHING = Spec(
    kind="vendor.com/class",
    annotations={"b": "2", "a": "1 # one"},
    devices=(
        Device(
            "0",
            ContainerEdits(
                env=("A=b c", "B="),
                device_nodes=(
                    DeviceNode("/dev/a", "/host/a", "c", 1, 2, 0, "rwm", 0, 0),
                    DeviceNode("/dev/b"),
                ),
                net_devices=(NetDevice("eth0", "net0"),),
                hooks=(Hook("poststop", "/bin/x", ("x", "--y", "", "yes"), ("C=d",), 0),),
                mounts=(Mount("/a", "/b", ("ro", "bind"), "bind"),),
                intel_rdt=IntelRdt("/", "L3:0=f", "MB:0=100", ("L3:0=f",), enable_monitoring=True),
                additional_gids=(0, 44),
            ),
            {"key": 'a "quoted"\nline \\ with \t, \u2028 and 🙂'},
        ),
        Device("a", ContainerEdits(intel_rdt=IntelRdt())),
    ),
    container_edits=ContainerEdits(env=("X=y",)),
    version="1.1.0",
)


@pytest.mark.parametrize("fmt", ["yaml", "json"])
def test_every_field_is_written_as_in_the_golden_file(golden: Path, fmt: codec.Format) -> None:
    assert codec.dumps(EVERYTHING, fmt) == (golden / f"everything.{fmt}").read_bytes()


@pytest.mark.parametrize("fmt", ["yaml", "json"])
def test_every_field_is_read_back_from_the_golden_file(golden: Path, fmt: codec.Format) -> None:
    assert codec.loads((golden / f"everything.{fmt}").read_bytes()) == EVERYTHING


@pytest.mark.parametrize(
    "text",
    [
        *("0", "00", "1_0", "0x1F", "0B1", "0o17", "1.0", "1.", ".5", "1e3", "-1", "+1", "0:1"),
        *("12:30:45", "yes", "Y", "n", "on", "OFF", "true", "null", "~", "", ".inf", ".nan"),
        *("2001-01-01", "2001-1-1 1:2:3", "=", "<<", "---", "...", "- a", "a: b", "a #b", "a:"),
        *(" a", "a ", "!a", "&a", "*a", "@a", "`a", "%a", "{a", "[a", "|", ">", "?", "'", '"'),
    ],
)
def test_a_string_that_yaml_could_take_for_something_else_is_quoted(text: str) -> None:
    written = codec.dumps(Spec(text, ())).decode()
    assert written == f"---\nkind: {json.dumps(text)}\n" if text else written == "---\n{}\n"


@pytest.mark.parametrize(
    "text", ["/dev/nvidia0", "--link", "-x", "a::b", "nvidia.com/gpu", "A=b", "0.7.0", "../a"]
)
def test_the_strings_of_every_spec_stay_plain(text: str) -> None:
    assert codec.dumps(Spec(text, ())).decode() == f"---\nkind: {text}\n"


_text = st.text(st.characters(exclude_categories=["Cs"]))
_texts = st.lists(_text, max_size=3).map(tuple)
_uint32 = st.integers(0, (1 << 32) - 1)
_int64 = st.integers(-(1 << 63), (1 << 63) - 1)
_maps = st.dictionaries(_text, _text, max_size=2)
_edits = st.builds(
    ContainerEdits,
    env=_texts,
    device_nodes=st.lists(
        st.builds(
            DeviceNode,
            path=_text,
            host_path=_text,
            type=_text,
            major=_int64,
            minor=_int64,
            file_mode=st.none() | _uint32,
            permissions=_text,
            uid=st.none() | _uint32,
            gid=st.none() | _uint32,
        ),
        max_size=2,
    ).map(tuple),
    net_devices=st.lists(st.builds(NetDevice, _text, _text), max_size=1).map(tuple),
    hooks=st.lists(
        st.builds(Hook, _text, _text, _texts, _texts, st.none() | _int64), max_size=2
    ).map(tuple),
    mounts=st.lists(st.builds(Mount, _text, _text, _texts, _text), max_size=2).map(tuple),
    intel_rdt=st.none()
    | st.builds(
        IntelRdt,
        clos_id=_text,
        # An empty list is not written, so it comes back as none.
        schemata=st.none() | st.lists(_text, min_size=1, max_size=2).map(tuple),
        enable_monitoring=st.booleans(),
    ),
    additional_gids=st.lists(_uint32, max_size=2).map(tuple),
)
_specs = st.builds(
    Spec,
    kind=_text,
    devices=st.lists(st.builds(Device, _text, _edits, _maps), max_size=2).map(tuple),
    container_edits=_edits,
    annotations=_maps,
    version=st.sampled_from(["0.7.0", "1.1.0", "nonsense"]),
)


@given(_specs, st.sampled_from(["yaml", "json"]))
def test_what_is_written_is_read_back(spec: Spec, fmt: codec.Format) -> None:
    assert codec.loads(codec.dumps(spec, fmt)) == spec


@given(_specs)
def test_both_formats_say_the_same_to_any_parser(spec: Spec) -> None:
    assert yaml.safe_load(codec.dumps(spec, "yaml")) == json.loads(codec.dumps(spec, "json"))


@given(_edits, _edits)
def test_edits_have_the_same_digest_exactly_when_they_are_equal(
    one: ContainerEdits, other: ContainerEdits
) -> None:
    assert (codec.digest(one) == codec.digest(other)) == (one == other)


@given(_edits, _edits, _edits)
def test_adding_edits_is_associative_and_nothing_is_neutral(
    one: ContainerEdits, two: ContainerEdits, three: ContainerEdits
) -> None:
    assert (one + two) + three == one + (two + three)
    assert one + ContainerEdits() == one == ContainerEdits() + one
