# SPDX-License-Identifier: Apache-2.0
"""What is known of the health of a GPU that vfio has, and the taints that follow from it.

NVML says nothing of such a GPU. What the PCI bus says of it is a look; what it has said before is
kept here, so that a fault is believed only when it lasts, and is over only when that lasts.

Source: docs/decisions/gpu-plugin.md, "When is a vfio device tainted?".
"""

from collections.abc import Mapping
from datetime import datetime, timedelta
from enum import StrEnum
from types import MappingProxyType
from typing import Final, NamedTuple

from nvdra_api.resource.slices import DeviceTaint
from pydantic import AwareDatetime, BaseModel, ConfigDict

from nvdra_gpu_plugin.health.gpu_health import INFORMATIONAL, LOST_KEY, NO_SCHEDULE
from nvdra_gpu_plugin.passthrough.pci_health import PciLook

PCI_SILENT: Final = "pci-silent"
"""The value of `gpu-lost` for a GPU whose configuration space is not answered."""

PCIE_ERRORS_KEY: Final = "gpu.nvidia.com/pcie-fatal-errors"
PCIE_LINK_KEY: Final = "gpu.nvidia.com/pcie-link"


class Fault(StrEnum):
    """What can be wrong with a GPU that vfio has."""

    SILENT = "silent"
    FATAL_ERRORS = "fatal-errors"
    NARROW_LINK = "narrow-link"


class Sign(StrEnum):
    """What a look says of a fault: it is there, it is not, or the look says nothing of it."""

    PRESENT = "present"
    ABSENT = "absent"
    UNKNOWN = "unknown"


class Phase(StrEnum):
    """How far a fault is."""

    NONE = "none"
    SUSPECTED = "suspected"
    PRESENT = "present"
    HEALING = "healing"


class FaultKind(NamedTuple):
    """How a fault is treated.

    Attributes:
        key: The key of its taint.
        is_confirmed: Whether a second look has to see it, too: it may be seen for a moment.
        heals_after: How long it has to be absent until it is over.
        keeps_pods_away: Whether its taint does.
    """

    key: str
    is_confirmed: bool
    heals_after: timedelta
    keeps_pods_away: bool


KINDS: Final[Mapping[Fault, FaultKind]] = MappingProxyType(
    {
        Fault.SILENT: FaultKind(LOST_KEY, True, timedelta(seconds=10), True),
        # The kernel resets the link at once, and the GPU answers: what counts is whether it recurs.
        Fault.FATAL_ERRORS: FaultKind(PCIE_ERRORS_KEY, False, timedelta(minutes=10), True),
        Fault.NARROW_LINK: FaultKind(PCIE_LINK_KEY, True, timedelta(seconds=10), False),
    }
)

PHASES: Final[Mapping[tuple[Phase, Sign], Phase]] = MappingProxyType(
    {
        (Phase.NONE, Sign.PRESENT): Phase.SUSPECTED,
        (Phase.NONE, Sign.ABSENT): Phase.NONE,
        (Phase.NONE, Sign.UNKNOWN): Phase.NONE,
        (Phase.SUSPECTED, Sign.PRESENT): Phase.PRESENT,
        (Phase.SUSPECTED, Sign.ABSENT): Phase.NONE,
        (Phase.SUSPECTED, Sign.UNKNOWN): Phase.NONE,
        (Phase.PRESENT, Sign.PRESENT): Phase.PRESENT,
        (Phase.PRESENT, Sign.ABSENT): Phase.HEALING,
        (Phase.PRESENT, Sign.UNKNOWN): Phase.PRESENT,
        (Phase.HEALING, Sign.PRESENT): Phase.PRESENT,
        (Phase.HEALING, Sign.ABSENT): Phase.HEALING,
        (Phase.HEALING, Sign.UNKNOWN): Phase.HEALING,
    }
)
"""What a look makes of a fault. One that is not to be confirmed is present where this says
suspected. A fault that heals is over after its time, unless a look sees it before."""


class FaultState(BaseModel):
    """A fault of a GPU.

    Attributes:
        phase: How far it is.
        since: When this was seen first; of a fault that heals, when the fault was.
        healing_since: Since when it is absent; None while it is not.
        value: What the taint says.
    """

    model_config = ConfigDict(frozen=True)

    phase: Phase
    since: AwareDatetime
    healing_since: AwareDatetime | None = None
    value: str = ""


class VfioHealth(BaseModel):
    """What is known of a GPU while vfio has it.

    Attributes:
        counted_errors: The fatal errors that were counted when it was last looked at. Those of
            before vfio had it do not count. None if the kernel counts none.
        faults: What is wrong with it, or suspected.
    """

    model_config = ConfigDict(frozen=True)

    counted_errors: int | None = None
    faults: dict[Fault, FaultState] = {}

    @property
    def needs_answer(self) -> bool:
        """Whether it is asked even if that wakes it: a GPU that no pod gets would never wake."""
        return any(KINDS[fault].keeps_pods_away for fault in self.faults)

    @property
    def changes_soon(self) -> bool:
        """Whether a fault is to be confirmed, or over within seconds."""
        return any(
            state.phase is Phase.SUSPECTED
            or (state.phase is Phase.HEALING and KINDS[fault].heals_after < timedelta(minutes=1))
            for fault, state in self.faults.items()
        )


def after_look(health: VfioHealth | None, look: PciLook, now: datetime) -> VfioHealth:
    """The health after a look.

    Args:
        health: The health before; None for a GPU that vfio has not had before in this boot.
        look: How it is.
        now: When it was looked at.
    """
    before = VfioHealth(counted_errors=look.fatal_errors) if health is None else health
    faults: dict[Fault, FaultState] = {}
    for fault, (sign, value) in _signs(before, look).items():
        state = _after(KINDS[fault], before.faults.get(fault), sign, value, now)
        if state is not None:
            faults[fault] = state
    counted = before.counted_errors if look.fatal_errors is None else look.fatal_errors
    return VfioHealth(counted_errors=counted, faults=faults)


def taints(
    health: VfioHealth, knows_none: bool, effect: str = NO_SCHEDULE
) -> tuple[DeviceTaint, ...]:
    """The taints of a GPU's vfio device, in the order of their keys.

    Args:
        health: What is known of the GPU.
        knows_none: Whether the API server accepts the effect `None`.
        effect: The effect of those that keep pods away.
    """
    found = [
        DeviceTaint(
            key=KINDS[fault].key,
            value=state.value,
            effect=effect if KINDS[fault].keeps_pods_away else INFORMATIONAL,
            time_added=state.since.replace(microsecond=0),
        )
        for fault, state in health.faults.items()
        if state.phase is not Phase.SUSPECTED and (KINDS[fault].keeps_pods_away or knows_none)
    ]
    return tuple(sorted(found, key=lambda taint: taint.key))


def _signs(before: VfioHealth, look: PciLook) -> Mapping[Fault, tuple[Sign, str]]:
    """What a look says of each fault, and the value of its taint."""
    return {
        Fault.SILENT: (_sign(look.is_silent), PCI_SILENT),
        Fault.FATAL_ERRORS: (_errors_sign(before, look), ""),
        Fault.NARROW_LINK: (_link_sign(look), f"x{look.lanes}-of-x{look.full_lanes}"),
    }


def _sign(is_present: bool | None) -> Sign:
    if is_present is None:
        return Sign.UNKNOWN
    return Sign.PRESENT if is_present else Sign.ABSENT


def _errors_sign(before: VfioHealth, look: PciLook) -> Sign:
    """Whether errors were counted since the last look; none is only absent if the GPU answers.

    A counter that is lower than before belongs to a function that was found anew: all of it counts.
    """
    now, known = look.fatal_errors, before.counted_errors
    if now is not None and known is not None:
        new = now - known if now >= known else now
        if new > 0:
            return Sign.PRESENT
    return Sign.ABSENT if look.is_silent is False else Sign.UNKNOWN


def _link_sign(look: PciLook) -> Sign:
    """Only of the lanes. The speed is lowered while a GPU has nothing to do."""
    if look.lanes is None or look.full_lanes is None:
        return Sign.UNKNOWN
    return _sign(look.lanes < look.full_lanes)


def _after(
    kind: FaultKind, before: FaultState | None, sign: Sign, value: str, now: datetime
) -> FaultState | None:
    """A fault after a look; None if there is none."""
    phase = PHASES[Phase.NONE if before is None else before.phase, sign]
    if phase is Phase.SUSPECTED and not kind.is_confirmed:
        phase = Phase.PRESENT
    if phase is Phase.NONE:
        return None
    if before is None:
        return FaultState(phase=phase, since=now, value=value)
    if phase is not Phase.HEALING:
        # Else a look that says nothing of it.
        seen = value if sign is Sign.PRESENT else before.value
        return before.model_copy(update={"phase": phase, "healing_since": None, "value": seen})
    since = before.healing_since
    if since is None or since > now:  # the clock may have been set back
        return before.model_copy(update={"phase": phase, "healing_since": now})
    return None if now - since >= kind.heals_after else before
