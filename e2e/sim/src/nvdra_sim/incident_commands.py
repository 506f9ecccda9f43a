"""The commands of `nvdra-simctl` that disturb the hardware; what they do is in `incidents`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any
from uuid import UUID

from nvdra_sim import arguments, incidents, report, return_codes, sysfs, trees
from nvdra_sim.gpu_arguments import (
    GPU_HELP,
    add_instance,
    add_proc_root,
    forget_capabilities,
    instance,
    node_and_gpu,
    on_a_gpu,
)


def add_to(commands: Any) -> None:
    """Adds them to the command line."""
    _add_gpu(commands)
    _add_errors(commands)
    _add_fabric(commands)


# Commands


def _lose(given: argparse.Namespace) -> object:
    node, gpu = node_and_gpu(given)
    if given.xid is None:
        node.lose(gpu)
    else:
        incidents.lose_with_xid(node, gpu, given.xid)
    return report.gpu(node, gpu)


def _restore(given: argparse.Namespace) -> object:
    node, gpu = node_and_gpu(given)
    node.restore(gpu)
    return report.gpu(node, gpu)


def _unplug(given: argparse.Namespace) -> object:
    node, gpu = node_and_gpu(given)
    incidents.unplug(node, gpu)
    if given.sys_root is not None:
        trees.remove(trees.paths(sysfs.of_gpu(node.node(), gpu), given.sys_root))
    return report.gpu(node, gpu)


def _plug(given: argparse.Namespace) -> object:
    node, gpu = node_and_gpu(given)
    if given.sys_root is not None:
        trees.write(sysfs.of_gpu(node.node(), gpu), given.sys_root)
    incidents.plug(node, gpu)
    return report.gpu(node, gpu)


def _reset(given: argparse.Namespace) -> object:
    node, gpu = node_and_gpu(given)
    incidents.reset(node, gpu)
    forget_capabilities(node, [gpu], given.proc_root)
    return report.gpu(node, gpu)


def _xid(given: argparse.Namespace) -> object:
    node, gpu = node_and_gpu(given)
    incidents.xid(node, gpu, given.number, instance(given))
    return report.events(node)[-1]


def _ecc(given: argparse.Namespace) -> object:
    node, gpu = node_and_gpu(given)
    incidents.ecc(node, gpu, given.kind, given.count)
    return report.gpu(node, gpu)


def _events(given: argparse.Namespace) -> object:
    return report.events(arguments.node(given))


def _fabric(given: argparse.Namespace) -> object:
    node = arguments.node(given)
    gpus = node.node().gpus if given.gpu == "all" else (node.gpu(given.gpu),)
    incidents.fabric(
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
    gpu = commands.add_parser("gpu", help="lose, reset or unplug a GPU, or get it back")
    arguments.with_help(gpu, f"Changes one GPU. GPU is its {GPU_HELP}.")
    actions = gpu.add_subparsers(required=True, metavar="ACTION")
    lose = on_a_gpu(
        actions, "lose", _lose, "the GPU falls off the bus",
        "Every call on the GPU answers GPU_IS_LOST. It is still counted and still has a handle.",
    )  # fmt: skip
    lose.add_argument(
        "--xid", type=arguments.count, metavar="N", help="and the driver reports this Xid: 79"
    )
    on_a_gpu(actions, "restore", _restore, "the GPU answers again", "Undoes lose.")
    unplug = on_a_gpu(
        actions, "unplug", _unplug, "the GPU leaves the PCI bus",
        "The GPU is no longer counted, and nothing finds it. Its device node stays, as it does\n"
        "where nobody runs udev.",
    )  # fmt: skip
    plug = on_a_gpu(
        actions, "plug", _plug, "an unplugged GPU is back", "Undoes unplug; as after a boot."
    )
    for action in (unplug, plug):
        action.add_argument(
            "--sys-root", type=Path, metavar="DIR", help="a simulated /sys that shall show it"
        )
    reset = on_a_gpu(
        actions, "reset", _reset, "reset the GPU",
        "Modes as configured, no MIG instance left, a pending MIG mode in force. Refused while\n"
        "processes hold the GPU, or when it is lost.",
    )  # fmt: skip
    add_proc_root(reset)


def _add_errors(commands: Any) -> None:
    xid = on_a_gpu(
        commands, "xid", _xid, "the driver reports an Xid",
        "An event for all who registered for critical Xids of the GPU.",
        "  nvdra-simctl xid 2 48                 # double-bit ECC error on GPU 2\n"
        "  nvdra-simctl xid 0 13 --gi 1 --ci 0   # an application's fault in one MIG device",
    )  # fmt: skip
    xid.add_argument("number", type=arguments.count, metavar="XID")
    add_instance(xid)
    ecc = on_a_gpu(commands, "ecc", _ecc, "memory errors", "Counts them, and one event for each.")
    ecc.add_argument("kind", choices=tuple(incidents.ECC_EVENTS), help="single or double bit")
    ecc.add_argument("count", type=arguments.number_of_calls, nargs="?", default=1, metavar="N")
    events = arguments.define(
        commands, "events", _events, "show what happened", "Events since the last boot."
    )
    arguments.add_state(events)


def _add_fabric(commands: Any) -> None:
    fabric = arguments.define(
        commands, "fabric", _fabric, "change what GPUs say of their NVLink fabric",
        "What is not given stays as it is.",
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
    fabric.add_argument("--uuid", type=UUID, metavar="UUID", help="of the cluster")
    fabric.add_argument("--health", type=lambda text: int(text, 0), metavar="MASK")
    fabric.add_argument("--summary", type=int, choices=(0, 1, 2, 3), help="of the health")
