# SPDX-License-Identifier: Apache-2.0
"""What is known of a GPU's health, and the taints that follow from it.

The state is changed by looks at the GPU, which say how it is now; an XID only says why. So an event
that is missed, or told twice, does no harm. Source: docs/decisions/gpu-plugin.md, "When is a GPU
tainted, and when does the taint go?".
"""

from collections.abc import Collection
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from nvdra_api.resource.slices import DeviceTaint
from pydantic import BaseModel, ConfigDict

from nvdra_gpu_plugin.devices.gpu_loss import GpuLoss
from nvdra_gpu_plugin.health.recovery_actions import NOT_OF_THE_GPU, RecoveryAction

APPLICATION_XIDS: Final = frozenset({13, 31, 43, 45, 68})
"""What applications cause. They say nothing about the GPU."""

_MEMORY_ERROR_XIDS: Final = frozenset({48, 94})
"""A memory error that ECC could not correct, and one that was contained. One that was not is 95."""

_CONTAINED_XIDS: Final = frozenset({63, 94})
"""A row of memory waits to be remapped; an error was contained."""

_SECONDARY_XIDS: Final = _CONTAINED_XIDS | {109}
"""What may follow from another XID, whose place it does not take. 109 is a context switch that has
taken too long."""

RECOVERY_CHANGED_XID: Final = 154
"""The driver's own report that the recovery action has changed. It has no cause in itself."""

XID_KEY: Final = "gpu.nvidia.com/xid"
LOST_KEY: Final = "gpu.nvidia.com/gpu-lost"
ECC_KEY: Final = "gpu.nvidia.com/ecc"
REMAPPING_KEY: Final = "gpu.nvidia.com/row-remapping"
FABRIC_KEY: Final = "gpu.nvidia.com/fabric"
UNMONITORED_KEY: Final = "gpu.nvidia.com/unmonitored"
NO_SCHEDULE: Final = "NoSchedule"
INFORMATIONAL: Final = "None"
"""An effect that keeps no pod away. Kubernetes knows it since 1.35."""

REMAPPING_PENDING: Final = "pending"
REMAPPING_FAILED: Final = "failed"
_UNCORRECTED: Final = "uncorrected"
FABRIC_FAILED: Final = "failed"
ROUTE_UNHEALTHY: Final = "route-unhealthy"
INCORRECT_CONFIGURATION: Final = "incorrect-configuration"
ACCESS_TIMEOUT: Final = "access-timeout"
DEGRADED_BANDWIDTH: Final = "degraded-bandwidth"
RECOVER_IMEX_DOMAIN: Final = "recover-imex-domain"
"""Values of taints."""

_HARMLESS: Final = frozenset(
    {
        (REMAPPING_KEY, REMAPPING_PENDING),
        (FABRIC_KEY, ACCESS_TIMEOUT),
        (FABRIC_KEY, DEGRADED_BANDWIDTH),
        (FABRIC_KEY, RECOVER_IMEX_DOMAIN),
    }
)
"""Taints that say how a GPU is, and are no reason to keep pods away."""

HEALS_AFTER: Final = timedelta(seconds=10)
"""A GPU is offered again after it has been well for so long. One that comes and goes is not."""

_SETTLED_AFTER: Final = timedelta(seconds=5)
"""The driver may change the recovery action so long after it has reported an XID."""

_FORGOTTEN_AFTER: Final = timedelta(minutes=1)
"""An XID that NVML asks no recovery for is not the reason of what comes later."""


class Look(NamedTuple):
    """How a GPU is now.

    Attributes:
        loss: Why it cannot be used until it is reset or replaced; None if it is not lost.
        recovery_action: What it needs in order to recover, a `RecoveryAction` or one that is not
            known; None if this driver cannot tell.
        has_uncorrected_errors: Whether its memory had errors since the last reset that ECC could
            not correct.
        remapping: `pending` if rows of its memory wait for a reset to be remapped, `failed` if no
            spare row is left; otherwise empty.
        fabric: What is wrong with its NVLink fabric: `failed` if it could not join it,
            `route-unhealthy`, `incorrect-configuration`, `access-timeout`, `degraded-bandwidth`;
            otherwise empty.
    """

    loss: GpuLoss | None = None
    recovery_action: int | None = None
    has_uncorrected_errors: bool = False
    remapping: str = ""
    fabric: str = ""


class Xid(BaseModel):
    """An XID.

    Attributes:
        at: When it was reported.
        is_settled: Whether NVML was asked afterwards, and wants nothing done about it.
    """

    model_config = ConfigDict(frozen=True)

    number: int
    at: datetime
    is_settled: bool = False


class Trouble(BaseModel):
    """Something that is wrong with a GPU.

    Attributes:
        value: What the taint says, such as the XID.
        since: When it was noticed.
        well_since: Since when it is over; None while it is not.
        action: What NVML asks for, of a recovery; 0 if it has not said it.
    """

    model_config = ConfigDict(frozen=True)

    value: str = ""
    since: datetime
    well_since: datetime | None = None
    action: int = RecoveryAction.NONE


class GpuHealth(BaseModel):
    """What is known of a GPU.

    Attributes:
        cause: The last XID that may be the reason of a recovery.
        ignored: The last XID that an administrator ignores. It is kept for as long as NVML asks
            for a recovery, of which it is the reason unless there is a cause.
        recovery: It needs a recovery.
        loss: It is lost; the value is a `GpuLoss`.
        ecc: Its memory had errors, and its driver cannot tell whether it needs a recovery.
        remapping: Rows of its memory wait to be remapped, or cannot be.
        fabric: Its NVLink fabric does not work as it should.
    """

    model_config = ConfigDict(frozen=True)

    cause: Xid | None = None
    ignored: Xid | None = None
    recovery: Trouble | None = None
    loss: Trouble | None = None
    ecc: Trouble | None = None
    remapping: Trouble | None = None
    fabric: Trouble | None = None

    @property
    def is_healing(self) -> bool:
        """Whether something is over and still has a taint."""
        troubles = (self.recovery, self.loss, self.ecc, self.remapping, self.fabric)
        return any(trouble is not None and trouble.well_since is not None for trouble in troubles)


WELL: Final = GpuHealth()


def after_xid(
    health: GpuHealth, xid: int, now: datetime, ignored: Collection[int] = ()
) -> GpuHealth:
    """The health after an XID was reported. What it means, the next look says.

    Args:
        health: The health before.
        xid: Its number.
        now: When it was reported.
        ignored: XIDs that an administrator ignores.
    """
    if xid in ignored:
        return health.model_copy(update={"ignored": Xid(number=xid, at=now)})
    if xid in APPLICATION_XIDS or xid == RECOVERY_CHANGED_XID:
        return health
    if xid in _SECONDARY_XIDS and health.cause is not None and not health.cause.is_settled:
        return health
    return health.model_copy(update={"cause": Xid(number=xid, at=now)})


def with_ignored(health: GpuHealth, ignored: Collection[int]) -> GpuHealth:
    """The health that an earlier process knew, by the XIDs that an administrator ignores now."""
    xids = sorted(
        (xid for xid in (health.cause, health.ignored) if xid is not None), key=lambda xid: xid.at
    )
    result = health.model_copy(update={"cause": None, "ignored": None})
    if _MEMORY_ERROR_XIDS & {*ignored}:
        result = result.model_copy(update={"ecc": None})
    for xid in xids:
        result = after_xid(result, xid.number, xid.at, ignored)
    if result.cause == _unsettled(health.cause):
        result = result.model_copy(update={"cause": health.cause})
    recovery = health.recovery
    if recovery is not None and recovery.value in map(str, ignored):
        reason = result.ignored or Xid(number=int(recovery.value), at=recovery.since)
        # The next look says what is left.
        return result.model_copy(update={"recovery": None, "ignored": reason})
    return result


def after_look(
    health: GpuHealth, look: Look, now: datetime, ignored: Collection[int] = ()
) -> GpuHealth:
    """The health after the GPU was looked at.

    Args:
        health: The health before.
        look: How the GPU is.
        now: When it was looked at.
        ignored: XIDs that an administrator ignores.
    """
    loss = _after(health.loss, look.loss, now)
    if look.loss is not None:
        return health.model_copy(update={"loss": loss})
    if _was_reset(health.loss) and look.recovery_action is None:
        health = health.model_copy(update={"cause": None})  # a GPU that comes back was reset
    value = _recovery_value(health, look, ignored)
    recovery = _after(health.recovery, value, now)
    if recovery is not None and look.recovery_action not in (None, *NOT_OF_THE_GPU):
        recovery = recovery.model_copy(update={"action": look.recovery_action})
    has_healed = health.recovery is not None and recovery is None
    cause = None if has_healed else health.cause
    if recovery is None:
        cause = _settled(_recent(cause, now), now)
    # Not while NVML asks for a recovery: without the XID it would look like one of no known cause.
    needs_none = look.recovery_action in NOT_OF_THE_GPU
    last_ignored = _recent(health.ignored, now) if needs_none else health.ignored
    return GpuHealth(
        cause=cause,
        ignored=last_ignored,
        recovery=recovery,
        loss=loss,
        ecc=_after(health.ecc, _ecc_value(look, ignored), now),
        remapping=_after(health.remapping, look.remapping or None, now),
        fabric=_after(health.fabric, _fabric_value(look), now),
    )


def after_failed_look(health: GpuHealth, now: datetime) -> GpuHealth:
    """The health after a look that NVML has not answered, or with an error.

    An XID that no look has settled counts: with NVML's answer it may be a recovery that is needed.
    All else is as it was known before.
    """
    if health.cause is None or health.cause.is_settled:
        return health
    recovery = _after(health.recovery, str(health.cause.number), now)
    return health.model_copy(update={"recovery": recovery})


def after_administration(health: GpuHealth) -> GpuHealth:
    """The health after an administrator had the GPU: XIDs of before are no reason any more.

    It matters for a driver that cannot tell what a GPU needs. Another one is asked; an XID that is
    ignored stays known for it, because the administrator may have reset nothing.
    """
    return health.model_copy(update={"cause": None})


def taints(
    health: GpuHealth, is_monitored: bool, knows_none: bool, effect: str = NO_SCHEDULE
) -> tuple[DeviceTaint, ...]:
    """The taints of a GPU's device, in the order of their keys.

    Args:
        health: What is known of the GPU.
        is_monitored: Whether it reports XIDs, and looks at it are answered.
        knows_none: Whether the API server accepts the effect `None`; one that does not rejects the
            whole slice.
        effect: The effect of those that keep pods away.
    """
    troubles = {
        ECC_KEY: health.ecc,
        FABRIC_KEY: health.fabric,
        LOST_KEY: health.loss,
        REMAPPING_KEY: health.remapping,
        XID_KEY: health.recovery,
    }
    found = []
    for key, trouble in troubles.items():
        if trouble is None:
            continue
        is_grave = (key, trouble.value) not in _HARMLESS
        if is_grave or knows_none:
            found.append(_taint(key, trouble, effect if is_grave else INFORMATIONAL))
    if not is_monitored and knows_none and health.loss is None:
        found.append(DeviceTaint(key=UNMONITORED_KEY, effect=INFORMATIONAL))
    return tuple(sorted(found, key=lambda taint: taint.key))


def _recovery_value(health: GpuHealth, look: Look, ignored: Collection[int]) -> str | None:
    """What a taint says of the GPU as it is now; None if it needs none."""
    action = look.recovery_action
    if action in NOT_OF_THE_GPU:
        return None
    if health.cause is not None:
        is_contained = (
            look.remapping == REMAPPING_PENDING and health.cause.number in _CONTAINED_XIDS
        )
        if action is None and is_contained:
            return None
        return str(health.cause.number)
    if action is None:
        return None
    if health.recovery is not None and health.recovery.well_since is None:
        return health.recovery.value
    if health.ignored is not None or RECOVERY_CHANGED_XID in ignored:
        return None
    return str(RECOVERY_CHANGED_XID)


def _ecc_value(look: Look, ignored: Collection[int]) -> str | None:
    """What a taint says of memory errors where the driver cannot tell what the GPU needs.

    An error whose row waits to be remapped was contained: the program that met it has ended, and
    new ones can be started.
    """
    is_contained = look.remapping == REMAPPING_PENDING or bool(_MEMORY_ERROR_XIDS & {*ignored})
    if not look.has_uncorrected_errors or look.recovery_action is not None or is_contained:
        return None
    return _UNCORRECTED


def _fabric_value(look: Look) -> str | None:
    """What a taint says of the GPU's fabric. A domain's recovery is no reason against a GPU."""
    is_domain = look.recovery_action == RecoveryAction.RECOVER_IMEX_DOMAIN
    if is_domain and (not look.fabric or (FABRIC_KEY, look.fabric) in _HARMLESS):
        return RECOVER_IMEX_DOMAIN
    return look.fabric or None


def _after(trouble: Trouble | None, value: str | None, now: datetime) -> Trouble | None:
    """A trouble that is there with this value, or is not if it is None."""
    if value is not None:
        if trouble is None or trouble.value != value:
            return Trouble(value=value, since=now)
        return trouble.model_copy(update={"well_since": None})
    if trouble is None:
        return None
    if trouble.well_since is None or trouble.well_since > now:  # the clock may have been set back
        return trouble.model_copy(update={"well_since": now})
    return None if now - trouble.well_since >= HEALS_AFTER else trouble


def _was_reset(loss: Trouble | None) -> bool:
    """Whether a GPU that answers again was reset: one that had errors may just have recovered."""
    return loss is not None and loss.well_since is None and loss.value != GpuLoss.NVML_ERRORS


def _unsettled(xid: Xid | None) -> Xid | None:
    return None if xid is None else xid.model_copy(update={"is_settled": False})


def _settled(xid: Xid | None, now: datetime) -> Xid | None:
    """A cause that NVML wants nothing done about, unless it is too early to say so."""
    if xid is None or now - xid.at < _SETTLED_AFTER:
        return xid
    return xid.model_copy(update={"is_settled": True})


def _recent(xid: Xid | None, now: datetime) -> Xid | None:
    return xid if xid is not None and abs(now - xid.at) < _FORGOTTEN_AFTER else None


def _taint(key: str, trouble: Trouble, effect: str) -> DeviceTaint:
    since = trouble.since.replace(microsecond=0)
    return DeviceTaint(key=key, value=trouble.value, effect=effect, time_added=since)
