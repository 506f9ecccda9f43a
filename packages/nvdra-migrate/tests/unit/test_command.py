"""The command, as a program."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from nvdra_migrate.command import run


def test_the_new_file_is_on_standard_output_and_the_rest_on_standard_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = tmp_path / "old.yaml"
    old.write_text("image: {tag: v1, pullPolicy: Always}\nlogVerbosity: '4'\n")
    assert run(["values", str(old)]) == 1
    out, err = capsys.readouterr()
    assert yaml.safe_load(out) == {"global": {"imagePullPolicy": "Always"}}
    assert err.splitlines() == [
        "NOT CARRIED",
        "  image.tag",
        "    why: it is a version of the reference driver",
        "    do:  leave it out: the chart's own version",
        "",
        "1 carried, 1 not needed, 1 not carried. --all lists every value.",
        "Before you install: push the images of nvdra, and set global.imageRegistry. "
        "No old value says where they are.",
    ]


def test_all_lists_every_value(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old = tmp_path / "old.yaml"
    old.write_text("image: {pullPolicy: Always}\nlogVerbosity: 4\nnameOverride: x\n")
    assert run(["values", "--all", str(old)]) == 0
    err = capsys.readouterr().err
    for line in ("CARRIED WITH A CHANGE", "    to:  global.imagePullPolicy", "NOT NEEDED"):
        assert line in err.splitlines()


def test_programs_get_the_same_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old = tmp_path / "old.yaml"
    old.write_text("image: {tag: v1}\nconsumableShares: 4\n")
    assert run(["values", "--json", str(old)]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["complete"] is False
    assert told["values"] == {"nvdra-gpu-plugin": {"kubeletPlugin": {"consumableShares": 4}}}
    assert [(each["path"], each["status"]) for each in told["outcomes"]] == [
        ("image.tag", "not carried"),
        ("consumableShares", "carried"),
    ]


ALIASES = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{number + 1}: &a{number + 1} [{', '.join([f'*a{number}'] * 10)}]\n" for number in range(9)
)


@pytest.mark.parametrize(
    "text",
    [
        "- a list\n",
        "a: [\n",
        "\x07",
        ALIASES,
        ALIASES.replace("[*", "{<<: [*").replace("]", "]}").replace("{<<: [x", "[x"),
        "a: &a [*a]\n",
        "a: " + "[" * 5000 + "]" * 5000,
        "a: " + "{b: " * 5000 + "}" * 5000,
        "a:\n" + "".join(f"{' ' * depth}- \n" for depth in range(200)),
        "a: " + "9" * 5000,
        "a: 0x" + "f" * 500_000,
        "a: 2026-13-45\n",
        'a: "\\ud800"\n',
        '"\\udfff": 1\n',
        "a: !!python/object/apply:os.system [ls]\n",
        "x" * (2 << 20),
    ],
)
def test_a_file_that_holds_no_values_is_an_error_of_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    old = tmp_path / "old.yaml"
    old.write_text(text)
    assert run(["values", str(old)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"error: {old}: ")
    assert err.count("\n") == 1


def test_what_json_does_not_have_is_a_text_in_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = tmp_path / "old.yaml"
    old.write_text("resourceApiVersion: 2026-01-01\nselector: {2026-01-02: {x}}\n")
    assert run(["values", "--json", str(old)]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["values"] == {"global": {"resourceApiVersion": "2026-01-01"}}


def test_a_variable_whose_name_is_no_text_is_carried_as_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = tmp_path / "old.yaml"
    old.write_text("kubeletPlugin: {containers: {gpus: {env: [{name: [a]}, {name: {b: c}}]}}}\n")
    assert run(["values", str(old)]) == 0
    place = yaml.safe_load(capsys.readouterr().out)["nvdra-gpu-plugin"]["kubeletPlugin"]
    assert place == {"containers": {"gpus": {"env": [{"name": ["a"]}, {"name": {"b": "c"}}]}}}


def test_a_missing_file_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["values", str(tmp_path / "x")]) == 2
    assert capsys.readouterr().err == f"error: {tmp_path / 'x'}: No such file or directory\n"


def test_it_runs_as_a_module_and_loads_no_framework() -> None:
    code = (
        "import sys; from nvdra_migrate.command import run; "
        "status = run(['values', '-']); "
        "heavy = {'grpc', 'kubernetes', 'aiohttp', 'nvdra_runtime'}; "
        "print(status, sorted(heavy & set(sys.modules)))"
    )
    argv = [sys.executable, "-c", code]
    done = subprocess.run(argv, input="{}", capture_output=True, text=True, check=True)
    assert done.stdout == "{}\n0 []\n"
    module = [sys.executable, "-m", "nvdra_migrate", "values", "--help"]
    help_page = subprocess.run(module, capture_output=True, text=True, check=True).stdout
    for word in ("examples:", "crds.install=always", "Exit status"):
        assert word in help_page
