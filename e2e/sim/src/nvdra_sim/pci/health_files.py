# SPDX-License-Identifier: Apache-2.0
"""The files of a PCI function that say how it is: configuration, power, link, errors.

Sources: Linux, Documentation/ABI/testing/sysfs-bus-pci and sysfs-bus-pci-devices-aer_stats;
drivers/pci/pci-sysfs.c; drivers/pci/pci.c, `pci_speed_string` and `pci_config_pm_runtime_get`,
which wakes a function in D3cold and no other one; drivers/pci/pcie/aer.c,
`aer_uncorrectable_error_string`.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

from nvdra_sim.pci import functions, modules
from nvdra_sim.pci.bus import FunctionState, Phase
from nvdra_sim.pci.functions import PciFunction

CONFIGURATION_BYTES = 256
SPEEDS = ("2.5 GT/s", "5.0 GT/s", "8.0 GT/s", "16.0 GT/s", "32.0 GT/s", "64.0 GT/s")
"""By generation of PCIe, the first one first."""

UNKNOWN_SPEED = "Unknown"
ALL_ONES_WIDTH = "63"
"""What six bits of ones read as: a register of a function that does not answer."""

UNCORRECTABLE_ERRORS = (
    "Undefined", "DLP", "SDES", "TLP", "FCP", "CmpltTO", "CmpltAbrt", "UnxCmplt", "RxOF",
    "MalfTLP", "ECRC", "UnsupReq", "ACSViol", "UncorrIntErr", "BlockedTLP", "AtomicOpBlocked",
    "TLPBlockedErr", "PoisonTLPBlocked",
)  # fmt: skip
COUNTED_AS = "DLP"
"""The error that every simulated one is: of the data link protocol."""

READ_FROM_THE_FUNCTION = frozenset(
    {"config", "current_link_speed", "current_link_width", "max_link_speed", "max_link_width"}
)
"""The files whose content the kernel reads from the function. In D3cold, it wakes it for that."""

CHANGING = frozenset({*READ_FROM_THE_FUNCTION, "power_state", "power/runtime_status"})
"""The files that depend on whether a process has the device of vfio open."""


def contents(function: PciFunction, state: FunctionState, *, is_open: bool) -> dict[str, bytes]:
    """The files, by their names in the function's directory.

    Args:
        function: The function.
        state: Its state.
        is_open: Whether a process has its device of vfio open, which keeps it awake.
    """
    power = power_state(function, state, is_open=is_open)
    texts = {
        "power_state": power,
        "power/runtime_status": "active" if power == "D0" else "suspended",
        **_link(function, state, power),
        **_errors("fatal", state.fatal_errors),
        **_errors("nonfatal", state.nonfatal_errors),
    }
    return {
        "config": _configuration(function, state),
        **{name: f"{text}\n".encode() for name, text in texts.items()},
    }


def power_state(function: PciFunction, state: FunctionState, *, is_open: bool) -> str:
    """vfio-pci lets a device sleep that no process has open (`disable_idle_d3` is off)."""
    if state.phase is not Phase.BOUND or state.driver not in modules.VFIO_DRIVERS or is_open:
        return "D0"
    return "D3cold" if function.can_lose_power else "D3hot"


def _link(function: PciFunction, state: FunctionState, power: str) -> dict[str, str]:
    """A GPU that sleeps has the lowest speed, and all of its lanes."""
    names = ("current_link_speed", "current_link_width", "max_link_speed", "max_link_width")
    if state.faults.config_reads_ff:
        return dict(zip(names, (UNKNOWN_SPEED, ALL_ONES_WIDTH) * 2, strict=True))
    fastest = _speed(function.pcie_generation)
    now = fastest if power == "D0" or function.gpu is None else _speed(1)
    width = state.faults.link_width or function.lanes
    values = (now, str(width), fastest, str(function.lanes))
    return dict(zip(names, values, strict=True))


def _speed(generation: int) -> str:
    return f"{SPEEDS[generation - 1]} PCIe" if generation <= len(SPEEDS) else UNKNOWN_SPEED


def _errors(kind: str, count: int) -> Mapping[str, str]:
    """The counters of one kind of errors, which the kernel keeps: no read reaches the function."""
    lines = [f"{name} {count if name == COUNTED_AS else 0}" for name in UNCORRECTABLE_ERRORS]
    return {f"aer_dev_{kind}": "\n".join([*lines, f"TOTAL_ERR_{kind.upper()} {count}"])}


def _configuration(function: PciFunction, state: FunctionState) -> bytes:
    """The standard header of PCI configuration space, little endian, filled up to 256 bytes."""
    if state.faults.config_reads_ff:
        return b"\xff" * CONFIGURATION_BYTES
    command, status, code = 0x0406, 0x0010, function.class_code
    head = struct.pack(
        "<HHHHBBBB",
        *(function.vendor, function.device, command, status),
        *(functions.REVISION, code & 0xFF, code >> 8 & 0xFF, code >> 16),
    )
    subsystem = struct.pack("<HH", function.subsystem_vendor, function.subsystem_device)
    return (head.ljust(0x2C, b"\0") + subsystem).ljust(CONFIGURATION_BYTES, b"\0")
