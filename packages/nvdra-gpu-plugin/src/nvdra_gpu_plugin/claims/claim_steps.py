# SPDX-License-Identifier: Apache-2.0
"""Does and undoes what claims need done to hardware.

A record is `started` before its first step has an effect, and is an answer after the last one. A
failure undoes what was done; if that fails, too, the record stays `started`: it keeps its place on
the GPU until its claim is prepared or unprepared, or `StepRecovery` has undone it. The same state
stands before an unprepare destroys anything, because a claim whose devices are half gone must not
be answered either. Callers hold the locks of the record's GPUs.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Final

from nvdra_api.errors import DriverError, PermanentError, Reason, RetryableError
from nvdra_api.ids import ClaimUID, DeviceName
from nvdra_cdi.errors import CDIError, DiscoveryError, MissingCapabilitiesError
from nvdra_runtime.claims.prepared_claims import PreparedClaims
from nvdra_runtime.process.worker import Worker
from nvdra_runtime.telemetry import logs
from nvdra_runtime.telemetry.instrumentation import Telemetry

from nvdra_gpu_plugin.cdi.claim_spec_files import ClaimSpecFiles
from nvdra_gpu_plugin.claims import metadata_plan, plan
from nvdra_gpu_plugin.claims.claim_metadata import ClaimMetadata
from nvdra_gpu_plugin.claims.gpu_steps import GpuSteps, is_of_hardware
from nvdra_gpu_plugin.devices.claim_records import GpuClaimRecord
from nvdra_gpu_plugin.devices.steps import MakeMigDevice, Step
from nvdra_gpu_plugin.driver import installation
from nvdra_gpu_plugin.hardware.mig_changes import UnnamedUseError
from nvdra_gpu_plugin.hardware.node_gpus import NodeGpus
from nvdra_gpu_plugin.mps.daemons import DaemonStartingError, MpsDaemons

LOG = logs.logger(__name__)

_RETRY_S: Final = 180.0
"""How long a started daemon is kept for a claim whose prepare has failed, because the daemon was
not ready. The kubelet repeats it within two minutes."""

_UNNAMED_USE_S: Final = 10.0
"""How long a process that ends may keep a MIG device without being listed; then it is a monitor."""

_FILES_TIMEOUT_S: Final = 10.0
"""For a spec, whatever is left of the caller's time: work that has begun is finished."""


NoteDestroyed = Callable[[GpuClaimRecord, Sequence[DeviceName]], None]
"""Called with a claim, and which of its devices are gone."""


class ClaimSteps:
    """The steps of one node's claims."""

    def __init__(
        self,
        gpus: NodeGpus,
        gpu_steps: GpuSteps,
        specs: ClaimSpecFiles,
        metadata: ClaimMetadata,
        files: Worker,
        prepared_claims: PreparedClaims[GpuClaimRecord],
        daemons: MpsDaemons,
        telemetry: Telemetry,
    ) -> None:
        self._gpus = gpus
        self._gpu_steps = gpu_steps
        self._specs = specs
        self._metadata = metadata
        self._files = files
        self._prepared_claims = prepared_claims
        self._daemons = daemons
        self._telemetry = telemetry
        self._waiting_until: dict[ClaimUID, float] = {}
        self._used_since: dict[ClaimUID, float] = {}
        self._busy: Counter[ClaimUID] = Counter()
        self._on_destroyed: list[NoteDestroyed] = []

    def on_destroyed(self, notify: NoteDestroyed) -> None:
        """Call `notify` when devices that were made for a prepared claim are found to be gone.

        It is called before they are made again, and again as long as that has not begun.
        """
        self._on_destroyed.append(notify)

    async def prepare(
        self, record: GpuClaimRecord, verify: Callable[[], Awaitable[None]]
    ) -> GpuClaimRecord:
        """Do the steps of a claim that is not prepared, and record it as prepared.

        What an interrupted attempt has done is finished, if the claim still has the same devices.

        Args:
            record: What the claim is to get.
            verify: Called when the steps are done; the claim is refused if it raises.

        Raises:
            DaemonStartingError: Everything else is done. Wait without a lock, and call this again.
            DriverError: A step failed, and everything was undone unless the log says otherwise.
        """
        with self._under_way(record.uid):
            return await self._prepare(record, verify)

    async def _prepare(
        self, record: GpuClaimRecord, verify: Callable[[], Awaitable[None]]
    ) -> GpuClaimRecord:
        await self._daemons.check_driver(record)
        started = self._started(record)
        if started is not None and not plan.is_same(record, started):
            await self.roll_back(started)
            started = None
        record = plan.resumed(record, started) if started else await self._gpu_steps.inspect(record)
        begun = record.begun(self._prepared_claims.boot_id)
        keep = partial(self._prepared_claims.add_started, record.ref)
        await keep(begun)
        try:
            done = await self._daemons.start(await self._gpu_steps.do(begun, keep))
            await verify()
            await self._write_spec(done)
            await self._metadata.write(done)
        except DaemonStartingError:
            # Neither undone here nor by `StepRecovery`, while somebody may come back for it.
            self._waiting_until[record.uid] = asyncio.get_running_loop().time() + _RETRY_S
            raise
        except DriverError:
            await self.try_roll_back(self._prepared_claims[record.uid])
            raise
        with self._telemetry.step("commit state"):
            await self._prepared_claims.add(record.ref, done)
        self._waiting_until.pop(record.uid, None)
        return done

    async def wait_for_daemons(self, starting: DaemonStartingError, deadline: float) -> None:
        """Wait until daemons are ready that a claim's steps have started.

        Raises:
            RetryableError: `MpsNotReady`.
        """
        with self._under_way(starting.uid):
            await self._daemons.wait_ready(starting, deadline)

    async def restore(self, record: GpuClaimRecord) -> GpuClaimRecord:
        """Do the steps of a prepared claim again, if what they did is gone, as after a reboot.

        It may be gone without one: somebody has destroyed a MIG device that the claim holds.

        Raises:
            DaemonStartingError: Everything else is done. Wait without a lock, and call this again.
            DriverError: A step failed. The claim stays prepared, and this can be repeated.
        """
        if not record.steps:
            return record
        undone = await self._gpu_steps.not_in_force(record)
        is_done = not undone and record.steps_boot == self._prepared_claims.boot_id
        if is_done and await self._daemons.are_ready(record):
            await self._write_spec(record)
            return record
        if not is_done:
            gone = await self._check_destroyed(record, undone)
            try:
                record = await self._redo(record, gone)
            except DriverError:
                await self._put_back(record, gone)
                raise
        done = await self._daemons.start(record)
        await self._write_spec(done)
        await self._prepared_claims.add(record.ref, done)
        LOG.info(
            "What a prepared claim needs was done to the hardware again",
            claim=str(record.ref),
            devices=[step.device for step in done.steps],
        )
        return done

    async def _check_destroyed(
        self, record: GpuClaimRecord, undone: Sequence[Step]
    ) -> Sequence[MakeMigDevice]:
        """Say which MIG devices somebody has destroyed, and check that their places are free.

        What a reboot has ended is checked by `GpuSteps.inspect`, and nobody runs who could miss it.

        Returns:
            The steps that have made them.

        Raises:
            PermanentError: `UnknownDevice`: an instance of somebody else is in a place.
        """
        if record.steps_boot != self._prepared_claims.boot_id:
            return ()
        gone = [each for each in undone if isinstance(each, MakeMigDevice) and each.made]
        if gone:
            for notify in self._on_destroyed:
                notify(record, [step.device for step in gone])
            # Its capability nodes may be those of somebody else's instance by now.
            await self._remove_spec(record)
        await self._gpu_steps.check_places(gone)
        return gone

    async def _put_back(self, former: GpuClaimRecord, gone: Sequence[MakeMigDevice]) -> None:
        """Forget a failed attempt to make destroyed devices again, if it has made nothing.

        So the next one checks their places, too: somebody else may be there by then.
        """
        if not gone:
            return
        try:
            await self._gpu_steps.check_free(former, gone)
            await self._prepared_claims.add(former.ref, former)
        except DriverError as error:
            LOG.v(
                2, "The record stays that of the attempt", claim=str(former.ref), error=str(error)
            )

    async def _redo(self, record: GpuClaimRecord, gone: Sequence[MakeMigDevice]) -> GpuClaimRecord:
        """Do the steps of a prepared claim again that change GPUs; `gone` have made nothing."""
        former, boot = record, self._prepared_claims.boot_id
        if record.steps_boot != boot:
            record = await self._gpu_steps.inspect(record)
        record = record.with_steps(
            tuple(
                step.anew() if isinstance(step, MakeMigDevice) and step in gone else step
                for step in record.steps
            )
        )
        begun = record.begun(boot)
        keep = partial(self._prepared_claims.add, record.ref)
        await keep(begun)
        done = metadata_plan.with_generation(await self._gpu_steps.do(begun, keep), former)
        await self._metadata.write(done)
        if done.daemons:  # which may take minutes, and what was made is known by now
            await self._prepared_claims.add(record.ref, done)
        return done

    async def try_roll_back(self, record: GpuClaimRecord) -> bool:
        """As `roll_back`. Returns False if that is not possible now: the record stays."""
        try:
            await self.roll_back(record)
        except DriverError as error:
            LOG.warning(
                "What was done for a claim cannot be undone yet; it is tried again",
                claim=str(record.ref),
                error=str(error),
            )
            return False
        return True

    async def roll_back(self, record: GpuClaimRecord) -> None:
        """Undo the steps of a claim that is not prepared, and remove its record.

        It stays as a tombstone while a program keeps a GPU in MIG mode.

        Raises:
            DriverError: A step cannot be undone. The record stays `started`.
        """
        with self._under_way(record.uid):
            left: tuple[Step, ...] = ()
            if record.steps:
                await self._stop(record)
                left = await self._gpu_steps.undo(record)
                await self._remove_spec(record)
            await self._metadata.try_remove(record)
            self._used_since.pop(record.uid, None)
            if left:
                await self._keep_modes(record, left)
            else:
                await self._prepared_claims.remove(record.uid)

    async def release(self, record: GpuClaimRecord, *, may_use_gpus: bool) -> bool:
        """Undo the steps of a claim that is unprepared. Returns False if it leaves a tombstone.

        What the hardware does not let be undone keeps no pod from ending: the record stays, marked
        as released, is undone when the GPU answers again (`left_over`), and ends with the boot as
        all changes of GPUs do.

        Args:
            record: The claim.
            may_use_gpus: False while NVML is released.

        Raises:
            DriverError: A process still uses a device, or the record cannot be written.
        """
        if not record.steps:
            return True
        with self._under_way(record.uid):
            await self._stop(record)
            problem = "NVML is released"
            modes: tuple[Step, ...] = ()
            if may_use_gpus:
                try:
                    modes = await self._gpu_steps.undo(record)
                    problem = ""
                except DriverError as error:
                    if not self._is_let_go(record.uid, error):
                        raise
                    problem = str(error)
            self._used_since.pop(record.uid, None)
            await self._remove_spec(record)
            if problem:
                LOG.warning(
                    "A claim is unprepared, and what was done for it cannot be undone yet",
                    claim=str(record.ref),
                    error=problem,
                )
                left = record.model_copy(update={"is_released": True})
                await self._prepared_claims.add_started(record.ref, left)
            elif modes:
                await self._keep_modes(record, modes)
        return not (problem or modes)

    async def _keep_modes(self, record: GpuClaimRecord, modes: tuple[Step, ...]) -> None:
        """Keep a tombstone of a claim that has left GPUs in MIG mode. It holds none of them."""
        left = record.undone_but(modes)
        if left != record:
            LOG.info(
                "GPUs stay in MIG mode after a claim, because a program keeps them",
                claim=str(record.ref),
                gpus=[mode.gpu for mode in modes],
            )
            await self._prepared_claims.add_started(record.ref, left)

    def _is_let_go(self, uid: ClaimUID, error: DriverError) -> bool:
        """Whether a claim ends although this cannot be undone."""
        if not isinstance(error, UnnamedUseError):
            return is_of_hardware(error)
        now = asyncio.get_running_loop().time()
        return now - self._used_since.setdefault(uid, now) > _UNNAMED_USE_S

    async def _stop(self, record: GpuClaimRecord) -> None:
        """End what runs for a claim, which is no answer any more."""
        if not self._prepared_claims.is_started(record.uid):
            await self._prepared_claims.add_started(record.ref, record)
        await self._daemons.stop(record)
        self._waiting_until.pop(record.uid, None)

    @property
    def left_over(self) -> list[GpuClaimRecord]:
        """The records that are `started` although nothing works on them."""
        return [
            each
            for each in self._prepared_claims.started
            if each.uid not in self._busy and not self._is_awaited(each.uid)
        ]

    @property
    def without_devices(self) -> list[ClaimUID]:
        """The prepared claims whose MIG devices were not all there when their GPUs were looked at.

        `restore` asks the GPUs whether it is so, before it does anything.
        """
        return [
            record.uid
            for record in self._prepared_claims.values()
            if any(map(self._gpus.has_lost, record.made))
            and record.uid not in self._busy
            and not self._prepared_claims.is_started(record.uid)
        ]

    async def without_daemons(self) -> list[ClaimUID]:
        """The prepared claims of which an MPS daemon does not run, and nothing starts it.

        Raises:
            RetryableError: `MpsNotReady`: files cannot be read.
        """
        claims = [record for record in self._prepared_claims.values() if record.daemons]
        return [
            each.uid
            for each in claims
            if each.uid not in self._busy
            and not self._prepared_claims.is_started(each.uid)
            and not await self._daemons.are_ready(each)
        ]

    def _is_awaited(self, uid: ClaimUID) -> bool:
        """Whether the claim's daemons were started not long ago: its prepare is to be repeated."""
        until = self._waiting_until.get(uid)
        return until is not None and asyncio.get_running_loop().time() < until

    @contextmanager
    def _under_way(self, uid: ClaimUID) -> Iterator[None]:
        self._busy[uid] += 1
        try:
            yield
        finally:
            self._busy[uid] -= 1
            if not self._busy[uid]:
                del self._busy[uid]

    def _started(self, record: GpuClaimRecord) -> GpuClaimRecord | None:
        """The claim's record, if it is of an attempt of this boot that was not finished."""
        if not self._prepared_claims.is_started(record.uid):
            return None
        started = self._prepared_claims[record.uid]
        return started if started.steps_boot == self._prepared_claims.boot_id else None

    async def _write_spec(self, record: GpuClaimRecord) -> None:
        """Write the claim's own spec, if it needs one.

        Raises:
            PermanentError: `DeviceNodeMissing`: it cannot be written.
            RetryableError: `DeadlineExceeded`: the disk does not respond.
        """
        if not record.has_own_spec:
            return
        snapshot = self._gpus.snapshot
        if snapshot is None:
            raise RetryableError(
                Reason.DRIVER_MISMATCH,
                f"the GPUs of this node cannot be used: {self._gpus.problem}",
                "install or repair the NVIDIA driver; the plugin continues as soon as it works",
            )
        deadline = asyncio.get_running_loop().time() + _FILES_TIMEOUT_S
        try:
            with self._telemetry.step("write cdi"):
                await self._files.run(
                    self._specs.write, record, snapshot.spec, snapshot.inventory, deadline=deadline
                )
        except CDIError as error:
            raise PermanentError(
                Reason.DEVICE_NODE_MISSING,
                f"the CDI spec of claim {record.ref} cannot be written: {error}",
                _spec_remedy(error),
                claim=str(record.ref),
            ) from error
        except TimeoutError as error:
            raise _disk_hangs() from error

    async def _remove_spec(self, record: GpuClaimRecord) -> None:
        if not record.has_own_spec:
            return
        deadline = asyncio.get_running_loop().time() + _FILES_TIMEOUT_S
        try:
            await self._files.run(self._specs.remove, record.uid, deadline=deadline)
        except CDIError as error:
            raise RetryableError(
                Reason.DEVICE_NODE_MISSING,
                f"the CDI spec of claim {record.ref} cannot be removed: {error}",
                "check that --cdi-root is a writable directory",
                claim=str(record.ref),
            ) from error
        except TimeoutError as error:
            raise _disk_hangs() from error


def _spec_remedy(error: CDIError) -> str:
    if isinstance(error, MissingCapabilitiesError):
        return installation.CAPABILITIES_REMEDY
    if isinstance(error, DiscoveryError):
        return (
            "check the driver's files and device nodes on the node; nvidia-modprobe -c0 -u makes "
            "device nodes"
        )
    return "check that --cdi-root is a writable directory with free space"


def _disk_hangs() -> RetryableError:
    return RetryableError(
        Reason.DEADLINE_EXCEEDED,
        "the CDI spec of the claim must be written or removed, which takes long",
        "check whether the disk of --cdi-root responds",
    )
