"""The commands of `nvdra-simctl` about driver, boots, processes, MIG and the clock."""

from __future__ import annotations

import argparse
from typing import Any

from nvdra_sim import arguments, incidents, layout, report, trees
from nvdra_sim.gpu_arguments import (
    add_instance,
    add_proc_root,
    forget_capabilities,
    instance,
    node_and_gpu,
    on_a_gpu,
)


def add_to(commands: Any) -> None:
    """Adds them to the command line."""
    _add_mig(commands)
    _add_processes(commands)
    _add_boots(commands)
    _add_clock(commands)


# Commands


def _mig_list(given: argparse.Namespace) -> object:
    return report.mig_devices(arguments.node(given))


def _add_process(given: argparse.Namespace) -> object:
    node, gpu = node_and_gpu(given)
    incidents.add_process(node, gpu, given.pid, given.memory_mib, given.kind, instance(given))
    return report.processes(node)


def _remove_process(given: argparse.Namespace) -> object:
    node, gpu = node_and_gpu(given)
    incidents.remove_process(node, gpu, given.pid)
    return report.processes(node)


def _list_processes(given: argparse.Namespace) -> object:
    return report.processes(arguments.node(given))


def _reboot(given: argparse.Namespace) -> object:
    node = arguments.node(given)
    boot_id = incidents.reboot(node)
    if given.proc_root is not None:
        file = {"sys/kernel/random/boot_id": trees.text(boot_id, 0o444)}
        trees.write(file, given.proc_root)
    forget_capabilities(node, node.node().gpus, given.proc_root)
    return {"boot_id": boot_id}


def _unload(given: argparse.Namespace) -> object:
    node = arguments.node(given)
    incidents.unload_driver(node)
    return report.node(node)


def _load(given: argparse.Namespace) -> object:
    node = arguments.node(given)
    incidents.load_driver(node)
    return report.node(node)


def _freeze(given: argparse.Namespace) -> object:
    return _change_clock(given, incidents.freeze_clock)


def _run(given: argparse.Namespace) -> object:
    return _change_clock(given, incidents.run_clock)


def _step(given: argparse.Namespace) -> object:
    node = arguments.node(given)
    incidents.step_clock(node, given.milliseconds)
    return report.clock(node)


def _change_clock(given: argparse.Namespace, change: Any) -> object:
    node = arguments.node(given)
    change(node)
    return report.clock(node)


# Arguments


def _add_mig(commands: Any) -> None:
    mig = commands.add_parser("mig", help="MIG instances")
    arguments.with_help(mig, "MIG instances as they are now; a node file says how they start.")
    actions = mig.add_subparsers(required=True, metavar="ACTION")
    arguments.add_state(
        arguments.define(actions, "list", _mig_list, "show them", "Shows the MIG devices.")
    )


def _add_processes(commands: Any) -> None:
    proc = commands.add_parser("proc", help="processes that hold GPUs")
    arguments.with_help(proc, "Processes as NVML lists them; they need not exist.")
    actions = proc.add_subparsers(required=True, metavar="ACTION")
    add = on_a_gpu(actions, "add", _add_process, "a process holds a GPU", "It uses memory there.")
    add.add_argument("pid", type=arguments.number_of_calls, metavar="PID")
    add.add_argument("memory_mib", type=arguments.count, nargs="?", default=0, metavar="MIB")
    add.add_argument("--kind", choices=tuple(layout.PROCESS), default="compute")
    add_instance(add)
    remove = on_a_gpu(actions, "rm", _remove_process, "it lets go", "Undoes add.")
    remove.add_argument("pid", type=arguments.number_of_calls, metavar="PID")
    listing = arguments.define(
        actions, "list", _list_processes, "show them", "Shows the processes of all GPUs."
    )
    arguments.add_state(listing)


def _add_boots(commands: Any) -> None:
    reboot = arguments.define(
        commands, "reboot", _reboot, "start the node anew",
        "Puts every GPU back to how it was configured, without MIG instances, and gives the node\n"
        "a new boot id. MIG mode stays on Ampere only. Fault rules stay. A node that followed\n"
        "this machine's boots follows its own from now on.",
    )  # fmt: skip
    arguments.add_state(reboot)
    add_proc_root(reboot)
    driver = commands.add_parser("driver", help="unload or load the kernel module")
    arguments.with_help(
        driver, "Changes what NVML answers. Files of the driver are `install` and `uninstall`."
    )
    actions = driver.add_subparsers(required=True, metavar="ACTION")
    for name, run, summary, description in (
        ("unload", _unload, "the module is gone", "Every call answers DRIVER_NOT_LOADED."),
        ("load", _load, "the module is loaded", "GPUs are as after a boot."),
    ):
        arguments.add_state(arguments.define(actions, name, run, summary, description))


def _add_clock(commands: Any) -> None:
    clock = commands.add_parser("time", help="stop or move the clock of events")
    arguments.with_help(clock, "The clock that `events` shows; nothing waits by it.")
    actions = clock.add_subparsers(required=True, metavar="ACTION")
    for name, run, summary in (
        ("freeze", _freeze, "stop it"),
        ("step", _step, "move it"),
        ("run", _run, "let it go on"),
    ):
        action = arguments.define(actions, name, run, summary, "Shows the time it is then.")
        arguments.add_state(action)
        if name == "step":
            action.add_argument("milliseconds", type=int, metavar="MS", help="on, or back")
