# SPDX-License-Identifier: Apache-2.0
"""`nvdra-simctl`: create, inspect and disturb a simulated node from the command line.

This module contains arguments, help and exit codes. The work is done in `state` and `installation`.
Exit codes: 0 success, 1 error (with a message on stderr), 2 wrong usage.
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from nvdra_sim import installation, return_codes
from nvdra_sim.__about__ import __version__
from nvdra_sim.configuration import node_config
from nvdra_sim.description import Fault, NodeDescription
from nvdra_sim.filesystem import trees
from nvdra_sim.native import nvml_library
from nvdra_sim.simctl import (
    arguments,
    imex_commands,
    incident_commands,
    node_commands,
    output,
    pci_commands,
    report,
)
from nvdra_sim.simctl.arguments import Command
from nvdra_sim.state_file import encoding, state

DESCRIPTION = """\
Creates, shows and disturbs a simulated NVIDIA node.

A node is a state file that the simulated libnvidia-ml.so.1, nvidia-smi and this tool share. A
change takes effect at the next NVML call of every running process.
"""
EXAMPLES = """\
try it:
  export NVDRA_SIM_STATE=/tmp/node.bin
  nvdra-simctl init --profile dgx-h100
  nvdra-simctl show
  nvdra-simctl gpu lose 3                    # calls on GPU 3 now return GPU_IS_LOST
  nvdra-simctl xid 2 48                      # the driver reports Xid 48 for GPU 2
  nvdra-simctl slow 200 --gpu 0              # every call on GPU 0 takes 200 ms longer
  nvdra-simctl fault add 'nvmlInit*' --result DRIVER_NOT_LOADED --times 2
  nvdra-simctl counters                      # how often each function was called

The state file is --state, else $NVDRA_SIM_STATE, else /var/lib/nvdra-sim/state.bin.
"""
ERRORS = (
    node_config.ConfigError,
    encoding.UnsupportedError,
    nvml_library.BuildError,
    state.StateError,
    trees.ForeignFileError,
    yaml.YAMLError,
    OSError,
)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns the exit code."""
    with output.checked_stdout("nvdra-simctl"):
        return _run(argv)


def output_of(argv: Sequence[str] | None) -> str:
    """Runs one command and returns what it prints, for callers in this process; raises `ERRORS`."""
    given = parser().parse_args(argv)
    command: Command = given.command
    result = command(given)
    return json.dumps(result, indent=2) if given.json else report.text(result)


def _run(argv: Sequence[str] | None) -> int:
    try:
        text = output_of(argv)
    except ERRORS as error:
        print(f"nvdra-simctl: {error}", file=sys.stderr)
        return 1
    print(text)
    return 0


@functools.cache
def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    top = arguments.set_help(argparse.ArgumentParser(prog="nvdra-simctl"), DESCRIPTION, EXAMPLES)
    top.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = top.add_subparsers(required=True, metavar="COMMAND")
    _add_node_commands(commands)
    incident_commands.add_to(commands)
    node_commands.add_to(commands)
    imex_commands.add_to(commands)
    pci_commands.add_to(commands)
    _add_fault_commands(commands)
    return top


# Commands


def _init(given: argparse.Namespace) -> object:
    node = _description(given)
    made = state.create(arguments.state_path(given), node)
    return report.created(made, node)


def _install(given: argparse.Namespace) -> object:
    node = _description(given)
    roots = installation.Roots.below(given.root)
    roots = installation.Roots(
        driver=given.driver_root or roots.driver,
        proc=given.proc_root or roots.proc,
        sys=given.sys_root or roots.sys,
        dev=given.dev_root or roots.dev,
    )
    installation.install(
        node,
        driver_root=roots.driver,
        proc_root=roots.proc,
        sys_root=roots.sys,
        dev_root=roots.dev,
        modules_root=given.modules_root,
    )
    return report.installed(roots, installation.environment(roots.driver, node))


def _uninstall(given: argparse.Namespace) -> object:
    if not installation.is_installed(given.driver_root):
        raise state.StateError(f"this tool has not installed anything at {given.driver_root}")
    installation.uninstall(driver_root=given.driver_root)
    return {"removed": str(given.driver_root)}


def _show(given: argparse.Namespace) -> object:
    return report.node(arguments.open_state(given))


def _add_fault(given: argparse.Namespace) -> object:
    effects = (given.result, given.activation_status, given.delay_ms or None, given.abort or None)
    if all(effect is None for effect in effects):
        raise state.StateError(
            "a rule requires --result, --activation-status, --delay-ms or --abort"
        )
    return _add_rule(
        given,
        result=given.result,
        activation_status=given.activation_status,
        after_calls=given.after_calls,
        probability=given.probability,
        delay_ms=given.delay_ms,
        do_work=given.do_work,
        abort=given.abort,
    )


def _slow(given: argparse.Namespace) -> object:
    return _add_rule(
        given,
        result=None,
        activation_status=None,
        after_calls=0,
        probability=1.0,
        delay_ms=given.milliseconds,
        do_work=False,
        abort=False,
    )


def _add_rule(given: argparse.Namespace, **effect: Any) -> object:
    node = arguments.open_state(given)
    fault = Fault(
        function=given.function,
        gpu=None if given.gpu == "*" else node.gpu(given.gpu).index,
        times=given.times,
        **effect,
    )
    rule_id = node.add_rule(fault)
    return report.rule(next(rule for rule in node.rules() if rule.id == rule_id))


def _list_faults(given: argparse.Namespace) -> object:
    return report.rules(arguments.open_state(given))


def _remove_fault(given: argparse.Namespace) -> object:
    node = arguments.open_state(given)
    if given.rule == "all":
        node.clear_rules()
    else:
        node.remove_rule(int(given.rule))
    return report.rules(node)


def _counters(given: argparse.Namespace) -> object:
    node = arguments.open_state(given)
    counted = report.counters(node)
    if given.reset:
        node.reset_counters()
    return counted


# Arguments


def _add_node_commands(commands: Any) -> None:
    init = arguments.add_command(
        commands, "init", _init, "create a state file",
        "Creates the state file of a node. An existing file is overwritten in place: processes\n"
        "that have it mapped see the new node at once.",
    )  # fmt: skip
    arguments.add_state(init)
    arguments.add_description(init)

    place = arguments.add_command(
        commands, "install", _install, "install a simulated driver",
        "Writes a driver root with the state file, procfs, sysfs and device nodes. Installing the\n"
        "same node again changes nothing. Installing another node replaces the installed files.",
        "  nvdra-simctl install --profile t4 --nodes table --root /tmp/node\n"
        "It prints the environment variables with which NVML programs find the node.",
    )  # fmt: skip
    arguments.add_description(place)
    place.add_argument(
        "--root", type=Path, required=True, metavar="DIR",
        help="the parent of driver/, proc/, sys/ and dev/, unless these are set one by one",
    )  # fmt: skip
    for name in ("driver", "proc", "sys", "dev"):
        place.add_argument(f"--{name}-root", type=Path, metavar="DIR", help=f"instead of {name}/")
    place.add_argument(
        "--modules-root", type=Path, metavar="DIR", help="replaces /lib/modules; default: none"
    )

    away = arguments.add_command(
        commands, "uninstall", _uninstall, "remove an installation",
        "Removes exactly the installed files, below all four roots. Other files are kept.",
    )  # fmt: skip
    away.add_argument(
        "driver_root", type=Path, metavar="DRIVER_ROOT", help="the driver root of the installation"
    )

    show = arguments.add_command(
        commands, "show", _show, "show the node and its GPUs",
        "Shows the current state of the hardware. The keys of --json are stable, for tests.",
    )  # fmt: skip
    arguments.add_state(show)

    counters = arguments.add_command(
        commands, "counters", _counters, "show how often each NVML function was called",
        "Shows the calls of all processes that have write access to the state file.",
    )  # fmt: skip
    arguments.add_state(counters)
    counters.add_argument("--reset", action="store_true", help="show the counters, then reset them")


def _add_fault_commands(commands: Any) -> None:
    fault = commands.add_parser("fault", help="make NVML calls fail or block")
    arguments.set_help(fault, "Fault rules apply to running processes, too, at their next call.")
    actions = fault.add_subparsers(required=True, metavar="ACTION")
    add = arguments.add_command(
        actions, "add", _add_fault, "add a rule",
        "Makes calls of the functions that match a glob fail, block, or block and then fail.",
        "  nvdra-simctl fault add nvmlDeviceGetMemoryInfo --gpu 2 --result UNKNOWN\n"
        "  nvdra-simctl fault add nvmlGpuInstanceDestroy --result IN_USE --times 3\n"
        "  nvdra-simctl fault add smi:compute-policy --delay-ms -1       # nvidia-smi hangs\n"
        "  nvdra-simctl fault add mps:start --result UNKNOWN              # no MPS daemon starts\n"
        "  nvdra-simctl fault add 'nvmlDevice*' --gpu 1 --delay-ms -1    # hang until removed",
    )  # fmt: skip
    arguments.add_state(add)
    add.add_argument("function", metavar="GLOB", help="nvmlInit*, nvmlDeviceGet*, smi:*, mps:*")
    add.add_argument(
        "--result",
        type=arguments.return_code,
        metavar="CODE",
        help="the return code: GPU_IS_LOST, or its number",
    )
    add.add_argument(
        "--activation-status", type=return_codes.number, metavar="CODE",
        help="of nvmlDeviceSetMigMode, which succeeds unless there is a --result: IN_USE",
    )  # fmt: skip
    add.add_argument(
        "--delay-ms", type=arguments.delay, default=0, metavar="MS",
        help="block for this time first; -1: until the rule is removed",
    )  # fmt: skip
    add.add_argument(
        "--after-calls", type=arguments.count, default=0, metavar="N",
        help="do not apply the rule to the first N calls",
    )  # fmt: skip
    add.add_argument(
        "--probability", type=arguments.probability, default=1.0, metavar="P",
        help="apply the rule with this probability, which uses the node's seed",
    )  # fmt: skip
    add.add_argument(
        "--do-work", action="store_true", help="execute the call, then return the error"
    )
    add.add_argument("--abort", action="store_true", help="kill the calling process, as in a crash")
    arguments.add_rule_scope(add)

    listing = arguments.add_command(
        actions,
        "list",
        _list_faults,
        "show the rules",
        "Shows all rules and how often they applied.",
    )
    arguments.add_state(listing)
    remove = arguments.add_command(
        actions, "rm", _remove_fault, "remove a rule", "Removes one rule, or all rules with `all`."
    )
    arguments.add_state(remove)
    remove.add_argument(
        "rule", type=arguments.rule_id, metavar="ID", help="the id of a rule, or all"
    )

    slow = arguments.add_command(
        commands, "slow", _slow, "make NVML calls slow",
        "Adds a fault rule that only delays calls. Remove it with `fault rm`.",
    )  # fmt: skip
    arguments.add_state(slow)
    slow.add_argument(
        "milliseconds", type=arguments.delay, metavar="MS", help="the delay of each call"
    )
    slow.add_argument("--function", default="nvml*", metavar="GLOB", help="default: all functions")
    arguments.add_rule_scope(slow)


def _description(given: argparse.Namespace) -> NodeDescription:
    if given.config is None:
        sections = {"render": {"nodes": given.nodes or "real"}}
        return node_config.from_profile(given.profile, given.name or "node-0", sections)
    if given.name or given.nodes:
        raise state.StateError("--name and --nodes cannot be used with --config")
    return node_config.load(given.config)
