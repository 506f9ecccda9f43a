# SPDX-License-Identifier: Apache-2.0
"""The status that a machine's init reports. It uses only the standard library."""

import dataclasses
import json
from typing import Literal

Phase = Literal["starting", "running", "failed"]


@dataclasses.dataclass
class UnitStatus:
    """One unit: its process id inside the machine (0 while it is down) and how often it ended."""

    pid: int = 0
    exits: int = 0
    last_exit: str = ""


@dataclasses.dataclass
class MachineStatus:
    """A machine: the phase of its start and its units; in phase `failed`, what failed and how."""

    phase: Phase = "starting"
    step: str = ""
    reason: str = ""
    units: dict[str, UnitStatus] = dataclasses.field(default_factory=dict)


def encode(status: MachineStatus) -> str:
    """The status as JSON."""
    return json.dumps(dataclasses.asdict(status))


def decode(text: str) -> MachineStatus:
    """The status that `encode` wrote."""
    document = json.loads(text)
    units = {name: UnitStatus(**fields) for name, fields in document.pop("units").items()}
    return MachineStatus(**document, units=units)


def describe_exit(wait_status: int) -> str:
    """A status of wait(2) in words: "ended with 1", "was killed by signal 9"."""
    signal_number = wait_status & 0x7F
    if signal_number:
        return f"was killed by signal {signal_number}"
    return f"ended with {wait_status >> 8 & 0xFF}"
