# SPDX-License-Identifier: Apache-2.0
"""What a machine does after its start, as data. It uses only the standard library.

A machine is a set of processes in namespaces of their own: the control plane is one, and every node
is one. Its first process (`init`) runs the steps in order, then keeps the units running.
"""

import dataclasses
import json
from typing import Any, get_args


@dataclasses.dataclass(frozen=True)
class Cgroup:
    """The machine runs in this cgroup of every hierarchy and sees it as the root."""

    folder: str


@dataclasses.dataclass(frozen=True)
class Bind:
    """`source` is bound to `target`, an existing directory."""

    source: str
    target: str


@dataclasses.dataclass(frozen=True)
class Overlay:
    """`target` keeps its content; changes in it go to `upper`."""

    target: str
    upper: str
    work: str


@dataclasses.dataclass(frozen=True)
class Devices:
    """`target` becomes a tmpfs with the usual device nodes only."""

    target: str


@dataclasses.dataclass(frozen=True)
class Run:
    """A command that must end with 0 before the next step; its output goes to the log `name`."""

    name: str
    argv: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Start:
    """A unit that runs as long as the machine, and is restarted when it ends."""

    name: str
    argv: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class WaitSocket:
    """The unit `name` is ready when its Unix socket accepts connections."""

    name: str
    path: str
    timeout_s: float


@dataclasses.dataclass(frozen=True)
class WaitMount:
    """The unit `name` is ready when a file system is mounted at `path`."""

    name: str
    path: str
    timeout_s: float


@dataclasses.dataclass(frozen=True)
class WaitPort:
    """The unit `name` is ready when this port of 127.0.0.1 accepts connections."""

    name: str
    port: int
    timeout_s: float


@dataclasses.dataclass(frozen=True)
class WaitHTTPS:
    """The unit `name` is ready when an anonymous GET of `url` returns 200."""

    name: str
    url: str
    ca: str
    timeout_s: float


Wait = WaitSocket | WaitMount | WaitPort | WaitHTTPS
Step = Cgroup | Bind | Overlay | Devices | Run | Start | Wait
_KINDS: dict[str, type[Any]] = {kind.__name__: kind for kind in get_args(Step)}


@dataclasses.dataclass(frozen=True)
class Machine:
    """A machine: its name, the environment of its processes, and its steps in order.

    `login` is additional environment for those who enter it.
    """

    name: str
    environment: dict[str, str]
    steps: tuple[Step, ...]
    login: dict[str, str] = dataclasses.field(default_factory=dict)


def encode(machine: Machine) -> str:
    """The machine as JSON, for its `init`."""
    steps = [{"kind": type(step).__name__, **dataclasses.asdict(step)} for step in machine.steps]
    return json.dumps({**dataclasses.asdict(machine), "steps": steps}, indent=1)


def decode(text: str) -> Machine:
    """The machine that `encode` wrote."""
    document = json.loads(text)
    return Machine(**{**document, "steps": tuple(map(_step, document["steps"]))})


def _step(fields: dict[str, Any]) -> Step:
    kind = _KINDS[fields.pop("kind")]
    if "argv" in fields:
        fields["argv"] = tuple(fields["argv"])
    step: Step = kind(**fields)
    return step
