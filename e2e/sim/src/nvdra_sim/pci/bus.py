# SPDX-License-Identifier: Apache-2.0
"""What a write to the files of the PCI bus does: states as values, transitions as functions.

Nothing here waits, reads or writes. `writes` runs the transitions one after another, and waits in
between where the kernel does.

Sources: passthrough measured on a real kernel (e2e/sim/tests/kernel, table A1); Linux 6.12,
drivers/base/bus.c (`bind_store`, `unbind_store`, `drivers_probe_store`), drivers/base/dd.c
(`really_probe`, `__device_release_driver`), drivers/pci/pci-driver.c (`pci_match_device`).
"""

from __future__ import annotations

import errno
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum

from nvdra_sim.description import NodeDescription
from nvdra_sim.pci import functions, modules
from nvdra_sim.pci.functions import PciFunction

NVIDIA_DRIVER = "nvidia"


class Phase(IntEnum):
    """Where a function is on its way between drivers."""

    ABSENT = 0  # taken off the bus; `rescan` finds it again
    DRIVERLESS = 1
    BINDING = 2  # the driver's probe runs: the link `driver` is there already
    BOUND = 3
    UNBINDING = 4  # the driver's remove runs: the link `driver` is gone already


class Step(IntEnum):
    """The steps that change a phase."""

    PROBE_BEGINS = 0
    PROBE_SUCCEEDS = 1
    PROBE_FAILS = 2
    REMOVE_BEGINS = 3
    REMOVE_ENDS = 4
    LEAVES_BUS = 5
    IS_FOUND = 6


PHASES: Mapping[tuple[Phase, Step], Phase] = {
    (Phase.DRIVERLESS, Step.PROBE_BEGINS): Phase.BINDING,
    (Phase.BINDING, Step.PROBE_SUCCEEDS): Phase.BOUND,
    (Phase.BINDING, Step.PROBE_FAILS): Phase.DRIVERLESS,
    (Phase.BOUND, Step.REMOVE_BEGINS): Phase.UNBINDING,
    (Phase.UNBINDING, Step.REMOVE_ENDS): Phase.DRIVERLESS,
    (Phase.DRIVERLESS, Step.LEAVES_BUS): Phase.ABSENT,
    (Phase.ABSENT, Step.IS_FOUND): Phase.DRIVERLESS,
}
LOCKED = frozenset({Phase.BINDING, Phase.UNBINDING})
"""The phases in which the kernel holds the lock of the device: whoever needs it waits."""


@dataclass(frozen=True)
class Faults:
    """What goes wrong with a function, as a test wants it.

    Attributes:
        driver: The driver whose bind is meant; empty for all.
        bind_errno: A bind fails with this number; 0: none.
        bind_is_lost: A bind says that it succeeded, and the function has no driver.
        bind_ms: How long a probe takes.
        unbind_ms: How long a remove takes at least.
        config_reads_ff: The configuration space reads as if the function did not answer.
        link_width: The lanes that its link has come up with; 0: all.
    """

    driver: str = ""
    bind_errno: int = 0
    bind_is_lost: bool = False
    bind_ms: int = 0
    unbind_ms: int = 0
    config_reads_ff: bool = False
    link_width: int = 0

    def concern(self, driver: str) -> bool:
        """Whether binding to this driver is disturbed."""
        return self.driver in ("", driver)


@dataclass(frozen=True)
class FunctionState:
    """The changing part of a function.

    Attributes:
        driver: The driver that has it, or that is taking or leaving it; None in other phases.
        override: The name in `driver_override`; empty: `(null)`.
        vfio_number: The N of its `vfio-dev/vfio<N>`, which it keeps until its driver has left.
        fatal_errors: The fatal errors that the kernel has counted since it found the function.
        nonfatal_errors: The same, of those that are not fatal and not corrected either.
        wake_ups: How often a read has woken it from D3cold.
    """

    phase: Phase
    driver: str | None = None
    override: str = ""
    vfio_number: int | None = None
    faults: Faults = field(default=Faults())
    fatal_errors: int = 0
    nonfatal_errors: int = 0
    wake_ups: int = 0

    @property
    def holder(self) -> str | None:
        """The driver that the link `driver` names."""
        return self.driver if self.phase in (Phase.BINDING, Phase.BOUND) else None

    @property
    def is_locked(self) -> bool:
        """Whether the kernel holds the lock of the device."""
        return self.phase in LOCKED


@dataclass(frozen=True)
class DynamicId:
    """An id that a driver was told with `new_id`."""

    driver: str
    vendor: int
    device: int


@dataclass(frozen=True)
class Bus:
    """The bus at one moment.

    Attributes:
        node: The node.
        functions: What is in its slots, in the order of addresses.
        states: By address, every function of the node.
        modules: The loaded modules of passthrough; those of other drivers are not counted.
        has_nvidia: Whether the module nvidia is loaded.
        ids: What drivers were told with `new_id`. A reload of the module forgets them.
    """

    node: NodeDescription
    functions: tuple[PciFunction, ...]
    states: Mapping[str, FunctionState]
    modules: frozenset[str]
    has_nvidia: bool
    ids: frozenset[DynamicId] = frozenset()

    def state(self, address: str) -> FunctionState | None:
        """The state of a function that is on the bus."""
        found = self.states.get(address)
        return None if found is None or found.phase is Phase.ABSENT else found

    def function(self, address: str) -> PciFunction | None:
        """The function with this address, on the bus or not."""
        return next((each for each in self.functions if each.address == address), None)

    def companions(self, supplier: str) -> tuple[PciFunction, ...]:
        """The functions that the kernel links to this GPU as its consumers."""
        return tuple(each for each in self.functions if each.supplier == supplier)

    def in_group(self, group: int) -> tuple[PciFunction, ...]:
        """All functions of an IOMMU group, ports included."""
        return tuple(each for each in self.functions if each.group == group)

    def below(self, directory: str) -> tuple[PciFunction, ...]:
        """The functions whose directories are below this one."""
        return tuple(each for each in self.functions if each.directory.startswith(f"{directory}/"))

    @property
    def drivers(self) -> tuple[str, ...]:
        """The PCI drivers that this kernel has now: directories below `bus/pci/drivers`."""
        native = {each.native for each in self.functions if each.native is not None}
        loaded = {modules.DRIVERS[name] for name in self.modules if name in modules.DRIVERS}
        found = (native - {NVIDIA_DRIVER}) | loaded
        return tuple(sorted(found | ({NVIDIA_DRIVER} if self.has_nvidia else set())))


def at_boot(node: NodeDescription) -> Bus:
    """The bus as the node boots."""
    slots = functions.of(node)
    states: dict[str, FunctionState] = {}
    numbers = iter(range(len(slots)))
    for each in slots:
        driver = each.driver
        if driver == NVIDIA_DRIVER and not node.driver.module_loaded:
            driver = None
        phase = Phase.DRIVERLESS if driver is None else Phase.BOUND
        is_vfio = driver in modules.VFIO_DRIVERS
        number = next(numbers) if is_vfio else None
        # As driverctl binds at boot: by `driver_override`, which stays.
        override = driver if is_vfio and driver is not None else ""
        states[each.address] = FunctionState(phase, driver, override, number)
    return Bus(node, slots, states, modules.at_boot(node), node.driver.module_loaded)


# What matches what


def matches(bus: Bus, driver: str, function: PciFunction) -> bool:
    """Whether the bus offers the function to the driver (`pci_match_device`)."""
    override = bus.states[function.address].override
    if override:
        return override == driver
    told = DynamicId(driver, function.vendor, function.device)
    return function.native == driver or told in bus.ids


def candidate(bus: Bus, function: PciFunction) -> str | None:
    """The driver that takes a driverless function by itself, or at `drivers_probe`."""
    return next((driver for driver in bus.drivers if matches(bus, driver, function)), None)


def bind_refusal(bus: Bus, driver: str, address: str) -> int:
    """The error of a `bind` that no probe follows; 0: the probe begins, once the lock is free."""
    function = bus.function(address)
    state = bus.state(address)
    if function is None or state is None or not matches(bus, driver, function):
        return errno.ENODEV
    return errno.EBUSY if state.phase is Phase.BOUND else 0


def unbind_refusal(bus: Bus, driver: str, address: str) -> int:
    """The error of an `unbind`: the driver does not have the function."""
    state = bus.state(address)
    return errno.ENODEV if state is None or state.driver != driver else 0


def probe_error(bus: Bus, driver: str, address: str, *, group_is_claimed: bool) -> int:
    """What the probe of a driver fails with; 0: it succeeds.

    A group whose owner is a user takes no native driver (`iommu_device_use_default_domain`); vfio
    takes nothing without a group (`vfio_device_set_group`).
    """
    function = bus.function(address)
    faults = bus.states[address].faults
    if faults.bind_errno and faults.concern(driver):
        return faults.bind_errno
    if function is None:
        return errno.ENODEV
    if driver in modules.VFIO_DRIVERS:
        return errno.EINVAL if function.group is None else 0
    return errno.EBUSY if group_is_claimed and not function.is_bridge else 0


def is_viable(bus: Bus, group: int) -> bool:
    """Whether a group can be used by a process: no function has a driver that uses DMA itself."""
    return all(
        bus.states[each.address].driver in (None, *modules.VFIO_DRIVERS)
        for each in bus.in_group(group)
        if not each.is_bridge
    )


def groups_of_vfio(bus: Bus) -> frozenset[int]:
    """The groups with a node below `/dev/vfio`: a driver of vfio has a function, or leaves it."""
    return frozenset(
        each.group
        for each in bus.functions
        if each.group is not None and bus.states[each.address].vfio_number is not None
    )


# Steps


def step(bus: Bus, address: str, which: Step, driver: str | None = None) -> Bus:
    """The bus after a step of one function.

    Raises:
        KeyError: The function is in a phase in which this step cannot happen.
    """
    before = bus.states[address]
    phase = PHASES[before.phase, which]
    after = replace(before, phase=phase)
    if which is Step.PROBE_BEGINS:
        after = replace(after, driver=driver)
    elif which is Step.PROBE_SUCCEEDS and after.driver in modules.VFIO_DRIVERS:
        after = replace(after, vfio_number=_free_number(bus))
    elif phase is Phase.DRIVERLESS and which is not Step.IS_FOUND:
        after = replace(after, driver=None, vfio_number=None)
    elif which is Step.LEAVES_BUS:
        after = FunctionState(Phase.ABSENT, faults=before.faults)
    return with_state(bus, address, after)


def with_override(bus: Bus, address: str, name: str) -> Bus:
    """The bus with another `driver_override`, which unbinds nothing."""
    return with_state(bus, address, replace(bus.states[address], override=name))


def with_state(bus: Bus, address: str, state: FunctionState) -> Bus:
    """The bus with another state of one function."""
    return replace(bus, states={**bus.states, address: state})


def bound_to(bus: Bus, driver: str) -> tuple[str, ...]:
    """The addresses of the functions that a driver has."""
    return tuple(
        address
        for address, state in bus.states.items()
        if state.driver == driver and state.phase is Phase.BOUND
    )


def driverless(bus: Bus) -> tuple[PciFunction, ...]:
    """The functions on the bus that no driver has."""
    return tuple(
        each for each in bus.functions if bus.states[each.address].phase is Phase.DRIVERLESS
    )


def _free_number(bus: Bus) -> int:
    """The smallest number that no function has."""
    taken = {state.vfio_number for state in bus.states.values()}
    return next(number for number in range(len(taken) + 1) if number not in taken)
