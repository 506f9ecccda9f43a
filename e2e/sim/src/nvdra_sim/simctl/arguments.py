# SPDX-License-Identifier: Apache-2.0
"""Arguments that several commands of `nvdra-simctl` share, and the parsers of their values."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nvdra_sim import return_codes
from nvdra_sim.configuration import hardware_catalog
from nvdra_sim.state_file import state
from nvdra_sim.state_file.layout import UNTIL_REMOVED

Command = Callable[[argparse.Namespace], object]


def add_command(
    commands: Any, name: str, run: Command, summary: str, description: str, example: str = ""
) -> argparse.ArgumentParser:
    """Adds a command that prints text or, with --json, JSON."""
    command: argparse.ArgumentParser = commands.add_parser(name, help=summary)
    command.set_defaults(command=run)
    command.add_argument("--json", action="store_true", help="print JSON")
    return set_help(command, description, f"example:\n{example}" if example else "")


def set_help(
    command: argparse.ArgumentParser, description: str, epilog: str = ""
) -> argparse.ArgumentParser:
    """Sets the help of a command. Line breaks are kept."""
    command.description, command.epilog = description, epilog
    command.formatter_class = argparse.RawDescriptionHelpFormatter
    return command


def add_state(command: argparse.ArgumentParser) -> None:
    """Adds the argument for the state file of the node."""
    command.add_argument(
        "--state", type=Path, metavar="FILE",
        help=f"the state file; default: $NVDRA_SIM_STATE, else {state.DEFAULT_PATH}",
    )  # fmt: skip


def open_state(given: argparse.Namespace) -> state.State:
    """Opens the state file of the node. Raises StateError if it does not exist."""
    return state.load(state_path(given))


def state_path(given: argparse.Namespace) -> Path:
    """The path of the state file."""
    if given.state is not None:
        path: Path = given.state
        return path
    return Path(os.getenv("NVDRA_SIM_STATE") or state.DEFAULT_PATH)


def add_description(command: argparse.ArgumentParser) -> None:
    """Adds the arguments that describe a new node."""
    source = command.add_mutually_exclusive_group(required=True)
    source.add_argument("--config", type=Path, metavar="FILE", help="a node file, YAML or JSON")
    source.add_argument(
        "--profile", choices=hardware_catalog.profile_names(), help="a predefined node"
    )
    command.add_argument("--name", help="the name of a --profile node; default: node-0")
    command.add_argument(
        "--nodes", choices=("real", "table", "openable"),
        help="how to create the device nodes of a --profile node; table requires no privileges "
        "(default: real)",
    )  # fmt: skip


def add_rule_scope(command: argparse.ArgumentParser) -> None:
    """Adds the arguments that restrict a rule to some calls."""
    command.add_argument("--gpu", default="*", metavar="GPU", help="only calls on this GPU")
    command.add_argument(
        "--times", type=number_of_calls, metavar="N", help="only the first N calls; default: all"
    )


def return_code(text: str) -> int:
    """Parses the return code of a failing call."""
    try:
        number = return_codes.number(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if number == 0:
        raise argparse.ArgumentTypeError("a rule cannot make a call succeed")
    return number


def delay(text: str) -> int:
    """Parses a delay in milliseconds; -1 means as long as the rule exists."""
    try:
        milliseconds = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of milliseconds") from None
    if milliseconds < 0 and milliseconds != UNTIL_REMOVED:
        raise argparse.ArgumentTypeError("a delay is 0 or more milliseconds, or -1")
    return milliseconds


def number_of_calls(text: str) -> int:
    """Parses a positive integer."""
    if not text.isdigit() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
    return int(text)


def count(text: str) -> int:
    """Parses a non-negative integer."""
    if not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is not a number")
    return int(text)


def probability(text: str) -> float:
    """Parses a probability from 0 to 1."""
    try:
        part = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None
    if not 0 <= part <= 1:
        raise argparse.ArgumentTypeError(f"{text} is not between 0 and 1")
    return part


def rule_id(text: str) -> str:
    """Parses the id of a rule, or `all`."""
    if text != "all" and not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is neither the id of a rule nor all")
    return text
