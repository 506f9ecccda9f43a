# SPDX-License-Identifier: Apache-2.0
"""`nvdra-cdi` for people and for programs: what it prints, where, and its exit status."""

import io
import json
import os
import re
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from nvdra_cdi import codec, files, json_schema, transforms
from nvdra_cdi.__about__ import __version__
from nvdra_cdi.cli import arguments
from nvdra_cdi.cli.main import main
from nvdra_cdi.model import ContainerEdits, Device, DeviceNode, Hook, Mount, Spec
from nvdra_cdi.nvidia.options import Feature, HookName
from nvdra_testing.hardware.driver_tree import DriverTree

SPEC = Spec(
    "vendor.com/class",
    (
        Device(
            "a",
            ContainerEdits(
                env=("A=1",),
                device_nodes=(DeviceNode("/dev/x", "/dev/null", file_mode=0o600),),
                mounts=(Mount("/h", "/c", ("ro", "bind")),),
                hooks=(Hook("prestart", "/bin/h", ("h", "--now")),),
                additional_gids=(44,),
            ),
            {"team": "blue"},
        ),
        Device("b", ContainerEdits(env=("B=1",))),
    ),
    ContainerEdits(env=("COMMON=1",)),
)
BROKEN = b"""\
cdiVersion: 0.3.0
kind: vendor.com/class
devices:
- name: c
  containerEdits: {env: [X]}
"""

Command = Callable[..., tuple[str | int | None, str, str]]


@pytest.fixture
def specs(tmp_path: Path) -> Path:
    files.write(SPEC, tmp_path / "cdi" / "good.yaml")
    return tmp_path / "cdi"


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs the command in this process; its exit status, standard output and standard error."""

    def run(*argv: str | Path, stdin: bytes = b"") -> tuple[str | int | None, str, str]:
        monkeypatch.setattr(sys, "argv", ["nvdra-cdi", *map(str, argv)])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        with pytest.raises(SystemExit) as caught:
            main()
        said = capsys.readouterr()
        return caught.value.code, said.out, said.err

    return run


def test_devices_are_listed_as_a_table(command: Command, specs: Path) -> None:
    assert command("list", "--spec-dir", specs) == (
        0,
        "NAME                SPEC\n"
        f"vendor.com/class=a  {specs}/good.yaml\n"
        f"vendor.com/class=b  {specs}/good.yaml\n",
        "",
    )


@pytest.mark.parametrize(
    ("what", "lines"),
    [
        ("devices", ["vendor.com/class=a", "vendor.com/class=b"]),
        ("vendors", ["vendor.com"]),
        ("classes", ["class"]),
    ],
)
def test_names_alone_come_one_a_line(
    command: Command, specs: Path, what: str, lines: list[str]
) -> None:
    assert command("list", what, "-o", "name", "--spec-dir", specs)[1].split() == lines


@pytest.mark.parametrize(("form", "load"), [("json", json.loads), ("yaml", yaml.safe_load)])
def test_programs_get_everything_with_what_is_broken(
    command: Command, specs: Path, form: str, load: Callable[[str], Any]
) -> None:
    (specs / "broken.yaml").write_bytes(BROKEN)
    code, out, err = command("list", "-o", form, "--spec-dir", specs)
    found = load(out)
    assert (code, err) == (0, "")
    assert found["devices"][0] == {
        "name": "vendor.com/class=a",
        "vendor": "vendor.com",
        "class": "class",
        "device": "a",
        "spec": f"{specs}/good.yaml",
        "priority": 0,
        "annotations": {"team": "blue"},
    }
    (error,) = found["errors"]
    assert (error["path"], error["line"]) == (f"{specs}/broken.yaml", 5)
    assert error["message"].startswith("devices[0].containerEdits.env[0]")


def test_people_are_warned_of_broken_specs_beside_the_list(command: Command, specs: Path) -> None:
    (specs / "broken.yaml").write_bytes(BROKEN)
    code, out, err = command("list", "specs", "--spec-dir", specs)
    assert (code, out.splitlines()[1].split()) == (
        0,
        [f"{specs}/good.yaml", "vendor.com/class", "0.7.0", "2"],
    )
    assert err.startswith(f"warning: {specs}/broken.yaml: ")


def test_an_empty_directory_is_said_to_be_one(command: Command, tmp_path: Path) -> None:
    code, out, err = command("list", "--spec-dir", tmp_path)
    assert (code, out) == (0, "")
    assert str(tmp_path) in err


def test_a_broken_spec_is_told_with_file_line_and_remedy(command: Command, specs: Path) -> None:
    (specs / "broken.yaml").write_bytes(BROKEN)
    assert command("validate", specs) == (
        1,
        f'{specs}/broken.yaml:5: error: devices[0].containerEdits.env[0] (device "c"): "X" is not'
        " NAME=value\n"
        "    put a name and = before the value\n"
        f"{specs}/good.yaml: valid, version 0.7.0\n"
        "2 files, 1 with errors\n",
        "",
    )


def test_a_warning_is_an_error_only_when_asked(command: Command, tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_bytes(BROKEN.replace(b"env: [X]", b"mounts: [{hostPath: a, containerPath: /b}]"))
    for strict, expected, severity in (((), 0, "warning"), (("--strict",), 1, "error")):
        code, out, _ = command("validate", *strict, path)
        told = f": {severity}: devices[0].containerEdits.mounts[0].hostPath"
        assert (code, told in out) == (expected, True)
        (file,) = json.loads(command("validate", "-o", "json", *strict, path)[1])["files"]
        assert [problem["severity"] for problem in file["problems"]] == [severity]


def test_a_higher_version_than_needed_is_remarked_on(command: Command, tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_bytes(BROKEN.replace(b"[X]", b"[X=]").replace(b"0.3.0", b"1.0.0"))
    assert (
        f"{path}: valid, version 1.0.0, 0.3.0 would be sufficient\n" in command("validate", path)[1]
    )


def test_programs_get_the_problems_of_every_file(command: Command, specs: Path) -> None:
    (specs / "broken.json").write_bytes(b"{")
    os.mkfifo(specs / "fifo.yaml")
    code, out, _ = command("validate", "--json", specs)
    found = {Path(each["path"]).name: each for each in json.loads(out)["files"]}
    assert code == 1
    assert found["good.yaml"] == {
        "path": f"{specs}/good.yaml",
        "valid": True,
        "version": "0.7.0",
        "minimumVersion": "0.7.0",
        "problems": [],
    }
    assert found["broken.json"]["problems"][0]["line"] == 1
    assert "not a regular file" in found["fifo.yaml"]["problems"][0]["message"]


def test_conflicts_between_the_specs_of_a_directory_are_errors(
    command: Command, specs: Path
) -> None:
    files.write(SPEC, specs / "same.yaml")
    code, out, _ = command("validate", specs)
    assert code == 1
    assert out.count('conflicting device "vendor.com/class=a"') == 2


def test_standard_input_is_validated(command: Command) -> None:
    code, out, _ = command("validate", "-", stdin=BROKEN)
    assert (code, out.startswith("standard input:5: error: ")) == (1, True)


@pytest.mark.parametrize("verb", [("list",), ("resolve", "x/y=z")])
def test_each_problem_of_a_broken_spec_has_its_own_line(
    command: Command, specs: Path, verb: tuple[str, ...]
) -> None:
    (specs / "broken.yaml").write_bytes(BROKEN.replace(b"[X]", b"A=b") + b"- d\n")
    err = command(*verb, "--spec-dir", specs)[2]
    assert [line for line in err.splitlines() if line.startswith("warning: ")] == [
        f"warning: {specs}/broken.yaml: devices[0].containerEdits.env: must be a list (line 5)",
        f"warning: {specs}/broken.yaml: devices[1]: must be a mapping (line 6)",
    ]
    errors = json.loads(command(*verb, "-o", "json", "--spec-dir", specs)[1])["errors"]
    assert [error["line"] for error in errors] == [5, 6]


def test_a_path_that_is_not_there_is_an_error(command: Command, tmp_path: Path) -> None:
    code, out, _ = command("validate", tmp_path / "missing.yaml")
    assert (code, "missing.yaml: error: cannot read" in out) == (1, True)


def test_devices_are_injected_into_what_comes_in(command: Command, specs: Path) -> None:
    argv = ("inject", "--spec-dir", specs, "vendor.com/class=b")
    code, out, err = command(*argv, stdin=b'{"x": 1.5, "process": {"env": ["B=0"]}}')
    assert (code, json.loads(out), err) == (
        0,
        {"x": 1.5, "process": {"env": ["B=1", "COMMON=1"]}},
        "",
    )


def test_a_file_is_changed_in_place_and_keeps_its_mode(
    command: Command, specs: Path, tmp_path: Path
) -> None:
    config = tmp_path / "config.json"
    config.write_text('{"k": "\\ud800 ü"}')
    config.chmod(0o600)
    argv = ("inject", "--spec-dir", specs, "--config", config, "--in-place", "vendor.com/class=b")
    assert command(*argv)[:2] == (0, "")
    found = json.loads(config.read_bytes())
    assert found == {"k": "\ud800 ü", "process": {"env": ["COMMON=1", "B=1"]}}
    assert stat.S_IMODE(config.stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["config.json"]


@pytest.mark.parametrize(
    "stdin",
    [b"", b"{", b"[]", b'{"a": NaN}', b'{"a": 1e999}', b"\xff", b"[" * 100_000, b'{"process": 1}'],
)
def test_what_is_no_configuration_is_refused(command: Command, specs: Path, stdin: bytes) -> None:
    code, out, err = command("inject", "--spec-dir", specs, "vendor.com/class=a", stdin=stdin)
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert err.startswith("error: cannot inject into standard input: ")


def test_a_refused_configuration_is_named(command: Command, specs: Path, tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    argv = ("inject", "--spec-dir", specs, "--config", config, "vendor.com/class=b")
    assert command(*argv)[2] == f"error: cannot read {config}: No such file or directory\n"
    for text, what in (
        ('{"process": {"env": 1}}', "not an OCI runtime specification: env is not a list"),
        ("[1]", "not an OCI runtime specification: it is not an object"),
    ):
        config.write_text(text)
        assert command(*argv)[2] == f"error: cannot inject into {config}: {what}\n"


def test_a_configuration_that_nests_too_deeply_to_write_is_refused(
    command: Command, specs: Path
) -> None:
    stdin = b'{"a":' + b"[" * 900 + b"]" * 900 + b"}"
    code, _, err = command("inject", "--spec-dir", specs, "vendor.com/class=b", stdin=stdin)
    assert (code, "nests too deeply" in err) in ((0, False), (1, True))


def test_a_pattern_injects_the_devices_that_it_matches(command: Command, specs: Path) -> None:
    argv = ("inject", "--spec-dir", specs)
    code, out, _ = command(*argv, "vendor.com/*=[ab]", "vendor.com/class=a", stdin=b"{}")
    assert (code, json.loads(out)["process"]["env"]) == (0, ["COMMON=1", "A=1", "B=1"])
    mounts = json.loads(out)["mounts"]
    assert [mount["destination"] for mount in mounts] == ["/c"]  # each device once
    code, out, err = command(*argv, "vendor.com/class=[^ab]", "*", stdin=b"{}")
    assert (code, out) == (1, "")
    assert err == (
        "error: vendor.com/class=[^ab]: no device matches this pattern\n"
        "error: *: no device matches this pattern\n"
    )


@pytest.mark.parametrize("verb", ["inject", "resolve"])
def test_every_unknown_name_is_told_with_its_reason(
    command: Command, specs: Path, verb: str
) -> None:
    files.write(SPEC, specs / "same.yaml")
    names = ("vendor.com/class=a", "vendor.com/class=z", "other.com/class=a", "nonsense")
    code, _, err = command(verb, "--spec-dir", specs, *names, stdin=b"{}")
    told = [line for line in err.splitlines() if line.startswith("error: ")]
    assert code == 1
    for line, reason in zip(
        told,
        ("conflicting device", "no valid spec", "no valid spec", "not of the form"),
        strict=True,
    ):
        assert reason in line
    assert "warning: " in err


def test_a_name_is_resolved_to_its_file_and_edits(command: Command, specs: Path) -> None:
    code, out, _ = command("resolve", "--spec-dir", specs, "vendor.com/class=a")
    assert code == 0
    assert (
        out
        == f"""\
vendor.com/class=a
  spec           {specs}/good.yaml, version 0.7.0
  annotation     team: blue
  edits of the spec, for all its devices:
    variable     COMMON=1
  edits of this device:
    variable     A=1
    device node  /dev/x rwm, mode 0600, on the host /dev/null
    mount        /h at /c (ro,bind)
    hook         prestart: /bin/h --now
    group        44
"""
    )


def test_programs_get_the_edits_as_the_document_has_them(command: Command, specs: Path) -> None:
    code, out, _ = command(
        "resolve", "-o", "json", "--spec-dir", specs, "vendor.com/class=b", "x/y=z"
    )
    found = json.loads(out)
    assert (code, found["unresolved"]) == (1, ["x/y=z"])
    (device,) = found["devices"]
    assert (device["specEdits"], device["deviceEdits"]) == ({"env": ["COMMON=1"]}, {"env": ["B=1"]})


def test_of_two_spec_directories_the_last_wins(
    command: Command, specs: Path, tmp_path: Path
) -> None:
    files.write(
        Spec(SPEC.kind, (Device("a", ContainerEdits(env=("A=2",))),)), tmp_path / "high" / "x.yaml"
    )
    dirs = ("--spec-dir", specs, "--spec-dir", tmp_path / "high")
    assert "A=2" in command("resolve", *dirs, "vendor.com/class=a")[1]


@pytest.mark.parametrize(
    "argv",
    [
        (),
        ("nonsense",),
        ("list", "nonsense"),
        ("inject",),
        ("inject", "--in-place", "a"),
        ("list", "-o", "xml"),
        ("generate", "--mode", "csv"),
        ("monitor", "--interval", "0"),
        ("monitor", "--interval", "nan"),
        ("transform", "driver", "--from=/a", "--to=/b"),
    ],
)
def test_wrong_arguments_end_with_status_2_and_a_reason(
    command: Command, argv: tuple[str, ...]
) -> None:
    code, out, err = command(*argv)
    assert (code, out, "error: " in err) == (2, "", True)


def test_what_generation_refuses_is_told_in_one_line(command: Command) -> None:
    code, out, err = command("generate", "--mode", "imex", "--device-id", "9" * 5000)
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert "is not an IMEX channel" in err
    code, _, err = command("generate", "--mode", "imex", "--disable-hook=x", "--driver-root=y")
    assert code == 2
    assert "--driver-root=y: must be an absolute path; --disable-hook=x: must be" in err


def test_comma_lists_and_variables_reach_generation(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NVIDIA_CTK_CDI_GENERATE_MODE", "imex")
    assert "'b' is not an IMEX channel" in command("generate", "--device-ids=channel0,b")[2]
    monkeypatch.setenv("NVIDIA_CTK_CDI_GENERATE_DEVICE_IDS", "channel0,c")
    assert "'c' is not an IMEX channel" in command("generate")[2]
    monkeypatch.setenv("NVIDIA_CTK_CDI_GENERATE_MODE", "x")
    code, _, err = command("generate")
    assert (code, err.startswith("error: NVIDIA_CTK_CDI_GENERATE_MODE=x: must be ")) == (2, True)
    assert command("list", "vendors")[0] == 0  # only `generate` has variables


def test_the_devices_of_other_drivers_have_modes(command: Command, tmp_path: Path) -> None:
    roots = (f"--driver-root={tmp_path}", f"--dev-root={tmp_path}", f"--proc-root={tmp_path}")
    for mode in ("gds", "gdrcopy", "mofed", "nvswitch"):
        code, out, err = command("generate", f"--mode={mode}", *roots)
        assert (code, out) == (1, "")
        assert f" for {mode} below {tmp_path}" in err
    assert "'all' is not a MIG capability" in command("generate", "--mode=mig-caps", *roots)[2]
    argv = ("generate", "--mode=mig-caps", "--device-id=config", *roots)
    assert "cannot have MIG devices" in command(*argv)[2]


def test_a_search_path_is_a_directory_of_this_machine_below_the_driver_root(
    command: Command, tree: DriverTree, tmp_path: Path
) -> None:
    tree.library("/driver/opt/lib/libcuda.so.570.1.2", "libcuda.so.1")
    root = tmp_path / "driver"
    argv = ("generate", "--mode=management", f"--driver-root={root}/", f"--dev-root={tmp_path}")
    inside = f"--library-search-path=/x,{root}/opt/lib"
    code, _, err = command(*argv, inside)
    assert (code, err) == (
        2,
        f"error: --library-search-path=/x: must be below --driver-root={root}\n",
    )
    found = command(*argv, f"--library-search-path={root}/opt/lib:{root}/y")[2]
    assert "no NVIDIA device node" in found  # the driver was found, which has no nodes here
    assert "no libcuda.so" in command(*argv, f"--library-search-path={root}/y")[2]


def test_help_teaches_with_examples_that_the_parser_takes(command: Command) -> None:
    code, out, _ = command("--help")
    assert code == 0
    names = [
        *("list", "validate", "inject", "generate", "resolve", "schema"),
        *("transform", "dirs", "monitor"),
    ]
    texts = [out, *(command(name, "--help")[1] for name in names)]
    shown = [
        re.split(" [<|>] ", line.split("  ", 3)[1])[0].split()[1:]
        for text in texts
        for line in text.splitlines()
        if line.startswith("  nvdra-cdi ")
    ]
    assert {example[0] for example in shown} == set(names)
    for example in shown:
        arguments.parser().parse_args(example)


def test_the_schema_is_printed_for_editors(command: Command) -> None:
    code, out, _ = command("schema")
    assert (code, json.loads(out)) == (0, json_schema.document())


def test_the_version_is_the_packages(command: Command) -> None:
    assert command("--version")[1] == f"nvdra-cdi {__version__}\n"


def test_a_reader_that_leaves_early_is_no_error_to_show(specs: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = (sys.executable, "-m", "nvdra_cdi", "list", "--spec-dir", str(specs))
    with os.fdopen(writer, "wb") as stdout:
        done = subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, check=False)
    assert (done.returncode, done.stderr) == (1, b"")


@pytest.mark.parametrize("argument", ["schema", "--help", "--version"])
def test_an_answer_that_cannot_be_written_is_one_line(argument: str) -> None:
    command = (sys.executable, "-E", "-m", "nvdra_cdi", argument)  # buffered, whoever runs tests
    with Path("/dev/full").open("wb") as stdout:
        done = subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, check=False)
    assert done.returncode == 1
    assert done.stderr == b"error: cannot write the output: No space left on device\n"


def test_the_help_of_generate_names_every_hook_and_feature(command: Command) -> None:
    words = command("generate", "--help")[1].replace(",", " ").replace(".", " ").split()
    assert {*HookName, *Feature} <= set(words)


def test_a_name_that_is_no_text_is_still_printed(specs: Path) -> None:
    name = os.fsdecode(b"\xff\x1b[31m.yaml")
    (specs / name).write_bytes(BROKEN)
    command = (sys.executable, "-m", "nvdra_cdi", "validate", "-o", "json", str(specs))
    done = subprocess.run(command, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (1, b"")
    assert {Path(each["path"]).name for each in json.loads(done.stdout)["files"]} == {
        name,
        "good.yaml",
    }


TRANSFORM = ("transform", "root", "--from", "/h", "--to", "/host/h")


def test_roots_are_changed_on_the_host_or_in_the_container(command: Command, specs: Path) -> None:
    document = (specs / "good.yaml").read_bytes()
    code, out, err = command(*TRANSFORM, stdin=document)
    assert (code, err) == (0, "")
    moved = transforms.reroot(codec.loads(document), "/h", "/host/h")
    assert codec.loads(out.encode()) == moved
    assert moved.devices[0].container_edits.mounts[0].host_path == "/host/h"
    argv = ("transform", "root", "--from=/c", "--to=/x", "--relative-to=container")
    out = command(*argv, stdin=document)[1]
    assert codec.loads(out.encode()) == transforms.reroot(
        codec.loads(document), "/c", "/x", "container"
    )


def test_a_transformed_spec_is_written_in_the_lowest_version_that_it_needs(
    command: Command, specs: Path, tmp_path: Path
) -> None:
    target = tmp_path / "moved.json"
    argv = (*TRANSFORM, "--input", specs / "good.yaml", "--output", target)
    assert command(*argv) == (0, "", f"{target}: /h is now /host/h\n")
    assert json.loads(target.read_bytes())["cdiVersion"] == "0.7.0"


def test_a_document_that_cannot_be_transformed_is_named_with_its_lines(
    command: Command, specs: Path
) -> None:
    (specs / "broken.yaml").write_bytes(BROKEN)
    argv = ("transform", "root", "--from=/a", "--to=/b")
    code, out, err = command(*argv, stdin=BROKEN)
    assert (code, out) == (1, "")
    assert err.startswith("error: standard input: devices[0].containerEdits.env[0]")
    assert "(line 5)" in err
    assert f"{specs}/broken.yaml: devices[0]" in command(*argv, "--input", specs / "broken.yaml")[2]
    assert command("transform", "root", "--from", "/a")[0] == 2


def test_directories_are_listed_with_their_priority_and_what_is_wrong(
    command: Command, specs: Path, tmp_path: Path
) -> None:
    (specs / "broken.yaml").write_bytes(BROKEN)
    dirs = ("--spec-dir", specs, "--spec-dir", tmp_path / "missing")
    code, out, _ = command("dirs", *dirs)
    assert (code, [line.split(maxsplit=3) for line in out.splitlines()]) == (
        0,
        [
            ["DIRECTORY", "PRIORITY", "SPECS", "STATE"],
            [str(specs), "0", "1", "1 file with errors"],
            [f"{tmp_path}/missing", "1", "0", "does not exist"],
        ],
    )
    found = json.loads(command("dirs", "-o", "json", *dirs)[1])["directories"]
    assert [(each["path"], each["priority"], each["specs"]) for each in found] == [
        (str(specs), 0, 1),
        (f"{tmp_path}/missing", 1, 0),
    ]
    assert [error["line"] for error in found[0]["errors"]] == [5]
    assert found[1]["exists"] is False
    assert command("dirs", "-o", "name", *dirs)[1] == f"{specs}\n{tmp_path}/missing\n"


def test_changes_are_printed_as_they_happen_until_interrupted(specs: Path) -> None:
    command = (sys.executable, "-m", "nvdra_cdi", "monitor", "--interval=0.05", "--spec-dir")
    with subprocess.Popen((*command, str(specs)), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None

        def next_line() -> list[str]:
            assert process.stdout is not None
            return process.stdout.readline().split(maxsplit=2)

        good, new = f"{specs}/good.yaml\n", f"{specs}/new.yaml\n"
        assert next_line() == ["added", "vendor.com/class=a", good]
        assert next_line() == ["added", "vendor.com/class=b", good]
        edits = ContainerEdits(env=("C=1",))
        files.write(Spec(SPEC.kind, (Device("c", edits),)), specs / "new.yaml")
        assert next_line() == ["added", "vendor.com/class=c", new]
        files.write(Spec(SPEC.kind, (Device("c", edits, {"a": "b"}),)), specs / "new.yaml")
        assert next_line() == ["changed", "vendor.com/class=c", new]
        (specs / "broken.yaml").write_bytes(BROKEN)
        assert next_line()[:2] == ["error", f"{specs}/broken.yaml"]
        files.remove(specs / "new.yaml")
        assert next_line() == ["removed", "vendor.com/class=c", new]
        process.send_signal(signal.SIGINT)
        assert process.wait() == 130
