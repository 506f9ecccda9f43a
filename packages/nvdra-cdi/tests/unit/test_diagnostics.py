# SPDX-License-Identifier: Apache-2.0
"""Whatever lies in a spec file: a problem with its place, in bounded time, never a traceback."""

import codecs
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from nvdra_cdi import codec, diagnostics, files, validation
from nvdra_cdi.encoding import yaml_nodes
from nvdra_cdi.errors import CDIError, CodecError, FileError, ValidationError
from nvdra_cdi.model import ContainerEdits, Device, IntelRdt, Spec

GOOD = b"""\
cdiVersion: "0.7.0"
kind: vendor.com/class
annotations: {team: &team "a"}
devices:
  - name: dev-0
    annotations: {owner: *team}
    containerEdits: &edits
      env: ["A=b", 'C=\\u0064']
      deviceNodes:
        - {path: /dev/a, hostPath: /dev/b, type: c, major: 0x1, minor: 3, fileMode: 0666, uid: 0}
      hooks: [{hookName: prestart, path: /bin/x, args: [x, "1"], timeout: 5}]
      mounts: [{hostPath: /a, containerPath: /b, options: [ro, bind]}]
      additionalGids: [1, 0o17]
  - name: dev-1
    containerEdits:
      <<: *edits
      intelRdt: {closID: "/", enableCMT: yes}
"""


def found(data: bytes) -> list[tuple[str, int]]:
    return [(problem.path, problem.line) for problem in diagnostics.problems(data)]


def test_the_document_that_the_mutations_start_from_is_good() -> None:
    assert diagnostics.problems(GOOD) == ()
    assert codec.loads(GOOD).devices[1].container_edits.intel_rdt == IntelRdt("/", enable_cmt=True)


@pytest.mark.parametrize(
    ("data", "place"),
    [
        (b"kind: a/b\ndevices: [\n", ("", 2)),
        (b"kind: a/b\n\tdevices: []\n", ("", 2)),
        (b'{"kind": "a/b",\n"devices": [}', ("", 2)),
        (b"kind: a/b\n\n# \xff\n", ("", 3)),
        (b"\x7fELF\x02\x01", ("", 1)),
        (codecs.BOM_UTF16_LE + b"k", ("", 1)),
        (b"a\0b", ("", 1)),
        (b"kind: a/b\nkind: a/b\n", ("kind", 2)),
        (b"kind: a/b\ndevices:\n- nmae: x\n", ("devices[0].nmae", 3)),
        (b"kind: a/b\ndevices:\n- name: [x]\n", ("devices[0].name", 3)),
        (b"kind: a/b\ndevices: 5\n", ("devices", 2)),
        (b"kind: *nobody\n", ("", 1)),
        (b"kind: !!python/object/apply:os.system [x]\n", ("kind", 1)),
        (b"", ("", 0)),
        (b"- a\n", ("the document", 1)),
        (b"kind: a/b\ndevices:\n- name: &n\n    - *n\n", ("devices[0].name", 3)),
        (b"containerEdits: &e\n  <<: *e\n", ("containerEdits", 1)),
        (b"containerEdits:\n  <<: [1]\n", ("containerEdits", 2)),
        (b"containerEdits:\n  <<: {}\n  <<: {}\n", ("containerEdits.<<", 3)),
        (b"containerEdits:\n  ? [env]\n  : 1\n", ("containerEdits", 2)),
        (b"containerEdits:\n  additionalGids: [\n" + b"9" * 5000 + b"]", None),
    ],
)
def test_a_malformed_document_has_one_problem_at_its_line(
    data: bytes, place: tuple[str, int] | None
) -> None:
    problems = found(data)
    assert len(problems) == 1
    assert place is None or problems == [place]
    assert all(problem.remedy for problem in diagnostics.problems(data))
    with pytest.raises(CodecError):
        codec.loads(data)


def test_everything_that_has_not_the_shape_of_a_document_is_told_at_once() -> None:
    data = b"""\
kind: [x]
devices:
  - nmae: a
    containerEdits:
      env: A=b
      deviceNodes:
        - {path: /dev/a, major: "1", major: 2}
        - ~
        - {path: {}}
  - name: b
    annotations: {a: 1, b: []}
    containerEdits:
      additionalGids: [-1, 2, x]
      intelRdt: {enableCMT: 1}
  - c
containerEdits:
  <<: [1, {mounts: 1}]
cdiVersion: 1.1.0
"""
    expected = [
        ("kind", 1),
        ("devices[0].nmae", 3),
        ("devices[0].containerEdits.env", 5),
        ("devices[0].containerEdits.deviceNodes[0].major", 7),
        ("devices[0].containerEdits.deviceNodes[0].major", 7),
        ("devices[0].containerEdits.deviceNodes[1]", 8),
        ("devices[0].containerEdits.deviceNodes[2].path", 9),
        ("devices[1].annotations.b", 11),
        ("devices[1].containerEdits.additionalGids[0]", 13),
        ("devices[1].containerEdits.additionalGids[2]", 13),
        ("devices[1].containerEdits.intelRdt.enableCMT", 14),
        ("devices[1].containerEdits.intelRdt.enableCMT", 14),
        ("devices[2]", 15),
        ("containerEdits", 17),
        ("containerEdits.mounts", 17),
    ]
    assert found(data) == expected
    with pytest.raises(CodecError) as caught:
        codec.loads(data)
    assert [(problem.path, problem.line) for problem in caught.value.problems] == expected


def test_a_thousand_problems_are_enough() -> None:
    problems = diagnostics.problems(b"kind: a/b\ndevices: [" + b"1, " * 50_000 + b"]")
    assert len(problems) == 1000


def test_a_broken_rule_has_the_line_of_what_breaks_it() -> None:
    data = GOOD.replace(b'"A=b"', b"A\n        ").replace(b"name: dev-1", b"name: dev-0")
    assert found(data) == [
        ("devices[0].containerEdits.env[0]", 8),
        ("devices[1].containerEdits.env[0]", 17),  # merged: the line of what it was merged into
        ("devices[1].name", 15),
    ]


def test_a_missing_field_has_the_line_of_what_it_is_missing_from() -> None:
    assert found(
        b"kind: v.com/class\ncdiVersion: 0.3.0\n\ndevices:\n  - containerEdits: {env: [A=b]}\n"
    ) == [("devices[0].name", 5)]


def test_every_problem_of_a_rule_says_what_to_do() -> None:
    data = b"""{kind: a, devices: [{name: -, containerEdits: {env: [x], deviceNodes: [
      {path: a, type: x, permissions: q, major: -1}, {path: "", type: p, major: 1}], hooks: [
      {hookName: a, path: x, timeout: -1}], mounts: [{hostPath: "", containerPath: a}],
      intelRdt: {closID: a/b}, netDevices: [{name: a}, {name: a}]}}, {name: -}]}"""
    problems = diagnostics.problems(data)
    assert len(problems) > 15
    assert [problem for problem in problems if not problem.remedy] == []


def test_a_second_document_is_named_as_one_that_nobody_reads() -> None:
    (problem,) = diagnostics.problems(GOOD + b"---\nkind: x\n")
    assert (problem.line, problem.is_warning) == (18, True)


def test_a_broken_second_document_does_not_harm_the_first() -> None:
    (problem,) = diagnostics.problems(GOOD + b"---\n[")
    assert problem.is_warning
    assert codec.loads(GOOD + b"---\n[") == codec.loads(GOOD)


def test_a_pyyaml_without_libyaml_refuses_the_same() -> None:
    program = """if True:
        import sys
        sys.modules["yaml._yaml"] = None  # as where PyYAML was built without libyaml
        from nvdra_cdi import diagnostics
        import yaml
        assert not yaml.__with_libyaml__
        for data in sys.argv[1:]:
            print(diagnostics.problems(data.encode())[0].line)
    """
    documents = ('kind: a/b\n"\\U00110000": 1', 'annotations:\n  a: "\\ud800"', "kind: [")
    command = (sys.executable, "-c", program, *documents)
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0", "2", "1"]


@pytest.mark.parametrize("bom", [codecs.BOM_UTF8, b""])
def test_a_byte_order_mark_is_no_part_of_the_document(bom: bytes) -> None:
    assert codec.loads(bom + b"kind: a/b") == Spec("a/b", ())


def test_utf_16_with_its_mark_is_read_as_the_reference_does() -> None:
    data = codecs.BOM_UTF16_LE + "kind: a/b".encode("utf-16-le")
    assert codec.loads(data) == Spec("a/b", ())


@pytest.mark.parametrize(
    "data",
    [
        b"[" * 1_000_000,
        b"{a: " * 1_000_000,
        b"- " * 1_000_000,
        b"? " * 1_000_000,
        b"[" + b"a," * 2_000_000,
        b"a: &a [x,x,x,x,x,x,x,x,x]\n"
        + b"".join(
            b"%c: &%c [%s]\n" % (name, name, b",".join([b"*%c" % (name - 1)] * 9))
            for name in range(ord("b"), ord("l"))
        ),
        b"devices: &d [{name: a, containerEdits: &e {env: &v ["
        + b"A=b," * 20_000
        + b"]}}".join(b",{name: a, containerEdits: *e}" for _ in range(10_000))
        + b"]",
        b"env: '" + b"x" * (10 << 20),
        b"#" * (10 << 20),
        b"%YAML 9.9\n" * 1000,
        b"!" * 100_000,
        b"&a " * 100_000,
        b"'" + b"\n" * 1_000_000,
        b'"\\' * 500_000,
        b"|9\n" + b" " * 1_000_000,
    ],
    ids=lambda data: repr(data[:12]),
)
def test_a_hostile_document_is_refused_in_bounded_time(data: bytes) -> None:
    began = time.process_time()
    problems = diagnostics.problems(data)
    assert 0 < len(problems) < 20
    assert all(len(str(problem)) < 1000 for problem in problems)
    assert time.process_time() - began < 5


def test_too_many_values_are_refused_before_they_are_put_together() -> None:
    (problem,) = diagnostics.problems(b"containerEdits: {env: [" + b"A=b," * 200_000 + b"]}")
    assert problem.message == "more than 100000 values"


def test_a_message_stays_short_and_on_its_line_whatever_the_value() -> None:
    data = b'{cdiVersion: 0.3.0, kind: "a\\nb\\e[31m%s/c"}' % (b"x" * 100_000)
    for problem in diagnostics.problems(data):
        assert len(str(problem)) < 1000
        assert str(problem).isprintable()


def check(data: bytes) -> None:
    """Only the package's own errors, and both ways of asking agree."""
    problems = diagnostics.problems(data)
    try:
        spec = codec.loads(data)
        validation.check(spec)
    except CDIError:
        assert problems
    else:
        assert all("second document" in problem.message for problem in problems)
        assert codec.loads(codec.dumps(spec)) == spec
    str(problems)


@given(st.binary(max_size=200))
@example(b'kind: "\\ud800"')
@example(b'{"kind": "\\ud83d\\ude00"}')
@example(b"kind: \xef\xbf\xbe")
def test_arbitrary_bytes_raise_nothing_but_our_errors(data: bytes) -> None:
    check(data)


@given(st.text(alphabet="abkind:devices-[]{}*&!|>'\"%@`#?,<\n \t0=~\\", max_size=60))
def test_arbitrary_yaml_raises_nothing_but_our_errors(text: str) -> None:
    check(text.encode())


_SNIPPETS = st.sampled_from(
    (
        *(
            b"~",
            b"null",
            b"[]",
            b"{}",
            b"<<: ",
            b"*edits",
            b"&edits ",
            b"- ",
            b"? ",
            b"---\n",
            b"|",
        ),
        *(b"\0", b"\xff", b"\xed\xa0\x80", b'"\\ud800"', b"!!binary ", b"  ", b"yes", b"'", b"%"),
        *(b"1e9", b"0x", b"9" * 70, b"-1", b"99999999999999999999"),
    )
)


@given(
    st.lists(
        st.tuples(st.integers(0, len(GOOD)), st.integers(0, 12), _SNIPPETS | st.binary(max_size=4)),
        min_size=1,
        max_size=4,
    )
)
def test_a_mutated_document_raises_nothing_but_our_errors(
    mutations: list[tuple[int, int, bytes]],
) -> None:
    data = GOOD
    for place, length, replacement in mutations:
        data = data[:place] + replacement + data[place + length :]
    check(data)


def link_to_itself(path: Path) -> None:
    path.symlink_to(path)


@pytest.mark.parametrize(
    "make",
    [
        Path.mkdir,
        link_to_itself,
        lambda path: path.symlink_to("/nowhere"),
        lambda path: path.symlink_to("/proc/self/mem"),  # regular, and reading it fails
        lambda path: path.symlink_to("/dev/zero"),
        lambda path: path.symlink_to("/"),
        os.mkfifo,
    ],
    ids=["directory", "loop", "dangling", "unreadable", "device", "root", "fifo"],
)
def test_what_is_no_readable_file_is_named_and_never_waited_for(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    make(tmp_path / "x.yaml")
    with pytest.raises(FileError, match=r"x\.yaml"):
        files.read(tmp_path / "x.yaml")


def test_a_files_error_has_file_and_line(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_bytes(b"cdiVersion: 0.3.0\nkind: a/b\ndevices: []\n")
    with pytest.raises(ValidationError, match=r"x\.yaml: devices: .* \(line 3\)") as caught:
        files.read(path)
    assert caught.value.problems[0].line == 3
    path.write_bytes(b"cdiVersion: 0.3.0\nkind: a/b\ndevices: {}\n")
    with pytest.raises(CodecError, match=r"x\.yaml: devices: .* \(line 3\)"):
        files.read(path)


def test_an_anchor_may_stand_in_many_places_as_long_as_it_stays_small() -> None:
    devices = ", ".join(f"{{name: d{n}, containerEdits: *e}}" for n in range(1000))
    data = f"containerEdits: &e {{env: [A=b]}}\ndevices: [{devices}]"
    assert codec.loads(data.encode()).devices[999] == Device("d999", ContainerEdits(env=("A=b",)))


def test_merged_mappings_give_way_to_what_is_written_and_to_earlier_ones() -> None:
    data = (
        b"containerEdits: {<<: [{env: [A=1], additionalGids: [1]}, {env: [A=2], mounts: []}],"
        b" additionalGids: [2]}"
    )
    assert codec.loads(data).container_edits == ContainerEdits(("A=1",), additional_gids=(2,))


def test_lines_are_known_for_everything_in_a_document() -> None:
    lines = yaml_nodes.line_numbers(GOOD)
    assert lines["devices[0].containerEdits.deviceNodes[0].fileMode"] == 10
    assert lines["devices[1]"] == 14
    assert lines[""] == 1
