"""The names of NVML's functions, as the library's list has them: order, tier, age."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

SOURCES = Path(__file__).parents[2] / "lib"

# Latency class (spec §11) → the functions it slows; every other function is of class "other".
LATENCY_CLASSES = {
    "handle_by_uuid": "nvmlDeviceGetHandleByUUID*",
    "gi_create": "nvmlDeviceCreateGpuInstance*",
    "gi_destroy": "nvmlGpuInstanceDestroy",
    "mig_mode": "nvmlDeviceSetMigMode",
    "init": "nvmlInit*",
}


@dataclass(frozen=True)
class Function:
    """One exported name.

    Attributes:
        name: The symbol.
        tier: A answers in full, B for an idle GPU, C with NOT_SUPPORTED.
        since: The driver branch below which `driver.api_level` hides it; 0 for none.
    """

    name: str
    tier: str
    since: int

    @property
    def latency_class(self) -> str:
        """The class of spec §11 that slows this function."""
        for name, glob in LATENCY_CLASSES.items():
            if fnmatchcase(self.name, glob):
                return name
        return "other"


@cache
def functions() -> tuple[Function, ...]:
    """All of them, in the order of the state file's call counters."""
    rows = (line.split() for line in (SOURCES / "names.txt").read_text().splitlines())
    return tuple(
        Function(row[0], row[1], int(row[2]) if len(row) > 2 else 0)
        for row in rows
        if row and not row[0].startswith("#")
    )


def matching(glob: str) -> tuple[str, ...]:
    """The names that a glob of a fault rule stands for."""
    return tuple(one.name for one in functions() if fnmatchcase(one.name, glob))
