# SPDX-License-Identifier: Apache-2.0
"""The help page of a settings model, word for word."""

from typing import Annotated

from nvdra_api.gates import FeatureGates
from nvdra_runtime.settings import flags, help_page
from nvdra_runtime.settings.flags import Flag
from pydantic import BaseModel, Field


class Settings(BaseModel):
    node_name: Annotated[str, Flag(metavar="NAME")] = Field(description="Name of this node.")
    root: Annotated[str, Flag(group="Node", aliases=("host-root",), env=("ROOT", "OLD"))] = Field(
        "/", description="Where the driver is. " + "It has to be the same for every pod. " * 3
    )
    endpoint: str = ""
    adopt: bool = True
    timeout_s: float | None = None
    verbosity: Annotated[int, Flag(name="v", group="Log", env=())] = 0


PAGE = """\
Usage: nvdra-x [flags]

Serves one node.

A flag overrides its variable, which overrides the default. Feature gates are merged.

Flags:
  --node-name NAME
      Name of this node.
      required; variable NODE_NAME

Node:
  --root TEXT
      Where the driver is. It has to be the same for every pod. It has to be the same for every pod.
      It has to be the same for every pod.
      default /; variable ROOT or OLD; also --host-root
  --endpoint TEXT
      default empty; variable ENDPOINT
  --adopt[=true|false]
      default true; variable ADOPT
  --timeout-s NUMBER
      default empty; variable TIMEOUT_S

Log:
  -v NUMBER
      default 0

Other:
  -h, --help
  --version
"""


class Gates(BaseModel):
    feature_gates: FeatureGates = FeatureGates.parse("DynamicMIG=true")


def test_the_page_has_each_group_with_its_flags_and_their_facts() -> None:
    assert help_page.render("nvdra-x", "Serves one node.", flags.flag_table(Settings)) == PAGE


def test_only_the_first_paragraph_of_the_description_is_shown_in_lines_of_the_page() -> None:
    about = "Serves one node. " * 10 + "\n\n    More than that is not shown."
    page = help_page.render("nvdra-x", about, ())
    assert page.startswith("Usage: nvdra-x [flags]\n\nServes one node. Serves one node.")
    assert "More than that" not in page
    assert 90 < max(map(len, page.splitlines())) <= help_page.WIDTH
    assert page.count("Serves one node.") + page.count("Serves one\nnode.") == 10


def test_a_program_without_a_description_has_no_empty_paragraph() -> None:
    page = help_page.render("nvdra-x", "", ())
    assert page.startswith("Usage: nvdra-x [flags]\n\nA flag overrides its variable")


def test_the_epilogue_stands_at_the_end_as_it_is() -> None:
    epilogue = "\nExamples:\n" + "  nvdra-x " + "--v=4 " * 30 + "\n"
    page = help_page.render("nvdra-x", "", (), epilogue)
    assert page.endswith("  --version\n" + epilogue)


def test_gates_are_listed_one_by_one_below_those_that_are_set() -> None:
    page = help_page.render("nvdra-x", "", flags.flag_table(Gates))
    shown = page.split("  --feature-gates NAME=true|false,…\n")[1].split("\n\n")[0].splitlines()
    assert (
        shown[0] == "      default ContextualLogging=true,DynamicMIG=true; variable FEATURE_GATES"
    )
    assert shown[1:] == [f"        {line}" for line in FeatureGates.help_lines()]
    assert len(shown) > 10
