# SPDX-License-Identifier: Apache-2.0
"""Measures the simulated NVML, to know its share of the others.

As a program it prints the milliseconds as JSON.

Source: docs/reference/nvml-simulator.md §21.16.
"""

from __future__ import annotations

import ctypes
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pynvml
from nvdra_sim.configuration import node_config
from nvdra_sim.native import nvml_library
from nvdra_sim.state_file import state

PROFILE = "dgx-h100"  # eight GPUs, seven MIG profiles each
ROUNDS = 200


def measure() -> dict[str, float]:
    """Medians of 200 rounds, in milliseconds.

    `init` maps the state file and checks the node; `enumeration` makes all calls that discovery
    makes for eight GPUs, through pynvml; `call` is one call for a GPU.
    """
    ctypes.CDLL(str(nvml_library.build()), mode=ctypes.RTLD_GLOBAL)
    with TemporaryDirectory() as directory:
        node = node_config.from_profile(PROFILE, "bench", {"node": {"visibility": "all"}})
        file = state.create(Path(directory) / "state.bin", node).path
        os.putenv("NVDRA_SIM_STATE", str(file))
        return _measure()


def _measure() -> dict[str, float]:
    init = [_init_once() for _ in range(ROUNDS)]
    pynvml.nvmlInit()
    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        return {
            "init_ms": statistics.median(init),
            "enumeration_ms": _median(_enumerate),
            "call_ms": _median(lambda: pynvml.nvmlDeviceGetUUID(handle)),
        }
    finally:
        pynvml.nvmlShutdown()


def _init_once() -> float:
    duration = _milliseconds(pynvml.nvmlInit)
    pynvml.nvmlShutdown()
    return duration


def _enumerate() -> None:
    for index in range(pynvml.nvmlDeviceGetCount()):
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        for ask in (
            pynvml.nvmlDeviceGetMinorNumber,
            pynvml.nvmlDeviceGetUUID,
            pynvml.nvmlDeviceGetMigMode,
            pynvml.nvmlDeviceGetMemoryInfo,
            pynvml.nvmlDeviceGetName,
            pynvml.nvmlDeviceGetArchitecture,
            pynvml.nvmlDeviceGetBrand,
            pynvml.nvmlDeviceGetCudaComputeCapability,
            pynvml.nvmlDeviceGetPciInfo,
            pynvml.nvmlDeviceGetVirtualizationMode,
        ):
            ask(handle)
        for profile in range(pynvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
            _ask_for_profile(handle, profile)


def _ask_for_profile(handle: Any, profile: int) -> None:
    try:
        info = pynvml.nvmlDeviceGetGpuInstanceProfileInfo(handle, profile)
    except pynvml.NVMLError_NotSupported:
        return
    count = ctypes.c_uint()
    ask = pynvml.nvmlDeviceGetGpuInstancePossiblePlacements
    ask(handle, info.id, None, ctypes.byref(count))
    placements = (pynvml.c_nvmlGpuInstancePlacement_t * count.value)()
    ask(handle, info.id, placements, ctypes.byref(count))


def _median(action: Callable[[], object]) -> float:
    return statistics.median(_milliseconds(action) for _ in range(ROUNDS))


def _milliseconds(action: Callable[[], object]) -> float:
    begin = time.perf_counter()
    action()
    return (time.perf_counter() - begin) * 1000


if __name__ == "__main__":
    print(json.dumps(measure(), indent=2))
