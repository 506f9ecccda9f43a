# SPDX-License-Identifier: Apache-2.0
import argparse
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from nvdra_lab import cli
from nvdra_lab.__about__ import __version__
from nvdra_lab.machines.requirements import PACKAGES


@pytest.mark.parametrize(
    ("line", "command"),
    [
        ("exec node-1 -- ls -l", ["ls", "-l"]),
        ("exec --name x node-1 -- sh -c --", ["sh", "-c", "--"]),
        ("kubectl get pods -A", ["get", "pods", "-A"]),
        ("kubectl exec p -- ls -l", ["exec", "p", "--", "ls", "-l"]),
        ("kubectl --name x -n default get pods", ["-n", "default", "get", "pods"]),
        ("kubectl --name=x --help", ["--help"]),
        ("helm -n y list", ["-n", "y", "list"]),
        ("sim node-1 gpu 0 lose --now", ["gpu", "0", "lose", "--now"]),
        ("helm install --set a=b x y", ["install", "--set", "a=b", "x", "y"]),
    ],
)
def test_what_follows_is_passed_on_untouched(line: str, command: list[str]) -> None:
    assert cli.parse(line.split()).command == command


def test_a_lab_has_two_nodes_of_h100_unless_told_otherwise() -> None:
    options = cli.parse(["up"])
    assert (options.nodes, options.profile, options.kube) == (2, "dgx-h100", "1.36")
    assert (options.name, options.provider) == ("lab", "auto")


@pytest.mark.parametrize("line", ["image --name x load a.tar", "image load --name x a.tar"])
def test_the_name_of_the_lab_follows_image_or_its_verb(line: str) -> None:
    options = cli.parse(line.split())
    assert (options.name, options.archive) == ("x", ["a.tar"])
    assert cli.parse(["image", "load"]).name == "lab"


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        cli.parse(["--version"])
    assert left.value.code == 0
    assert capsys.readouterr().out == f"lab {__version__}\n"
    assert __version__ != "0.0.0"


def test_help_of_every_command_teaches_with_examples_that_the_parser_takes() -> None:
    pages = list(_pages(cli.parser()))
    assert len(pages) > 12
    for page in pages:
        shown = page.partition("examples:")[2].partition("profiles:")[0]
        lines = [re.split("   +", line)[0] for line in shown.strip().splitlines()]
        examples = [line for line in lines if line.strip().startswith("lab ")]
        assert examples or "lab env" in shown, page
        for example in examples:
            arguments = shlex.split(example.partition("|")[0])[1:]
            assert "--help" in arguments or cli.parse(arguments).action


def _pages(parser: argparse.ArgumentParser) -> Iterator[str]:
    """The help of every command below."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield command.format_help()
                yield from _pages(command)


def test_the_list_of_packages_has_every_one_that_is_checked_for() -> None:
    listed = (Path(__file__).parents[2] / "debian-packages.txt").read_text().split()
    assert set(PACKAGES.values()) <= set(listed)
