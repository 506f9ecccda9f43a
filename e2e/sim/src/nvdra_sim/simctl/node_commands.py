# SPDX-License-Identifier: Apache-2.0
"""The commands of `nvdra-simctl` for driver, boots, processes, MIG and the clock."""

from __future__ import annotations

import argparse
from typing import Any

from nvdra_sim import incidents, mig_changes
from nvdra_sim.filesystem import capability_files, trees
from nvdra_sim.simctl import arguments, pci_commands, report
from nvdra_sim.simctl.gpu_arguments import (
    add_gpu_command,
    add_instance,
    add_proc_root,
    instance,
    open_state_and_gpu,
)
from nvdra_sim.state_file import clients, layout
from nvdra_sim.state_file.state import StateError


def add_to(commands: Any) -> None:
    """Adds the commands to the parser."""
    _add_mig(commands)
    _add_processes(commands)
    _add_boots(commands)
    _add_clock(commands)


# Commands


def _mig_list(given: argparse.Namespace) -> object:
    state = arguments.open_state(given)
    return report.gpu_instances(state) if given.instances else report.mig_devices(state)


def _mig_create(given: argparse.Namespace) -> object:
    node, gpu = open_state_and_gpu(given)
    compute = None if given.compute is None else [each for each in given.compute.split(",") if each]
    mig_changes.create(node, gpu, given.profile, given.start, compute, proc_root=given.proc_root)
    return report.mig_devices(node)


def _mig_destroy(given: argparse.Namespace) -> object:
    node, gpu = open_state_and_gpu(given)
    if given.gi is None:
        raise StateError("say which GPU instance to destroy: --gi")
    if given.ci is None:
        mig_changes.destroy(node, gpu, given.gi, proc_root=given.proc_root)
    else:
        mig_changes.destroy_compute(node, gpu, given.gi, given.ci, proc_root=given.proc_root)
    return report.mig_devices(node)


def _add_process(given: argparse.Namespace) -> object:
    node, gpu = open_state_and_gpu(given)
    incidents.add_process(node, gpu, given.pid, given.memory_mib, given.kind, instance(given))
    return report.processes(node)


def _remove_process(given: argparse.Namespace) -> object:
    node, gpu = open_state_and_gpu(given)
    incidents.remove_process(node, gpu, given.pid)
    return report.processes(node)


def _list_processes(given: argparse.Namespace) -> object:
    return report.processes(arguments.open_state(given))


def _reboot(given: argparse.Namespace) -> object:
    node = arguments.open_state(given)
    boot_id = incidents.reboot(node)
    if given.proc_root is not None:
        file = {"sys/kernel/random/boot_id": trees.text(boot_id, 0o444)}
        trees.write(file, given.proc_root)
    gpus = node.description().gpus
    capability_files.update(node.snapshot(), gpus, given.proc_root)
    return {"boot_id": boot_id}


def _unload(given: argparse.Namespace) -> object:
    node = arguments.open_state(given)
    if clients.has_session(node) and not given.force:
        raise StateError("rmmod: ERROR: Module nvidia is in use")
    with pci_commands.files_follow(node):
        incidents.unload_driver(node)
    return report.node(node)


def _load(given: argparse.Namespace) -> object:
    node = arguments.open_state(given)
    with pci_commands.files_follow(node):
        incidents.load_driver(node)
    return report.node(node)


def _freeze(given: argparse.Namespace) -> object:
    return _change_clock(given, incidents.freeze_clock)


def _run(given: argparse.Namespace) -> object:
    return _change_clock(given, incidents.run_clock)


def _step(given: argparse.Namespace) -> object:
    node = arguments.open_state(given)
    incidents.step_clock(node, given.milliseconds)
    return report.clock(node)


def _change_clock(given: argparse.Namespace, change: Any) -> object:
    node = arguments.open_state(given)
    change(node)
    return report.clock(node)


# Arguments


def _add_mig(commands: Any) -> None:
    mig = commands.add_parser("mig", help="MIG instances")
    arguments.set_help(
        mig, "Shows and changes the MIG instances. The node file defines the initial ones."
    )
    actions = mig.add_subparsers(required=True, metavar="ACTION")
    listing = arguments.add_command(
        actions, "list", _mig_list, "list the MIG devices", "Lists the MIG devices."
    )
    arguments.add_state(listing)
    listing.add_argument(
        "--instances", action="store_true",
        help="list the GPU instances instead, also those without compute instances",
    )  # fmt: skip
    create = add_gpu_command(
        actions, "create", _mig_create, "create MIG instances",
        "Creates a GPU instance and compute instances in it, as nvidia-smi mig -cgi -C does.",
        "  nvdra-simctl mig create 0 3g.40gb 4                   # one MIG device\n"
        "  nvdra-simctl mig create 0 3g.40gb 0 --compute 2c,1c   # two in one GPU instance",
    )  # fmt: skip
    create.add_argument("profile", metavar="PROFILE")
    create.add_argument(
        "start", type=arguments.count, metavar="START", help="the first memory slice"
    )
    create.add_argument(
        "--compute", metavar="SIZES", default=None,
        help="the compute instances; none: ''; default: one that covers the GPU instance",
    )  # fmt: skip
    add_proc_root(create)
    destroy = add_gpu_command(
        actions, "destroy", _mig_destroy, "destroy MIG instances",
        "Destroys a GPU instance with its compute instances, or one compute instance.",
    )  # fmt: skip
    add_instance(destroy)
    add_proc_root(destroy)


def _add_processes(commands: Any) -> None:
    proc = commands.add_parser("proc", help="processes that use GPUs")
    arguments.set_help(proc, "Changes the processes that NVML lists. They need not exist.")
    actions = proc.add_subparsers(required=True, metavar="ACTION")
    add = add_gpu_command(
        actions,
        "add",
        _add_process,
        "add a process",
        "Adds a process that uses a GPU and its memory.",
    )
    add.add_argument("pid", type=arguments.number_of_calls, metavar="PID")
    add.add_argument("memory_mib", type=arguments.count, nargs="?", default=0, metavar="MIB")
    add.add_argument("--kind", choices=tuple(layout.PROCESS), default="compute")
    add_instance(add)
    remove = add_gpu_command(
        actions, "rm", _remove_process, "remove a process", "Reverts `proc add`."
    )
    remove.add_argument("pid", type=arguments.number_of_calls, metavar="PID")
    listing = arguments.add_command(
        actions, "list", _list_processes, "list the processes", "Lists the processes of all GPUs."
    )
    arguments.add_state(listing)


def _add_boots(commands: Any) -> None:
    reboot = arguments.add_command(
        commands, "reboot", _reboot, "reboot the node",
        "Resets every GPU to its configuration, without MIG instances, and gives the node a new\n"
        "boot id. Only Ampere GPUs keep their MIG mode. Fault rules are kept. From now on, a\n"
        "reboot of this machine does not reboot the simulated node.",
    )  # fmt: skip
    arguments.add_state(reboot)
    add_proc_root(reboot)
    driver = commands.add_parser("driver", help="unload or load the kernel module")
    arguments.set_help(
        driver, "Changes the results of NVML. Use `install` and `uninstall` for the driver's files."
    )
    actions = driver.add_subparsers(required=True, metavar="ACTION")
    for name, run, summary, description in (
        (
            "unload",
            _unload,
            "unload the module",
            "Every call returns DRIVER_NOT_LOADED. Fails if a process has an NVML session.",
        ),
        ("load", _load, "load the module", "The GPUs are as after a boot."),
    ):
        action = arguments.add_command(actions, name, run, summary, description)
        arguments.add_state(action)
        if name == "unload":
            action.add_argument("--force", action="store_true", help="as rmmod --force")


def _add_clock(commands: Any) -> None:
    clock = commands.add_parser("time", help="stop or move the clock of events")
    arguments.set_help(
        clock, "Changes the clock for the times of events. It does not affect timeouts."
    )
    actions = clock.add_subparsers(required=True, metavar="ACTION")
    for name, run, summary in (
        ("freeze", _freeze, "stop the clock"),
        ("step", _step, "move the clock"),
        ("run", _run, "continue the clock"),
    ):
        action = arguments.add_command(actions, name, run, summary, "Shows the resulting time.")
        arguments.add_state(action)
        if name == "step":
            action.add_argument(
                "milliseconds", type=int, metavar="MS", help="forward, or back if negative"
            )
