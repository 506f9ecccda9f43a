# SPDX-License-Identifier: Apache-2.0
"""Arguments of the `nvdra-simctl` commands that change one GPU."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from nvdra_sim.description import Gpu
from nvdra_sim.incidents import InstanceRef
from nvdra_sim.simctl import arguments
from nvdra_sim.simctl.arguments import Command
from nvdra_sim.state_file import layout
from nvdra_sim.state_file.state import State, StateError

GPU_HELP = "index in bus order, UUID or PCI bus id"


def add_gpu_command(
    commands: Any, name: str, run: Command, summary: str, description: str, example: str = ""
) -> argparse.ArgumentParser:
    """Adds a command about one GPU."""
    command = arguments.add_command(commands, name, run, summary, description, example)
    arguments.add_state(command)
    command.add_argument("gpu", metavar="GPU", help=GPU_HELP)
    return command


def add_instance(command: argparse.ArgumentParser) -> None:
    """Adds the arguments that select a MIG instance."""
    command.add_argument("--gi", type=arguments.count, metavar="ID", help="in this GPU instance")
    command.add_argument(
        "--ci", type=arguments.count, metavar="ID", help="in this compute instance of it"
    )


def add_proc_root(command: argparse.ArgumentParser) -> None:
    """Adds the argument for a simulated /proc to update."""
    command.add_argument(
        "--proc-root", type=Path, metavar="DIR",
        help="also update this simulated /proc; default: that of the installation",
    )  # fmt: skip


def open_state_and_gpu(given: argparse.Namespace) -> tuple[State, Gpu]:
    """Opens the state file and finds the GPU. Raises StateError if one does not exist."""
    node = arguments.open_state(given)
    return node, node.gpu(given.gpu)


def instance(given: argparse.Namespace) -> InstanceRef:
    """The MIG instance that --gi and --ci name."""
    if given.ci is not None and given.gi is None:
        raise StateError("--ci requires --gi")
    gpu_instance = layout.NO_INSTANCE if given.gi is None else given.gi
    compute_instance = layout.NO_INSTANCE if given.ci is None else given.ci
    return InstanceRef(gpu_instance, compute_instance)
