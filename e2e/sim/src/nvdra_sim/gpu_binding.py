# SPDX-License-Identifier: Apache-2.0
"""What happens to a GPU when drivers take and leave it: minors, NVML's view, events.

Every change of the PCI bus ends in `commit`. The other functions change it at once, as an
administrator does who knows that nothing uses the GPU; the server of sysfs waits (`pci.writes`).

Source: docs/reference/nvml-simulator.md §10.7, §14.5; NVIDIA/open-gpu-kernel-modules,
kernel-open/nvidia/nv-pci.c, `nv_pci_remove`; src/nvidia/src/kernel/gpu_mgr/gpu_mgr.c: the drain
state belongs to the record of a probed GPU, which an unbind throws away.
"""

from __future__ import annotations

from nvdra_sim import event_clock, gpu_power
from nvdra_sim.description import Gpu
from nvdra_sim.filesystem import capability_files
from nvdra_sim.pci import bus as pci_bus
from nvdra_sim.pci.bus import NVIDIA_DRIVER, Bus, FunctionState, Phase, Step
from nvdra_sim.state_file import layout, pci_records
from nvdra_sim.state_file.state import State, StateError


def commit(state: State, now: layout.NodeState, after: Bus) -> None:
    """Makes the bus that of the state, with all that follows for GPUs, within a transaction."""
    node = state.description()
    before = pci_records.read(now, node)
    for gpu in node.gpus:
        _follow(state, now, gpu, before.states[gpu.bus_id], after.states[gpu.bus_id])
    pci_records.write(now, after)


def _follow(
    state: State, now: layout.NodeState, gpu: Gpu, before: FunctionState, after: FunctionState
) -> None:
    record = now.gpus[gpu.index]
    had = before.driver == NVIDIA_DRIVER and before.phase in (Phase.BOUND, Phase.UNBINDING)
    has = after.driver == NVIDIA_DRIVER and after.phase in (Phase.BOUND, Phase.UNBINDING)
    if has and not had:
        _arrive(state, now, gpu)
    elif had and not has:
        _leave(state, now, gpu)
    record = now.gpus[gpu.index]
    record.removing = has and after.phase is Phase.UNBINDING
    record.driver = (after.holder or "").encode()


def _arrive(state: State, now: layout.NodeState, gpu: Gpu) -> None:
    """The driver takes the GPU: with the lowest free minor, and as after a boot."""
    is_to_break = now.gpus[gpu.index].broken == layout.BROKEN_SOON
    is_drained = now.gpus[gpu.index].drained and not state.description().unbind_ends_drain
    gpu_power.power_on(state, now, gpu, keeps_mig_mode=gpu_power.keeps_mig_mode(gpu))
    record = now.gpus[gpu.index]
    taken = {
        now.gpus[other.index].minor
        for other in state.description().gpus
        if other.index != gpu.index and _has_minor(now.gpus[other.index], other)
    }
    record.minor = next(minor for minor in range(len(taken) + 1) if minor not in taken)
    record.bound_to_nvidia = not gpu.excluded
    record.drained = is_drained
    record.broken = layout.BROKEN_NOW if is_to_break else 0
    capability_files.update(now, [gpu], state.proc_root)
    state.append_event(_event(now, gpu, layout.SYSTEM_EVENT_BIND))


def _has_minor(record: layout.GpuState, gpu: Gpu) -> bool:
    return bool(record.bound_to_nvidia or record.removing or (gpu.excluded and record.driver))


def _leave(state: State, now: layout.NodeState, gpu: Gpu) -> None:
    """The driver's remove has returned: the minor is free, and MIG instances are gone."""
    capability_files.remove(now, [gpu], state.proc_root)
    record = now.gpus[gpu.index]
    record.bound_to_nvidia = record.kernel_clients = 0
    now.tables[gpu.index] = layout.GpuTables()
    state.append_event(_event(now, gpu, layout.SYSTEM_EVENT_UNBIND))


def _event(now: layout.NodeState, gpu: Gpu, kind: int) -> layout.Event:
    return layout.Event(
        time_ns=event_clock.now_ns(now),
        type=kind,
        gpu=gpu.index,
        gpu_instance=layout.NO_INSTANCE,
        compute_instance=layout.NO_INSTANCE,
    )


# Changes at once


def unbind(state: State, now: layout.NodeState, gpu: Gpu) -> None:
    """Takes the GPU away from its driver, if it has one."""
    commit(state, now, _released(pci_records.read(now, state.description()), gpu.bus_id))


def bind(state: State, now: layout.NodeState, gpu: Gpu) -> None:
    """Gives the GPU to the driver nvidia; one that has it already is as after a boot.

    Raises:
        StateError: Another driver has the GPU, or it is not on the bus.
    """
    bus = pci_records.read(now, state.description())
    found = bus.states[gpu.bus_id]
    if found.phase is Phase.ABSENT:
        raise StateError(f"GPU {gpu.bus_id} is not on the bus")
    if found.driver == NVIDIA_DRIVER:
        bus = _released(bus, gpu.bus_id)
        commit(state, now, bus)
    elif found.driver is not None:
        raise StateError(f"GPU {gpu.bus_id} is bound to {found.driver}")
    commit(state, now, _given(bus, gpu.bus_id, NVIDIA_DRIVER))


def take_off_bus(state: State, now: layout.NodeState, gpu: Gpu) -> None:
    """Removes the GPU and the functions beside it from the bus."""
    bus = pci_records.read(now, state.description())
    for address in (*(each.address for each in bus.companions(gpu.bus_id)), gpu.bus_id):
        if bus.states[address].phase is not Phase.ABSENT:
            bus = pci_bus.step(_released(bus, address), address, Step.LEAVES_BUS)
    commit(state, now, bus)


def put_on_bus(state: State, now: layout.NodeState, gpu: Gpu) -> None:
    """Returns the GPU and the functions beside it; the drivers that want them take them."""
    bus = pci_records.read(now, state.description())
    board = (each for each in bus.functions if each.address == gpu.bus_id)
    for each in (*board, *bus.companions(gpu.bus_id)):
        if bus.states[each.address].phase is Phase.ABSENT:
            bus = pci_bus.step(bus, each.address, Step.IS_FOUND)
        driver = pci_bus.candidate(bus, each)
        if driver is not None and bus.states[each.address].phase is Phase.DRIVERLESS:
            bus = _given(bus, each.address, driver)
    commit(state, now, bus)


def unload(state: State, now: layout.NodeState) -> None:
    """Unloads the module nvidia: its GPUs have no driver."""
    bus = pci_records.read(now, state.description())
    for address in pci_bus.bound_to(bus, NVIDIA_DRIVER):
        bus = _released(bus, address)
    commit(state, now, bus)
    now.module_loaded = 0


def load(state: State, now: layout.NodeState) -> None:
    """Loads the module nvidia, which takes all GPUs that it may; in bus order, as at boot."""
    now.module_loaded = 1
    bus = pci_records.read(now, state.description())
    for each in pci_bus.driverless(bus):
        if pci_bus.matches(bus, NVIDIA_DRIVER, each):
            bus = _given(bus, each.address, NVIDIA_DRIVER)
    commit(state, now, bus)
    for address in pci_bus.bound_to(bus, NVIDIA_DRIVER):
        found = bus.function(address)
        if found is not None and found.gpu is not None:  # probed in the order of the first boot
            number = found.gpu.index
            now.gpus[number].minor = state.initial().gpus[number].minor


def _released(bus: Bus, address: str) -> Bus:
    """The bus without the driver of a function. An unbind that waits is ended, too."""
    state = bus.states[address]
    if state.phase is Phase.BOUND:
        bus = pci_bus.step(bus, address, Step.REMOVE_BEGINS)
    if bus.states[address].phase is Phase.UNBINDING:
        bus = pci_bus.step(bus, address, Step.REMOVE_ENDS)
    return bus


def _given(bus: Bus, address: str, driver: str) -> Bus:
    begun = pci_bus.step(bus, address, Step.PROBE_BEGINS, driver)
    return pci_bus.step(begun, address, Step.PROBE_SUCCEEDS)
