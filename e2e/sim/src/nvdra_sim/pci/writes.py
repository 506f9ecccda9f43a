# SPDX-License-Identifier: Apache-2.0
"""Writes to the files of the PCI bus, as procedures that wait where the kernel waits.

A procedure is a generator: it yields what its writer has to wait for, and returns the error of the
write, 0 for success. It never ends before its condition holds, whatever happens to the writer.

Sources: as `bus`; NVIDIA/open-gpu-kernel-modules, kernel-open/nvidia/nv-pci.c, `nv_pci_remove`,
which loops while the usage count is not 0; drivers/vfio/vfio_main.c, `vfio_unregister_group_dev`.
"""

from __future__ import annotations

import errno
from collections.abc import Generator
from dataclasses import replace
from enum import Enum, auto
from typing import Protocol

from nvdra_sim.pci import bus as pci_bus
from nvdra_sim.pci import modules
from nvdra_sim.pci.bus import Bus, DynamicId, Phase, Step
from nvdra_sim.pci.functions import PciFunction


class Wait(Enum):
    """How a writer waits: in state S until a signal wakes it and it goes on in D, or in D."""

    INTERRUPTIBLE = auto()  # vfio waits so for the users of a device
    UNINTERRUPTIBLE = auto()  # so does nvidia, and whoever waits for the lock of a device


Procedure = Generator[Wait, None, int]


class Machine(Protocol):
    """What procedures need of the machine that they run on."""

    @property
    def bus(self) -> Bus:
        """The bus as it is now; other programs change it, too."""

    def publish(self, bus: Bus) -> None:
        """Makes this the bus of the machine, with its files and nodes."""

    def is_held(self, address: str) -> bool:
        """Whether a user keeps the driver's remove of this function from returning."""

    def is_claimed(self, group: int) -> bool:
        """Whether a process owns the DMA of this IOMMU group."""

    def is_in_slot(self, address: str) -> bool:
        """Whether a rescan finds this function."""

    def clock(self) -> float:
        """Monotonic seconds."""


def unbind(machine: Machine, driver: str, address: str) -> Procedure:
    """A write to `bus/pci/drivers/<driver>/unbind`."""
    if refusal := pci_bus.unbind_refusal(machine.bus, driver, address):
        return refusal
    yield from _lock(machine, address)
    state = machine.bus.state(address)
    if state is not None and state.driver == driver:  # another writer may have been first
        yield from _release(machine, address)
    return 0


def bind(machine: Machine, driver: str, address: str) -> Procedure:
    """A write to `bus/pci/drivers/<driver>/bind`."""
    if refusal := pci_bus.bind_refusal(machine.bus, driver, address):
        return refusal
    yield from _lock(machine, address)
    if refusal := pci_bus.bind_refusal(machine.bus, driver, address):
        return refusal
    return (yield from _probe(machine, driver, address))


def drivers_probe(machine: Machine, address: str) -> Procedure:
    """A write to `bus/pci/drivers_probe`, whose success says little: read the link afterwards."""
    state = machine.bus.state(address)
    if state is None:
        return errno.ENODEV
    if state.driver is not None:  # also while its remove waits
        return 0
    function = machine.bus.function(address)
    driver = None if function is None else pci_bus.candidate(machine.bus, function)
    if driver is None:
        return 0
    failed = yield from _probe(machine, driver, address)
    return errno.EINVAL if failed else 0


def set_override(machine: Machine, address: str, content: bytes) -> Procedure:
    """A write to `driver_override` (`driver_set_override`): no lock, and no driver is asked."""
    yield from ()
    name = content.partition(b"\0")[0].partition(b"\n")[0]
    if machine.bus.state(address) is None:
        return errno.ENODEV
    if len(name) >= 64:  # the kernel takes a page; no name of a driver is nearly so long
        return errno.EINVAL
    text = name.decode("utf-8", "replace")
    machine.publish(pci_bus.with_override(machine.bus, address, text))
    return 0


def new_id(machine: Machine, driver: str, content: bytes) -> Procedure:
    """A write to `new_id`: the driver takes what has no driver and fits."""
    told = _parse_id(driver, content)
    if told is None:
        return errno.EINVAL
    known = {(each.vendor, each.device) for each in machine.bus.functions
             if each.native == driver}  # fmt: skip
    if (told.vendor, told.device) in known or told in machine.bus.ids:
        return errno.EEXIST
    machine.publish(replace(machine.bus, ids=machine.bus.ids | {told}))
    yield from _attach(machine, driver)
    return 0


def remove_id(machine: Machine, driver: str, content: bytes) -> Procedure:
    """A write to `remove_id`, which unbinds nothing."""
    yield from ()
    told = _parse_id(driver, content)
    if told is None:
        return errno.EINVAL
    if told not in machine.bus.ids:
        return errno.ENODEV
    machine.publish(replace(machine.bus, ids=machine.bus.ids - {told}))
    return 0


def reset(machine: Machine, address: str, content: bytes) -> Procedure:
    """A write to `reset` (`reset_store`): needs the lock of the device."""
    if _number(content) != 1:
        return errno.EINVAL
    yield from _lock(machine, address)
    return 0


def set_virtual_functions(machine: Machine, address: str, content: bytes) -> Procedure:
    """A write to `sriov_numvfs`: neither nvidia nor vfio-pci makes any, as they are by default."""
    yield from ()
    function, wanted = machine.bus.function(address), _number(content)
    if function is None or wanted is None:
        return errno.EINVAL
    if wanted > function.virtual_functions:
        return errno.ERANGE
    return errno.ENOENT if wanted else 0


def remove(machine: Machine, address: str, content: bytes) -> Procedure:
    """A write to `remove`: the function leaves the bus, and those below it first."""
    wanted = _number(content)
    function = machine.bus.function(address)
    if wanted is None or function is None:
        return errno.EINVAL
    leaving = (*reversed(machine.bus.below(function.directory)), function)
    for each in leaving if wanted else ():
        yield from _lock(machine, each.address)
        state = machine.bus.state(each.address)
        if state is None:
            continue
        if state.phase is Phase.BOUND:
            yield from _release(machine, each.address)
        machine.publish(pci_bus.step(machine.bus, each.address, Step.LEAVES_BUS))
    return 0


def rescan(machine: Machine, content: bytes) -> Procedure:
    """A write to `rescan`: what is in its slot is found, without override, and gets its driver."""
    wanted = _number(content)
    if wanted is None:
        return errno.EINVAL
    for each in machine.bus.functions if wanted else ():
        absent = machine.bus.states[each.address].phase is Phase.ABSENT
        if not absent or not machine.is_in_slot(each.address):
            continue
        machine.publish(pci_bus.step(machine.bus, each.address, Step.IS_FOUND))
        if (driver := pci_bus.candidate(machine.bus, each)) is not None:
            yield from _probe(machine, driver, each.address)
    return 0


def load_module(machine: Machine, name: str) -> Procedure:
    """What `modprobe` does: a new driver takes the functions that wait for it."""
    found = modules.resolve(name, machine.bus.node)
    if not found:
        return errno.ENOENT
    for module in found:
        wanted = modules.with_needs(module, machine.bus.node) - machine.bus.modules
        machine.publish(replace(machine.bus, modules=machine.bus.modules | wanted))
        for driver in (modules.DRIVERS[each] for each in wanted if each in modules.DRIVERS):
            yield from _attach(machine, driver)
    return 0


def unload_module(machine: Machine, name: str) -> Procedure:
    """What `rmmod` does: refused while in use, else all functions of the driver have none."""
    module, now = name.replace("-", "_"), machine.bus
    if module not in now.modules:
        return errno.ENOENT
    if modules.users(module, now.modules, now.node) or _is_module_in_use(machine, module):
        return errno.EWOULDBLOCK
    driver = modules.DRIVERS.get(module)
    for address in pci_bus.bound_to(now, driver) if driver else ():
        yield from _lock(machine, address)
        yield from _release(machine, address)
    after = machine.bus
    machine.publish(
        replace(
            after,
            modules=after.modules - {module},
            ids=frozenset(told for told in after.ids if told.driver != driver),
        )
    )
    return 0


def remove_modules(machine: Machine, name: str) -> Procedure:
    """What `modprobe -r` does: the module goes, and what it needed and nothing else needs.

    As kmod 30, it looks at each of those once, the deepest first, so that some stay.
    """
    module, node = name.replace("-", "_"), machine.bus.node
    if module not in modules.available(node):
        return errno.ENOENT
    if module not in machine.bus.modules:
        return 0
    if failed := (yield from unload_module(machine, module)):
        return failed
    for need in modules.needs_in_order(module, node):
        if need in machine.bus.modules:
            yield from unload_module(machine, need)
    return 0


def _is_module_in_use(machine: Machine, module: str) -> bool:
    """Open devices hold the module of their driver, and a group in use the modules of vfio."""
    driver = modules.DRIVERS.get(module)
    if driver is not None:
        return any(machine.is_held(address) for address in pci_bus.bound_to(machine.bus, driver))
    groups = pci_bus.groups_of_vfio(machine.bus)
    return module != "iommufd" and any(machine.is_claimed(group) for group in groups)


# Parts


def _lock(machine: Machine, address: str) -> Generator[Wait, None, None]:
    """Wait until no other writer has the lock of the device."""
    while (state := machine.bus.state(address)) is not None and state.is_locked:
        yield Wait.UNINTERRUPTIBLE


def _release(machine: Machine, address: str) -> Generator[Wait, None, None]:
    """The driver's remove. The link goes first; whoever uses the function is waited for."""
    before = machine.bus.states[address]
    end = machine.clock() + before.faults.unbind_ms / 1000
    is_nvidia = before.driver == pci_bus.NVIDIA_DRIVER
    wait = Wait.UNINTERRUPTIBLE if is_nvidia else Wait.INTERRUPTIBLE
    machine.publish(pci_bus.step(machine.bus, address, Step.REMOVE_BEGINS))
    while machine.bus.states[address].phase is Phase.UNBINDING:  # else, a boot was meanwhile
        if not machine.is_held(address) and machine.clock() >= end:
            machine.publish(pci_bus.step(machine.bus, address, Step.REMOVE_ENDS))
            return
        yield wait


def _probe(machine: Machine, driver: str, address: str) -> Procedure:
    """The driver's probe. A group that a process owns refuses before the link is made."""
    function = machine.bus.function(address)
    group = None if function is None else function.group
    claimed = group is not None and driver not in modules.VFIO_DRIVERS and machine.is_claimed(group)
    failed = pci_bus.probe_error(machine.bus, driver, address, group_is_claimed=claimed)
    if failed == errno.EBUSY and claimed:
        return failed
    faults = machine.bus.states[address].faults
    end = machine.clock() + (faults.bind_ms / 1000 if faults.concern(driver) else 0)
    machine.publish(pci_bus.step(machine.bus, address, Step.PROBE_BEGINS, driver))
    while machine.clock() < end:
        yield Wait.UNINTERRUPTIBLE
    if machine.bus.states[address].phase is not Phase.BINDING:
        return errno.ENODEV
    is_lost = faults.bind_is_lost and faults.concern(driver)
    ends = Step.PROBE_FAILS if failed or is_lost else Step.PROBE_SUCCEEDS
    machine.publish(pci_bus.step(machine.bus, address, ends))
    return failed


def _attach(machine: Machine, driver: str) -> Generator[Wait, None, None]:
    """A driver looks at all functions that have none (`driver_attach`); failures are its own."""
    for each in pci_bus.driverless(machine.bus):
        if _is_free(machine.bus, each) and pci_bus.matches(machine.bus, driver, each):
            yield from _probe(machine, driver, each.address)


def _is_free(bus: Bus, function: PciFunction) -> bool:
    return bus.states[function.address].phase is Phase.DRIVERLESS


def _parse_id(driver: str, content: bytes) -> DynamicId | None:
    """The first two hexadecimal numbers, as `sscanf` of the kernel reads them."""
    try:
        vendor, device = (int(word, 16) for word in content.split()[:2])
    except ValueError:
        return None
    return DynamicId(driver, vendor, device)


def _number(content: bytes) -> int | None:
    """A number as `kstrtoul` reads it; None: it is none."""
    text = content.decode("ascii", "replace").removesuffix("\n")
    try:
        return int(text, 0) if text and not text[0].isspace() else None
    except ValueError:
        return None
