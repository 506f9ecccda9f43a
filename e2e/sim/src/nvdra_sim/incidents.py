# SPDX-License-Identifier: Apache-2.0
"""Simulate hardware incidents on a node: errors, losses, resets, boots.

Each function is one transaction on the state file, which all processes see at once. The capability
files of MIG instances go with them. Some commands of `simctl` change other files of the node.

Source: docs/reference/nvml-simulator.md §§8-11.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal
from uuid import UUID, uuid4

from nvdra_sim import event_clock, gpu_binding, gpu_power
from nvdra_sim.description import Gpu
from nvdra_sim.pci import bus as pci_bus
from nvdra_sim.pci.bus import Faults
from nvdra_sim.state_file import layout, pci_records
from nvdra_sim.state_file.state import State, StateError

XID_EVENT = 0x8
MIG_EVENT = 0x100
ECC_EVENTS = {"sbe": 0x1, "dbe": 0x2}
RECOVERY_ACTIONS = {
    "none": 0, "gpu_reset": 1, "node_reboot": 2, "drain_p2p": 3, "drain_and_reset": 4,
    "recover_imex_domain": 5, "bus_reset": 6, "system_reboot": 7,
}  # fmt: skip
XID_RECOVERIES = {
    **dict.fromkeys((48, 62, 64, 95, 119, 120, 140), "gpu_reset"), 79: "node_reboot",
}  # fmt: skip
"""The recovery action that the driver asks for after an Xid; for all others none."""

RECOVERY_CHANGED_XID = 154
EVENT_NAMES = {
    XID_EVENT: "xid", 0x1: "sbe", 0x2: "dbe", MIG_EVENT: "mig",
    layout.SYSTEM_EVENT_BIND: "bind", layout.SYSTEM_EVENT_UNBIND: "unbind",
}  # fmt: skip
FABRIC_STATES = {"not_supported": 0, "not_started": 1, "in_progress": 2, "completed": 3}


@dataclass(frozen=True)
class InstanceRef:
    """A reference to a MIG instance or, by default, to the whole GPU."""

    gpu_instance: int = layout.NO_INSTANCE
    compute_instance: int = layout.NO_INSTANCE


WHOLE_GPU = InstanceRef()


# Errors


def report_xid(
    state: State,
    gpu: Gpu,
    number: int,
    where: InstanceRef = WHOLE_GPU,
    recovery: str | None = None,
) -> None:
    """Lets the driver report an Xid for the GPU or for one of its MIG instances.

    Args:
        state: The state of the node.
        gpu: The GPU.
        number: The Xid.
        where: What the Xid is reported for.
        recovery: The recovery action that the GPU needs from now on, a key of `RECOVERY_ACTIONS`;
            None leaves it as it is.
    """
    with state.transaction() as now:
        state.append_event(_event(now, gpu, XID_EVENT, number, where))
    if recovery is not None:
        set_recovery_action(state, gpu, recovery)


def set_recovery_action(state: State, gpu: Gpu, action: str) -> None:
    """Changes what the GPU needs in order to recover. The driver reports a change as Xid 154."""
    with state.transaction() as now:
        if now.gpus[gpu.index].recovery_action == RECOVERY_ACTIONS[action]:
            return
        now.gpus[gpu.index].recovery_action = RECOVERY_ACTIONS[action]
    with state.transaction() as now:  # whoever learns of it finds it changed
        state.append_event(_event(now, gpu, XID_EVENT, RECOVERY_CHANGED_XID, WHOLE_GPU))


def set_row_remapping(state: State, gpu: Gpu, remapping: str) -> None:
    """Lets rows of memory wait for a reset to be remapped, or lets their remapping have failed.

    A reset ends a remapping that is pending. One that has failed stays: no spare row is left.

    Args:
        state: The state of the node.
        gpu: The GPU.
        remapping: A key of `layout.REMAPPING`.
    """
    with state.transaction() as now:
        now.gpus[gpu.index].row_remapping = layout.REMAPPING[remapping]


def lose_with_xid(state: State, gpu: Gpu, number: int) -> None:
    """Makes the GPU fall off the bus, and lets the driver report an Xid (79)."""
    with state.transaction() as now:
        now.gpus[gpu.index].lost = 1
        state.append_event(_event(now, gpu, XID_EVENT, number, WHOLE_GPU))


def report_ecc_errors(state: State, gpu: Gpu, kind: Literal["sbe", "dbe"], count: int = 1) -> None:
    """Reports single-bit (corrected) or double-bit errors: counters, and one event for each."""
    place = list(ECC_EVENTS).index(kind)
    with state.transaction() as now:
        now.gpus[gpu.index].ecc_volatile[place] += count
        now.gpus[gpu.index].ecc_aggregate[place] += count
        for _ in range(min(count, layout.MAX_EVENTS)):
            state.append_event(_event(now, gpu, ECC_EVENTS[kind], 0, WHOLE_GPU))


def mig_change(now: layout.NodeState, gpu: Gpu) -> layout.Event:
    """The driver's report that the MIG instances of the GPU are others."""
    return _event(now, gpu, MIG_EVENT, 0, WHOLE_GPU)


def _event(
    now: layout.NodeState, gpu: Gpu, kind: int, data: int, where: InstanceRef
) -> layout.Event:
    return layout.Event(
        time_ns=event_clock.now_ns(now),
        type=kind,
        data=data,
        gpu=gpu.index,
        gpu_instance=where.gpu_instance,
        compute_instance=where.compute_instance,
    )


# The bus


def unplug(state: State, gpu: Gpu) -> None:
    """Removes the GPU from the bus: it is no longer counted and cannot be found."""
    with state.transaction() as now:
        gpu_binding.take_off_bus(state, now, gpu)
        now.gpus[gpu.index].unplugged = layout.OUT_OF_SLOT


def drain(state: State, gpu: Gpu) -> None:
    """Takes the GPU off the bus in good order: a rescan of the bus finds it again."""
    with state.transaction() as now:
        gpu_binding.take_off_bus(state, now, gpu)
        now.gpus[gpu.index].unplugged = layout.OFF_BUS


def plug(state: State, gpu: Gpu) -> None:
    """Returns an unplugged GPU to the bus, as after a boot.

    Raises:
        StateError: The GPU is plugged in.
    """
    with state.transaction() as now:
        if not now.gpus[gpu.index].unplugged:
            raise StateError(f"GPU {gpu.index} is plugged in")
        now.gpus[gpu.index].unplugged = 0
        gpu_binding.put_on_bus(state, now, gpu)


def unbind(state: State, gpu: Gpu) -> None:
    """Unbinds the GPU from the driver: it stays on the bus, and NVML does not know it."""
    with state.transaction() as now:
        gpu_binding.unbind(state, now, gpu)


def bind(state: State, gpu: Gpu) -> None:
    """Binds the GPU to the driver again, as after a boot.

    Raises:
        StateError: Another driver has the GPU, or it is not on the bus.
    """
    with state.transaction() as now:
        gpu_binding.bind(state, now, gpu)


def set_kernel_client(state: State, gpu: Gpu, *, uses: bool) -> None:
    """Lets a part of the kernel use the GPU, as nvidia-drm does for a console, without process."""
    with state.transaction() as now:
        now.gpus[gpu.index].kernel_clients = uses


def break_at_bind(state: State, gpu: Gpu) -> None:
    """The GPU does not start any more once its driver has it again; until the next boot."""
    with state.transaction() as now:
        now.gpus[gpu.index].broken = layout.BROKEN_SOON


def set_pci_faults(state: State, address: str, faults: Faults) -> None:
    """Decides what goes wrong with a PCI function from now on.

    Raises:
        StateError: The node has no such function.
    """
    with state.transaction() as now:
        bus = pci_records.read(now, state.description())
        if address not in bus.states:
            raise StateError(f"the node has no PCI function {address}")
        changed = replace(bus.states[address], faults=faults)
        pci_records.write(now, pci_bus.with_state(bus, address, changed))


def count_pci_errors(state: State, address: str, *, fatal: int = 0, nonfatal: int = 0) -> None:
    """Lets the kernel count errors that a PCI function reports (AER). Nothing else happens to it.

    Raises:
        StateError: The node has no such function, or it is not on the bus.
    """
    with state.transaction() as now:
        bus = pci_records.read(now, state.description())
        found = bus.state(address)
        if found is None:
            raise StateError(f"there is no PCI function {address}")
        counted = replace(
            found,
            fatal_errors=found.fatal_errors + fatal,
            nonfatal_errors=found.nonfatal_errors + nonfatal,
        )
        pci_records.write(now, pci_bus.with_state(bus, address, counted))


def set_initialisation(state: State, gpu: Gpu, milliseconds: int) -> None:
    """Sets the time that the GPU needs to answer its first client without persistence mode."""
    with state.transaction() as now:
        now.gpus[gpu.index].initialisation_ms = milliseconds


def set_fabric(
    state: State,
    gpus: Iterable[Gpu],
    *,
    fabric_state: str | None = None,
    status: int | None = None,
    clique: int | None = None,
    uuid: UUID | None = None,
    health: int | None = None,
    summary: int | None = None,
) -> None:
    """Changes the NVLink fabric state of GPUs. None means no change.

    Args:
        state: The state of the node.
        gpus: The GPUs.
        fabric_state: A key of `FABRIC_STATES`.
        status: An NVML return code.
        clique: The clique id.
        uuid: The UUID of the cluster.
        health: The health mask of nvml-simulator.md §5.
        summary: 0 not supported, 1 healthy, 2 unhealthy, 3 limited capacity.
    """
    changes = {
        "fabric_state": None if fabric_state is None else FABRIC_STATES[fabric_state],
        "fabric_status": status,
        "fabric_clique": clique,
        "fabric_health_mask": health,
        "fabric_health_summary": summary,
    }
    with state.transaction() as now:
        for gpu in gpus:
            record = now.gpus[gpu.index]
            if fabric_state is not None:
                record.fabric_since_ns = 0  # it no longer comes up by itself
            for name, value in changes.items():
                if value is not None:
                    setattr(record, name, value)
            if uuid is not None:
                record.fabric_uuid[:] = uuid.bytes


def fabric_state(state: State, gpu: Gpu) -> int:
    """The fabric state that NVML currently reports for the GPU, a value of `FABRIC_STATES`."""
    now = state.snapshot().gpus[gpu.index]
    passed_ns = time.time_ns() - now.fabric_since_ns
    whole_ns = state.description().fabric.bring_up_ms * 1_000_000
    comes_up = now.fabric_since_ns and now.fabric_state == FABRIC_STATES["completed"]
    if not comes_up or passed_ns >= whole_ns:
        return int(now.fabric_state)
    return FABRIC_STATES["not_started" if passed_ns < whole_ns // 2 else "in_progress"]


# Processes


def add_process(
    state: State,
    gpu: Gpu,
    pid: int,
    memory_mib: int = 0,
    kind: str = "compute",
    where: InstanceRef = WHOLE_GPU,
) -> None:
    """Adds a process that uses the GPU or one of its MIG instances.

    Raises:
        StateError: There is no room for another process.
    """
    with state.transaction() as now:
        for record in now.tables[gpu.index].processes:
            if record.pid == 0:
                record.pid, record.kind = pid, layout.PROCESS[kind]
                record.memory_mib = memory_mib
                record.gpu_instance = where.gpu_instance
                record.compute_instance = where.compute_instance
                return
        raise StateError(f"GPU {gpu.index} has room for {layout.MAX_PROCESSES} processes")


def remove_process(state: State, gpu: Gpu, pid: int) -> None:
    """Removes a process from the GPU. Raises StateError if it does not use the GPU."""
    with state.transaction() as now:
        records = [record for record in now.tables[gpu.index].processes if record.pid == pid]
        if not records:
            raise StateError(f"process {pid} does not use GPU {gpu.index}")
        for record in records:
            record.pid = 0


# Resets and boots (§10.6)


def reset(state: State, gpu: Gpu) -> None:
    """Resets the GPU: configured modes, no MIG instances, and a pending MIG mode is applied.

    Raises:
        StateError: Processes use the GPU, or it is lost.
    """
    with state.transaction() as now:
        if now.gpus[gpu.index].lost:
            raise StateError(f"GPU {gpu.index} is lost: only a reboot brings it back")
        if any(record.pid for record in now.tables[gpu.index].processes):
            raise StateError(f"GPU {gpu.index} is in use by another client")
        bound, driver = now.gpus[gpu.index].bound_to_nvidia, now.gpus[gpu.index].driver
        gpu_power.power_on(state, now, gpu, keeps_mig_mode=True)
        now.gpus[gpu.index].bound_to_nvidia, now.gpus[gpu.index].driver = bound, driver


def reboot(state: State) -> str:
    """Reboots the node. Fault rules are kept. The node no longer follows boots of this machine.

    Returns:
        The new boot id.
    """
    boot_id = str(uuid4())
    with state.transaction() as now:
        for gpu in state.description().gpus:
            gpu_power.power_on(state, now, gpu, keeps_mig_mode=gpu_power.keeps_mig_mode(gpu))
            now.gpus[gpu.index].minor = state.initial().gpus[gpu.index].minor
        now.module_loaded = state.initial().module_loaded
        pci_records.write(now, pci_bus.at_boot(state.description()))
        now.boot_id = boot_id.encode()
        now.follows_host_boot = 0
        state.discard_events()
    return boot_id


def unload_driver(state: State) -> None:
    """Unloads the kernel module: calls that need it return DRIVER_NOT_LOADED."""
    with state.transaction() as now:
        gpu_binding.unload(state, now)


def load_driver(state: State) -> None:
    """Loads the kernel module. GPUs are as after a boot, but lost ones stay lost.

    It takes the GPUs that no other driver has, and whose `driver_override` names no other.
    """
    with state.transaction() as now:
        if now.module_loaded:
            gpu_binding.unload(state, now)
        lost = [bool(now.gpus[gpu.index].lost) for gpu in state.description().gpus]
        gpu_binding.load(state, now)
        for gpu in state.description().gpus:
            now.gpus[gpu.index].lost = lost[gpu.index]


# The clock of events


def freeze_clock(state: State) -> None:
    """Stops the clock: all later events have the same time."""
    with state.transaction() as now:
        now.clock_frozen_ns = event_clock.now_ns(now)


def step_clock(state: State, milliseconds: int) -> None:
    """Moves the clock forward, or back if negative. A frozen clock stays frozen."""
    with state.transaction() as now:
        if now.clock_frozen_ns:
            now.clock_frozen_ns += milliseconds * 1_000_000
        else:
            now.clock_offset_ns += milliseconds * 1_000_000


def run_clock(state: State) -> None:
    """Continues a frozen clock from its current time."""
    with state.transaction() as now:
        if now.clock_frozen_ns:
            now.clock_offset_ns = now.clock_frozen_ns - time.time_ns()
            now.clock_frozen_ns = 0
