# SPDX-License-Identifier: Apache-2.0
"""Brings hardware and records together again, after a crash, a reboot or a failure.

A reboot may change a GPU's PCI address, device name and device nodes, and the driver. A record
keeps what its claim was answered with, and is planned again with today's hardware; `node_specs`
gives the current CDI spec those names. GPUs are matched by UUID. Source: docs/design.md, "CDI
written ahead".

Records that are `started` although nothing works on them are rolled back. The changes of prepared
claims are made again if they are gone: kubelets before 1.37 do not prepare such a claim again. It
happens as soon as the hardware is known, before a claim of the same GPU is answered, and is
repeated until it succeeds. A MIG device that an administrator has destroyed below a claim is made
again, too, and the claim and its pods get an Event: what runs has lost it.
"""

import asyncio
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Final

from nvdra_api.errors import DriverError, Reason
from nvdra_api.ids import ClaimUID, DeviceName, NodeName
from nvdra_runtime.claims.engine import Engine, NotInForceError
from nvdra_runtime.claims.prepared_claims import PreparedClaims
from nvdra_runtime.claims.record_recovery import RecordRecovery
from nvdra_runtime.claims.records import Change
from nvdra_runtime.kube.event_recorder import EventRecorder, node_reference
from nvdra_runtime.process import background_tasks
from nvdra_runtime.process.background_tasks import BackgroundTasks
from nvdra_runtime.process.locks import KeyedLocks
from nvdra_runtime.telemetry import logs

from nvdra_gpu_plugin.claims import node_specs, record_checks
from nvdra_gpu_plugin.claims.claim_metadata import ClaimMetadata
from nvdra_gpu_plugin.claims.claim_specs import ClaimSpecs
from nvdra_gpu_plugin.claims.claimed_gpus import ClaimedGpus, gpus_of
from nvdra_gpu_plugin.devices.claim_records import GpuClaimRecord
from nvdra_gpu_plugin.hardware.device_state import Snapshot
from nvdra_gpu_plugin.hardware.node_gpus import NodeGpus

LOG = logs.logger(__name__)

_INTERVAL_S: Final = 10.0
"""Between two attempts. A program that keeps a MIG device in use mostly ends by itself."""

_TIMEOUT_S: Final = 10.0
_RETRY_S: Final = 5.0
"""Between two attempts to plan records again, while the state file cannot be written."""
_DAEMONS_TIMEOUT_S: Final = 60.0
"""After a reboot the kubelet starts the pod of an MPS daemon along with all others."""

_DESTROYED: Final = (
    "{}, made for a claim that holds it, is gone: it was destroyed (nvidia-smi mig, the GPU "
    "Operator's MIG manager), or the GPU was reset or its driver loaded again; it is made again if "
    "its place is free, but containers that run have lost it: restart them or delete the pod, and "
    "leave the MIG devices of this GPU to claims"
)


class ClaimRecovery:
    """Recovers the claims of one node."""

    def __init__(
        self,
        node: NodeName,
        gpus: NodeGpus,
        claimed: ClaimedGpus,
        engine: Engine[GpuClaimRecord],
        claim_specs: ClaimSpecs,
        metadata: ClaimMetadata,
        prepared_claims: PreparedClaims[GpuClaimRecord],
        events: EventRecorder,
    ) -> None:
        self._node = node
        self._gpus = gpus
        self._claimed = claimed
        self._engine = engine
        self._claim_specs = claim_specs
        self._metadata = metadata
        self._prepared_claims = prepared_claims
        self._events = events
        self._record_locks: KeyedLocks[ClaimUID] = KeyedLocks()
        self._planned: Snapshot | None = None
        self._reported: dict[ClaimUID, str] = {}
        self._destroyed: dict[ClaimUID, Sequence[DeviceName]] = {}
        self._starting: asyncio.Queue[NotInForceError] = asyncio.Queue()
        self._awaited: set[ClaimUID] = set()
        self._is_complete = False
        engine.on_lost(self._report_destroyed)

    def planned_again(self, record: GpuClaimRecord, snapshot: Snapshot) -> GpuClaimRecord:
        """The record as it is now; the same record unless it is of an earlier boot."""
        is_planned = node_specs.is_planned(record, self._prepared_claims)
        if is_planned and record.has_all_gpus:
            return record
        generation = None if is_planned else snapshot.spec.generation
        again = record_checks.planned_again(record, snapshot.inventory, generation)
        return self._metadata.planned_again(again, snapshot.inventory)

    async def plan_all_again(self, deadline: float) -> None:
        """Plan all records again that are of an earlier boot or lack a GPU.

        Returns at once if the node has not changed since the last time.

        Raises:
            RetryableError: `StateUnavailable`: a record cannot be written.
        """
        snapshot = self._gpus.snapshot
        if snapshot is None or snapshot is self._planned:
            return
        for record in tuple(self._prepared_claims.values()):
            with background_tasks.contain(
                "A record cannot be planned again", claim=str(record.ref)
            ):  # other claims do not depend on it
                await self._plan_again(record, snapshot, deadline)
        self._planned = snapshot

    async def run_planning(self) -> None:
        """Plan records again as soon as the hardware is known or changes. Run until cancelled."""
        serial = 0
        while True:
            retry_s = None
            try:
                await self.plan_all_again(asyncio.get_running_loop().time() + _TIMEOUT_S)
            except DriverError as error:
                LOG.warning("Records of an earlier boot cannot be planned again", error=str(error))
                retry_s = _RETRY_S
            with suppress(TimeoutError):
                async with asyncio.timeout(retry_s):
                    serial = await self._gpus.changed_since(serial)

    @asynccontextmanager
    async def current(
        self, record: GpuClaimRecord, deadline: float
    ) -> AsyncIterator[GpuClaimRecord | None]:
        """The claim's record, which is not planned again during the block. None if it is gone.

        Raises:
            RetryableError: `LockTimeout`.
        """
        holder = str(record.ref)
        async with self._record_locks.hold((record.uid,), holder=holder, deadline=deadline):
            yield self._prepared_claims.get(record.uid)

    async def roll_back_others(self, planned: GpuClaimRecord, deadline: float) -> None:
        """Roll back what was left on the GPUs of a claim, before it is answered.

        Of the claim itself nothing is rolled back: it may go on where an attempt was interrupted.
        What cannot be rolled back keeps its own place only.
        """
        for record in self._engine.left_over:
            if record.uid != planned.uid and gpus_of(record) & gpus_of(planned):
                await self._try_recover(record.uid, deadline)

    async def restore(self, record: GpuClaimRecord, deadline: float) -> GpuClaimRecord:
        """Make the changes of a prepared claim again that are gone. NVML is not released.

        Raises:
            DriverError: That is not possible.
        """
        async with self._locked(record, deadline) as current:
            if current is None or self._prepared_claims.is_started(record.uid):
                return record  # it was unprepared meanwhile
            done = await self._engine.restore(current)
        self._destroyed.pop(record.uid, None)
        return done

    async def run(self, recovery: RecordRecovery[GpuClaimRecord]) -> None:
        """Recover claims as soon as the hardware is known or changes. Run until cancelled."""
        await background_tasks.run_all(
            step_recovery=self._recover_repeatedly,
            mps_daemons=self._await_daemons,
            claim_specs=partial(self._complete, recovery),
        )

    async def _recover_repeatedly(self) -> None:
        serial = 0
        while True:
            if not self._is_complete:
                self._is_complete = True  # unless it changes meanwhile
                if not await self._recover(self._with_steps):
                    self._is_complete = False
            else:
                await self._recover([record.uid for record in self._engine.left_over])
                if not await self._recover(self._without_devices):
                    self._is_complete = False
                with suppress(DriverError):  # the disk does not respond
                    await self._recover(await self._engine.not_in_force())
            with suppress(TimeoutError):
                async with asyncio.timeout(_INTERVAL_S):
                    serial = await self._gpus.changed_since(serial)
                    self._is_complete = False

    @property
    def _with_steps(self) -> list[ClaimUID]:
        prepared = [
            uid
            for uid, record in self._prepared_claims.items()
            if record.steps and not self._prepared_claims.is_started(uid)
        ]
        return [*prepared, *(record.uid for record in self._engine.left_over)]

    async def _complete(self, recovery: RecordRecovery[GpuClaimRecord]) -> None:
        """Include the records that were recovered, and remove the specs of other claims."""
        await recovery.done.wait()
        self._is_complete = False
        kept = {uid for uid, record in self._prepared_claims.items() if record.has_own_spec}
        await self._claim_specs.remove_others(kept)

    async def _recover(self, claims: Collection[ClaimUID]) -> bool:
        """Recover these claims. Returns whether all are as they should be."""
        for uid in self._reported.keys() - self._prepared_claims.keys():
            del self._reported[uid]
        for uid in self._destroyed.keys() - self._prepared_claims.keys():
            del self._destroyed[uid]
        if not claims:
            return True
        if self._gpus.snapshot is None:
            return False
        deadline = asyncio.get_running_loop().time() + _TIMEOUT_S
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._try_recover(uid, deadline)) for uid in claims]
        return all(task.result() for task in tasks)

    async def _try_recover(self, uid: ClaimUID, deadline: float) -> bool:
        record = self._prepared_claims.get(uid)
        if record is None:
            return True
        failed_text = "A claim cannot be recovered"
        try:
            with background_tasks.contain(failed_text, claim=str(record.ref)) as contained:
                async with self._locked(record, deadline) as current:
                    with self._claimed.in_use() as may_use_gpus:
                        if not may_use_gpus:
                            return False
                        await self._recover_one(current)
        except NotInForceError as starting:
            if uid not in self._awaited:
                self._awaited.add(uid)
                self._starting.put_nowait(starting)
            return True  # whatever comes of it
        except DriverError as error:
            if error.reason is not Reason.LOCK_TIMEOUT:  # the claim is being worked on
                self._report(record, error)
            return False
        if contained.error is not None:
            return False
        self._reported.pop(uid, None)
        self._destroyed.pop(uid, None)
        return True

    async def _await_daemons(self) -> None:
        """Wait for the daemons of each claim by itself, while other claims are recovered."""
        async with BackgroundTasks() as tasks:
            while True:
                starting = await self._starting.get()
                tasks.start_once(
                    "mps daemons", partial(self._wait_for_daemons, starting), starting.record.uid
                )

    async def _wait_for_daemons(self, starting: NotInForceError) -> None:
        """Wait for a claim's daemons without a lock, and do what is to be done after them."""
        uid, now = starting.record.uid, asyncio.get_running_loop().time
        is_done = False
        try:
            await self._engine.wait_in_force(starting, now() + _DAEMONS_TIMEOUT_S)
        except DriverError as error:
            if (record := self._prepared_claims.get(uid)) is not None:
                self._report(record, error)
        else:
            self._awaited.discard(uid)
            is_done = await self._try_recover(uid, now() + _TIMEOUT_S)
        finally:
            self._awaited.discard(uid)
            if not is_done:
                self._is_complete = False

    @asynccontextmanager
    async def _locked(
        self, record: GpuClaimRecord, deadline: float
    ) -> AsyncIterator[GpuClaimRecord | None]:
        """Hold the locks of the claim's GPUs, and of its record, for the block."""
        hold = self._claimed.locks.hold(gpus_of(record), holder=str(record.ref), deadline=deadline)
        async with hold, self.current(record, deadline) as current:
            yield current

    async def _recover_one(self, record: GpuClaimRecord | None) -> None:
        if record is None:
            return
        if self._prepared_claims.is_started(record.uid):
            await self._engine.revert(record)
            if record.uid not in self._prepared_claims:
                LOG.info(
                    "What a claim has left, which is not prepared, is undone", claim=str(record.ref)
                )
        else:
            await self._engine.restore(record)

    async def _plan_again(
        self, record: GpuClaimRecord, snapshot: Snapshot, deadline: float
    ) -> None:
        async with self.current(record, deadline) as current:
            if current is None or self._prepared_claims.is_started(record.uid):
                return  # it was unprepared meanwhile, or is no answer
            again = self.planned_again(current, snapshot)
            if again == current and self._prepared_claims.is_of_this_boot(record.uid):
                return
            await self._prepared_claims.add(record.ref, again)
            LOG.info(
                "A prepared claim was planned again with today's hardware",
                claim=str(record.ref),
                generation=again.generation,
                missing=[device.device for device in again.devices if not device.pci],
            )

    @property
    def _without_devices(self) -> list[ClaimUID]:
        """The prepared claims whose MIG devices were not all there when their GPUs were looked at.

        The engine asks the GPUs whether it is so, before it does anything.
        """
        return [
            record.uid
            for record in self._prepared_claims.values()
            if any(map(self._gpus.has_lost, record.made)) and self._engine.is_at_rest(record.uid)
        ]

    def _report_destroyed(self, record: GpuClaimRecord, changes: Sequence[Change]) -> None:
        """Report once that devices are gone, as Events of claim, pods and Node, and in the log."""
        devices = [change.device for change in changes]
        if self._destroyed.get(record.uid) == devices:
            return
        self._destroyed[record.uid] = devices
        LOG.warning(
            "MIG devices that were made for a claim are gone: somebody has destroyed them",
            claim=str(record.ref),
            devices=devices,
        )
        text = _DESTROYED.format(", ".join(devices))
        self._events.emit_for_claim(record.ref, None, "Warning", Reason.DEVICE_UNHEALTHY, text)
        node = (node_reference(self._node),)
        self._events.emit(node, "Warning", Reason.DEVICE_UNHEALTHY, text, about=record.uid)

    def _report(self, record: GpuClaimRecord, error: DriverError) -> None:
        """Report a failure once, in the log and as an Event of the Node."""
        if self._reported.get(record.uid) == error.message:
            return
        self._reported[record.uid] = error.message
        is_started = self._prepared_claims.is_started(record.uid)
        LOG.warning(
            "What was done for a claim cannot be undone yet"
            if is_started
            else "What was done for a claim cannot be done again yet",
            claim=str(record.ref),
            error=str(error),
        )
        what = f"what was done for a claim cannot be {'undone' if is_started else 'done again'} yet"
        self._events.emit(
            (node_reference(self._node),),
            "Warning",
            error.reason,
            "; ".join(filter(None, (f"{what}: {error.message}", error.remedy))),
            about=record.uid,
        )
