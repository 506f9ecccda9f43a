# SPDX-License-Identifier: Apache-2.0
"""The commands in the READMEs and on the pages of docs/ can be pasted into any shell.

Names to fill in are written in capitals, as in `POD`.
"""

import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from nvdra_runtime.telemetry.reason_explanations import EXPLANATIONS

from scripts import document_reasons

ROOT = Path(__file__).parents[2]
READMES = [ROOT / "README.md", ROOT / "charts/README.md", *ROOT.glob("packages/*/README.md")]
PAGES = [*ROOT.glob("docs/*.md"), *ROOT.glob("docs/tasks/*.md")]
REASONS = ROOT / "docs/reasons.md"
"""Its commands are taken from the code, where they are whole."""

PATTERNS = set("?*[]")


def blocks(document: Path) -> Iterator[str]:
    """The text between ```sh and ```, without its indentation."""
    lines: list[str] | None = None
    for line in document.read_text().splitlines():
        if line.strip() == "```sh":
            lines = []
        elif line.strip() == "```" and lines is not None:
            yield "\n".join(lines)
            lines = None
        elif lines is not None:
            lines.append(line.strip())


def commands() -> list[str]:
    told = [command for each in EXPLANATIONS.values() for command in each.check]
    told += [command for _, command in document_reasons.PLACEHOLDERS.values() if command]
    pages = [*READMES, *(page for page in PAGES if page != REASONS)]
    return [*(block for each in pages for block in blocks(each)), *told]


def unquoted(command: str) -> Iterator[str]:
    """The words of a command as they are written, without quoted words."""
    reader = shlex.shlex(command, posix=False, punctuation_chars=True)
    reader.wordchars += "?*[]{}$%@:,"
    return (word for word in reader if not set(word) & {'"', "'"})


FORWARDING = [command for command in commands() if "&" in list(unquoted(command))]


def test_events_of_a_node_are_shown_of_every_component() -> None:
    """What keeps one plugin from being ready may be told by the other alone."""
    shown = [each for each in lines() if "involvedObject.kind=Node" in each]
    assert shown
    assert [command for command in shown if "source=" in command] == []


def test_an_object_of_the_chart_is_found_under_another_name_of_the_release() -> None:
    """`kubectl port-forward` alone takes no selector for it."""
    named = [each for each in lines() if "nvdra-nvdra-" in each]
    assert named
    assert [command for command in named if " port-forward " not in command] == []


def test_an_upgrade_has_the_defaults_of_the_chart_that_it_goes_to() -> None:
    upgrades = [command for command in commands() if "helm upgrade" in command]
    assert len(upgrades) > 10
    assert [command for command in upgrades if "--reuse-values" in command] == []


def lines() -> list[str]:
    """The lines of all commands; one that is continued is one line."""
    return "\n".join(commands()).replace("\\\n", " ").splitlines()


def helm(verb: str) -> list[str]:
    """Each call of `helm VERB`."""
    return [line for line in lines() if line.lstrip().startswith(f"helm {verb} ")]


@pytest.mark.parametrize("verb", ["install", "upgrade", "rollback"])
def test_what_follows_a_change_of_the_release_meets_the_new_plugins(verb: str) -> None:
    """A claim is made for the slices of its moment, and refused by the plugin of its moment."""
    assert helm(verb)
    assert [line for line in helm(verb) if "--wait" not in line.split()] == []


def test_manifests_are_rendered_for_a_release_of_kubernetes() -> None:
    """Without a cluster helm takes that of its own libraries, which the chart may refuse."""
    assert helm("template")
    assert [line for line in helm("template") if "--kube-version" not in line.split()] == []


def test_there_are_commands_to_look_at() -> None:
    assert len(READMES) == 10
    assert len(PAGES) > 15
    assert len(commands()) > 110
    assert len(FORWARDING) > 6


@pytest.mark.parametrize("command", commands())
def test_a_shell_can_read_it(command: str) -> None:
    done = subprocess.run(
        ["bash", "-n"], input=command, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("command", commands())
def test_nothing_in_it_means_something_else_to_a_shell(command: str) -> None:
    words = set(unquoted(command)) - {"$?"}
    meant = {word for word in words if word.startswith(("/dev/", "dist/"))}
    assert {word for word in words - meant if set(word) & PATTERNS} == set(), "quote it"
    assert "<" not in words, "a shell would read from a file of that name"


@pytest.mark.parametrize("command", FORWARDING)
def test_what_goes_on_in_the_background_is_waited_for_and_ended(command: str) -> None:
    words = list(unquoted(command))
    assert words[words.index("&") + 1] == "sleep", "who is not up yet refuses the next line"
    assert words[words.index("kill") + 1] == "%1", "its port is taken when it is pasted again"
