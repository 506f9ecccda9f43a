# SPDX-License-Identifier: Apache-2.0
"""The output of `nvdra-simctl`: data with stable keys, and the same data as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from nvdra_sim import event_clock, return_codes
from nvdra_sim.description import Gpu, NodeDescription
from nvdra_sim.incidents import EVENT_NAMES, RECOVERY_ACTIONS, fabric_state
from nvdra_sim.installation import Roots
from nvdra_sim.pci.bus import Faults
from nvdra_sim.state_file import clients, pci_records
from nvdra_sim.state_file.active_rules import ActiveRule
from nvdra_sim.state_file.layout import (
    IMEX_STATUSES,
    NO_INSTANCE,
    PROCESS,
    REMAPPING,
    UNTIL_REMOVED,
    GpuState,
)
from nvdra_sim.state_file.state import State

Data = dict[str, Any]

RECOVERY_NAMES = {number: name for name, number in RECOVERY_ACTIONS.items()}
REMAPPING_NAMES = {number: name for name, number in REMAPPING.items()}
PROCESS_KINDS = {number: name for name, number in PROCESS.items()}
COMPUTE_MODES = {0: "default", 1: "exclusive_thread", 2: "prohibited", 3: "exclusive_process"}


def created(state: State, description: NodeDescription) -> Data:
    """A newly created state file."""
    return {
        "state": str(state.path),
        "node": description.name,
        "profile": description.profile,
        "gpus": len(description.gpus),
    }


def installed(roots: Roots, environment: Mapping[str, str]) -> Data:
    """The roots of an installation, and the environment variables for its users."""
    return {
        "driver_root": str(roots.driver),
        "proc_root": str(roots.proc),
        "sys_root": str(roots.sys),
        "dev_root": str(roots.dev),
        "environment": dict(environment),
    }


def node(state: State) -> Data:
    """The current state of the node."""
    description, now = state.description(), state.snapshot()
    return {
        "node": description.name,
        "profile": description.profile,
        "driver": description.driver.version,
        "driver_loaded": bool(now.module_loaded),
        "cuda": description.driver.cuda_version,
        "boot_id": now.boot_id.decode(),
        "generation": state.generation,
        "gpus": [_gpu(state, gpu, now.gpus[gpu.index]) for gpu in description.gpus],
        "faults": rules(state),
        "imex": imex(state),
    }


def gpu(state: State, which: Gpu) -> Data:
    """The current state of one GPU."""
    return _gpu(state, which, state.snapshot().gpus[which.index])


def _gpu(state: State, which: Gpu, now: GpuState) -> Data:
    return {
        "gpu": which.index,
        "uuid": which.uuid,
        "name": which.name,
        "bus_id": which.bus_id,
        "minor": now.minor,
        "driver": now.driver.decode() or None,
        "lost": bool(now.lost),
        "unplugged": bool(now.unplugged),
        "drained": bool(now.drained),
        "initialisation_ms": now.initialisation_ms,
        "persistence_mode": bool(now.persistence),
        "compute_mode": COMPUTE_MODES[now.compute_mode],
        "computing": clients.has_whole_context(state, which.index),
        "time_slice": now.time_slice,
        "mig_mode": bool(now.mig_mode),
        "mig_pending": bool(now.mig_pending),
        "recovery_action": RECOVERY_NAMES[now.recovery_action],
        "row_remapping": REMAPPING_NAMES[now.row_remapping],
        "ecc_corrected": now.ecc_volatile[0],
        "ecc_uncorrected": now.ecc_volatile[1],
        "fabric_state": fabric_state(state, which),
        "fabric_clique": now.fabric_clique,
    }


def pci_functions(state: State) -> list[Data]:
    """All functions of the PCI bus, with what has them and what is wrong with them."""
    bus = pci_records.read(state.snapshot(), state.description())
    return [
        {
            "address": function.address,
            "phase": bus.states[function.address].phase.name.lower(),
            "driver": bus.states[function.address].driver,
            "override": bus.states[function.address].override or None,
            "group": function.group,
            "vfio": bus.states[function.address].vfio_number,
            "faults": _faults(bus.states[function.address].faults),
            "fatal_errors": bus.states[function.address].fatal_errors,
            "nonfatal_errors": bus.states[function.address].nonfatal_errors,
            "wake_ups": bus.states[function.address].wake_ups,
        }
        for function in bus.functions
    ]


def _faults(faults: Faults) -> str | None:
    """Those that are set, as the arguments of `pci fault`."""
    values = {name: value for name, value in asdict(faults).items() if value}
    return " ".join(f"{name}={value}" for name, value in values.items()) or None


def mig_devices(state: State) -> list[Data]:
    """All MIG devices, in the order of NVML."""
    now = state.snapshot()
    return [
        {
            "gpu": gpu.index,
            "gpu_instance": place,
            "compute_instance": number,
            "profile": _profile_name(gpu, record.profile),
            "start": record.start,
            "slices": compute.size,
            "uuid": f"MIG-{UUID(bytes=bytes(compute.uuid))}",
            "computing": clients.has_contexts(state, gpu.index, place, number),
        }
        for gpu in state.description().gpus
        for place, record in enumerate(now.tables[gpu.index].instances)
        if record.in_use
        for number, compute in enumerate(record.compute)
        if compute.in_use
    ]


def gpu_instances(state: State) -> list[Data]:
    """All GPU instances, with the number of their compute instances, which may be none."""
    now = state.snapshot()
    return [
        {
            "gpu": gpu.index,
            "gpu_instance": place,
            "profile": _profile_name(gpu, record.profile),
            "start": record.start,
            "compute_instances": sum(1 for compute in record.compute if compute.in_use),
        }
        for gpu in state.description().gpus
        for place, record in enumerate(now.tables[gpu.index].instances)
        if record.in_use
    ]


def _profile_name(gpu: Gpu, profile_id: int) -> str:
    profiles = gpu.mig.table.profiles if gpu.mig else ()
    return next(profile.name for profile in profiles if profile.id == profile_id)


def processes(state: State) -> list[Data]:
    """All processes that use a GPU."""
    now = state.snapshot()
    return [
        {
            "gpu": gpu.index,
            "pid": process.pid,
            "kind": PROCESS_KINDS[process.kind],
            "memory_mib": process.memory_mib,
            "gpu_instance": _instance(process.gpu_instance),
            "compute_instance": _instance(process.compute_instance),
        }
        for gpu in state.description().gpus
        for process in now.tables[gpu.index].processes
        if process.pid
    ]


def imex(state: State) -> Data:
    """The disturbances of `nvidia-imex`."""
    now = state.snapshot().imex
    return {
        "slow_start_ms": now.slow_start_ms,
        "crash_after_ms": now.crash_after_ms,
        "never_ready": bool(now.never_ready),
        "status": IMEX_STATUSES[now.status - 1] if now.status else None,
        "hang": bool(now.hang),
        "nodes_hang": bool(now.nodes_hang),
        "dns_stale": bool(now.dns_stale),
        "version": now.version.decode() or None,
        "refused": "all" if all(now.refused) else _numbers(now.refused),
    }


def _numbers(marks: Sequence[int]) -> str | None:
    return ",".join(str(number) for number, mark in enumerate(marks) if mark) or None


def events(state: State) -> list[Data]:
    """All events, the oldest first."""
    return [
        {
            "event": event.sequence,
            "time": _time(event.time_ns),
            "gpu": event.gpu,
            "type": EVENT_NAMES[event.type],
            "data": event.data,
            "gpu_instance": _instance(event.gpu_instance),
            "compute_instance": _instance(event.compute_instance),
        }
        for event in state.events()
    ]


def clock(state: State) -> Data:
    """The current time of the event clock."""
    now = state.snapshot()
    return {"time": _time(event_clock.now_ns(now)), "frozen": bool(now.clock_frozen_ns)}


def _time(nanoseconds: int) -> str:
    when = datetime.fromtimestamp(nanoseconds / 1e9, UTC)
    return when.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _instance(number: int) -> int | None:
    return None if number == NO_INSTANCE else number


def rules(state: State) -> list[Data]:
    """All fault rules."""
    return [rule(one) for one in state.rules()]


def rule(one: ActiveRule) -> Data:
    """A fault rule."""
    fault = one.fault
    return {
        "id": one.id,
        "function": fault.function,
        "gpu": fault.gpu,
        "result": None if fault.result is None else return_codes.name(fault.result),
        "activation_status": None
        if fault.activation_status is None
        else return_codes.name(fault.activation_status),
        "after_calls": fault.after_calls,
        "probability": fault.probability,
        "do_work": fault.do_work,
        "abort": fault.abort,
        "delay_ms": "until removed" if fault.delay_ms == UNTIL_REMOVED else fault.delay_ms,
        "times": fault.times,
        "hits": one.hits,
        "spent": one.is_spent,
    }


def counters(state: State) -> list[Data]:
    """The number of calls per function, in descending order."""
    counts = sorted(state.counters().values(), key=lambda count: (-count.calls, count.function))
    return [
        {"function": count.function, "calls": count.calls, "errors": count.errors}
        for count in counts
    ]


def text(data: object) -> str:
    """The data as text: mappings as lines, lists of mappings as tables."""
    if isinstance(data, Mapping):
        return "\n".join(_lines(data))
    if isinstance(data, Sequence) and not isinstance(data, str):
        return _table(data)
    return _word(data)


def _lines(data: Mapping[str, object]) -> list[str]:
    width = max(len(key) for key in data)
    lines = []
    for key, value in data.items():
        if isinstance(value, list | dict):
            lines += ["", f"{key}:", *(f"  {line}" for line in text(value).splitlines())]
        else:
            lines.append(f"{key.ljust(width)}  {_word(value)}")
    return lines


def _table(rows: Sequence[Mapping[str, object]]) -> str:
    if not rows:
        return "none"
    columns = list(rows[0])
    cells = [columns, *([_word(row[column]) for column in columns] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in cells
    )


def _word(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)
