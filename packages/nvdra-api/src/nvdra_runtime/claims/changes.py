# SPDX-License-Identifier: Apache-2.0
"""What carries out the changes of claims, which are data in their records (`records.Change`).

A driver has one module for each kind of change. The engine asks every kind the same few questions,
and each of them can be repeated after a crash at any point. `MadeChanges` asks them for the changes
of one record: those of one place, such as a GPU, follow one another, places do not wait.
"""

import asyncio
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, ClassVar, Final, Generic, Protocol, TypeVar

from nvdra_api.errors import DriverError, Reason, RetryableError
from nvdra_api.ids import ClaimUID

from nvdra_runtime.claims.records import Change, ChangingRecord
from nvdra_runtime.telemetry import logs
from nvdra_runtime.telemetry.instrumentation import Telemetry

LOG = logs.logger(__name__)

_UNNAMED_USE_S: Final = 10.0
"""How long a process that ends may keep a device without being listed; then it is a monitor."""

_OF_HARDWARE: Final = (
    Reason.DEADLINE_EXCEEDED,
    Reason.DEVICE_UNHEALTHY,
    Reason.DRIVER_MISMATCH,
    Reason.MIG_MODE_REQUIRES_RESET,
    Reason.UNKNOWN_DEVICE,
    Reason.VFIO_BIND_FAILED,
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


ChangeT = TypeVar("ChangeT", bound=Change)
ChangingT = TypeVar("ChangingT", bound=ChangingRecord)
KeepT = TypeVar("KeepT")
ResultT = TypeVar("ResultT")
Keep = Callable[[KeepT], Awaitable[None]]
"""Writes a record, or in it a change, as it is after a part of it was made."""


class ChangeKind(Generic[ChangingT, ChangeT]):
    """One kind of change. What a kind does not override has no effect.

    Callers hold the locks of the claim's devices.
    """

    needs_start: ClassVar[bool] = True
    """Whether a record is `started` before the change is made, and while it is undone.

    If not, nothing of the change outlives its record. `Engine.commit` records such a claim, as an
    answer that `Engine.restore` completes: an attempt that fails keeps record and change."""

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


class MadeChanges(Generic[ChangingT]):
    """Calls the kinds of changes, each change in its turn."""

    def __init__(
        self,
        kinds: Callable[[Change], ChangeKind[ChangingT, Any]],
        is_absent: Callable[[Change], bool],
        telemetry: Telemetry,
    ) -> None:
        """Create it without any effect; the arguments are those of the engine."""
        self._kinds = kinds
        self._is_absent = is_absent
        self._telemetry = telemetry
        self._used_since: dict[ClaimUID, float] = {}

    def need_start(self, record: ChangingT) -> bool:
        """Whether the record is `started` while its changes are made and undone."""
        return any(self._kinds(change).needs_start for change in record.steps)

    def is_early(self, change: Change) -> bool:
        """Whether the change is made before the late ones."""
        return not isinstance(self._kinds(change), LateKind)

    def late_kinds(self, record: ChangingT) -> list[LateKind[ChangingT, Any]]:
        """The kinds of the record's late changes, in their order."""
        return list(dict.fromkeys(kind for kind, _ in self._late(record)))

    def _late(self, record: ChangingT) -> list[tuple[LateKind[ChangingT, Any], Change]]:
        kinds = ((self._kinds(change), change) for change in record.steps)
        return [(kind, change) for kind, change in kinds if isinstance(kind, LateKind)]

    async def gone(self, record: ChangingT) -> list[Change]:
        """The changes, made in this boot, that are not in force."""
        return [
            change
            for change in record.steps
            if not await self._kinds(change).is_in_force(record, change)
        ]

    async def pending(self, record: ChangingT) -> DriverError | None:
        """The answer for a claim whose late changes are not all in force; None if they are."""
        for kind, change in self._late(record):
            if not await kind.is_in_force(record, change):
                return kind.pending(record)
        return None

    async def check_places(self, changes: Sequence[Change]) -> None:
        """Check that nothing foreign is where these changes were; else `UnknownDevice`."""
        for change in changes:
            await self._kinds(change).check_place(change)

    async def inspected(self, record: ChangingT) -> ChangingT:
        """The record with what is there before its changes, unless something foreign is."""
        return record.with_steps(
            await _on_each(record.steps, lambda change: self._kinds(change).inspect(record, change))
        )

    async def applied(self, record: ChangingT, keep: Keep[ChangingT]) -> ChangingT:
        """The record after the changes of devices, which are made side by side.

        Raises:
            DriverError: A change failed. What can be changed in other places is.
        """
        current = list(record.steps)
        early = [change for change in current if self.is_early(change)]

        async def apply(change: Change) -> None:
            number = current.index(change)

            async def keep_part(part: Change) -> None:
                current[number] = part
                await keep(record.with_steps(current))

            current[number] = await self._kinds(change).apply(record, change, keep_part)

        if early:
            with self._telemetry.step("do steps"):
                await _on_each(early, apply)
        return record.with_steps(current) if early else record

    async def applied_late(self, record: ChangingT) -> ChangingT:
        """The record after its late changes. All that they need is made."""
        made = [
            change
            if self.is_early(change)
            else await self._kinds(change).apply(record, change, _keep_nothing)
            for change in record.steps
        ]
        return record.with_steps(made)

    async def end_late(self, record: ChangingT) -> None:
        """Undo the late changes, the last kind first."""
        for kind in reversed(self.late_kinds(record)):
            await kind.end(record)

    async def reverted(
        self, record: ChangingT, *, may_use_devices: bool, may_leave: bool
    ) -> ChangingT | None:
        """Undo the changes of devices, the last one first.

        Args:
            record: The claim.
            may_use_devices: False while devices are released for an administrator.
            may_leave: Whether the claim ends although a device does not let a change be undone.

        Returns:
            What is left, as a tombstone; None if nothing is.

        Raises:
            DriverError: A change cannot be undone. What can be undone in other places is.
        """
        left: ChangingT | None
        try:
            left = await self._reverted(record, may_use_devices=may_use_devices)
        except DriverError as error:
            if not (may_leave and self._may_leave(record.uid, error)):
                raise
            LOG.warning(
                "A claim is unprepared, and what was done for it cannot be undone yet",
                claim=str(record.ref),
                error=str(error),
            )
            update = {"is_released": True, "undo_remedy": error.remedy}
            left = record.model_copy(update=update)
        self._used_since.pop(record.uid, None)
        return left

    def _may_leave(self, uid: ClaimUID, error: DriverError) -> bool:
        """Whether a claim ends although this cannot be undone."""
        if not isinstance(error, UnnamedUseError):
            return is_of_hardware(error) or error.reason is Reason.NVML_RELEASED
        now = asyncio.get_running_loop().time()
        return now - self._used_since.setdefault(uid, now) > _UNNAMED_USE_S

    async def _reverted(self, record: ChangingT, *, may_use_devices: bool) -> ChangingT | None:
        early = [change for change in reversed(record.steps) if self.is_early(change)]
        if not early:
            return None
        if not may_use_devices:
            raise RetryableError(Reason.NVML_RELEASED, "devices are released for an administrator")

        async def revert(change: Change) -> Change | None:
            if self._is_absent(change):
                LOG.warning(
                    "A device is gone, and with it what was done for a claim",
                    device=change.device,
                    place=change.place,
                )
                return None
            return await self._kinds(change).revert(record, change)

        with self._telemetry.step("undo steps"):
            rests = await _on_each(early, revert)
        left = [rest for rest in rests if rest is not None]
        if left:
            LOG.info(
                "A part of what was done for a claim stays, because a program keeps it",
                claim=str(record.ref),
                places=[rest.place for rest in left],
            )
        return record.ended(left) if left else None


async def _keep_nothing(_: Change) -> None:
    """A late change is recorded as a whole."""


async def _on_each(
    changes: Sequence[Change], call: Callable[[Change], Awaitable[ResultT]]
) -> list[ResultT]:
    """Call it for all changes.

    All that can be called is: the first failure of a place ends only what follows in that place.

    Returns:
        The results in the order of the changes.

    Raises:
        DriverError: The first one that is not of the hardware, or the first one.
    """
    places: dict[str, list[int]] = {}
    for number, change in enumerate(changes):
        places.setdefault(change.place, []).append(number)

    async def call_all(numbers: Sequence[int]) -> Mapping[int, ResultT] | DriverError:
        try:
            return {number: await call(changes[number]) for number in numbers}
        except DriverError as error:
            return error  # what is under way in other places is not cancelled

    if len(places) == 1:
        (numbers,) = places.values()
        results = [await call_all(numbers)]
    else:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(call_all(numbers)) for numbers in places.values()]
        results = [task.result() for task in tasks]
    errors = [result for result in results if isinstance(result, DriverError)]
    if errors:
        raise min(errors, key=is_of_hardware)
    done = {
        n: made for result in results if isinstance(result, Mapping) for n, made in result.items()
    }
    return [done[number] for number in range(len(changes))]
