# SPDX-License-Identifier: Apache-2.0
"""What a process needs for one case: processor time and growth of its peak memory."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_TICKS: Final = os.sysconf("SC_CLK_TCK")
_RESET_PEAK: Final = "5"
"""Written to clear_refs, it makes the peak of the resident set what is resident now (proc(5))."""


@dataclass(frozen=True)
class Usage:
    """Of a process, since the beginning of a case.

    Attributes:
        pid: The process.
        began_cpu_s: Its processor time then.
        began_kib: Its resident set then.
    """

    pid: int
    began_cpu_s: float
    began_kib: int

    @classmethod
    def begin(cls, pid: int) -> "Usage":
        """Begin to measure.

        Raises:
            OSError: There is no such process.
        """
        Path(f"/proc/{pid}/clear_refs").write_text(_RESET_PEAK)
        return cls(pid, _cpu_s(pid), _status_kib(pid, "VmRSS"))

    def cpu_s(self) -> float:
        """The processor time since then, of all threads."""
        return _cpu_s(self.pid) - self.began_cpu_s

    def growth_kib(self) -> int:
        """How much higher the peak of the resident set is than what was resident."""
        return _status_kib(self.pid, "VmHWM") - self.began_kib


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def _status_kib(pid: int, name: str) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1])
    raise ProcessLookupError(f"process {pid} has ended")  # a zombie has no memory
