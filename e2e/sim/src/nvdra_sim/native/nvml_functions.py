"""The functions of NVML from `names.txt`: order, tier and driver branch."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
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
    for command in ("compute-mode", "compute-policy", "list", "log", "mig-mode", "query", "table")
)
"""What fault rules call the commands of nvidia-smi; see COMMANDS in smi/main.c."""


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

    @property
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
    """The names of the functions, and commands of nvidia-smi, that match a fault rule's glob."""
    names = (*(one.name for one in functions()), *SMI_COMMANDS)
    return tuple(name for name in names if fnmatchcase(name, glob))
