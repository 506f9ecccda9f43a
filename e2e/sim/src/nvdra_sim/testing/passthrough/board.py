# SPDX-License-Identifier: Apache-2.0
"""The PCI functions that tests of passthrough may rebind, and where the kernel shows them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Function:
    """A PCI function.

    Attributes:
        address: As in sysfs, `0000:00:05.0`.
        native: The driver that the kernel binds to it when nothing else is asked for.
    """

    address: str
    native: str


@dataclass(frozen=True)
class Board:
    """The functions that tests may rebind.

    Attributes:
        first: Alone in its IOMMU group.
        second: Alone in another group.
        pair: Two functions that share a group with `bridge`.
        bridge: The address of that bridge (class 0604).
        composite: Functions of one slot that share a group, like a GPU and its audio function. The
            first one is the function 0.
        gpus: Functions of the driver nvidia, each alone in its group.
    """

    first: Function
    second: Function
    pair: tuple[Function, Function]
    bridge: str
    composite: tuple[Function, ...] = ()
    gpus: tuple[Function, ...] = ()

    @property
    def functions(self) -> tuple[Function, ...]:
        """All functions with a native driver."""
        return (self.first, self.second, *self.pair, *self.composite, *self.gpus)


@dataclass(frozen=True)
class BackEnd:
    """A kernel, real or simulated, as its users see it.

    Attributes:
        sys_root: As `/sys`.
        dev_root: As `/dev`.
        modules_root: As `/lib/modules`.
        board: What may be rebound.
        holder: The command of a program with the arguments of `vfio_holder`.
        modprobe: The command `modprobe`.
        rmmod: The command `rmmod`.
        kernel_log: As `/dev/kmsg`. A simulated kernel has none: what a kernel says in words is
            compared on a real one only.
        proc_root: As `/proc`, for what drivers have there. Processes are in `/proc` always.
    """

    sys_root: Path
    dev_root: Path
    modules_root: Path
    board: Board
    holder: Sequence[str]
    modprobe: Sequence[str]
    rmmod: Sequence[str]
    kernel_log: Path | None
    proc_root: Path = Path("/proc")

    @classmethod
    def from_json(cls, text: str) -> BackEnd:
        """The back end that `to_json` has written."""
        values = json.loads(text)
        board = values["board"]
        log = values["kernel_log"]
        return cls(
            sys_root=Path(values["sys_root"]),
            dev_root=Path(values["dev_root"]),
            modules_root=Path(values["modules_root"]),
            board=Board(
                first=_function(board["first"]),
                second=_function(board["second"]),
                pair=(_function(board["pair"][0]), _function(board["pair"][1])),
                bridge=board["bridge"],
                composite=tuple(_function(value) for value in board["composite"]),
                gpus=tuple(_function(value) for value in board["gpus"]),
            ),
            holder=values["holder"],
            modprobe=values["modprobe"],
            rmmod=values["rmmod"],
            kernel_log=None if log is None else Path(log),
            proc_root=Path(values.get("proc_root", "/proc")),
        )

    def to_json(self) -> str:
        """The back end as text, for another process."""
        return json.dumps(asdict(self), default=str, indent=1)


def _function(values: Mapping[str, Any]) -> Function:
    return Function(values["address"], values["native"])
