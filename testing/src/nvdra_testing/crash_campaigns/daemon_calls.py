# SPDX-License-Identifier: Apache-2.0
"""Names the targets of an IMEX daemon's calls in a trace.

Beside files and requests a daemon changes its lock, and the nvidia-imex that it has started. Paths
are those in the daemon's container. The programs that it starts are not in the trace.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from nvdra_testing.crash_campaigns import points, traced_requests
from nvdra_testing.crash_campaigns.points import Target, TraceNames
from nvdra_testing.faults.strace import Call

CALLS: Final = (*points.CALLS, "fcntl", "kill", "vfork")

_COMM: Final = re.compile(r'\d+</proc/\d+/task/\d+/comm>, "(?P<name>[^"]*)"')
_FILE: Final = re.compile(r"\d+<(?P<path>/[^>]*)>")
_LOCK: Final = re.compile(r"F_OFD_SETLK, \{l_type=(?P<kind>\w+)")
_OUTPUT: Final = re.compile(r"\d+</[^>]*/(?:log|out)>")
_OWN_POD: Final = re.compile(r"(/pods/daemon-[a-z-]+)-[0-9a-f]{8}\b")


def call_targets(
    calls: Iterable[Call], node: TraceNames, *, is_start: bool
) -> list[tuple[Call, Target]]:
    """The target of each call.

    Args:
        calls: The calls, in order.
        node: What is needed to name targets.
        is_start: Whether the calls begin with the daemon's. The first program that it starts is
            nvidia-imex; others ask how that is.
    """
    named = list(_with_thread_names(calls))
    usual = traced_requests.call_targets(named, node)
    state = _State(is_locked=not is_start, has_imex=not is_start)
    return [(call, _target(call, aim, state)) for call, aim in usual]


@dataclass
class _State:
    """What the daemon has and holds at a call."""

    is_locked: bool
    has_imex: bool


def _with_thread_names(calls: Iterable[Call]) -> Iterator[Call]:
    """The calls with the names that threads give themselves.

    The path of such a name has the number that the thread has in its container.
    """
    names: dict[int, str] = {}
    for call in calls:
        if found := _COMM.match(call.arguments):
            names[call.tid] = found["name"]
        yield replace(call, thread=names.get(call.tid, call.thread))


def _target(call: Call, usual: Target, state: _State) -> Target:
    if call.name == "kill":
        return Target(f"nvidia-imex {call.arguments.partition(', ')[2].partition(')')[0]}")
    if call.name == "vfork":
        is_first, state.has_imex = not state.has_imex, True
        return Target("nvidia-imex" if is_first else "query of nvidia-imex", is_change=is_first)
    if call.name == "fcntl":
        return _descriptor(call, state)
    if _OUTPUT.match(call.arguments):
        return Target("log and output", is_change=False)
    return replace(usual, name=_OWN_POD.sub(r"\1", usual.name))


def _descriptor(call: Call, state: _State) -> Target:
    file, lock = _FILE.match(call.arguments), _LOCK.search(call.arguments)
    path = file["path"] if file else ""
    if lock is None:
        return Target("flags of a descriptor", is_change=False, path=path)
    was_locked, state.is_locked = state.is_locked, lock["kind"] != "F_UNLCK"
    return Target(f"{path} {lock['kind']}", is_change=was_locked != state.is_locked, path=path)
