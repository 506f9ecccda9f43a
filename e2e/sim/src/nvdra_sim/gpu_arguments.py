"""What commands of `nvdra-simctl` about one GPU share: its arguments, and what they stand for."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from nvdra_sim import arguments, layout, procfs, trees
from nvdra_sim.arguments import Command
from nvdra_sim.description import Gpu
from nvdra_sim.incidents import Instance
from nvdra_sim.state import State, StateError

GPU_HELP = "place in bus order, UUID or PCI bus id"


def on_a_gpu(
    commands: Any, name: str, run: Command, summary: str, description: str, example: str = ""
) -> argparse.ArgumentParser:
    """Adds a command about one GPU."""
    command = arguments.define(commands, name, run, summary, description, example)
    arguments.add_state(command)
    command.add_argument("gpu", metavar="GPU", help=GPU_HELP)
    return command


def add_instance(command: argparse.ArgumentParser) -> None:
    """Lets the command name a MIG instance."""
    command.add_argument("--gi", type=arguments.count, metavar="ID", help="in this GPU instance")
    command.add_argument("--ci", type=arguments.count, metavar="ID", help="compute instance of it")


def add_proc_root(command: argparse.ArgumentParser) -> None:
    """Lets the command change a simulated /proc too."""
    command.add_argument(
        "--proc-root", type=Path, metavar="DIR", help="a simulated /proc that shall show it"
    )


def node_and_gpu(given: argparse.Namespace) -> tuple[State, Gpu]:
    """What the command is about; raises StateError when there is no such thing."""
    node = arguments.node(given)
    return node, node.gpu(given.gpu)


def instance(given: argparse.Namespace) -> Instance:
    """The MIG instance that --gi and --ci name."""
    if given.ci is not None and given.gi is None:
        raise StateError("a compute instance needs --gi too")
    gpu_instance = layout.NO_INSTANCE if given.gi is None else given.gi
    compute_instance = layout.NO_INSTANCE if given.ci is None else given.ci
    return Instance(gpu_instance, compute_instance)


def forget_capabilities(node: State, gpus: Iterable[Gpu], proc_root: Path | None) -> None:
    """MIG instances are gone, and with them their access files."""
    if proc_root is not None:
        for gpu in gpus:
            trees.remove(trees.paths(procfs.instances(gpu), proc_root))
