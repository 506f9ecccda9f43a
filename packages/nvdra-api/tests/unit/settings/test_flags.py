# SPDX-License-Identifier: Apache-2.0
"""The flags of a settings model, and the texts that a command line gives them."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Literal

import pytest
from nvdra_api.gates import FeatureGates
from nvdra_runtime.settings import flags
from nvdra_runtime.settings.flags import Flag, FlagEntry, ParsedCommandLine
from pydantic import AfterValidator, BaseModel, BeforeValidator, Field


class Settings(BaseModel):
    node_name: Annotated[str, Flag(group="Node", metavar="NAME")] = Field(description="The node.")
    driver_root: Annotated[str, Flag(aliases=("host-root",), env=("ROOT", "HOST_ROOT"))] = "/"
    adopt: bool = True
    verbosity: Annotated[int, Flag(name="v", group="Log")] = 0
    timeout_s: float | None = None
    config: Annotated[str, Flag(env=())] = ""
    gates: FeatureGates = Field(default_factory=FeatureGates)


class Younger(Settings):
    left_out: ClassVar[Mapping[str, str]] = {"--old": "see --new", "-x": "see -y"}


TABLE = flags.flag_table(Settings)
BY_FIELD = {entry.field: entry for entry in TABLE}
NODE = BY_FIELD["node_name"]


def parsed(*argv: str) -> ParsedCommandLine:
    return flags.parse(TABLE, argv, flags.unsupported_flags(Younger))


def column(name: str) -> dict[str, Any]:
    return {entry.field: getattr(entry, name) for entry in TABLE}


def test_a_field_without_a_flag_of_its_own_has_the_defaults_of_its_name_and_type() -> None:
    assert BY_FIELD["adopt"] == FlagEntry(
        field="adopt",
        name="adopt",
        env=("ADOPT",),
        aliases=(),
        group="Node",
        metavar="true|false",
        help="",
        default=True,
        is_required=False,
        is_switch=True,
        is_gates=False,
        is_text=False,
    )


def test_what_a_field_says_of_its_flag_counts() -> None:
    assert (
        FlagEntry(
            field="node_name",
            name="node-name",
            env=("NODE_NAME",),
            aliases=(),
            group="Node",
            metavar="NAME",
            help="The node.",
            default=None,
            is_required=True,
            is_switch=False,
            is_gates=False,
            is_text=True,
        )
        == NODE
    )
    assert (BY_FIELD["driver_root"].env, BY_FIELD["driver_root"].aliases) == (
        ("ROOT", "HOST_ROOT"),
        ("host-root",),
    )
    assert BY_FIELD["config"].env == ()


def test_the_table_has_the_order_of_the_fields_and_a_group_lasts_until_the_next() -> None:
    assert column("group") == {
        "node_name": "Node",
        "driver_root": "Node",
        "adopt": "Node",
        "verbosity": "Log",
        "timeout_s": "Log",
        "config": "Log",
        "gates": "Log",
    }
    assert list(column("group")) == list(Settings.model_fields)


def test_the_placeholder_tells_the_type_also_of_an_optional_field() -> None:
    assert column("metavar") == {
        "node_name": "NAME",
        "driver_root": "TEXT",
        "adopt": "true|false",
        "verbosity": "NUMBER",
        "timeout_s": "NUMBER",
        "config": "TEXT",
        "gates": "NAME=true|false,…",
    }
    assert [name for name, is_gates in column("is_gates").items() if is_gates] == ["gates"]
    assert BY_FIELD["gates"].default == FeatureGates()


def test_one_letter_has_one_dash() -> None:
    assert (BY_FIELD["verbosity"].flag, NODE.flag) == ("-v", "--node-name")


@pytest.mark.parametrize("argv", [["--v", "4"], ["-v", "4"], ["--v=4"], ["-v=4"]], ids=" ".join)
def test_a_value_follows_its_flag_as_a_word_or_after_an_equals_sign(argv: list[str]) -> None:
    assert parsed(*argv) == ParsedCommandLine(values={"verbosity": ["4"]})


def test_values_are_kept_in_order_under_the_field_whatever_the_flag_was_called() -> None:
    line = parsed("--driver-root=/a", "--host-root", "/b", "--driver-root=/c=d", "--v=1")
    assert line == ParsedCommandLine(
        values={"driver_root": ["/a", "/b", "/c=d"], "verbosity": ["1"]}
    )


def test_a_switch_takes_no_word_as_its_value() -> None:
    assert parsed("--adopt", "--v=1").values == {"adopt": ["true"], "verbosity": ["1"]}
    assert parsed("--adopt", "false") == ParsedCommandLine(
        values={"adopt": ["true"]}, problems=["arguments not supported: [false]"]
    )
    assert parsed("--adopt=").values == {"adopt": [""]}


def test_the_word_after_a_flag_is_its_value_even_if_it_looks_like_a_flag() -> None:
    assert parsed("--v", "-1", "--node-name", "--help").values == {
        "verbosity": ["-1"],
        "node_name": ["--help"],
    }


@pytest.mark.parametrize("word", ["--help", "-help", "-h", "--h"])
def test_help_is_asked_for_in_four_ways(word: str) -> None:
    assert parsed("--v=1", word) == ParsedCommandLine(values={"verbosity": ["1"]}, wants_help=True)


def test_the_version_is_asked_for_beside_other_flags() -> None:
    assert parsed("-version") == ParsedCommandLine(wants_version=True)


def test_every_problem_of_a_command_line_is_told() -> None:
    line = parsed("--old", "1", "one", "--nod-name=a", "-", "--nothing-like-it", "-x=2", "--v")
    assert line == ParsedCommandLine(
        problems=[
            "--old: not supported: see --new",
            "--nod-name: there is no such flag; did you mean --node-name?",
            "--nothing-like-it: there is no such flag",
            "-x: not supported: see -y",
            "-v: the value is missing",
            "arguments not supported: [one -]",
        ]
    )


def test_a_model_that_leaves_nothing_out_refuses_nothing() -> None:
    assert flags.unsupported_flags(Settings) == {}
    assert flags.unsupported_flags(Younger) == Younger.left_out


@pytest.mark.parametrize(
    ("environ", "found"),
    [
        ({}, None),
        ({"HOST_ROOT": "/b", "DRIVER_ROOT": "/c"}, ("HOST_ROOT", "/b")),
        ({"HOST_ROOT": "/b", "ROOT": "/a"}, ("ROOT", "/a")),
        ({"HOST_ROOT": "/b", "ROOT": ""}, ("ROOT", "")),
    ],
)
def test_the_first_variable_that_is_set_counts(
    environ: dict[str, str], found: tuple[str, str] | None
) -> None:
    assert flags.find_variable(BY_FIELD["driver_root"], environ) == found


def test_an_empty_variable_of_a_number_is_as_good_as_none() -> None:
    assert flags.find_variable(BY_FIELD["verbosity"], {"V": ""}) is None
    assert flags.find_variable(BY_FIELD["verbosity"], {"V": "0"}) == ("V", "0")


def test_a_text_that_may_be_absent_or_that_a_validator_converts_is_no_plain_text() -> None:
    class Texts(BaseModel):
        checked: Annotated[str, AfterValidator(str.strip)] = ""
        converted: Annotated[str, BeforeValidator(str)] = ""
        optional: str | None = None
        number: int = 0

    assert {entry.field: entry.is_text for entry in flags.flag_table(Texts)} == {
        "checked": True,
        "converted": False,
        "optional": False,
        "number": False,
    }


def test_the_placeholder_of_a_field_with_choices_lists_them() -> None:
    class LogFormat(StrEnum):
        TEXT = "text"
        JSON = "json"

    class Choices(BaseModel):
        output: Literal["table", "json"] = "table"
        policy: Literal["", "Always", "Never"] = ""
        log_format: LogFormat = LogFormat.TEXT

    entries = flags.flag_table(Choices)
    assert [entry.metavar for entry in entries] == ["table|json", "Always|Never", "text|json"]
