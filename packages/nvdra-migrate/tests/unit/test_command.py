# SPDX-License-Identifier: Apache-2.0
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
    ("text", "reason"),
    [
        ("- a list\n", "a map, not list"),
        ("a list\n", "a map, not str"),
        ("a: [\n", "while parsing"),
        ("\x07", "control characters are not allowed"),
        (ALIASES, "more than 30000 values"),
        (
            ALIASES.replace("[*", "{<<: [*").replace("]", "]}").replace("{<<: [x", "[x"),
            "while parsing",
        ),
        ("a: &a [*a]\n", "stands for nothing complete"),
        ("a: " + "[" * 5000 + "]" * 5000, "more than 64 levels"),
        ("a: " + "{b: " * 5000 + "}" * 5000, "more than 64 levels"),
        ("a:\n" + "".join(f"{' ' * depth}- \n" for depth in range(200)), "more than 64 levels"),
        ("a: " + "9" * 5000, "more than 4300 digits"),
        ("a: 0x" + "f" * 500_000, "more than 4300 digits"),
        ('a: "\\ud800"\n', "invalid Unicode"),
        ("a: !!python/object/apply:os.system [ls]\n", "has no meaning"),
        ("x" * (2 << 20), "more than 1048576 bytes"),
        ("apiVersion: v1\nkind: Secret\n", "no values of the chart"),
    ],
)
def test_a_file_that_holds_no_values_is_an_error_of_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, reason: str
) -> None:
    old = tmp_path / "old.yaml"
    old.write_text(text)
    for more in ((), ("--json",)):
        assert run(["values", *more, str(old)]) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert err.startswith(f"error: {old}: ")
        assert reason in err
        assert err.count("\n") == 1


def test_a_file_that_is_no_text_is_an_error_of_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = tmp_path / "old.yaml"
    old.write_bytes(b"\x00\xff\x00")
    assert run(["values", str(old)]) == 2
    assert "codec can't decode" in capsys.readouterr().err


RELEASE = """\
apiVersion: helm.toolkit.fluxcd.io/v2
kind: HelmRelease
metadata: {name: NAME, namespace: gpu}
spec:
  chart: {spec: {chart: nvidia-dra-driver-gpu}}
  values: {logVerbosity: 6}
"""


def test_the_part_that_was_read_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = tmp_path / "release.yaml"
    old.write_text(RELEASE)
    assert run(["values", str(old)]) == 0
    out, err = capsys.readouterr()
    assert yaml.safe_load(out) == {"global": {"logVerbosity": 6}}
    assert err.startswith(f"Read HelmRelease/gpu/NAME:spec.values of {old}\n\n1 carried")
    assert run(["values", "--json", str(old)]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["sources"] == ["HelmRelease/gpu/NAME:spec.values"]
    assert err == ""


def test_of_several_parts_one_is_chosen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old = tmp_path / "releases.yaml"
    old.write_text(RELEASE + "---\n" + RELEASE.replace("NAME", "my dra").replace("6", "7"))
    assert run(["values", str(old)]) == 2
    assert capsys.readouterr().err.splitlines() == [
        f"error: {old}: 2 parts of it have values of the chart: choose one with --at",
        "  --at HelmRelease/gpu/NAME:spec.values",
        "  --at 'HelmRelease/gpu/my dra:spec.values'",
    ]
    assert run(["values", "--at", "HelmRelease/gpu/my dra:spec.values", str(old)]) == 0
    assert yaml.safe_load(capsys.readouterr().out) == {"global": {"logVerbosity": 7}}


def test_files_are_joined_before_defaults_are_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    below, above = tmp_path / "below.yaml", tmp_path / "above.yaml"
    below.write_text("{logVerbosity: 7, image: {pullPolicy: Always}}")
    above.write_text(RELEASE.replace("6", "4"))  # the reference's default
    assert run(["values", "--at", "HelmRelease/gpu/NAME:spec.values", str(below), str(above)]) == 0
    out, err = capsys.readouterr()
    assert yaml.safe_load(out) == {"global": {"imagePullPolicy": "Always"}}
    assert "1 carried, 1 not needed" in err
    assert run(["values", str(above), str(below)]) == 0
    assert yaml.safe_load(capsys.readouterr().out)["global"]["logVerbosity"] == 7


def test_dates_and_keys_are_texts_as_in_helm(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = tmp_path / "old.yaml"
    old.write_text(
        "resourceApiVersion: 2026-13-01\n"
        "kubeletPlugin: {podAnnotations: {at: 2026-08-01T10:00:00Z, 1: 1:30}}\n"
    )
    annotations = {"at": "2026-08-01T10:00:00Z", "1": "1:30"}
    values = {
        "global": {"resourceApiVersion": "2026-13-01"},
        **{
            plugin: {"kubeletPlugin": {"podAnnotations": annotations}}
            for plugin in ("nvdra-gpu-plugin", "nvdra-cd-plugin")
        },
    }
    assert run(["values", "--json", str(old)]) == 0
    assert json.loads(capsys.readouterr().out)["values"] == values
    assert run(["values", str(old)]) == 0
    out = capsys.readouterr().out
    assert yaml.safe_load(out) == values
    assert "&" not in out


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
    for word in ("examples:", "--at PLACE", "crds.install=always", "Exit status"):
        assert word in help_page
