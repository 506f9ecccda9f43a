# SPDX-License-Identifier: Apache-2.0
"""The commands of `nvdra-simctl` that disturb GPUs, through `incidents`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any
from uuid import UUID

from nvdra_sim import incidents, return_codes
from nvdra_sim.description import Gpu
from nvdra_sim.filesystem import capability_files, sysfs, trees
from nvdra_sim.simctl import arguments, pci_commands, report
from nvdra_sim.simctl.gpu_arguments import (
    GPU_HELP,
    add_gpu_command,
    add_instance,
    add_proc_root,
    instance,
    open_state_and_gpu,
)
from nvdra_sim.state_file import clients, layout
from nvdra_sim.state_file.state import State, StateError


def add_to(commands: Any) -> None:
    """Adds the commands to the parser."""
    _add_gpu(commands)
    _add_errors(commands)
    _add_fabric(commands)


# Commands


def _lose(given: argparse.Namespace) -> object:
    node, gpu = open_state_and_gpu(given)
    if given.xid is None:
        node.lose(gpu)
    else:
        incidents.lose_with_xid(node, gpu, given.xid)
    return report.gpu(node, gpu)


def _restore(given: argparse.Namespace) -> object:
    node, gpu = open_state_and_gpu(given)
    node.restore(gpu)
    return report.gpu(node, gpu)


def _unplug(given: argparse.Namespace) -> object:
    node, gpu = open_state_and_gpu(given)
    incidents.unplug(node, gpu)
    if given.sys_root is not None:
        trees.remove(trees.paths(sysfs.gpu_tree(node.description(), gpu), given.sys_root))
    return report.gpu(node, gpu)


def _plug(given: argparse.Namespace) -> object:
    node, gpu = open_state_and_gpu(given)
    if given.sys_root is not None:
        trees.write(sysfs.gpu_tree(node.description(), gpu), given.sys_root)
    incidents.plug(node, gpu)
    return report.gpu(node, gpu)


def _reset(given: argparse.Namespace) -> object:
    node, gpu = open_state_and_gpu(given)
    is_persistent = bool(node.snapshot().gpus[gpu.index].persistence)
    is_held = is_persistent and node.description().persistence_blocks_reset
    _check_idle(node, gpu, "The following GPUs could not be reset:\n  ", is_held=is_held)
    incidents.reset(node, gpu)
    capability_files.update(node.snapshot(), [gpu], given.proc_root)
    return report.gpu(node, gpu)


def _drain(given: argparse.Namespace) -> object:
    node, gpu = open_state_and_gpu(given)
    if node.snapshot().gpus[gpu.index].persistence:
        raise StateError(f"GPU {gpu.bus_id} cannot be drained: it is in persistence mode")
    _check_idle(node, gpu, "Failed to remove ")
    incidents.drain(node, gpu)
    return report.gpu(node, gpu)


def _unbind(given: argparse.Namespace) -> object:
    node, gpu = open_state_and_gpu(given)
    if clients.has_sysfs_server(node):
        pci_commands.write_control(node, "bus/pci/drivers/nvidia/unbind", gpu.bus_id)
        return report.gpu(node, gpu)
    if clients.has_clients(node, gpu.index):
        raise StateError(
            f"NVRM: Attempting to remove device {gpu.bus_id} with non-zero usage count!"
        )
    with pci_commands.files_follow(node):
        incidents.unbind(node, gpu)
    return report.gpu(node, gpu)


def _bind(given: argparse.Namespace) -> object:
    node, gpu = open_state_and_gpu(given)
    if clients.has_sysfs_server(node):
        pci_commands.write_control(node, "bus/pci/drivers/nvidia/bind", gpu.bus_id)
        return report.gpu(node, gpu)
    with pci_commands.files_follow(node):
        incidents.bind(node, gpu)
    return report.gpu(node, gpu)


def _kernel_client(given: argparse.Namespace) -> object:
    node, gpu = open_state_and_gpu(given)
    incidents.set_kernel_client(node, gpu, uses=given.uses == "on")
    return report.gpu(node, gpu)


def _break(given: argparse.Namespace) -> object:
    node, gpu = open_state_and_gpu(given)
    incidents.break_at_bind(node, gpu)
    return report.gpu(node, gpu)


def _check_idle(node: State, gpu: Gpu, refusal: str, *, is_held: bool = False) -> None:
    """Return only if nobody has the GPU open. The refusals are those of nvidia-smi.

    With `is_held`, persistence mode has it open: nvidia-persistenced, or the kernel module.
    """
    if is_held or clients.has_clients(node, gpu.index):
        raise StateError(f"{refusal}GPU {gpu.bus_id}: In use by another client")


def _initialisation(given: argparse.Namespace) -> object:
    node, gpu = open_state_and_gpu(given)
    incidents.set_initialisation(node, gpu, given.milliseconds)
    return report.gpu(node, gpu)


def _xid(given: argparse.Namespace) -> object:
    node, gpu = open_state_and_gpu(given)
    recovery = given.recovery or incidents.XID_RECOVERIES.get(given.number)
    incidents.report_xid(node, gpu, given.number, instance(given), recovery)
    # A recovery action that changes is reported as another XID after this one.
    return next(each for each in reversed(report.events(node)) if each["data"] == given.number)


def _recovery(given: argparse.Namespace) -> object:
    node, gpu = open_state_and_gpu(given)
    incidents.set_recovery_action(node, gpu, given.action)
    return report.gpu(node, gpu)


def _row_remapping(given: argparse.Namespace) -> object:
    node, gpu = open_state_and_gpu(given)
    incidents.set_row_remapping(node, gpu, given.remapping)
    return report.gpu(node, gpu)


def _ecc(given: argparse.Namespace) -> object:
    node, gpu = open_state_and_gpu(given)
    incidents.report_ecc_errors(node, gpu, given.kind, given.count)
    return report.gpu(node, gpu)


def _events(given: argparse.Namespace) -> object:
    return report.events(arguments.open_state(given))


def _fabric(given: argparse.Namespace) -> object:
    node = arguments.open_state(given)
    gpus = node.description().gpus if given.gpu == "all" else (node.gpu(given.gpu),)
    incidents.set_fabric(
        node,
        gpus,
        fabric_state=given.fabric_state,
        status=given.status,
        clique=given.clique,
        uuid=given.uuid,
        health=given.health,
        summary=given.summary,
    )
    return [report.gpu(node, gpu) for gpu in gpus]


# Arguments


def _add_gpu(commands: Any) -> None:
    gpu = commands.add_parser("gpu", help="lose, restore, reset or plug a GPU, …")
    arguments.set_help(gpu, f"Changes one GPU. GPU is its {GPU_HELP}.")
    actions = gpu.add_subparsers(required=True, metavar="ACTION")
    lose = add_gpu_command(
        actions, "lose", _lose, "the GPU falls off the bus",
        "Every call on the GPU returns GPU_IS_LOST. It is still counted and still has a handle.",
    )  # fmt: skip
    lose.add_argument(
        "--xid",
        type=arguments.count,
        metavar="N",
        help="the driver also reports this Xid, for example 79",
    )
    add_gpu_command(actions, "restore", _restore, "a lost GPU works again", "Reverts `gpu lose`.")
    unplug = add_gpu_command(
        actions, "unplug", _unplug, "the GPU leaves the PCI bus",
        "The GPU is no longer counted and cannot be found. Its device node remains, as on a\n"
        "machine without udev.",
    )  # fmt: skip
    plug = add_gpu_command(
        actions,
        "plug",
        _plug,
        "an unplugged GPU is back",
        "Reverts `gpu unplug`. The GPU is as after a boot.",
    )
    for action in (unplug, plug):
        action.add_argument(
            "--sys-root", type=Path, metavar="DIR", help="also update this simulated /sys"
        )
    reset = add_gpu_command(
        actions, "reset", _reset, "reset the GPU",
        "Resets modes to the configured ones, removes MIG instances and applies a pending MIG\n"
        "mode, as nvidia-smi --gpu-reset. Fails if processes use the GPU or have an NVML session,\n"
        "if it is lost, and in persistence mode, unless persistence_blocks_reset is false.",
    )  # fmt: skip
    add_gpu_command(
        actions, "drain", _drain, "remove the GPU from the bus in good order",
        "What nvidia-smi drain does. Fails in persistence mode, and if a process uses the GPU or\n"
        "has an NVML session. `gpu plug` brings it back.",
    )  # fmt: skip
    add_gpu_command(
        actions, "unbind", _unbind, "unbind the GPU from the driver nvidia",
        "What writing to /sys/bus/pci/drivers/nvidia/unbind does, and with nvdra-sim-sysfs just\n"
        "that: it waits for the users of the GPU. Without, it fails if a process uses the GPU or\n"
        "has an NVML session.",
    )  # fmt: skip
    add_gpu_command(actions, "bind", _bind, "bind the GPU again", "Reverts `gpu unbind`.")
    kernel = add_gpu_command(
        actions, "kernel-client", _kernel_client, "a part of the kernel uses the GPU",
        "An unbind waits for it, and no process shows up, as with a console on nvidia-drm.",
    )  # fmt: skip
    kernel.add_argument("uses", choices=("on", "off"))
    add_gpu_command(
        actions, "break", _break, "the GPU does not start after its next bind",
        "Once the driver has the GPU again, NVML fails with UNKNOWN, until a boot.",
    )  # fmt: skip
    add_proc_root(reset)
    initialisation = add_gpu_command(
        actions, "initialisation", _initialisation, "how long the GPU takes to start",
        "Without persistence mode, the first call of a GPU that no other process uses takes so\n"
        "long. Real GPUs take 1000 to 3000 ms.",
    )  # fmt: skip
    initialisation.add_argument("milliseconds", type=arguments.count, metavar="MS")


def _add_errors(commands: Any) -> None:
    xid = add_gpu_command(
        commands, "xid", _xid, "the driver reports an Xid",
        "Sends an event to all processes that registered for critical Xids of the GPU. Some Xids\n"
        "also change the recovery action, as those of the driver do.",
        "  nvdra-simctl xid 2 48                 # double-bit ECC error on GPU 2\n"
        "  nvdra-simctl xid 0 13 --gi 1 --ci 0   # an application error in one MIG device",
    )  # fmt: skip
    xid.add_argument("number", type=arguments.count, metavar="XID")
    add_instance(xid)
    xid.add_argument(
        "--recovery",
        choices=tuple(incidents.RECOVERY_ACTIONS),
        help="the GPU needs this in order to recover",
    )
    recovery = add_gpu_command(
        commands, "recovery", _recovery, "what the GPU needs in order to recover",
        "Changes the recovery action that NVML reports. A change is also reported as Xid 154.",
    )  # fmt: skip
    recovery.add_argument("action", choices=tuple(incidents.RECOVERY_ACTIONS))
    remapping = add_gpu_command(
        commands, "row-remapping", _row_remapping, "whether rows of memory are being remapped",
        "`pending` until the next reset; `failed` for good, because no spare row is left. Sends\n"
        "no event; the driver reports Xid 63 or 64 as well (`simctl xid`).",
    )  # fmt: skip
    remapping.add_argument("remapping", choices=tuple(layout.REMAPPING))
    ecc = add_gpu_command(
        commands,
        "ecc",
        _ecc,
        "report memory errors",
        "Increments the counters and sends one event per error.",
    )
    ecc.add_argument("kind", choices=tuple(incidents.ECC_EVENTS), help="single or double bit")
    ecc.add_argument("count", type=arguments.number_of_calls, nargs="?", default=1, metavar="N")
    events = arguments.add_command(
        commands, "events", _events, "show the events", "Shows the events since the last boot."
    )
    arguments.add_state(events)


def _add_fabric(commands: Any) -> None:
    fabric = arguments.add_command(
        commands, "fabric", _fabric, "change the NVLink fabric state of GPUs",
        "Settings that are not given do not change.",
        "  nvdra-simctl fabric all --fabric-state in_progress\n"
        "  nvdra-simctl fabric 3 --clique 7",
    )  # fmt: skip
    arguments.add_state(fabric)
    fabric.add_argument("gpu", metavar="GPU", help=f"{GPU_HELP}, or all")
    fabric.add_argument("--fabric-state", choices=tuple(incidents.FABRIC_STATES))
    fabric.add_argument(
        "--status", type=return_codes.number, metavar="CODE", help="an NVML return code"
    )
    fabric.add_argument("--clique", type=arguments.count, metavar="N")
    fabric.add_argument("--uuid", type=UUID, metavar="UUID", help="the UUID of the cluster")
    fabric.add_argument("--health", type=lambda text: int(text, 0), metavar="MASK")
    fabric.add_argument("--summary", type=int, choices=(0, 1, 2, 3), help="the health summary")
