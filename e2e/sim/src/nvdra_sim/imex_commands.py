"""The commands of `nvdra-simctl` about `nvidia-imex`; what they do is in `imex_incidents`."""

from __future__ import annotations

import argparse
from collections.abc import Collection
from typing import Any

from nvdra_sim import arguments, imex_incidents, report


def add_to(commands: Any) -> None:
    """Adds them to the command line."""
    imex = commands.add_parser("imex", help="disturb nvidia-imex")
    arguments.with_help(
        imex,
        "Changes how the node's nvidia-imex behaves, now and after its next start. Without the\n"
        "programs at all: node.imex.installed in the node file.",
    )
    actions = imex.add_subparsers(required=True, metavar="ACTION")
    _add_set(actions)
    for name, run, summary, description in (
        ("crash", _crash, "kill it", "The daemon that runs now is killed, as by SIGKILL."),
        ("clear", _clear, "leave it alone", "Undoes everything that set did."),
        ("show", _show, "show what disturbs it", "Shows what set did."),
    ):
        arguments.add_state(arguments.define(actions, name, run, summary, description))


# Commands


def _set(given: argparse.Namespace) -> object:
    node = arguments.node(given)
    imex_incidents.disturb(
        node,
        slow_start_ms=given.slow_start_ms,
        crash_after_ms=given.crash_after_ms,
        never_ready=given.never_ready,
        hang=given.hang,
        dns_stale=given.dns_stale,
        version=given.claim_version,
        refused=given.refuse,
    )
    return report.imex(node)


def _crash(given: argparse.Namespace) -> object:
    node = arguments.node(given)
    imex_incidents.crash(node)
    return report.imex(node)


def _clear(given: argparse.Namespace) -> object:
    node = arguments.node(given)
    imex_incidents.calm(node)
    return report.imex(node)


def _show(given: argparse.Namespace) -> object:
    return report.imex(arguments.node(given))


# Arguments


def _add_set(actions: Any) -> None:
    change = arguments.define(
        actions, "set", _set, "disturb it",
        "What is not given stays as it is.",
        "  nvdra-simctl imex set --never-ready\n"
        "  nvdra-simctl imex set --no-never-ready --refuse 1,2",
    )  # fmt: skip
    arguments.add_state(change)
    change.add_argument(
        "--slow-start-ms", type=arguments.count, metavar="MS", help="it initialises so long"
    )
    change.add_argument(
        "--crash-after-ms", type=arguments.count, metavar="MS",
        help="it is killed so long after each start; 0: never",
    )  # fmt: skip
    for name, text in (
        ("never-ready", "it says NOT_READY instead of READY"),
        ("hang", "it answers nobody"),
        ("dns-stale", "it ignores SIGUSR1 and keeps the addresses it knows"),
    ):
        change.add_argument(f"--{name}", action=argparse.BooleanOptionalAction, help=text)
    change.add_argument(
        "--claim-version", metavar="TEXT", help="what it tells the others; empty: the driver's"
    )
    change.add_argument(
        "--refuse", type=_nodes, metavar="N,…|all|none", help="nodes it has nothing to do with"
    )


def _nodes(text: str) -> Collection[int]:
    """Numbers of the node list."""
    if text in ("all", "none"):
        return imex_incidents.EVERYBODY if text == "all" else ()
    return [arguments.count(number) for number in text.split(",")]
