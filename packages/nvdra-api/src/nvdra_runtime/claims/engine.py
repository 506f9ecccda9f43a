# SPDX-License-Identifier: Apache-2.0
"""Makes the changes of claims true, and undoes them; the only place that does.

A record is `started` before its first change has an effect, and is an answer after the last one. A
failure undoes what was made; if that fails, too, the record stays `started`: it keeps its place
until its claim is prepared or unprepared, or the recovery has undone it. The same state stands
before an unprepare undoes anything, because a claim whose devices are half gone must not be
answered either. `transitions` decides what is done. Callers hold the locks of the devices.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from functools import partial
from typing import Any, Final, Generic

from nvdra_api.errors import DriverError, RetryableError
from nvdra_api.ids import ClaimUID

from nvdra_runtime.claims import transitions
from nvdra_runtime.claims.changes import ChangeKind, ChangingT, ClaimFiles, MadeChanges
from nvdra_runtime.claims.prepared_claims import PreparedClaims
from nvdra_runtime.claims.records import Change, ChangingRecord
from nvdra_runtime.claims.transitions import Action, Found, Goal, Recorded, State
from nvdra_runtime.telemetry import logs
from nvdra_runtime.telemetry.instrumentation import Telemetry

LOG = logs.logger(__name__)

_RETRY_S: Final = 180.0
"""How long what was started is kept for a claim whose prepare has failed, because a change was not
in force in time. The kubelet repeats it within two minutes."""

NoteLost = Callable[[Any, Sequence[Change]], None]
"""Called with the record of a prepared claim, and the changes whose devices are gone."""


class NotInForceError(RetryableError):
    """Changes of a claim were made and are not in force yet: wait without a lock, and repeat.

    Attributes:
        record: The claim, with its changes as they were made.
    """

    def __init__(self, record: ChangingRecord, error: DriverError) -> None:
        super().__init__(error.reason, error.message, error.remedy, claim=str(record.ref))
        self.record = record


class Engine(Generic[ChangingT]):
    """The changes of one node's claims."""

    def __init__(
        self,
        kinds: Callable[[Change], ChangeKind[ChangingT, Any]],
        claim_files: Sequence[ClaimFiles[ChangingT]],
        prepared_claims: PreparedClaims[ChangingT],
        is_absent: Callable[[Change], bool],
        telemetry: Telemetry,
    ) -> None:
        """Create it without any effect.

        Args:
            kinds: The kind of a change.
            claim_files: The files of claims, in the order in which they are written.
            prepared_claims: The records.
            is_absent: Whether the device of a change is certainly not on the node.
            telemetry: Traces changes.
        """
        self._changes = MadeChanges(kinds, is_absent, telemetry)
        self._files = claim_files
        self._prepared_claims = prepared_claims
        self._telemetry = telemetry
        self._waiting_until: dict[ClaimUID, float] = {}
        self._busy: Counter[ClaimUID] = Counter()
        self._on_lost: list[NoteLost] = []

    def on_lost(self, notify: NoteLost) -> None:
        """Call `notify` when devices that were made for a prepared claim are found to be gone.

        It is called before they are made again, and again as long as that has not begun.
        """
        self._on_lost.append(notify)

    async def prepare(self, planned: ChangingT, verify: Callable[[], Awaitable[None]]) -> ChangingT:
        """Make the changes of a claim that is not prepared, and record it as prepared.

        What an interrupted attempt has made is finished, if the claim still needs the same.

        Args:
            planned: What the claim is to get.
            verify: Called when the changes are made; the claim is refused if it raises.

        Raises:
            NotInForceError: Everything else is done. Wait without a lock, and call this again.
            DriverError: A change failed, and everything was undone unless the log says otherwise.
        """
        uid = planned.uid
        if not (planned.steps or self._prepared_claims.is_started(uid)):
            try:
                return await self.commit(planned)
            except DriverError:
                await self._try_revert(planned)
                raise
        with self._under_way(uid):
            record = await self._begun(planned)
            keep = partial(self._prepared_claims.add_started, planned.ref)
            await keep(record)
            try:
                done = await self._applied_late(await self._changes.applied(record, keep))
                await verify()
                done = await self.commit(done)
            except NotInForceError:
                # Neither undone here nor by a recovery, as the kubelet may repeat the call.
                self._waiting_until[uid] = asyncio.get_running_loop().time() + _RETRY_S
                raise
            except DriverError:
                await self._try_revert(self._prepared_claims.get(uid) or record)
                raise
            self._waiting_until.pop(uid, None)
            return done

    async def _begun(self, planned: ChangingT) -> ChangingT:
        """The record before its first change, with what an earlier attempt has found.

        Raises:
            DriverError: What another plan has changed cannot be undone, or a place is foreign.
        """
        started = self._prepared_claims.get(planned.uid)
        has_plan = started is not None and planned.has_same_plan(started)
        action = self._next(Goal.IN_FORCE, started, is_all=has_plan)
        if action is Action.RESUME and started is not None:
            record = planned.resumed(started)
        else:
            if action is Action.REPLACE and started is not None:
                await self._revert(started)
            record = await self._changes.inspected(planned)
        return record.begun(self._prepared_claims.boot_id)

    async def commit(self, record: ChangingT) -> ChangingT:
        """Record a claim as prepared, while its files are written.

        Nothing is done to devices; changes that need no start are made by `restore`.

        Raises:
            DriverError: One of both is not possible. Nothing is recorded.
        """
        record = await self._completed(record, None)
        async with AsyncExitStack() as block:
            await self._write_files(record, block)
            with self._telemetry.step("commit state"):
                await self._prepared_claims.add(record.ref, record)
        return record

    async def wait_in_force(self, waiting: NotInForceError, deadline: float) -> None:
        """Wait until changes are in force that `prepare` or `restore` has made.

        Raises:
            RetryableError: They are not, with the reason of their kind.
        """
        record: Any = waiting.record
        with self._under_way(record.uid):
            for kind in self._changes.late_kinds(record):
                await kind.wait_in_force(record, deadline)

    async def restore(self, record: ChangingT) -> ChangingT:
        """Make the changes of a prepared claim again, if they are gone, as after a reboot.

        They may be gone without one: an administrator has destroyed a MIG device of a claim.

        Raises:
            NotInForceError: Everything else is done. Wait without a lock, and call this again.
            DriverError: A change failed. The claim stays prepared, and this can be repeated.
        """
        gone = await self._gone(record)
        action = self._next(Goal.IN_FORCE, record, is_all=not gone)
        if action is Action.ANSWER:
            async with AsyncExitStack() as block:
                await self._write_files(record, block)
            return record
        done = record
        if action is Action.RENEW:
            done = await self._made_again(await self._changes.inspected(record), record)
        elif any(self._changes.is_early(change) for change in gone):
            done = await self._repaired(record, [change for change in gone if change.has_made])
        done = await self._completed(await self._applied_late(done), record)
        async with AsyncExitStack() as block:
            await self._write_files(done, block)
            if done != self._prepared_claims.get(record.uid):
                with self._telemetry.step("commit state"):
                    await self._prepared_claims.add(record.ref, done)
        if self._changes.need_start(done):
            LOG.info(
                "What a prepared claim needs was done to the hardware again",
                claim=str(record.ref),
                devices=[step.device for step in done.steps],
            )
        return done

    async def release(self, record: ChangingT, *, may_use_devices: bool) -> None:
        """Undo the changes of a claim that is unprepared, and remove its files and record.

        What a device does not let be undone keeps no pod from ending: the record stays, marked as
        released, is undone when the device answers again (`left_over`), and ends with the boot as
        all changes of devices do.

        Args:
            record: The claim.
            may_use_devices: False while it is released for an administrator.

        Raises:
            DriverError: A process still uses a device, or files cannot be removed.
        """
        with self._under_way(record.uid):
            await self._revert(record, may_use_devices=may_use_devices, may_leave=True)

    async def revert(self, record: ChangingT) -> None:
        """Undo the changes of a claim that is not prepared, and remove its files and record.

        It stays as a tombstone while a change cannot be undone that holds nothing.

        Raises:
            DriverError: A change cannot be undone. The record stays `started`.
        """
        with self._under_way(record.uid):
            await self._revert(record)

    async def _try_revert(self, record: ChangingT) -> None:
        """As `revert`. If that is not possible now, the record stays."""
        try:
            await self.revert(record)
        except DriverError as error:
            LOG.warning(
                "What was done for a claim cannot be undone yet; it is tried again",
                claim=str(record.ref),
                error=str(error),
            )

    @property
    def left_over(self) -> list[ChangingT]:
        """The records that are `started` although nothing works on them."""
        now = asyncio.get_running_loop().time()
        return [
            record
            for record in self._prepared_claims.started
            if record.uid not in self._busy and now >= self._waiting_until.get(record.uid, now)
        ]

    def is_at_rest(self, uid: ClaimUID) -> bool:
        """Whether the claim is prepared, and nothing works on it."""
        return uid not in self._busy and not self._prepared_claims.is_started(uid)

    async def not_in_force(self) -> list[ClaimUID]:
        """The prepared claims of which late changes are not in force, and nothing makes them.

        Raises:
            RetryableError: That cannot be known.
        """
        resting = [
            record for record in self._prepared_claims.values() if self.is_at_rest(record.uid)
        ]
        return [record.uid for record in resting if await self._changes.pending(record) is not None]

    def _next(self, goal: Goal, record: ChangingT | None, *, is_all: bool) -> Action:
        if record is None:
            return transitions.TABLE[State(goal, Recorded.NOTHING, Found.NONE)]
        is_started = self._prepared_claims.is_started(record.uid)
        recorded = Recorded.STARTED if is_started else Recorded.PREPARED
        found = Found.ALL if is_all else Found.OTHER
        if record.steps and record.steps_boot != self._prepared_claims.boot_id:
            found = Found.NONE
        return transitions.TABLE[State(goal, recorded, found)]

    async def _gone(self, record: ChangingT) -> list[Change]:
        """The changes that are not in force: in another boot, all of them."""
        if record.steps_boot != self._prepared_claims.boot_id:
            return list(record.steps)
        return await self._changes.gone(record)

    async def _applied_late(self, record: ChangingT) -> ChangingT:
        """The record after its late changes. All that they need is made.

        Raises:
            NotInForceError: They are not in force yet.
            DriverError: One cannot be made.
        """
        done = await self._changes.applied_late(record)
        if (pending := await self._changes.pending(done)) is not None:
            raise NotInForceError(done, pending)
        return done

    async def _made_again(self, record: ChangingT, former: ChangingT) -> ChangingT:
        """The record of a prepared claim after the changes of devices were made again."""
        keep = partial(self._prepared_claims.add, record.ref)
        begun = record.begun(self._prepared_claims.boot_id)
        await keep(begun)
        done = await self._changes.applied(begun, keep)
        if self._changes.late_kinds(done):  # they may take minutes, and what was made is known
            done = await self._completed(done, former)
            async with AsyncExitStack() as block:
                await self._write_files(done, block)
                await keep(done)
        return done

    async def _repaired(self, record: ChangingT, lost: Sequence[Change]) -> ChangingT:
        """The record after changes were made again that are gone, although no reboot was.

        Raises:
            PermanentError: `UnknownDevice`: something foreign is in a place.
        """
        if lost:
            for notify in self._on_lost:
                notify(record, lost)
            for files in self._files:
                await files.withdraw(record)
            await self._changes.check_places(lost)
        again = record.with_steps([c.anew() if c in lost else c for c in record.steps])
        try:
            return await self._made_again(again, record)
        except DriverError:
            if lost:
                await self._put_back(record, lost)
            raise

    async def _put_back(self, record: ChangingT, lost: Sequence[Change]) -> None:
        """Forget a failed attempt to make lost devices again, if it has made nothing.

        So the next one checks their places, too: something foreign may be there by then.
        """
        try:
            await self._changes.inspected(record.with_steps(lost))
            await self._prepared_claims.add(record.ref, record)
        except DriverError as error:
            LOG.v(
                2, "The record stays that of the attempt", claim=str(record.ref), error=str(error)
            )

    async def _revert(
        self, record: ChangingT, *, may_use_devices: bool = True, may_leave: bool = False
    ) -> None:
        left: ChangingT | None = None
        if record.steps:
            action = self._next(Goal.UNDONE, record, is_all=True)
            is_started = self._prepared_claims.is_started(record.uid)
            if not is_started and self._changes.need_start(record):
                await self._prepared_claims.add_started(record.ref, record)
            await self._changes.end_late(record)
            self._waiting_until.pop(record.uid, None)
            if action is Action.REVERT:
                left = await self._changes.reverted(
                    record, may_use_devices=may_use_devices, may_leave=may_leave
                )
        if left is not None and left.released_at is None:
            left = left.model_copy(update={"released_at": self._prepared_claims.now})
        async with AsyncExitStack() as block:
            for files in reversed(self._files):
                await block.enter_async_context(files.being_removed(record))
            if left is None and record.uid in self._prepared_claims:
                with self._telemetry.step("commit state"):
                    await self._prepared_claims.remove(record.uid)
            elif left is not None and left != record:
                await self._prepared_claims.add_started(record.ref, left)

    async def _completed(self, record: ChangingT, former: ChangingT | None) -> ChangingT:
        for files in self._files:
            record = await files.completed(record, former)
        return record

    async def _write_files(self, record: ChangingT, block: AsyncExitStack) -> None:
        """Have the files of a claim written when the block, which records the claim, has ended."""
        for files in self._files:
            await block.enter_async_context(files.being_written(record))

    @contextmanager
    def _under_way(self, uid: ClaimUID) -> Iterator[None]:
        self._busy[uid] += 1
        try:
            yield
        finally:
            self._busy[uid] -= 1
            if not self._busy[uid]:
                del self._busy[uid]
