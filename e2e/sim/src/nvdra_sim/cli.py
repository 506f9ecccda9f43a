"""`nvdra-simctl`: make, look at and disturb a simulated node from the command line.

Arguments, words and exit codes only; what the commands do is in `state` and `install`. Exit codes:
0 done, 1 refused with a sentence on stderr, 2 wrong usage.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import yaml

from nvdra_sim import (
    config,
    hardware,
    image,
    install,
    library,
    report,
    return_codes,
    state,
    trees,
)
from nvdra_sim.description import Fault, NodeDescription
from nvdra_sim.layout import UNTIL_REMOVED

Command = Callable[[argparse.Namespace], object]

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
    arguments = parser().parse_args(argv)
    command: Command = arguments.command
    try:
        result = command(arguments)
    except ERRORS as error:
        print(f"nvdra-simctl: {error}", file=sys.stderr)
        return 1
    print(json.dumps(result, indent=2) if arguments.json else report.text(result))
    return 0


def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    top = _with_help(argparse.ArgumentParser(prog="nvdra-simctl"), DESCRIPTION, EXAMPLES)
    commands = top.add_subparsers(required=True, metavar="COMMAND")
    _add_node_commands(commands)
    _add_gpu_commands(commands)
    _add_fault_commands(commands)
    return top


# Commands


def _init(arguments: argparse.Namespace) -> object:
    node = _description(arguments)
    made = state.create(_state_path(arguments), node)
    return report.made(made, node)


def _install(arguments: argparse.Namespace) -> object:
    node = _description(arguments)
    roots = install.Roots.below(arguments.root)
    roots = install.Roots(
        driver=arguments.driver_root or roots.driver,
        proc=arguments.proc_root or roots.proc,
        sys=arguments.sys_root or roots.sys,
        dev=arguments.dev_root or roots.dev,
    )
    install.install(
        node,
        driver_root=roots.driver,
        proc_root=roots.proc,
        sys_root=roots.sys,
        dev_root=roots.dev,
    )
    return report.installed(roots, install.environment(roots.driver, node))


def _uninstall(arguments: argparse.Namespace) -> object:
    install.uninstall(driver_root=arguments.driver_root)
    return {"removed": str(arguments.driver_root)}


def _show(arguments: argparse.Namespace) -> object:
    return report.node(_state(arguments))


def _lose(arguments: argparse.Namespace) -> object:
    node = _state(arguments)
    gpu = node.gpu(arguments.gpu)
    node.lose(gpu)
    return report.gpu(node, gpu)


def _restore(arguments: argparse.Namespace) -> object:
    node = _state(arguments)
    gpu = node.gpu(arguments.gpu)
    node.restore(gpu)
    return report.gpu(node, gpu)


def _add_fault(arguments: argparse.Namespace) -> object:
    if arguments.result is None and arguments.delay_ms == 0:
        raise state.StateError("a rule needs --result, --delay-ms or both")
    return _add_rule(arguments, arguments.function, arguments.result, arguments.delay_ms)


def _slow(arguments: argparse.Namespace) -> object:
    return _add_rule(arguments, arguments.function, None, arguments.milliseconds)


def _add_rule(
    arguments: argparse.Namespace, function: str, result: int | None, delay_ms: int
) -> object:
    node = _state(arguments)
    fault = Fault(
        function=function,
        gpu=None if arguments.gpu == "*" else node.gpu(arguments.gpu).index,
        result=result,
        activation_status=None,
        times=arguments.times,
        after_calls=0,
        probability=1.0,
        delay_ms=delay_ms,
        do_work=False,
        abort=False,
    )
    rule_id = node.add_rule(fault)
    return report.rule(next(rule for rule in node.rules() if rule.id == rule_id))


def _list_faults(arguments: argparse.Namespace) -> object:
    return report.rules(_state(arguments))


def _remove_fault(arguments: argparse.Namespace) -> object:
    node = _state(arguments)
    if arguments.rule == "all":
        node.clear_rules()
    else:
        node.remove_rule(int(arguments.rule))
    return report.rules(node)


def _reboot(arguments: argparse.Namespace) -> object:
    boot_id = _state(arguments).reboot()
    if arguments.proc_root is not None:
        file = {"sys/kernel/random/boot_id": trees.text(boot_id, 0o444)}
        trees.write(file, arguments.proc_root)
    return {"boot_id": boot_id}


def _counters(arguments: argparse.Namespace) -> object:
    node = _state(arguments)
    counted = report.counters(node)
    if arguments.reset:
        node.reset_counters()
    return counted


# Arguments


def _add_node_commands(commands: Any) -> None:
    init = _command(
        commands, "init", _init, "make a state file",
        "Makes the state file of a node, or makes an existing one hold another node, in place:\n"
        "processes that have it mapped see the new node at once.",
    )  # fmt: skip
    _add_state(init)
    _add_description(init)

    place = _command(
        commands, "install", _install, "make a whole driver installation",
        "Writes a driver root, procfs, sysfs and device nodes, with the state file in its place.\n"
        "Repeating it changes nothing; with another node it replaces what it made before.",
        "  nvdra-simctl install --profile t4 --nodes table --root /tmp/node\n"
        "prints the environment that makes any NVML program find the node.",
    )  # fmt: skip
    _add_description(place)
    place.add_argument(
        "--root", type=Path, required=True, metavar="DIR",
        help="holds driver/, proc/, sys/ and dev/, unless these are given one by one",
    )  # fmt: skip
    for name in ("driver", "proc", "sys", "dev"):
        place.add_argument(f"--{name}-root", type=Path, metavar="DIR", help=f"instead of {name}/")

    away = _command(
        commands, "uninstall", _uninstall, "remove what install made",
        "Removes exactly what install made, below all four roots; other files stay.",
    )  # fmt: skip
    away.add_argument("driver_root", type=Path, metavar="DRIVER_ROOT", help="of that install")

    show = _command(
        commands, "show", _show, "show the node and its GPUs",
        "Shows the hardware as it is now. --json is stable: tests may rely on its keys.",
    )  # fmt: skip
    _add_state(show)

    reboot = _command(
        commands, "reboot", _reboot, "start the node anew",
        "Puts every GPU back to how it was configured and gives the node a new boot id. Fault\n"
        "rules stay. A node that followed this machine's boots follows its own from now on.",
    )  # fmt: skip
    _add_state(reboot)
    reboot.add_argument(
        "--proc-root", type=Path, metavar="DIR",
        help="a simulated /proc whose sys/kernel/random/boot_id shall change with it",
    )  # fmt: skip

    counters = _command(
        commands, "counters", _counters, "show how often each NVML function was called",
        "Counts the calls of all processes that may write the state file.",
    )  # fmt: skip
    _add_state(counters)
    counters.add_argument("--reset", action="store_true", help="show them, then count from zero")


def _add_gpu_commands(commands: Any) -> None:
    gpu = commands.add_parser("gpu", help="lose a GPU, or get it back")
    _with_help(gpu, "Changes one GPU. GPU is its place in bus order, its UUID or its PCI bus id.")
    actions = gpu.add_subparsers(required=True, metavar="ACTION")
    lose = _command(
        actions, "lose", _lose, "the GPU falls off the bus",
        "Every call on the GPU answers GPU_IS_LOST. It is still counted and still has a handle.",
    )  # fmt: skip
    restore = _command(actions, "restore", _restore, "the GPU answers again", "Undoes lose.")
    for action in (lose, restore):
        _add_state(action)
        action.add_argument("gpu", metavar="GPU", help="place in bus order, UUID or PCI bus id")


def _add_fault_commands(commands: Any) -> None:
    fault = commands.add_parser("fault", help="make NVML calls fail or wait")
    _with_help(fault, "Fault rules apply to running processes, from their next call on.")
    actions = fault.add_subparsers(required=True, metavar="ACTION")
    add = _command(
        actions, "add", _add_fault, "put a rule in force",
        "Makes calls of the functions that match a glob fail, wait, or wait and then fail.",
        "  nvdra-simctl fault add nvmlDeviceGetMemoryInfo --gpu 2 --result UNKNOWN\n"
        "  nvdra-simctl fault add 'nvmlDevice*' --gpu 1 --delay-ms -1    # hang until removed",
    )  # fmt: skip
    _add_state(add)
    add.add_argument("function", metavar="GLOB", help="NVML functions: nvmlInit*, nvmlDeviceGet*")
    add.add_argument(
        "--result", type=_code, metavar="CODE", help="answer this: GPU_IS_LOST, or its number"
    )
    add.add_argument(
        "--delay-ms", type=_delay, default=0, metavar="MS",
        help="wait so long first; -1: until the rule is removed",
    )  # fmt: skip
    _add_scope(add)

    listing = _command(actions, "list", _list_faults, "show the rules", "Shows rules and hits.")
    _add_state(listing)
    remove = _command(
        actions, "rm", _remove_fault, "end a rule", "Ends one rule, or all of them with `all`."
    )
    _add_state(remove)
    remove.add_argument("rule", type=_rule, metavar="ID", help="a rule's id, or all")

    slow = _command(
        commands, "slow", _slow, "make NVML calls slow",
        "Short for a fault rule that only waits. It lasts until `fault rm`.",
    )  # fmt: skip
    _add_state(slow)
    slow.add_argument("milliseconds", type=_delay, metavar="MS", help="wait so long in each call")
    slow.add_argument("--function", default="nvml*", metavar="GLOB", help="default: all functions")
    _add_scope(slow)


def _command(
    commands: Any, name: str, run: Command, summary: str, description: str, example: str = ""
) -> argparse.ArgumentParser:
    command: argparse.ArgumentParser = commands.add_parser(name, help=summary)
    command.set_defaults(command=run)
    command.add_argument("--json", action="store_true", help="answer in JSON")
    return _with_help(command, description, f"example:\n{example}" if example else "")


def _with_help(
    command: argparse.ArgumentParser, description: str, epilog: str = ""
) -> argparse.ArgumentParser:
    command.description, command.epilog = description, epilog
    command.formatter_class = argparse.RawDescriptionHelpFormatter
    return command


def _add_state(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--state", type=Path, metavar="FILE",
        help=f"the state file; default: $NVDRA_SIM_STATE, else {state.DEFAULT_PATH}",
    )  # fmt: skip


def _add_description(command: argparse.ArgumentParser) -> None:
    source = command.add_mutually_exclusive_group(required=True)
    source.add_argument("--config", type=Path, metavar="FILE", help="a node file, YAML or JSON")
    source.add_argument("--profile", choices=hardware.profile_names(), help="a well-known node")
    command.add_argument("--name", help="of a --profile node; default: node-0")
    command.add_argument(
        "--nodes", choices=("real", "table", "openable"),
        help="device nodes of a --profile node; table needs no privilege (default: real)",
    )  # fmt: skip


def _add_scope(command: argparse.ArgumentParser) -> None:
    command.add_argument("--gpu", default="*", metavar="GPU", help="only calls on this GPU")
    command.add_argument(
        "--times", type=_positive, metavar="N", help="only so many calls; default: all"
    )


def _description(arguments: argparse.Namespace) -> NodeDescription:
    if arguments.config is None:
        sections = {"render": {"nodes": arguments.nodes or "real"}}
        return config.from_profile(arguments.profile, arguments.name or "node-0", sections)
    if arguments.name or arguments.nodes:
        raise state.StateError("with --config, the name and the device nodes are the file's")
    return config.load(arguments.config)


def _state(arguments: argparse.Namespace) -> state.State:
    return state.load(_state_path(arguments))


def _state_path(arguments: argparse.Namespace) -> Path:
    if arguments.state is not None:
        path: Path = arguments.state
        return path
    return Path(os.getenv("NVDRA_SIM_STATE") or state.DEFAULT_PATH)


def _code(text: str) -> int:
    try:
        code = return_codes.number(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if code == 0:
        raise argparse.ArgumentTypeError("a rule cannot make a call succeed")
    return code


def _delay(text: str) -> int:
    try:
        delay = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of milliseconds") from None
    if delay < 0 and delay != UNTIL_REMOVED:
        raise argparse.ArgumentTypeError("a delay is 0 or more milliseconds, or -1")
    return delay


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of calls")
    return int(text)


def _rule(text: str) -> str:
    if text != "all" and not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is neither a rule's id nor all")
    return text
