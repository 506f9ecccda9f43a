# SPDX-License-Identifier: Apache-2.0
"""Which driver has a PCI function, and the next write that brings it to another one. Pure.

What is so is told by links alone. A write's result tells nothing: `drivers_probe` succeeds and
leaves a function without a driver, `bind` of a function whose unbind has not returned blocks in the
kernel and cannot be killed. So a function without a driver is *unbinding* until the opposite is
certain, and then nothing is written but to the functions whose vfio hides it.

What is certain, measured on Linux 6.12 and read in NVIDIA/open-gpu-kernel-modules
(kernel-open/nvidia/nv-pci.c, `nv_pci_remove`):

- The link `driver` goes when an unbind begins.
- The NVIDIA driver removes `/proc/driver/nvidia/gpus/<address>` when it has let go of the GPU.
- vfio removes `/sys/class/vfio/<group>` when it has let go of the last function of the group. While
  it has one, another one without a driver may be free or unbinding.

So that the last case decides itself, the first bind of a switch comes when none of its functions
that share a group with a free one is on vfio any more (`is_cleared`).
"""

import enum
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from nvdra_api.ids import PciAddress

from nvdra_gpu_plugin.passthrough.pci_functions import PciBus, PciFunction, is_vfio

NVIDIA_DRIVER: Final = "nvidia"
SHARING_DRIVERS: Final = frozenset({"pcieport", "pci-stub"})
"""Drivers that leave a group viable, beside those of vfio: `driver_managed_dma` of Linux."""


class Holding(enum.Enum):
    """Who has a GPU, as its links and the claims say."""

    NVIDIA = "its NVIDIA driver"
    CLAIM = "a claim, which has bound it to vfio or is about to"
    PREBOUND = "a vfio driver, without a claim"
    FOREIGN = "another driver"
    UNBINDING = "a driver that has not let go of it"
    FREE = "no driver"


class Place(enum.Enum):
    """Where a function is on its way."""

    THERE = "on the wanted driver, or free if it is to be free"
    AT_START = "on the driver that it leaves"
    LEAVING = "on the wanted vfio driver, which hides whether another function is free"
    FREE = "without a driver"
    UNBINDING = "without a driver, and an unbind has not returned"
    ELSEWHERE = "on a driver that is neither the wanted one nor the one to leave"
    NO_DRIVER = "free, but the wanted driver is not loaded"
    ABSENT = "not on the bus"


class Step(enum.Enum):
    """What is to be done next."""

    SET_OVERRIDE = "write driver_override"
    UNBIND = "unbind"
    BIND = "bind"
    WAIT = "wait until an unbind has returned"
    REFUSE = "refuse"
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class FunctionBinding:
    """A function that a claim binds to vfio, and what it had before.

    Attributes:
        pci: Its address.
        vfio_driver: The vfio driver, by its name in `/sys/bus/pci/drivers`.
        former_driver: The driver that it had; None if it had none.
        former_override: Its `driver_override`; None if none was set.
    """

    pci: PciAddress
    vfio_driver: str
    former_driver: str | None = None
    former_override: str | None = None


BoardBinding = Sequence[FunctionBinding]
"""A GPU, first, and its own further functions."""


@dataclass(frozen=True, slots=True)
class Goal:
    """Where a function is to be.

    Attributes:
        pci: Its address.
        driver: The wanted driver; None if it is to be free.
        start: The driver that it may leave; None if it is free at the start.
        override: The `driver_override` that it is to have in the end.
        override_to_bind: The one with which the wanted driver accepts it.
        is_required: Whether the function must get there. One that is given back goes where it can:
            its former driver may be unloaded, or someone has given it another driver meanwhile.
    """

    pci: PciAddress
    driver: str | None
    start: str | None
    override: str | None
    override_to_bind: str | None
    is_required: bool


@dataclass(frozen=True, slots=True)
class Action:
    """One step for one function.

    Attributes:
        step: What is to be done.
        pci: The function.
        driver: The driver to bind or unbind; None for other steps.
        override: What `driver_override` is to be; None if it is to be cleared.
        place: Where the function is.
    """

    step: Step
    pci: PciAddress
    driver: str | None = None
    override: str | None = None
    place: Place = Place.THERE


_ANYWHERE: Final[Mapping[tuple[Place, bool], Step]] = MappingProxyType(
    {
        (Place.THERE, True): Step.NOTHING,
        (Place.THERE, False): Step.SET_OVERRIDE,
        (Place.AT_START, True): Step.UNBIND,
        (Place.AT_START, False): Step.SET_OVERRIDE,
        (Place.LEAVING, True): Step.UNBIND,
        (Place.LEAVING, False): Step.UNBIND,
        (Place.FREE, True): Step.BIND,
        (Place.FREE, False): Step.SET_OVERRIDE,
        (Place.UNBINDING, True): Step.WAIT,
        (Place.UNBINDING, False): Step.WAIT,
    }
)
STEPS: Final[Mapping[bool, Mapping[tuple[Place, bool], Step]]] = MappingProxyType(
    {
        True: {
            **_ANYWHERE,
            (Place.ELSEWHERE, True): Step.REFUSE,
            (Place.ELSEWHERE, False): Step.REFUSE,
            (Place.NO_DRIVER, True): Step.REFUSE,
            (Place.NO_DRIVER, False): Step.REFUSE,
            (Place.ABSENT, True): Step.REFUSE,
            (Place.ABSENT, False): Step.REFUSE,
        },
        False: {
            **_ANYWHERE,
            (Place.ELSEWHERE, True): Step.NOTHING,
            (Place.ELSEWHERE, False): Step.SET_OVERRIDE,
            (Place.NO_DRIVER, True): Step.NOTHING,
            (Place.NO_DRIVER, False): Step.SET_OVERRIDE,
            (Place.ABSENT, True): Step.NOTHING,
            (Place.ABSENT, False): Step.NOTHING,
        },
    }
)
"""The next step of a function: by whether it must get there, its place, and whether its
`driver_override` is right."""


def holding(function: PciFunction, bus: PciBus, *, is_claimed: bool) -> Holding:
    """Who has a GPU.

    Args:
        function: The GPU.
        bus: The functions of its IOMMU group, too.
        is_claimed: Whether a claim has bound it to vfio, or is about to.
    """
    if is_claimed:
        return Holding.CLAIM
    if function.driver is None:
        return Holding.UNBINDING if is_unbinding(function, bus) else Holding.FREE
    if function.driver == NVIDIA_DRIVER:
        return Holding.NVIDIA
    return Holding.PREBOUND if function.is_on_vfio else Holding.FOREIGN


def is_unbinding(function: PciFunction, bus: PciBus) -> bool:
    """Whether an unbind of a function without a driver has certainly not returned.

    If another function of its group is on vfio, nothing can be told of one that vfio had.
    """
    if function.driver is not None:
        return False
    if function.pci in bus.nvidia_gpus:
        return True
    has_vfio = any(mate.is_on_vfio for mate in bus.in_group(function.group))
    return function.group in bus.vfio_groups and not has_vfio


def not_viable(bus: PciBus, group: int) -> tuple[PciFunction, ...]:
    """The functions that keep a group from being opened by a virtual machine.

    Source: `iommu_group_claim_dma_owner` of Linux; VFIO_GROUP_FLAGS_VIABLE.
    """
    return tuple(
        function
        for function in bus.in_group(group)
        if function.driver is not None
        and not function.is_on_vfio
        and function.driver not in SHARING_DRIVERS
        and not function.is_bridge
    )


def to_vfio(board: BoardBinding) -> tuple[Goal, ...]:
    """The goals of a claim's functions: on vfio. The GPU is bound last."""
    goals = (
        Goal(
            pci=function.pci,
            driver=function.vfio_driver,
            start=function.former_driver,
            override=function.vfio_driver,
            override_to_bind=function.vfio_driver,
            is_required=True,
        )
        for function in board
    )
    return tuple(reversed(tuple(goals)))


def to_former(board: BoardBinding) -> tuple[Goal, ...]:
    """The goals of a claim's functions after it: as before. The GPU is bound first.

    The kernel lets its audio and USB functions depend on it, so their drivers find it at work.
    """
    return tuple(
        Goal(
            pci=function.pci,
            driver=function.former_driver,
            start=function.vfio_driver,
            override=function.former_override,
            override_to_bind=_override_to_bind(function),
            is_required=False,
        )
        for function in board
    )


def next_action(
    goals: Sequence[Goal], bus: PciBus, pending: Collection[PciAddress], *, is_cleared: bool
) -> Action:
    """What to do next so that all functions reach their goals.

    Refusals come first, so that nothing is changed in vain. The GPU is the last that is unbound:
    while it is on its driver, all can be undone at once.

    Args:
        goals: In the order in which the functions are bound.
        bus: The functions with all others of their groups, as they are now.
        pending: The functions with a write that has not returned.
        is_cleared: Whether the switch has bound a function already, which it does when all that
            hides an unbind is gone.
    """
    gpu = goals[-1].pci if goals[0].is_required else goals[0].pci
    actions = (_action(goal, goals, bus, pending, is_cleared) for goal in goals)
    return min(actions, key=lambda action: _rank(action, gpu))


_ORDER: Final = (Step.REFUSE, Step.WAIT, Step.SET_OVERRIDE, Step.UNBIND, Step.BIND)


def _rank(action: Action, gpu: PciAddress) -> tuple[int, bool]:
    """The place of a step in the order of all functions' steps."""
    if action.step is Step.NOTHING:
        return len(_ORDER) + 1, False
    if action.step is Step.SET_OVERRIDE and action.place is Place.THERE:
        return len(_ORDER), False  # it is not needed to get there
    return _ORDER.index(action.step), action.step is Step.UNBIND and action.pci == gpu


def _action(
    goal: Goal,
    goals: Sequence[Goal],
    bus: PciBus,
    pending: Collection[PciAddress],
    is_cleared: bool,
) -> Action:
    function = bus.functions.get(goal.pci)
    if goal.pci in pending:
        return Action(Step.WAIT, goal.pci, place=Place.UNBINDING)
    if function is None:
        place, override = Place.ABSENT, goal.override
    else:
        place = _place(goal, function, bus)
        override = _wanted_override(goal, function, place)
        if place is Place.THERE and not is_cleared and _hides_unbind(goal, goals, bus):
            place = Place.LEAVING
    is_right = function is None or function.override == override
    step = STEPS[goal.is_required][place, is_right]
    driver = function.driver if function and step is Step.UNBIND else goal.driver
    is_of_driver = step in (Step.UNBIND, Step.BIND)
    return Action(step, goal.pci, driver if is_of_driver else None, override, place)


def _place(goal: Goal, function: PciFunction, bus: PciBus) -> Place:
    if function.driver is None:
        if is_unbinding(function, bus):
            return Place.UNBINDING
        if goal.driver is None:
            return Place.THERE
        return Place.FREE if goal.driver in bus.drivers else Place.NO_DRIVER
    if function.driver == goal.driver:
        return Place.THERE
    return Place.AT_START if function.driver == goal.start else Place.ELSEWHERE


def _wanted_override(goal: Goal, function: PciFunction, place: Place) -> str | None:
    if place in (Place.THERE, Place.NO_DRIVER):
        return goal.override
    if place is Place.ELSEWHERE and function.override != goal.start:
        return function.override  # of whoever has given it that driver
    return goal.override if place is Place.ELSEWHERE else goal.override_to_bind


def _hides_unbind(goal: Goal, goals: Sequence[Goal], bus: PciBus) -> bool:
    """Whether a function on vfio hides that another one, which is to be bound, is unbinding."""
    if goal.driver is None or not is_vfio(goal.driver):
        return False
    group = bus.functions[goal.pci].group
    return any(
        bus.functions[other.pci].driver is None and other.driver in bus.drivers
        for other in _in_group(goals, bus, group)
    )


def _in_group(goals: Sequence[Goal], bus: PciBus, group: int | None) -> Iterator[Goal]:
    for goal in goals:
        function = bus.functions.get(goal.pci)
        if function is not None and function.group == group and group is not None:
            yield goal


def _override_to_bind(function: FunctionBinding) -> str | None:
    """The former override, unless the former driver would refuse to bind with it.

    vfio drivers match no device by themselves, but by an override, or by numbers that were given to
    them at the time.
    """
    if function.former_driver is None:
        return function.former_override
    if function.former_override is not None or is_vfio(function.former_driver):
        return function.former_driver
    return None
