# SPDX-License-Identifier: Apache-2.0
"""Bytes to documents, by the type of each field (docs/reference/cdi.md §5)."""

import pytest
from nvdra_cdi import codec
from nvdra_cdi.errors import CodecError
from nvdra_cdi.model import ContainerEdits, Device, DeviceNode, IntelRdt, Spec


def node(text: str) -> DeviceNode:
    document = f"devices: [{{name: a, containerEdits: {{deviceNodes: [{{path: /x, {text}}}]}}}}]"
    return codec.loads(document.encode()).devices[0].container_edits.device_nodes[0]


@pytest.mark.parametrize(
    ("scalar", "value"),
    [("0", "0"), ("yes", "yes"), ("1.0", "1.0"), ("0x1b", "0x1b"), ('"null"', "null"), ("~", "")],
)
def test_a_string_field_takes_a_scalar_as_its_source_text(scalar: str, value: str) -> None:
    assert codec.loads(f"kind: {scalar}".encode()).kind == value


@pytest.mark.parametrize(
    ("scalar", "value"),
    [("438", 438), ("0666", 438), ("0o666", 438), ("0x1b6", 438), ("0", 0), ("null", None)],
)
def test_a_number_is_read_in_all_its_notations(scalar: str, value: int | None) -> None:
    assert node(f"fileMode: {scalar}").file_mode == value


@pytest.mark.parametrize(
    "scalar", ['"438"', "4.0", "1e3", "-1", "4294967296", "08", "x", "[1]", "1_0", "12:30"]
)
def test_what_is_no_whole_number_in_range_is_refused(scalar: str) -> None:
    with pytest.raises(CodecError, match=r"deviceNodes\[0\]\.fileMode"):
        node(f"fileMode: {scalar}")


def test_a_device_number_may_be_negative_in_the_document() -> None:
    assert node("major: -1").major == -1


@pytest.mark.parametrize(
    ("scalar", "value"), [("true", True), ("Yes", True), ("y", True), ("off", False), ("N", False)]
)
def test_a_flag_takes_the_words_of_yaml_1_1(scalar: str, value: bool) -> None:
    spec = codec.loads(f"containerEdits: {{intelRdt: {{enableMonitoring: {scalar}}}}}".encode())
    assert spec.container_edits.intel_rdt == IntelRdt(enable_monitoring=value)


@pytest.mark.parametrize("scalar", ["1", '"true"', "yEs", "{}"])
def test_what_is_no_flag_is_refused(scalar: str) -> None:
    with pytest.raises(CodecError, match="enableMonitoring"):
        codec.loads(f"containerEdits: {{intelRdt: {{enableMonitoring: {scalar}}}}}".encode())


@pytest.mark.parametrize(
    ("document", "place"),
    [
        ("foo: 1", "foo: unknown field"),
        ("devices: [{nam: a}]", "devices[0].nam: unknown field"),
        ("Kind: a/b", "Kind: unknown field"),
        ("kind: a/b\nkind: a/b", "kind: the field appears twice (line 2)"),
        ("devices: [null]", "devices[0]: an entry of a list must not be null"),
        ("containerEdits: {env: [~]}", "containerEdits.env[0]: an entry"),
        ("devices: {}", "devices: must be a list"),
        ("containerEdits: []", "containerEdits: must be a mapping"),
        ("[]", "the document: must be a mapping"),
        ("annotations: {a: [b]}", "annotations.a: must be a string"),
        ("kind: !!binary aGk=", "kind: must be a string"),
        ("kind: [", "not valid YAML or JSON"),
        ("kind: \xff", None),
    ],
)
def test_a_malformed_document_is_refused_with_the_place(document: str, place: str | None) -> None:
    data = document.encode("latin-1" if place is None else "utf-8")
    with pytest.raises(CodecError) as caught:
        codec.loads(data)
    assert (place or "not valid YAML or JSON") in str(caught.value)


@pytest.mark.parametrize("data", [b"", b"# only a comment\n", b"null", b"---\n", b"--- ~\n...\n"])
def test_an_empty_document_is_refused(data: bytes) -> None:
    with pytest.raises(CodecError, match="empty"):
        codec.loads(data)


def test_only_the_first_document_of_a_file_is_read() -> None:
    assert codec.loads(b"kind: a/b\n---\n[broken").kind == "a/b"


def test_json_is_read_by_the_same_parser() -> None:
    data = b'{"cdiVersion":"0.3.0",\n\t"kind":"a\\/b","containerEdits":{},\n\t"devices":[]}'
    assert codec.loads(data) == Spec("a/b", (), version="0.3.0")


def test_an_alias_stands_for_what_it_names() -> None:
    data = b"devices: [{name: a, containerEdits: &e {env: [A=b]}}, {name: b, containerEdits: *e}]"
    assert codec.loads(data).devices[1] == Device("b", ContainerEdits(env=("A=b",)))


def test_an_alias_stands_for_the_last_definition_before_it() -> None:
    data = b"annotations: {a: &x '1', b: *x, c: &x '2', d: *x}"
    assert codec.loads(data).annotations == {"a": "1", "b": "1", "c": "2", "d": "2"}


def test_aliases_that_unfold_to_too_much_are_refused() -> None:
    edits = ", ".join(f"A{i}=b" for i in range(1000))
    devices = ", ".join(["*d"] * 200)
    data = f"devices: [&d {{name: a, containerEdits: {{env: [{edits}]}}}}, {devices}]"
    with pytest.raises(CodecError, match="too large after its aliases are expanded"):
        codec.loads(data.encode())


def test_a_file_over_the_size_limit_is_refused() -> None:
    with pytest.raises(CodecError, match="exceeds"):
        codec.loads(b"#" * (4 << 20) + b"\nkind: a/b")


@pytest.mark.parametrize("bracket", [b"[", b"{", b"- "])
def test_a_file_that_nests_without_end_is_refused(bracket: bytes) -> None:
    with pytest.raises(CodecError, match="levels deep"):
        codec.loads(bracket * 50_000)


@pytest.mark.parametrize("version", ["0.7.0", "1.0.0"])
def test_cache_monitoring_of_old_survives_a_round_trip(version: str) -> None:
    spec = Spec(
        "a/b",
        (Device("a", ContainerEdits(intel_rdt=IntelRdt(enable_cmt=True, enable_mbm=True))),),
        version=version,
    )
    assert codec.loads(codec.dumps(spec)) == spec


@pytest.mark.parametrize("field", ["enableCMT: true", "enableMBM: false", "enableCMT: ~"])
def test_cache_monitoring_of_old_is_no_field_of_1_1_0(field: str) -> None:
    data = f"{{containerEdits: {{intelRdt: {{{field}}}}}, kind: a/b, cdiVersion: v1.1.0}}"
    with pytest.raises(CodecError, match=rf"{field.partition(':')[0]}: .*1\.0\.0 was the last"):
        codec.loads(data.encode())
