# SPDX-License-Identifier: Apache-2.0
"""The functions of NVML from `names.txt`: order, tier and driver branch."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache, cached_property
from pathlib import Path

SOURCES = Path(__file__).parents[3] / "lib"

# Latency class (nvml-simulator.md §11) → the functions in it. All other functions are in the class
# "other".
LATENCY_CLASSES = {
    "handle_by_uuid": "nvmlDeviceGetHandleByUUID*",
    "gi_create": "nvmlDeviceCreateGpuInstance*",
    "gi_destroy": "nvmlGpuInstanceDestroy",
    "mig_mode": "nvmlDeviceSetMigMode",
    "init": "nvmlInit*",
}


SMI_COMMANDS = tuple(
    f"smi:{command}"
    for command in (
        "compute-mode",
        "compute-policy",
        "gpu-reset",
        "list",
        "log",
        "mig",
        "mig-mode",
        "persistence-mode",
        "query",
        "table",
    )
)
"""What fault rules call the commands of nvidia-smi; see COMMANDS in smi/main.c."""
MPS_COMMANDS = tuple(
    f"mps:{command}"
    for command in (
        "start",
        "server",
        "help",
        "get_server_list",
        "get_server_status",
        "start_server",
        "shutdown_server",
        "get_client_list",
        "get_device_client_list",
        "terminate_client",
        "ps",
        "set_default_active_thread_percentage",
        "get_default_active_thread_percentage",
        "set_active_thread_percentage",
        "get_active_thread_percentage",
        "set_default_device_pinned_mem_limit",
        "get_default_device_pinned_mem_limit",
        "set_device_pinned_mem_limit",
        "get_device_pinned_mem_limit",
        "quit",
    )
)
"""The start of an MPS daemon and of a server, and COMMANDS in mps/control/commands.c."""


@dataclass(frozen=True)
class Function:
    """One exported function.

    Attributes:
        name: The symbol.
        tier: A is fully implemented, B returns the values of an idle GPU, C NOT_SUPPORTED.
        since: The first driver branch with the function; 0 for all. `driver.api_level` is compared
            with it.
    """

    name: str
    tier: str
    since: int

    @cached_property
    def latency_class(self) -> str:
        """The latency class of the function (nvml-simulator.md §11)."""
        for name, glob in LATENCY_CLASSES.items():
            if fnmatchcase(self.name, glob):
                return name
        return "other"


@cache
def functions() -> tuple[Function, ...]:
    """All functions, in the order of the call counters in the state file."""
    rows = (line.split() for line in (SOURCES / "names.txt").read_text().splitlines())
    return tuple(
        Function(row[0], row[1], int(row[2]) if len(row) > 2 else 0)
        for row in rows
        if row and not row[0].startswith("#")
    )


def matching(glob: str) -> tuple[str, ...]:
    """The names of functions, and of commands of nvidia-smi and MPS, that a rule's glob matches."""
    names = (*(one.name for one in functions()), *SMI_COMMANDS, *MPS_COMMANDS)
    return tuple(name for name in names if fnmatchcase(name, glob))
