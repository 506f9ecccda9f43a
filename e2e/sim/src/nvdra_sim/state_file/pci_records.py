# SPDX-License-Identifier: Apache-2.0
"""The PCI bus in the state file: `pci.bus.Bus` to and from its records."""

from __future__ import annotations

from nvdra_sim.description import NodeDescription
from nvdra_sim.pci import functions, modules
from nvdra_sim.pci.bus import Bus, DynamicId, Faults, FunctionState, Phase
from nvdra_sim.state_file import layout


def write(now: layout.NodeState, bus: Bus) -> None:
    """Makes the records those of the bus.

    Raises:
        ValueError: The node has more functions, or a driver more ids, than there are records.
    """
    if len(bus.states) > layout.MAX_PCI_FUNCTIONS or len(bus.ids) > layout.MAX_PCI_IDS:
        raise ValueError("the PCI bus is larger than its records in the state file")
    now.vfio_modules = sum(
        1 << place for place, name in enumerate(modules.MODULES) if name in bus.modules
    )
    now.pci_function_count = len(bus.states)
    for place, address in enumerate(sorted(bus.states)):
        now.pci_functions[place] = _record(address, bus.states[address])
    for place in range(layout.MAX_PCI_IDS):
        now.pci_ids[place] = layout.PciId()
    order = sorted(bus.ids, key=lambda told: (told.driver, told.vendor, told.device))
    for place, told in enumerate(order):
        now.pci_ids[place] = layout.PciId(told.driver.encode(), told.vendor, told.device)


def read(now: layout.NodeState, node: NodeDescription) -> Bus:
    """The bus that the records describe."""
    records = {
        record.address.decode(): record for record in now.pci_functions[: now.pci_function_count]
    }
    slots = functions.of(node)
    return Bus(
        node=node,
        functions=slots,
        states={each.address: _state(records[each.address]) for each in slots},
        modules=frozenset(
            name for place, name in enumerate(modules.MODULES) if now.vfio_modules >> place & 1
        ),
        has_nvidia=bool(now.module_loaded),
        ids=frozenset(
            DynamicId(told.driver.decode(), told.vendor, told.device)
            for told in now.pci_ids
            if told.vendor
        ),
    )


def _record(address: str, state: FunctionState) -> layout.PciFunction:
    faults = state.faults
    return layout.PciFunction(
        address=address.encode(),
        phase=state.phase,
        vfio_number=layout.NOT_AVAILABLE if state.vfio_number is None else state.vfio_number,
        driver=(state.driver or "").encode(),
        override=state.override.encode(),
        fault_driver=faults.driver.encode(),
        bind_errno=faults.bind_errno,
        bind_is_lost=faults.bind_is_lost,
        bind_ms=faults.bind_ms,
        unbind_ms=faults.unbind_ms,
        config_reads_ff=faults.config_reads_ff,
        link_width=faults.link_width,
        fatal_errors=state.fatal_errors,
        nonfatal_errors=state.nonfatal_errors,
        wake_ups=state.wake_ups,
    )


def _state(record: layout.PciFunction) -> FunctionState:
    number = record.vfio_number
    return FunctionState(
        phase=Phase(record.phase),
        driver=record.driver.decode() or None,
        override=record.override.decode(),
        vfio_number=None if number == layout.NOT_AVAILABLE else number,
        faults=Faults(
            driver=record.fault_driver.decode(),
            bind_errno=record.bind_errno,
            bind_is_lost=bool(record.bind_is_lost),
            bind_ms=record.bind_ms,
            unbind_ms=record.unbind_ms,
            config_reads_ff=bool(record.config_reads_ff),
            link_width=record.link_width,
        ),
        fatal_errors=record.fatal_errors,
        nonfatal_errors=record.nonfatal_errors,
        wake_ups=record.wake_ups,
    )
