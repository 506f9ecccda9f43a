# SPDX-License-Identifier: Apache-2.0
"""Flags, variables, defaults: which one counts, and what is said about a wrong one."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

import pytest
from nvdra_api.gates import Feature, FeatureGates
from nvdra_runtime.settings import loader
from nvdra_runtime.settings.loader import Flag, SettingsError
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field


def words(value: Any) -> Any:
    return tuple(value.replace(",", " ").split()) if isinstance(value, str) else value


class Settings(BaseModel):
    """Serves one node.

    More than that is not shown.
    """

    model_config = ConfigDict(frozen=True)

    node_name: Annotated[str, Flag(group="Node")] = Field(
        description="Name of this node.", min_length=1
    )
    nvidia_driver_root: Annotated[
        str,
        Flag(aliases=("host_driver-root",), env=("NVIDIA_DRIVER_ROOT", "HOST_DRIVER_ROOT")),
    ] = Field("/", description="Where the driver is, as the host sees it.")
    image_pull_secrets: Annotated[tuple[str, ...], BeforeValidator(words)] = ()
    kube_api_qps: Annotated[float, Flag(group="Kubernetes")] = Field(200.0, gt=0)
    kube_api_burst: int = 400
    verbosity: Annotated[int, Flag(name="v", group="Logging")] = 0
    adopt: bool = True
    feature_gates: Annotated[FeatureGates, Flag(group="Features")] = FeatureGates()


NODE = ["--node-name=a"]


def read(*argv: str, **environ: str) -> Any:
    return loader.load_or_raise(Settings, [*NODE, *argv], environ)


def wrong(*argv: str, **environ: str) -> Any:
    with pytest.raises(SettingsError) as caught:
        loader.load_or_raise(Settings, argv, environ)
    return caught.value.problems


def test_without_flags_and_variables_the_defaults_count() -> None:
    assert read() == Settings(node_name="a")


@pytest.mark.parametrize(
    "argv",
    [
        ["--kube-api-qps=5"],
        ["--kube-api-qps", "5"],
        ["-kube-api-qps=5"],
        ["-kube-api-qps", "5"],
        ["--kube-api-qps=7", "--kube-api-qps=5"],
    ],
)
def test_a_flag_is_written_as_in_every_kubernetes_component(argv: list[str]) -> None:
    assert read(*argv).kube_api_qps == 5.0


@pytest.mark.parametrize("argv", [["-v", "4"], ["-v=4"], ["--v=4"], ["--v", "4"]])
def test_verbosity_has_one_letter(argv: list[str]) -> None:
    assert read(*argv).verbosity == 4


def test_a_value_may_begin_with_a_dash() -> None:
    assert read("--kube-api-burst", "-1").kube_api_burst == -1


def test_a_switch_needs_no_value_and_takes_one() -> None:
    assert read("--adopt").adopt is True
    assert read("--adopt=false").adopt is False
    assert read(ADOPT="false").adopt is False


def test_a_flag_beats_a_variable_and_a_variable_beats_the_default() -> None:
    assert read(KUBE_API_QPS="5").kube_api_qps == 5.0
    assert read("--kube-api-qps=7", KUBE_API_QPS="5").kube_api_qps == 7.0


def test_an_older_name_and_an_older_variable_still_work() -> None:
    assert read("--host_driver-root=/a").nvidia_driver_root == "/a"
    assert read(HOST_DRIVER_ROOT="/b").nvidia_driver_root == "/b"
    assert read(HOST_DRIVER_ROOT="/b", NVIDIA_DRIVER_ROOT="/c").nvidia_driver_root == "/c"


def test_an_empty_variable_counts_for_a_plain_string_only() -> None:
    empty = read(NVIDIA_DRIVER_ROOT="", KUBE_API_QPS="", FEATURE_GATES="", ADOPT="", V="")
    assert empty == Settings(node_name="a", nvidia_driver_root="")


def test_a_text_becomes_what_its_field_is() -> None:
    assert read(IMAGE_PULL_SECRETS="a, b").image_pull_secrets == ("a", "b")


def test_gates_of_variable_and_flags_merge_one_by_one() -> None:
    gates = read(
        "--feature-gates=MPSSupport=false",
        "--feature-gates",
        "DynamicMIG=true,",
        FEATURE_GATES="MPSSupport=true,TimeSlicingSettings=true,",
    ).feature_gates
    features = (Feature.MPS, Feature.DYNAMIC_MIG, Feature.TIME_SLICING)
    assert [gates.is_enabled(feature) for feature in features] == [False, True, True]


def test_everything_wrong_is_told_at_once_with_flag_variable_and_value() -> None:
    assert wrong(
        "--kube-api-burst=ten",
        "--feature-gates=Nope=true",
        "--node-nam=x",
        "extra",
        "more",
        "--v",
        KUBE_API_QPS="-1",
        FEATURE_GATES="MPSSupport=maybe",
    ) == (
        "--node-nam: there is no such flag; did you mean --node-name?",
        "-v: the value is missing",
        "arguments not supported: [extra more]",
        'could not parse "MPSSupport=maybe" from environment variable "FEATURE_GATES" as value '
        "for flag feature-gates: invalid value of MPSSupport=maybe, err: strconv.ParseBool: "
        'parsing "maybe": invalid syntax',
        'invalid value "Nope=true" for flag --feature-gates: unrecognized feature gate: Nope',
        "--node-name (variable NODE_NAME) is required: Name of this node.",
        'variable KUBE_API_QPS (flag --kube-api-qps): "-1" is not valid: '
        "input should be greater than 0",
        '--kube-api-burst: "ten" is not valid: input should be a valid integer, '
        "unable to parse string as an integer",
    )


class Younger(Settings):
    """A component that reads less than an older one did."""

    left_out: ClassVar[Mapping[str, str]] = {
        "--healthcheck-port": "see --readyz",
        "-x": "see -y",
        "ALT_PROC": "see --proc-root",
    }


@pytest.mark.parametrize(
    "argv", [["--healthcheck-port=5"], ["--healthcheck-port", "5"], ["-healthcheck-port=5"]]
)
def test_a_flag_of_before_is_refused_with_what_to_use(argv: list[str]) -> None:
    with pytest.raises(SettingsError) as caught:
        loader.load_or_raise(Younger, [*argv, *NODE, "--v=2"], {})
    assert caught.value.problems == ("--healthcheck-port: not supported: see --readyz",)


def test_what_stands_behind_the_value_of_such_a_flag_is_read_as_ever() -> None:
    with pytest.raises(SettingsError) as caught:
        loader.load_or_raise(Younger, [*NODE, "-x", "--v=2", "extra", "-x", "1", "more"], {})
    assert caught.value.problems == (
        "-x: not supported: see -y",
        "-x: not supported: see -y",
        "arguments not supported: [extra more]",
    )


def test_a_variable_of_before_is_refused_where_it_would_have_mattered() -> None:
    with pytest.raises(SettingsError) as caught:
        loader.load_or_raise(Younger, NODE, {"ALT_PROC": "/p", "HEALTHCHECK_PORT": "5"})
    assert caught.value.problems == ("variable ALT_PROC: not supported: see --proc-root",)
    assert (
        loader.load_or_raise(Younger, NODE, {"ALT_PROC": "", "HEALTHCHECK_PORT": "5"}).node_name
        == "a"
    )


def test_gates_that_need_another_are_refused_before_anything_starts() -> None:
    assert wrong(*NODE, "--feature-gates=IMEXDaemonsWithDNSNames=false") == (
        "feature gate validation failed: "
        "feature gate ComputeDomainCliques requires IMEXDaemonsWithDNSNames to also be enabled",
    )


def load(*argv: str) -> None:
    loader.load(Settings, program="nvdra-x", version="1.2.3", argv=argv, environ={})


def test_wrong_settings_end_the_process_with_one_line_each(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as caught:
        load("--kube-api-burst=ten")
    assert caught.value.code == 1
    output = capsys.readouterr()
    assert output.out == ""
    lines = output.err.splitlines()
    assert [line.startswith("Error: ") for line in lines] == [True, True, False]
    assert lines[-1] == "nvdra-x --help describes every flag."


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        load("--version")
    assert caught.value.code == 0
    assert capsys.readouterr().out == "nvdra-x 1.2.3\n"


@pytest.mark.parametrize("flag", ["-h", "--help", "-help"])
def test_the_help_explains_every_flag_by_group(
    capsys: pytest.CaptureFixture[str], flag: str
) -> None:
    with pytest.raises(SystemExit) as caught:
        load(flag)
    assert caught.value.code == 0
    page = capsys.readouterr().out
    assert page.startswith("Usage: nvdra-x [flags]\n\nServes one node.\n\n")
    assert "More than that" not in page
    parts = [
        "Node:\n  --node-name TEXT\n      Name of this node.\n      required; variable NODE_NAME\n",
        "      default /; variable NVIDIA_DRIVER_ROOT or HOST_DRIVER_ROOT; also --host_driver-root",
        "Kubernetes:\n  --kube-api-qps NUMBER\n      default 200.0; variable KUBE_API_QPS\n",
        "Logging:\n  -v NUMBER\n      default 0; variable V\n",
        "  --adopt[=true|false]\n      default true; variable ADOPT\n",
        "        MPSSupport=true|false (ALPHA - default=false)\n",
    ]
    assert [part for part in parts if part not in page] == []
    assert max(map(len, page.splitlines())) <= 100


def test_the_effective_settings_are_plain_values_by_flag_name() -> None:
    shown = loader.as_flags(read("-v=4", "--feature-gates=DynamicMIG=true"))
    assert shown["node-name"] == "a"
    assert shown["v"] == 4
    assert shown["image-pull-secrets"] == []
    assert shown["feature-gates"]["DynamicMIG"] is True
    assert shown["feature-gates"]["AllAlpha"] is False


def test_variables_of_other_software_are_handed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "x")
    assert loader.environment_variables("OTEL_")["OTEL_SERVICE_NAME"] == "x"
    assert all(name.startswith("OTEL_") for name in loader.environment_variables("OTEL_"))
