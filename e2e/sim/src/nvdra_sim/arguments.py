"""Arguments that several commands of `nvdra-simctl` share, and the words that values may have."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nvdra_sim import hardware, return_codes, state
from nvdra_sim.layout import UNTIL_REMOVED

Command = Callable[[argparse.Namespace], object]


def define(
    commands: Any, name: str, run: Command, summary: str, description: str, example: str = ""
) -> argparse.ArgumentParser:
    """Adds a command that answers as text or, with --json, as JSON."""
    command: argparse.ArgumentParser = commands.add_parser(name, help=summary)
    command.set_defaults(command=run)
    command.add_argument("--json", action="store_true", help="answer in JSON")
    return with_help(command, description, f"example:\n{example}" if example else "")


def with_help(
    command: argparse.ArgumentParser, description: str, epilog: str = ""
) -> argparse.ArgumentParser:
    """Gives a command its help, with the line breaks that it has here."""
    command.description, command.epilog = description, epilog
    command.formatter_class = argparse.RawDescriptionHelpFormatter
    return command


def add_state(command: argparse.ArgumentParser) -> None:
    """Which node the command is about."""
    command.add_argument(
        "--state", type=Path, metavar="FILE",
        help=f"the state file; default: $NVDRA_SIM_STATE, else {state.DEFAULT_PATH}",
    )  # fmt: skip


def node(given: argparse.Namespace) -> state.State:
    """The node that the command is about; raises StateError when there is none."""
    return state.load(state_path(given))


def state_path(given: argparse.Namespace) -> Path:
    """Where its state file is."""
    if given.state is not None:
        path: Path = given.state
        return path
    return Path(os.getenv("NVDRA_SIM_STATE") or state.DEFAULT_PATH)


def add_description(command: argparse.ArgumentParser) -> None:
    """Which node shall be made."""
    source = command.add_mutually_exclusive_group(required=True)
    source.add_argument("--config", type=Path, metavar="FILE", help="a node file, YAML or JSON")
    source.add_argument("--profile", choices=hardware.profile_names(), help="a well-known node")
    command.add_argument("--name", help="of a --profile node; default: node-0")
    command.add_argument(
        "--nodes", choices=("real", "table", "openable"),
        help="device nodes of a --profile node; table needs no privilege (default: real)",
    )  # fmt: skip


def add_scope(command: argparse.ArgumentParser) -> None:
    """Which calls a rule applies to, besides its functions."""
    command.add_argument("--gpu", default="*", metavar="GPU", help="only calls on this GPU")
    command.add_argument(
        "--times", type=number_of_calls, metavar="N", help="only so many calls; default: all"
    )


def failure(text: str) -> int:
    """The return code of a call that fails."""
    try:
        number = return_codes.number(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if number == 0:
        raise argparse.ArgumentTypeError("a rule cannot make a call succeed")
    return number


def delay(text: str) -> int:
    """Milliseconds, or -1 for as long as the rule lasts."""
    try:
        milliseconds = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of milliseconds") from None
    if milliseconds < 0 and milliseconds != UNTIL_REMOVED:
        raise argparse.ArgumentTypeError("a delay is 0 or more milliseconds, or -1")
    return milliseconds


def number_of_calls(text: str) -> int:
    """At least one."""
    if not text.isdigit() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of calls")
    return int(text)


def count(text: str) -> int:
    """Zero or more."""
    if not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is no number")
    return int(text)


def probability(text: str) -> float:
    """From 0 to 1."""
    try:
        part = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no number") from None
    if not 0 <= part <= 1:
        raise argparse.ArgumentTypeError(f"{text} is not between 0 and 1")
    return part


def rule(text: str) -> str:
    """A rule's id, or all of them."""
    if text != "all" and not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is neither a rule's id nor all")
    return text
