# SPDX-License-Identifier: Apache-2.0
"""Runs the driver's nvidia-smi, for what NVML has no function for: time slices.

It runs in the plugin's container with the driver's own NVML library. These calls block: they run on
the thread of the GPU. Source: docs/reference/gpu-prepare.md, "Time-slicing".
"""

import re
import subprocess
from typing import Final

from nvdra_api.ids import GpuUUID
from nvdra_api.v1beta1.sharing import INTERVALS, Interval
from nvdra_runtime.node.host import Host

_PROGRAM: Final = "nvidia-smi"
_LIBRARY: Final = "libnvidia-ml.so.1"
_TIMEOUT_S: Final = 20.0
"""It opens NVML anew, which takes seconds on a node with many GPUs without persistence."""

_NAMED: Final = re.compile(rf"\b({'|'.join(INTERVALS)})\b", re.IGNORECASE)


class SmiError(Exception):
    """nvidia-smi failed, or is not there."""


def time_slice(host: Host, gpu: GpuUUID) -> Interval | None:
    """The GPU's time slice; None if nvidia-smi does not say.

    The form of its list differs between drivers, so only a list that names one time slice counts.
    """
    try:
        output = _run(host, "compute-policy", "-i", gpu, "--list")
    except SmiError:
        return None
    found = {name.capitalize() for name in _NAMED.findall(output)}
    named = [interval for interval in INTERVALS if interval in found]
    return named[0] if len(named) == 1 else None


def set_time_slice(host: Host, gpu: GpuUUID, interval: Interval) -> None:
    """Set the GPU's time slice.

    Raises:
        SmiError: It is not set.
    """
    number = INTERVALS.index(interval)
    _run(host, "compute-policy", "-i", gpu, "--set-timeslice", str(number))


def _run(host: Host, *arguments: str) -> str:
    """The output of nvidia-smi.

    Raises:
        SmiError: It fails, takes too long, or is not there.
    """
    try:
        program = host.find_program(_PROGRAM)
        done = subprocess.run(
            [program, *arguments],
            env={"LD_PRELOAD": str(host.find_library(_LIBRARY))},
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SmiError(str(error)) from error
    output = f"{done.stdout}{done.stderr}".strip()
    if done.returncode:
        command = " ".join((_PROGRAM, *arguments))
        raise SmiError(f"{command} ended with {done.returncode}: {output or 'it said nothing'}")
    return output
