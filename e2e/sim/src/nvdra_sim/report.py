"""What `nvdra-simctl` answers: plain data with stable keys, and the same data as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from nvdra_sim import return_codes
from nvdra_sim.description import Gpu, NodeDescription
from nvdra_sim.install import Roots
from nvdra_sim.layout import UNTIL_REMOVED, GpuState
from nvdra_sim.state import RuleInForce, State

Data = dict[str, Any]

COMPUTE_MODES = {0: "default", 1: "exclusive_thread", 2: "prohibited", 3: "exclusive_process"}


def made(state: State, description: NodeDescription) -> Data:
    """A state file that was just written."""
    return {
        "state": str(state.path),
        "node": description.name,
        "profile": description.profile,
        "gpus": len(description.gpus),
    }


def installed(roots: Roots, environment: Mapping[str, str]) -> Data:
    """Where an installation lies, and what finds it."""
    return {
        "driver_root": str(roots.driver),
        "proc_root": str(roots.proc),
        "sys_root": str(roots.sys),
        "dev_root": str(roots.dev),
        "environment": dict(environment),
    }


def node(state: State) -> Data:
    """The node as it is now."""
    description, now = state.node(), state.snapshot()
    return {
        "node": description.name,
        "profile": description.profile,
        "driver": description.driver.version,
        "cuda": description.driver.cuda_version,
        "boot_id": now.boot_id.decode(),
        "generation": state.generation,
        "gpus": [_gpu(gpu, now.gpus[gpu.index]) for gpu in description.gpus],
        "faults": rules(state),
    }


def gpu(state: State, which: Gpu) -> Data:
    """One GPU as it is now."""
    return _gpu(which, state.snapshot().gpus[which.index])


def _gpu(which: Gpu, now: GpuState) -> Data:
    return {
        "gpu": which.index,
        "uuid": which.uuid,
        "name": which.name,
        "bus_id": which.bus_id,
        "minor": now.minor,
        "driver": now.driver.decode() or None,
        "lost": bool(now.lost),
        "persistence_mode": bool(now.persistence),
        "compute_mode": COMPUTE_MODES[now.compute_mode],
        "time_slice": now.time_slice,
        "mig_mode": bool(now.mig_mode),
        "mig_pending": bool(now.mig_pending),
        "fabric_state": now.fabric_state,
        "fabric_clique": now.fabric_clique,
    }


def rules(state: State) -> list[Data]:
    """All fault rules."""
    return [rule(one) for one in state.rules()]


def rule(one: RuleInForce) -> Data:
    """A fault rule."""
    fault = one.fault
    return {
        "id": one.id,
        "function": fault.function,
        "gpu": fault.gpu,
        "result": None if fault.result is None else return_codes.name(fault.result),
        "delay_ms": "until removed" if fault.delay_ms == UNTIL_REMOVED else fault.delay_ms,
        "times": fault.times,
        "hits": one.hits,
        "spent": one.is_spent,
    }


def counters(state: State) -> list[Data]:
    """Calls per function, the most called first."""
    counts = sorted(state.counters().values(), key=lambda count: (-count.calls, count.function))
    return [
        {"function": count.function, "calls": count.calls, "errors": count.errors}
        for count in counts
    ]


def text(data: object) -> str:
    """The data for people: mappings as lines, lists of mappings as tables."""
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
