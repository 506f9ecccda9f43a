# SPDX-License-Identifier: Apache-2.0
"""The `nvdra-simctl imex` commands, which disturb `nvidia-imex` through `imex_incidents`."""

from __future__ import annotations

import argparse
from collections.abc import Collection
from pathlib import Path
from typing import Any

from nvdra_sim import imex_incidents
from nvdra_sim.filesystem import driver_root, trees
from nvdra_sim.native import programs
from nvdra_sim.simctl import arguments, report
from nvdra_sim.state_file import layout


def add_to(commands: Any) -> None:
    """Adds the commands to the parser."""
    imex = commands.add_parser("imex", help="disturb nvidia-imex")
    arguments.set_help(
        imex,
        "Changes how nvidia-imex behaves on the node, at once and after every start.",
    )
    actions = imex.add_subparsers(required=True, metavar="ACTION")
    _add_set(actions)
    for name, run, summary, description in (
        ("crash", _crash, "kill it", "Kills the running daemon, as with SIGKILL."),
        ("clear", _clear, "end all disturbances", "Reverts all changes by `imex set`."),
        ("show", _show, "show the disturbances", "Shows the changes by `imex set`."),
    ):
        arguments.add_state(arguments.add_command(actions, name, run, summary, description))
    for name, run, summary, description in (
        ("remove", _remove, "remove its programs", "Processes that have them open keep them."),
        ("restore", _restore, "restore its programs", "Reverts `imex remove`."),
    ):
        files = arguments.add_command(actions, name, run, summary, description)
        arguments.add_state(files)
        files.add_argument(
            "--driver-root", type=Path, required=True, metavar="DIR", help="the driver root"
        )


# Commands


def _set(given: argparse.Namespace) -> object:
    node = arguments.open_state(given)
    imex_incidents.disturb(
        node,
        slow_start_ms=given.slow_start_ms,
        crash_after_ms=given.crash_after_ms,
        never_ready=given.never_ready,
        status=given.status,
        hang=given.hang,
        nodes_hang=given.nodes_hang,
        dns_stale=given.dns_stale,
        version=given.claim_version,
        refused=given.refuse,
    )
    return report.imex(node)


def _crash(given: argparse.Namespace) -> object:
    node = arguments.open_state(given)
    imex_incidents.crash(node)
    return report.imex(node)


def _clear(given: argparse.Namespace) -> object:
    node = arguments.open_state(given)
    imex_incidents.clear(node)
    return report.imex(node)


def _show(given: argparse.Namespace) -> object:
    return report.imex(arguments.open_state(given))


def _remove(given: argparse.Namespace) -> object:
    tree = driver_root.imex(arguments.open_state(given).description(), programs.build())
    trees.remove([given.driver_root / path for path in tree])
    return {"removed": sorted(tree)}


def _restore(given: argparse.Namespace) -> object:
    tree = driver_root.imex(arguments.open_state(given).description(), programs.build())
    trees.write(tree, given.driver_root)
    return {"restored": sorted(tree)}


# Arguments


def _add_set(actions: Any) -> None:
    change = arguments.add_command(
        actions, "set", _set, "disturb it",
        "Settings that are not given do not change.",
        "  nvdra-simctl imex set --never-ready\n"
        "  nvdra-simctl imex set --no-never-ready --refuse 1,2",
    )  # fmt: skip
    arguments.add_state(change)
    change.add_argument(
        "--slow-start-ms",
        type=arguments.count,
        metavar="MS",
        help="it takes this long to initialize",
    )
    change.add_argument(
        "--crash-after-ms", type=arguments.count, metavar="MS",
        help="it is killed this long after each start; 0: never",
    )  # fmt: skip
    for name, text in (
        ("never-ready", "it reports INIT_GPU instead of READY"),
        ("hang", "it does not respond to anybody"),
        ("nodes-hang", "it does not answer nvidia-imex-ctl -N, and otherwise works"),
        ("dns-stale", "it ignores SIGUSR1 and does not look names up again"),
    ):
        change.add_argument(f"--{name}", action=argparse.BooleanOptionalAction, help=text)
    change.add_argument(
        "--status",
        choices=("", *layout.IMEX_STATUSES),
        metavar="WORD",
        help="the word that it reports whatever its state is; empty: its own",
    )
    change.add_argument(
        "--claim-version",
        metavar="TEXT",
        help="the version it sends to peers; empty: that of the driver",
    )
    change.add_argument(
        "--refuse",
        type=_nodes,
        metavar="N,…|all|none",
        help="the peers that it does not connect to",
    )


def _nodes(text: str) -> Collection[int]:
    """Parses indices of the node list."""
    if text in ("all", "none"):
        return imex_incidents.ALL_NODES if text == "all" else ()
    return [arguments.count(number) for number in text.split(",")]
