"""`nvdra-simctl`: make, look at and disturb a simulated node from the command line.

Arguments, words and exit codes only; what the commands do is in `state` and `install`. Exit codes:
0 done, 1 refused with a sentence on stderr, 2 wrong usage.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import yaml

from nvdra_sim import (
    arguments,
    config,
    image,
    imex_commands,
    incident_commands,
    install,
    library,
    node_commands,
    report,
    state,
    trees,
)
from nvdra_sim.arguments import Command
from nvdra_sim.description import Fault, NodeDescription

DESCRIPTION = """\
Makes, shows and disturbs a simulated NVIDIA node.

A node is one state file that the simulated libnvidia-ml.so.1, nvidia-smi and this tool share: what
you change here is what the next NVML call of any running process sees.
"""
EXAMPLES = """\
try it:
  export NVDRA_SIM_STATE=/tmp/node.bin
  nvdra-simctl init --profile dgx-h100
  nvdra-simctl show
  nvdra-simctl gpu lose 3                    # calls on GPU 3 now answer GPU_IS_LOST
  nvdra-simctl xid 2 48                      # those who wait for events of GPU 2 get one
  nvdra-simctl slow 200 --gpu 0              # every call on GPU 0 takes 200 ms longer
  nvdra-simctl fault add 'nvmlInit*' --result DRIVER_NOT_LOADED --times 2
  nvdra-simctl counters                      # who called what, how often

The state file is --state, else $NVDRA_SIM_STATE, else /var/lib/nvdra-sim/state.bin.
"""
ERRORS = (
    config.ConfigError,
    image.UnsupportedError,
    library.BuildError,
    state.StateError,
    trees.ForeignFileError,
    yaml.YAMLError,
    OSError,
)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; returns the exit code."""
    given = parser().parse_args(argv)
    command: Command = given.command
    try:
        result = command(given)
    except ERRORS as error:
        print(f"nvdra-simctl: {error}", file=sys.stderr)
        return 1
    print(json.dumps(result, indent=2) if given.json else report.text(result))
    return 0


def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    top = arguments.with_help(argparse.ArgumentParser(prog="nvdra-simctl"), DESCRIPTION, EXAMPLES)
    release = f"%(prog)s {metadata.version('nvdra-sim')}"
    top.add_argument("--version", action="version", version=release)
    commands = top.add_subparsers(required=True, metavar="COMMAND")
    _add_node_commands(commands)
    incident_commands.add_to(commands)
    node_commands.add_to(commands)
    imex_commands.add_to(commands)
    _add_fault_commands(commands)
    return top


# Commands


def _init(given: argparse.Namespace) -> object:
    node = _description(given)
    made = state.create(arguments.state_path(given), node)
    return report.made(made, node)


def _install(given: argparse.Namespace) -> object:
    node = _description(given)
    roots = install.Roots.below(given.root)
    roots = install.Roots(
        driver=given.driver_root or roots.driver,
        proc=given.proc_root or roots.proc,
        sys=given.sys_root or roots.sys,
        dev=given.dev_root or roots.dev,
    )
    install.install(
        node,
        driver_root=roots.driver,
        proc_root=roots.proc,
        sys_root=roots.sys,
        dev_root=roots.dev,
    )
    return report.installed(roots, install.environment(roots.driver, node))


def _uninstall(given: argparse.Namespace) -> object:
    install.uninstall(driver_root=given.driver_root)
    return {"removed": str(given.driver_root)}


def _show(given: argparse.Namespace) -> object:
    return report.node(arguments.node(given))


def _add_fault(given: argparse.Namespace) -> object:
    if given.result is None and given.delay_ms == 0 and not given.abort:
        raise state.StateError("a rule needs --result, --delay-ms or --abort")
    return _add_rule(
        given,
        result=given.result,
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
        after_calls=0,
        probability=1.0,
        delay_ms=given.milliseconds,
        do_work=False,
        abort=False,
    )


def _add_rule(given: argparse.Namespace, **effect: Any) -> object:
    node = arguments.node(given)
    fault = Fault(
        function=given.function,
        gpu=None if given.gpu == "*" else node.gpu(given.gpu).index,
        activation_status=None,
        times=given.times,
        **effect,
    )
    rule_id = node.add_rule(fault)
    return report.rule(next(rule for rule in node.rules() if rule.id == rule_id))


def _list_faults(given: argparse.Namespace) -> object:
    return report.rules(arguments.node(given))


def _remove_fault(given: argparse.Namespace) -> object:
    node = arguments.node(given)
    if given.rule == "all":
        node.clear_rules()
    else:
        node.remove_rule(int(given.rule))
    return report.rules(node)


def _counters(given: argparse.Namespace) -> object:
    node = arguments.node(given)
    counted = report.counters(node)
    if given.reset:
        node.reset_counters()
    return counted


# Arguments


def _add_node_commands(commands: Any) -> None:
    init = arguments.define(
        commands, "init", _init, "make a state file",
        "Makes the state file of a node, or makes an existing one hold another node, in place:\n"
        "processes that have it mapped see the new node at once.",
    )  # fmt: skip
    arguments.add_state(init)
    arguments.add_description(init)

    place = arguments.define(
        commands, "install", _install, "make a whole driver installation",
        "Writes a driver root, procfs, sysfs and device nodes, with the state file in its place.\n"
        "Repeating it changes nothing; with another node it replaces what it made before.",
        "  nvdra-simctl install --profile t4 --nodes table --root /tmp/node\n"
        "prints the environment that makes any NVML program find the node.",
    )  # fmt: skip
    arguments.add_description(place)
    place.add_argument(
        "--root", type=Path, required=True, metavar="DIR",
        help="holds driver/, proc/, sys/ and dev/, unless these are given one by one",
    )  # fmt: skip
    for name in ("driver", "proc", "sys", "dev"):
        place.add_argument(f"--{name}-root", type=Path, metavar="DIR", help=f"instead of {name}/")

    away = arguments.define(
        commands, "uninstall", _uninstall, "remove what install made",
        "Removes exactly what install made, below all four roots; other files stay.",
    )  # fmt: skip
    away.add_argument("driver_root", type=Path, metavar="DRIVER_ROOT", help="of that install")

    show = arguments.define(
        commands, "show", _show, "show the node and its GPUs",
        "Shows the hardware as it is now. --json is stable: tests may rely on its keys.",
    )  # fmt: skip
    arguments.add_state(show)

    counters = arguments.define(
        commands, "counters", _counters, "show how often each NVML function was called",
        "Counts the calls of all processes that may write the state file.",
    )  # fmt: skip
    arguments.add_state(counters)
    counters.add_argument("--reset", action="store_true", help="show them, then count from zero")


def _add_fault_commands(commands: Any) -> None:
    fault = commands.add_parser("fault", help="make NVML calls fail or wait")
    arguments.with_help(fault, "Fault rules apply to running processes, from their next call on.")
    actions = fault.add_subparsers(required=True, metavar="ACTION")
    add = arguments.define(
        actions, "add", _add_fault, "put a rule in force",
        "Makes calls of the functions that match a glob fail, wait, or wait and then fail.",
        "  nvdra-simctl fault add nvmlDeviceGetMemoryInfo --gpu 2 --result UNKNOWN\n"
        "  nvdra-simctl fault add 'nvmlDevice*' --gpu 1 --delay-ms -1    # hang until removed",
    )  # fmt: skip
    arguments.add_state(add)
    add.add_argument("function", metavar="GLOB", help="NVML functions: nvmlInit*, nvmlDeviceGet*")
    add.add_argument(
        "--result",
        type=arguments.failure,
        metavar="CODE",
        help="answer this: GPU_IS_LOST, or its number",
    )
    add.add_argument(
        "--delay-ms", type=arguments.delay, default=0, metavar="MS",
        help="wait so long first; -1: until the rule is removed",
    )  # fmt: skip
    add.add_argument(
        "--after-calls", type=arguments.count, default=0, metavar="N",
        help="leave the first N calls alone",
    )  # fmt: skip
    add.add_argument(
        "--probability", type=arguments.probability, default=1.0, metavar="P",
        help="only this part of the calls, by the node's seed",
    )  # fmt: skip
    add.add_argument("--do-work", action="store_true", help="do what was asked, and then fail")
    add.add_argument("--abort", action="store_true", help="kill the calling process, like a crash")
    arguments.add_scope(add)

    listing = arguments.define(
        actions, "list", _list_faults, "show the rules", "Shows rules and hits."
    )
    arguments.add_state(listing)
    remove = arguments.define(
        actions, "rm", _remove_fault, "end a rule", "Ends one rule, or all of them with `all`."
    )
    arguments.add_state(remove)
    remove.add_argument("rule", type=arguments.rule, metavar="ID", help="a rule's id, or all")

    slow = arguments.define(
        commands, "slow", _slow, "make NVML calls slow",
        "Short for a fault rule that only waits. It lasts until `fault rm`.",
    )  # fmt: skip
    arguments.add_state(slow)
    slow.add_argument(
        "milliseconds", type=arguments.delay, metavar="MS", help="wait so long in each call"
    )
    slow.add_argument("--function", default="nvml*", metavar="GLOB", help="default: all functions")
    arguments.add_scope(slow)


def _description(given: argparse.Namespace) -> NodeDescription:
    if given.config is None:
        sections = {"render": {"nodes": given.nodes or "real"}}
        return config.from_profile(given.profile, given.name or "node-0", sections)
    if given.name or given.nodes:
        raise state.StateError("with --config, the name and the device nodes are the file's")
    return config.load(given.config)
