# SPDX-License-Identifier: Apache-2.0
"""Records what NVML answers on this machine, so that the simulator can be compared with it.

Only functions that read are called: nothing on the machine changes. It needs pynvml
(`nvidia-ml-py`) and nothing else, so it can be copied to a node:

    python nvml_answers.py > my-board.json

A record is JSON: `calls` maps each call, with its arguments, to its answer, `{"value": …}` or
`{"error": "NOT_SUPPORTED"}`; `fields` does so for the field values (`nvmlDeviceGetFieldValues`).
Nothing is recorded that tells the board from others of its model: UUIDs, serial numbers and bus ids
keep their form (letters and digits become `x`), and numbers become 0. `took_ms` has the calls that
took a millisecond or more.
"""

import ctypes
import inspect
import itertools
import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pynvml

FIELD_IDS = 300
"""NVML has fewer fields; those of a newer driver are `INVALID_ARGUMENT`."""

GPU_INSTANCE_PROFILES = 16
COMPUTE_INSTANCE_PROFILES = 8
NVLINKS = 18

IDENTITIES = re.compile(
    r"uuid|serial|bus_?id|guid|chassis|host_?(id|name)|pdi|checksum|pids?$", re.IGNORECASE
)
"""Names of functions and fields whose values tell one board, or what runs on it, from another."""

NOT_ASKED = frozenset(
    {
        "nvmlDeviceGetConfComputeGpuCertificate",
        "nvmlDeviceGetVgpuSchedulerLog",
        "nvmlDeviceGetVgpuSchedulerLog_v2",
    }
)
"""Megabytes, and nothing that a driver of Kubernetes asks."""

SWEEPS: dict[str, tuple[range, ...]] = {
    "nvmlDeviceGetClockInfo": (range(5),),
    "nvmlDeviceGetMaxClockInfo": (range(5),),
    "nvmlDeviceGetTemperature": (range(2),),
    "nvmlDeviceGetTemperatureThreshold": (range(9),),
    "nvmlDeviceGetTotalEccErrors": (range(2), range(2)),
    "nvmlDeviceGetMemoryErrorCounter": (range(2), range(2), range(8)),
    "nvmlDeviceGetRetiredPages": (range(2),),
    "nvmlDeviceGetNvLinkState": (range(NVLINKS + 1),),
    "nvmlDeviceGetNvLinkVersion": (range(2),),
    "nvmlDeviceGetNvLinkRemotePciInfo": (range(2),),
    "nvmlDeviceGetNvLinkRemoteDeviceType": (range(2),),
    "nvmlDeviceGetTopologyNearestGpus": (range(0, 60, 10),),
    "nvmlDeviceGetMemoryAffinity": (range(1, 2), range(2)),
    "nvmlDeviceGetCpuAffinity": (range(4, 5),),
    "nvmlDeviceGetCpuAffinityWithinScope": (range(4, 5), range(2)),
    "nvmlDeviceGetGpuInstanceProfileInfo": (range(GPU_INSTANCE_PROFILES), range(2, 4)),
    "nvmlDeviceGetMigDeviceHandleByIndex": (range(2),),
    "nvmlDeviceGetGpuInstanceById": (range(2),),
    "nvmlDeviceGetAPIRestriction": (range(2),),
    "nvmlDeviceGetPcieThroughput": (range(2),),
}
"""Functions of a GPU with more arguments, and the arguments."""

Answer = dict[str, Any]


def record() -> dict[str, Any]:
    """What this machine answers: the version of its driver, and the calls."""
    calls: dict[str, Answer] = {}
    calls["before nvmlInit nvmlDeviceGetCount"] = ask(pynvml.nvmlDeviceGetCount)
    started = time.perf_counter()
    pynvml.nvmlInit()
    took = {"nvmlInit": round((time.perf_counter() - started) * 1000, 1)}
    try:
        for name, function in system_functions():
            calls[name] = ask(function)
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        calls.update(wrong_arguments(handle))
        calls.update(of_gpu(handle, took))
        calls.update(events(handle))
        fields = field_values(handle)
        version = as_text(pynvml.nvmlSystemGetDriverVersion())
        board = as_text(pynvml.nvmlDeviceGetName(handle))
    finally:
        pynvml.nvmlShutdown()
    calls["after nvmlShutdown nvmlDeviceGetCount"] = ask(pynvml.nvmlDeviceGetCount)
    calls["after nvmlShutdown nvmlShutdown"] = ask(pynvml.nvmlShutdown)
    return {
        "board": board,
        "driver": version,
        "calls": calls,
        "fields": fields,
        "took_ms": took,
    }


def system_functions() -> Iterator[tuple[str, Callable[[], Any]]]:
    """Functions without arguments."""
    for name, function in sorted(vars(pynvml).items()):
        if name.startswith(("nvmlSystemGet", "nvmlDeviceGetCount")) and not needed(function):
            yield name, function
    yield "nvmlGetExcludedDeviceCount", pynvml.nvmlGetExcludedDeviceCount


def of_gpu(handle: Any, took: dict[str, float]) -> dict[str, Answer]:
    """Every function that reads something of a GPU; `took` gets the slow ones."""
    calls = {}
    for name, function in sorted(vars(pynvml).items()):
        if name in NOT_ASKED or not name.startswith(("nvmlDeviceGet", "nvmlDeviceIs")):
            continue
        if needed(function) in (["handle"], ["device"]):
            started = time.perf_counter()
            calls[name] = ask(function, handle, name=name)
            passed = (time.perf_counter() - started) * 1000
            if passed >= 1:
                took[name] = round(passed, 1)
    for name, ranges in SWEEPS.items():
        for arguments in itertools.product(*ranges):
            title = f"{name} {' '.join(map(str, arguments))}"
            calls[title] = ask(getattr(pynvml, name), handle, *arguments, name=name)
    calls.update(fabric(handle))
    for profile in range(GPU_INSTANCE_PROFILES):
        calls.update(gpu_instance_profile(handle, profile))
    return calls


def fabric(handle: Any) -> dict[str, Answer]:
    """The fabric in each version of its structure."""
    calls = {}
    for function, structure in (
        ("nvmlDeviceGetGpuFabricInfo", "c_nvmlGpuFabricInfo_t"),
        ("nvmlDeviceGetGpuFabricInfoV", "c_nvmlGpuFabricInfo_v2_t"),
        ("nvmlDeviceGetGpuFabricInfoV", "c_nvmlGpuFabricInfo_v3_t"),
    ):
        made = getattr(pynvml, structure, None)
        if made is not None:
            info = made()
            call = getattr(pynvml, function)
            calls[f"{function} {structure}"] = ask(
                lambda call=call, info=info: (call(handle, ctypes.byref(info)), info)[1]
            )
    return calls


def gpu_instance_profile(handle: Any, profile: int) -> dict[str, Answer]:
    """Placements and remaining capacity of a profile, and its instances."""
    try:
        found = pynvml.nvmlDeviceGetGpuInstanceProfileInfo(handle, profile)
    except pynvml.NVMLError:
        return {}

    def placements() -> list[Any]:
        count = ctypes.c_uint()
        read = pynvml.nvmlDeviceGetGpuInstancePossiblePlacements
        read(handle, found.id, None, ctypes.byref(count))
        array = (pynvml.c_nvmlGpuInstancePlacement_t * count.value)()
        read(handle, found.id, array, ctypes.byref(count))
        return list(array[: count.value])

    def instances() -> int:
        count = ctypes.c_uint()
        array = (pynvml.c_nvmlGpuInstance_t * found.instanceCount)()
        pynvml.nvmlDeviceGetGpuInstances(handle, found.id, array, ctypes.byref(count))
        return count.value

    remaining = pynvml.nvmlDeviceGetGpuInstanceRemainingCapacity
    return {
        f"nvmlDeviceGetGpuInstancePossiblePlacements_v2 {profile}": ask(placements),
        f"nvmlDeviceGetGpuInstances {profile}": ask(instances),
        f"nvmlDeviceGetGpuInstanceRemainingCapacity {profile}": ask(remaining, handle, found.id),
    }


def wrong_arguments(handle: Any) -> dict[str, Answer]:
    """What is answered to a caller that is wrong, and to one that says the same in another way."""
    uuid = as_text(pynvml.nvmlDeviceGetUUID(handle))
    pci = as_text(pynvml.nvmlDeviceGetPciInfo(handle).busId)
    by_uuid = pynvml.nvmlDeviceGetHandleByUUID
    by_pci = pynvml.nvmlDeviceGetHandleByPciBusId
    count = pynvml.nvmlDeviceGetCount()

    def is_same(found: Any) -> bool:
        return as_text(pynvml.nvmlDeviceGetUUID(found)) == uuid

    return {
        "by its UUID": ask(lambda: is_same(by_uuid(uuid.encode()))),
        "by its UUID in capitals": ask(lambda: is_same(by_uuid(uuid.upper().encode()))),
        "by its UUID without GPU-": ask(lambda: is_same(by_uuid(uuid[4:].encode()))),
        "by another UUID": ask(by_uuid, b"GPU-00000000-0000-0000-0000-000000000000"),
        "by an unknown MIG UUID": ask(by_uuid, b"MIG-00000000-0000-0000-0000-000000000000"),
        "by no UUID": ask(by_uuid, b""),
        "by its address": ask(lambda: is_same(by_pci(pci.encode()))),
        "by its address with four digits": ask(lambda: is_same(by_pci(pci[4:].encode()))),
        "by its address in small letters": ask(lambda: is_same(by_pci(pci.lower().encode()))),
        "by another address": ask(by_pci, b"0000:ff:1f.0"),
        "by an index too large": ask(pynvml.nvmlDeviceGetHandleByIndex, count),
        "the name of no GPU": ask(pynvml.nvmlDeviceGetName, None),
        "the name of this process": ask(lambda: bool(pynvml.nvmlSystemGetProcessName(os.getpid()))),
    }


def events(handle: Any) -> dict[str, Answer]:
    """The events of a GPU: what is supported, what registration answers, what a wait does."""
    supported = ask(pynvml.nvmlDeviceGetSupportedEventTypes, handle)
    calls = {"nvmlDeviceGetSupportedEventTypes": supported}
    made = pynvml.nvmlEventSetCreate()
    register = pynvml.nvmlDeviceRegisterEvents
    mask = supported.get("value", 0)
    calls["register what is supported"] = ask(register, handle, mask, made)
    calls["register again"] = ask(register, handle, mask, made)
    for bit in range(16):
        if not mask & (1 << bit):
            other = pynvml.nvmlEventSetCreate()
            calls[f"register event 1 << {bit}"] = ask(register, handle, 1 << bit, other)
            pynvml.nvmlEventSetFree(other)
    wait = pynvml.nvmlEventSetWait_v2
    calls["nvmlEventSetWait_v2 50 ms"] = ask(wait, made, 50)
    calls["nvmlEventSetFree"] = ask(pynvml.nvmlEventSetFree, made)
    return calls


def field_values(handle: Any) -> dict[str, Answer]:
    """Every field, asked alone: its kind and value, or the error."""
    fields: dict[str, Answer] = {}
    for number in range(1, FIELD_IDS):
        asked = ask(lambda number=number: pynvml.nvmlDeviceGetFieldValues(handle, [number])[0])
        if "error" not in asked:
            found = asked["value"]
            if found["nvmlReturn"]:
                asked = {"error": error_name(found["nvmlReturn"])}
            else:
                asked = {"value": found["value"], "kind": found["valueType"]}
        fields[str(number)] = asked
    return fields


def ask(function: Callable[..., Any], *arguments: Any, name: str = "") -> Answer:
    """Call a function, and describe its answer."""
    try:
        return {"value": plain(function(*arguments), name)}
    except pynvml.NVMLError as error:
        return {"error": error_name(error.value)}
    except Exception as error:  # noqa: BLE001 - a wrapper that does not fit the library
        return {"error": f"{type(error).__name__}: {error}"}


def error_name(code: int) -> str:
    """The name of a return code: `NOT_SUPPORTED` for 3."""
    for name, value in vars(pynvml).items():
        if name.startswith("NVML_ERROR_") and value == code:
            return str(name).removeprefix("NVML_ERROR_")
    return str(code)


def plain(value: Any, name: str = "") -> Any:
    """A value of ctypes as JSON, without what tells one board from another."""
    if isinstance(value, (bytes, str)):
        text = as_text(value)
        return form(text) if IDENTITIES.search(name) else text
    if isinstance(value, ctypes.Union):
        return int.from_bytes(bytes(value), sys.byteorder)
    if isinstance(value, ctypes.Structure):
        fields = [field[0] for field in getattr(value, "_fields_", ())]
        return {field: plain(getattr(value, field), field) for field in fields}
    if isinstance(value, (ctypes.Array, list, tuple)):
        return [plain(each, name) for each in value]
    if isinstance(value, ctypes._SimpleCData):
        return plain(value.value, name)
    if isinstance(value, dict):
        return {str(key): plain(each, str(key)) for key, each in value.items()}
    if value is None or isinstance(value, (bool, int, float)):
        if IDENTITIES.search(name) and isinstance(value, int) and not isinstance(value, bool):
            return 0
        return value
    return f"a {type(value).__name__}"


def form(text: str) -> str:
    """A text with each letter and digit as `x`."""
    return re.sub(r"[0-9A-Za-z]", "x", text)


def as_text(value: Any) -> str:
    """A text of pynvml, which returns bytes or text, by version."""
    return str(value, errors="replace") if isinstance(value, bytes) else str(value)


def needed(function: Any) -> list[str] | None:
    """The names of the arguments that a function needs; None if it is no function."""
    if not inspect.isfunction(function):
        return None
    parameters = inspect.signature(function).parameters.values()
    return [each.name for each in parameters if each.default is each.empty]


if __name__ == "__main__":
    json.dump(record(), sys.stdout, indent=1, sort_keys=True)
    print()
