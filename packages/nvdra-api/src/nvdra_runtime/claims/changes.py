# SPDX-License-Identifier: Apache-2.0
"""What a claim needs true on its node: changes as data in its record, and what carries them out.

A driver has one module for each kind of change. The engine asks every kind the same few questions,
and each of them can be repeated after a crash at any point.
"""

from abc import abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import ClassVar, Final, Generic, Protocol, Self, TypeVar

from nvdra_api.errors import DriverError, Reason, RetryableError
from nvdra_api.ids import DeviceName
from pydantic import BaseModel, ConfigDict

from nvdra_runtime.claims.records import PreparedClaimRecord

_OF_HARDWARE: Final = (
    Reason.DEADLINE_EXCEEDED,
    Reason.DEVICE_UNHEALTHY,
    Reason.DRIVER_MISMATCH,
    Reason.MIG_MODE_REQUIRES_RESET,
    Reason.UNKNOWN_DEVICE,
)


def is_of_hardware(error: DriverError) -> bool:
    """Whether a device is lost, needs a reset, does not answer, or is not there.

    False if it works and a process uses it.
    """
    return error.reason in _OF_HARDWARE


class UnnamedUseError(RetryableError):
    """`DeviceInUse`: something keeps a device, and no process computes in it.

    It may be a monitor outside of pods, which keeps it for good.
    """


class Change(BaseModel):
    """One change, as it is written to the state file."""

    model_config = ConfigDict(frozen=True)

    FOUND: ClassVar[frozenset[str]] = frozenset()
    """The fields that only an attempt finds out: what was there before, and what was made."""

    device: DeviceName
    """The device of the claim, for errors."""

    @property
    def has_made(self) -> bool:
        """Whether a device of the claim exists because it was made by this change."""
        return False

    @property
    @abstractmethod
    def place(self) -> str:
        """What is changed: changes of one place follow one another, those of others do not wait."""

    @property
    def plan(self) -> str | None:
        """What two attempts must have in common for one to go on where the other has ended.

        None if it depends on the moment whether the change is needed.
        """
        return self.model_dump_json(exclude=set(self.FOUND))

    def begun(self) -> Self:
        """The change before it is made again: what it has made is its own if it is still there."""
        return self

    def anew(self) -> Self:
        """The change as if it had made nothing."""
        return self

    def resumed(self, started: Self) -> Self:
        """The change with what an earlier attempt has found."""
        return self.model_copy(update={name: getattr(started, name) for name in self.FOUND})


class ChangingRecord(PreparedClaimRecord):
    """The record of a claim that changes its node."""

    steps: tuple[Change, ...] = ()
    """The changes, in the order in which they are made."""
    steps_boot: str = ""
    """ID of the boot in which they were begun. Of an earlier boot nothing is left."""

    def with_steps(self, steps: Sequence[Change]) -> Self:
        """The record after changes were made or undone."""
        return self.model_copy(update={"steps": tuple(steps)})

    def begun(self, boot: str) -> Self:
        """The record before its changes are made in this boot, for the first time or again."""
        steps = [step.begun() for step in self.steps]
        return self.with_steps(steps).model_copy(update={"steps_boot": boot})

    def resumed(self, started: Self) -> Self:
        """The record for another attempt: what an interrupted one has found is still to restore."""
        found = {step.plan: step for step in started.steps if step.plan is not None}
        return self.with_steps(
            [step.resumed(found[step.plan]) if step.plan in found else step for step in self.steps]
        )

    def has_same_plan(self, other: Self) -> bool:
        """Whether both claim the same changes. What depends on the moment does not count."""
        return {step.plan for step in self.steps} - {None} == {
            step.plan for step in other.steps
        } - {None}

    def ended(self, left: Sequence[Change]) -> Self:
        """The record of the claim, which has ended, when only these changes are left to undo."""
        update = {"is_released": True, "devices": (), "steps": tuple(left)}
        return self.model_copy(update=update)


ChangeT = TypeVar("ChangeT", bound=Change)
ChangingT = TypeVar("ChangingT", bound=ChangingRecord)
KeepT = TypeVar("KeepT")
Keep = Callable[[KeepT], Awaitable[None]]
"""Writes a record, or in it a change, as it is after a part of it was made."""


class ChangeKind(Generic[ChangingT, ChangeT]):
    """One kind of change. What a kind does not override has no effect.

    Callers hold the locks of the claim's devices.
    """

    needs_start: ClassVar[bool] = True
    """Whether a record is `started` before the change is made, and while it is undone.

    If not, nothing of the change outlives its record, and a record whose change is not in force is
    an answer that `Engine.restore` completes: an attempt that fails keeps it, and its change."""

    async def inspect(self, claim: ChangingT, change: ChangeT) -> ChangeT:
        """The change before its first effect in this boot, with what `revert` is to restore.

        Raises:
            DriverError: That cannot be known, or something foreign is in its place.
        """
        del claim
        return change

    async def apply(self, claim: ChangingT, change: ChangeT, keep: Keep[ChangeT]) -> ChangeT:
        """Make the change, as far as it is not in force, and return it with what was made.

        Raises:
            DriverError: It cannot be made. `revert` undoes what was made.
        """
        del claim, keep
        return change

    async def is_in_force(self, claim: ChangingT, change: ChangeT) -> bool:
        """Whether the change, which was made in this boot, is still there.

        Raises:
            DriverError: The device does not say it.
        """
        del claim, change
        return True

    async def check_place(self, change: ChangeT) -> None:
        """Check that nothing foreign is where a change was that is not in force any more.

        Raises:
            PermanentError: `UnknownDevice`.
        """

    async def revert(self, claim: ChangingT, change: ChangeT) -> Change | None:
        """Undo what was made of the change in this boot. Returns what is left to undo.

        Raises:
            DriverError: It cannot be undone.
        """
        del claim, change
        return None


class LateKind(ChangeKind[ChangingT, ChangeT]):
    """A kind that changes no device and takes effect some time after `apply`.

    It comes last, because it needs what the others have made, and is undone first.
    """

    @abstractmethod
    def pending(self, claim: ChangingT) -> RetryableError:
        """The answer for a claim whose changes are not in force yet."""

    @abstractmethod
    async def end(self, claim: ChangingT) -> None:
        """Undo all that was made of a claim's changes of this kind, in place of `revert`.

        Raises:
            DriverError: It cannot be undone.
        """

    @abstractmethod
    async def wait_in_force(self, claim: ChangingT, deadline: float) -> None:
        """Wait until a claim's changes of this kind are in force. No lock is held.

        Raises:
            RetryableError: They are not by then.
        """


class ClaimFiles(Protocol[ChangingT]):
    """Files of single claims, found by their UIDs, which say what the record says."""

    async def completed(self, record: ChangingT, former: ChangingT | None) -> ChangingT:
        """The record of a claim whose changes are made, before its files are written.

        Args:
            record: The claim, with what its changes have found.
            former: What was recorded before the changes were made again; None the first time.

        Raises:
            DriverError: What the files are to say cannot be known.
        """

    def being_written(self, record: ChangingT) -> AbstractAsyncContextManager[None]:
        """Have the files written when the block, which records the claim, has ended.

        Raises:
            DriverError: They cannot be written. The claim may have a record already.
        """

    async def withdraw(self, record: ChangingT) -> None:
        """Remove what names devices that are gone: they may be those of others by now.

        Raises:
            DriverError: It cannot be removed.
        """

    def being_removed(self, record: ChangingT) -> AbstractAsyncContextManager[None]:
        """Remove the files while the block runs, which removes the record.

        Raises:
            DriverError: They cannot be removed.
        """
