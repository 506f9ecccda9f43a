# SPDX-License-Identifier: Apache-2.0
"""Brings hardware and records together again, after a crash, a reboot or a failure.

Records that are `started` although nothing works on them are rolled back. The steps of prepared
claims are done again, if what they did is gone: kubelets before 1.37 do not prepare such a claim
again. It happens as soon as the hardware is known, before a claim of the same GPU is answered, and
is repeated until it succeeds. A MIG device that somebody has destroyed below a claim is made again,
too, and the claim and its pods are told: what runs has lost it.
"""

import asyncio
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Final

from nvdra_api.errors import DriverError, Reason
from nvdra_api.ids import ClaimUID, DeviceName, NodeName, PciAddress
from nvdra_cdi.errors import CDIError
from nvdra_runtime.claims.changes import Change
from nvdra_runtime.claims.engine import Engine, NotInForceError
from nvdra_runtime.claims.prepared_claims import PreparedClaims
from nvdra_runtime.claims.record_recovery import RecordRecovery
from nvdra_runtime.kube.event_recorder import EventRecorder, node_reference
from nvdra_runtime.process import background_tasks
from nvdra_runtime.process.background_tasks import BackgroundTasks
from nvdra_runtime.process.locks import KeyedLocks
from nvdra_runtime.process.worker import Worker
from nvdra_runtime.telemetry import logs

from nvdra_gpu_plugin.cdi.claim_spec_files import ClaimSpecFiles
from nvdra_gpu_plugin.claims.replanner import Replanner
from nvdra_gpu_plugin.devices.claim_records import GpuClaimRecord
from nvdra_gpu_plugin.hardware.node_gpus import NodeGpus
from nvdra_gpu_plugin.nvml_release.prepare_gate import PrepareGate

LOG = logs.logger(__name__)

_INTERVAL_S: Final = 10.0
"""Between two attempts. A program that keeps a MIG device in use mostly ends by itself."""

_LOCK_TIMEOUT_S: Final = 10.0
_DAEMONS_TIMEOUT_S: Final = 60.0
"""After a reboot the kubelet starts the pod of an MPS daemon along with all others."""

_DESTROYED: Final = (
    "{}, made for a claim that holds it, is gone: it was destroyed (nvidia-smi mig, the GPU "
    "Operator's MIG manager), or the GPU was reset or its driver loaded again; it is made again if "
    "its place is free, but containers that run have lost it: restart them or delete the pod, and "
    "leave the MIG devices of this GPU to claims"
)


class ClaimRecovery:
    """Recovers the claims of one node.

    Attributes:
        locks: A lock per GPU, for all who prepare, unprepare or recover.
    """

    def __init__(
        self,
        node: NodeName,
        gpus: NodeGpus,
        engine: Engine[GpuClaimRecord],
        specs: ClaimSpecFiles,
        files: Worker,
        prepared_claims: PreparedClaims[GpuClaimRecord],
        replanner: Replanner,
        gate: PrepareGate,
        events: EventRecorder,
    ) -> None:
        self.locks: KeyedLocks[PciAddress] = KeyedLocks()
        self._node = node
        self._gpus = gpus
        self._engine = engine
        self._specs = specs
        self._files = files
        self._prepared_claims = prepared_claims
        self._replanner = replanner
        self._gate = gate
        self._events = events
        self._reported: dict[ClaimUID, str] = {}
        self._destroyed: dict[ClaimUID, Sequence[DeviceName]] = {}
        self._starting: asyncio.Queue[NotInForceError] = asyncio.Queue()
        self._awaited: set[ClaimUID] = set()
        self._is_complete = False
        engine.on_lost(self._report_destroyed)

    async def roll_back_others(
        self, wanted: GpuClaimRecord, gpus: Collection[PciAddress], deadline: float
    ) -> None:
        """Roll back what was left on these GPUs, before a claim of them is answered.

        Of the claim itself nothing is rolled back: it may go on where an attempt was interrupted.
        What cannot be rolled back keeps its own place only.
        """
        for record in self._engine.left_over:
            if record.uid != wanted.uid and gpus_of(record) & set(gpus):
                await self._try_recover(record.uid, deadline)

    async def restore(self, record: GpuClaimRecord, deadline: float) -> GpuClaimRecord:
        """Do the steps of a prepared claim again, if necessary. The caller is inside the gate.

        Raises:
            DriverError: That is not possible.
        """
        async with self._locked(record, deadline):
            current = self._prepared_claims.get(record.uid)
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
            claim_specs=partial(self._remove_other_specs, recovery),
        )

    async def _recover_repeatedly(self) -> None:
        serial = 0
        while True:
            if not self._is_complete:
                self._is_complete = True  # unless somebody says otherwise meanwhile
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

    async def _remove_other_specs(self, recovery: RecordRecovery[GpuClaimRecord]) -> None:
        """Remove the specs of claims without a record, once records are complete."""
        await recovery.done.wait()
        self._is_complete = False  # records may have been added
        kept = {uid for uid, record in self._prepared_claims.items() if record.has_own_spec}
        try:
            await self._files.run(self._specs.remove_others, kept)
        except (CDIError, OSError) as error:
            LOG.warning("The CDI spec of a claim cannot be removed", error=str(error))

    async def _recover(self, claims: Collection[ClaimUID]) -> bool:
        """Recover these claims. Returns whether all are as they should be."""
        for uid in self._reported.keys() - self._prepared_claims.keys():
            del self._reported[uid]
        for uid in self._destroyed.keys() - self._prepared_claims.keys():
            del self._destroyed[uid]
        if not claims:
            return True
        if self._gpus.snapshot is None or not self._gate.is_open:
            return False
        deadline = asyncio.get_running_loop().time() + _LOCK_TIMEOUT_S
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
                async with self._locked(record, deadline):
                    with self._gate.passed() as may_use_gpus:
                        if not may_use_gpus:
                            return False
                        await self._recover_one(uid)
        except NotInForceError as starting:
            if uid not in self._awaited:
                self._awaited.add(uid)
                self._starting.put_nowait(starting)
            return True  # whatever comes of it
        except DriverError as error:
            if error.reason is not Reason.LOCK_TIMEOUT:  # somebody works on it
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
            is_done = await self._try_recover(uid, now() + _LOCK_TIMEOUT_S)
        finally:
            self._awaited.discard(uid)
            if not is_done:
                self._is_complete = False

    @asynccontextmanager
    async def _locked(self, record: GpuClaimRecord, deadline: float) -> AsyncIterator[None]:
        """Hold the locks of the claim's GPUs, and of its record, for the block."""
        holder = str(record.ref)
        async with (
            self.locks.hold(gpus_of(record), holder=holder, deadline=deadline),
            self._replanner.record_locks.hold((record.uid,), holder=holder, deadline=deadline),
        ):
            yield

    async def _recover_one(self, uid: ClaimUID) -> None:
        record = self._prepared_claims.get(uid)
        if record is None:
            return
        if self._prepared_claims.is_started(uid):
            await self._engine.revert(record)
            if uid not in self._prepared_claims:
                LOG.info(
                    "What a claim has left, which is not prepared, is undone", claim=str(record.ref)
                )
        else:
            await self._engine.restore(record)

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
            "The devices of a claim cannot be destroyed yet"
            if is_started
            else "The devices of a claim cannot be made again yet",
            claim=str(record.ref),
            error=str(error),
        )
        self._events.emit(
            (node_reference(self._node),),
            "Warning",
            error.reason,
            f"the devices of a claim cannot be {'destroyed' if is_started else 'made again'} yet: "
            f"{error.message}; {error.remedy}",
            about=record.uid,
        )


def gpus_of(record: GpuClaimRecord) -> set[PciAddress]:
    """The GPUs whose locks an operation of the claim holds.

    Admin access needs none: a claim for monitoring that waits for a GPU stops no other claim.
    """
    held = {device.pci for device in record.devices if not device.is_admin}
    return held | {step.pci for step in record.left_modes}
