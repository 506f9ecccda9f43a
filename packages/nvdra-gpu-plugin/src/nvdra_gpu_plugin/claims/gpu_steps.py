# SPDX-License-Identifier: Apache-2.0
"""What the steps of claims do to GPUs, in both directions, and whether it is done.

Callers hold the locks of the GPUs, and keep the records.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Final, TypeVar
from uuid import uuid4

from nvdra_api.errors import DriverError, Reason
from nvdra_api.ids import ClaimUID, GpuUUID
from nvdra_runtime.claims.prepared_claims import PreparedClaims
from nvdra_runtime.node.host import Host
from nvdra_runtime.node.nvml import DeviceHandle, Nvml
from nvdra_runtime.telemetry import logs
from nvdra_runtime.telemetry.instrumentation import Telemetry

from nvdra_gpu_plugin.devices.claim_index import GpuClaimIndex
from nvdra_gpu_plugin.devices.claim_records import GpuClaimRecord
from nvdra_gpu_plugin.devices.steps import (
    DisableMigMode,
    LeaveMigMode,
    MakeMigDevice,
    SetComputeMode,
    ShareByMps,
    ShareByTime,
    Step,
)
from nvdra_gpu_plugin.hardware import mig_changes, sharing_changes
from nvdra_gpu_plugin.hardware.gpu_changes import GpuChanges
from nvdra_gpu_plugin.hardware.mode_refusals import REFUSALS, ModeRefusals

LOG = logs.logger(__name__)

Keep = Callable[[GpuClaimRecord], Awaitable[None]]
ModeStep = TypeVar("ModeStep", MakeMigDevice, DisableMigMode, MakeMigDevice | LeaveMigMode)
ResultT = TypeVar("ResultT")

_NOTHING_TO_DO: Final = "a step that changes no GPU when it is done"

_OF_HARDWARE: Final = (
    Reason.DEADLINE_EXCEEDED,
    Reason.DEVICE_UNHEALTHY,
    Reason.DRIVER_MISMATCH,
    Reason.MIG_MODE_REQUIRES_RESET,
    Reason.UNKNOWN_DEVICE,
)


def is_of_hardware(error: DriverError) -> bool:
    """Whether a GPU is lost, needs a reset, does not answer, or is not there.

    False if it works and a process uses it.
    """
    return error.reason in _OF_HARDWARE


class GpuSteps:
    """The steps that change a node's GPUs."""

    def __init__(
        self,
        host: Host,
        changes: GpuChanges,
        mode_refusals: ModeRefusals,
        prepared_claims: PreparedClaims[GpuClaimRecord],
        claim_index: GpuClaimIndex,
        telemetry: Telemetry,
        *,
        keeps_mig_mode: bool,
    ) -> None:
        """Create it without any effect.

        Args:
            host: The node's files.
            changes: Changes GPUs.
            mode_refusals: Takes note of GPUs whose MIG mode cannot be switched.
            prepared_claims: The records of claims.
            claim_index: The same by device.
            telemetry: Traces steps.
            keeps_mig_mode: Whether a GPU that was switched to MIG mode stays in it without claims.
        """
        self._host = host
        self._changes = changes
        self._mode_refusals = mode_refusals
        self._keeps_mig_mode = keeps_mig_mode
        self._prepared_claims = prepared_claims
        self._claim_index = claim_index
        self._telemetry = telemetry

    async def inspect(self, record: GpuClaimRecord) -> GpuClaimRecord:
        """The record, before its first step, with what undoing the steps must restore.

        Nothing may be in the places of MIG devices: it would be taken for the claim's.

        Raises:
            DriverError: It cannot be known, or a place is taken.
        """
        inspect = partial(self._inspect_step, record.uid)
        return record.with_steps(await _on_each_gpu(record.steps, inspect))

    async def do(self, record: GpuClaimRecord, keep: Keep) -> GpuClaimRecord:
        """Do the steps that change GPUs, and return the record with what they have made.

        Args:
            record: Before the first step.
            keep: Writes the record as it is after a part of a step.

        Raises:
            DriverError: A step failed. What can be done on other GPUs is done.
        """
        if record.gpu_steps:
            parts = {step.device: step for step in record.steps if isinstance(step, MakeMigDevice)}

            async def keep_part(part: MakeMigDevice) -> None:
                parts[part.device] = part
                await keep(
                    record.with_steps(
                        tuple(
                            parts[step.device] if isinstance(step, MakeMigDevice) else step
                            for step in record.steps
                        )
                    )
                )

            with self._telemetry.step("do steps"):
                do = partial(self._do_step, keep_part)
                done = await _on_each_gpu(record.gpu_steps, do)
            record = record.with_steps((*done, *record.daemons))
        return record

    async def undo(self, record: GpuClaimRecord) -> tuple[LeaveMigMode, ...]:
        """Undo the steps that change GPUs, the last one first; a reboot has undone them all.

        A mode that was on before the claims of a GPU stays on.

        Returns:
            What is left to undo: a program keeps GPUs in MIG mode.

        Raises:
            DriverError: A step cannot be undone. What can be undone on other GPUs is. If a process
                uses one GPU and another one does not work, that of the process.
        """
        if record.steps_boot != self._prepared_claims.boot_id or not record.gpu_steps:
            return ()
        with self._telemetry.step("undo steps"):
            undo = partial(self._undo_step, record)
            left = await _on_each_gpu(tuple(reversed(record.gpu_steps)), undo)
        return tuple(filter(None, left))

    async def not_in_force(self, record: GpuClaimRecord) -> Sequence[Step]:
        """The steps that change GPUs and are not in force: in another boot, all of them.

        Raises:
            DriverError: A GPU does not say it.
        """
        if record.steps_boot != self._prepared_claims.boot_id:
            return record.gpu_steps
        return [step for step in record.gpu_steps if not await self._is_step_done(step)]

    async def check_places(self, steps: Sequence[MakeMigDevice]) -> None:
        """Check that no instance of somebody else is where MIG devices were that are gone.

        Raises:
            PermanentError: `UnknownDevice`: one is.
        """
        for step in steps:
            await self._changes.run(step.gpu, step.device, mig_changes.check_place, step)

    async def check_free(self, steps: Sequence[MakeMigDevice]) -> None:
        """Check that nothing is in the places of MIG devices.

        Raises:
            DriverError: Something is.
        """
        for step in steps:
            await self._changes.run(step.gpu, step.device, mig_changes.check_free, step)

    async def _inspect_step(self, uid: ClaimUID, step: Step) -> Step:
        match step:
            case MakeMigDevice():
                is_on = await self._changes.run(step.gpu, step.device, mig_changes.check_free, step)
                return step.anew().model_copy(
                    update={"keeps_mode": self._keeps_mode(uid, step.gpu, is_on=is_on)}
                )
            case ShareByTime() if other := self._same_step(uid, step):
                return step.model_copy(update={"former": other.former})
            case ShareByTime():
                former = await self._changes.run(
                    step.gpu, step.device, sharing_changes.current, self._host
                )
                return step.model_copy(update={"former": former})
            case SetComputeMode():
                mode = await self._changes.run(step.gpu, step.device, sharing_changes.compute_mode)
                return step.model_copy(update={"former": mode})
            case ShareByMps():
                return step if step.run else step.model_copy(update={"run": uuid4().hex})
            case DisableMigMode() | LeaveMigMode():
                return step

    def _keeps_mode(self, uid: ClaimUID, gpu: GpuUUID, *, is_on: bool) -> bool:
        """Whether MIG mode stays on after the claims of a GPU, of which one may have switched it.

        It does if it was on before them.

        Args:
            uid: The claim that is inspected.
            gpu: The GPU.
            is_on: Whether it is in MIG mode now.
        """
        for other in self._prepared_claims.values():
            if other.steps_boot != self._prepared_claims.boot_id:
                continue
            if any(mode.gpu == gpu for mode in other.left_modes):
                return False
            for step in other.made if other.uid != uid else ():
                if step.gpu == gpu:
                    return step.keeps_mode
        return is_on or self._keeps_mig_mode

    def _same_step(self, uid: ClaimUID, step: ShareByTime) -> ShareByTime | None:
        """The step of another claim that shares the GPU, as it was begun in this boot."""
        for other in self._claim_index.claims_by_time(step.gpu):
            if other.uid != uid and other.steps_boot == self._prepared_claims.boot_id:
                return other.time_sharing(step.gpu)
        return None

    async def _do_step(
        self, keep_part: Callable[[MakeMigDevice], Awaitable[None]], step: Step
    ) -> Step:
        match step:
            case MakeMigDevice():
                run = self._changes.run
                await self._switch_mode(step, mig_changes.enable_mig_mode, is_on=True)
                instance = await run(step.gpu, step.device, mig_changes.make_instance, step)
                part = step.model_copy(update={"made_instance": instance})
                if part != step:
                    await keep_part(part)
                made = await run(step.gpu, step.device, mig_changes.make_device, part)
                return step.model_copy(update={"made_instance": None, "made": made})
            case DisableMigMode():
                await self._switch_mode(step, mig_changes.disable_mig_mode, is_on=False)
                return step
            case ShareByTime():
                await self._changes.run(
                    step.gpu, step.device, sharing_changes.share, self._host, step
                )
                return step
            case SetComputeMode():
                await self._changes.run(
                    step.gpu, step.device, sharing_changes.set_compute_mode, step
                )
                return step
            case ShareByMps() | LeaveMigMode():
                raise AssertionError(_NOTHING_TO_DO)

    async def _switch_mode(
        self,
        step: ModeStep,
        switch: Callable[[Nvml, DeviceHandle, ModeStep], None],
        *,
        is_on: bool,
    ) -> None:
        try:
            await self._changes.run(step.gpu, step.device, switch, step)
        except DriverError as error:
            self._mode_refusals.note_refused(step.gpu, step.device, error, is_on=is_on)
            raise
        self._mode_refusals.note_mode(step.gpu, is_on=is_on)

    async def _leave_mode(self, step: MakeMigDevice | LeaveMigMode) -> bool:
        """Leave MIG mode with the last instance. Returns False if that is not possible now.

        Raises:
            DriverError: The GPU does not work.
        """
        try:
            await self._switch_mode(step, mig_changes.leave_mig_mode, is_on=False)
        except DriverError as error:
            if error.reason not in REFUSALS:
                raise
            return False
        return True

    async def _undo_step(self, record: GpuClaimRecord, step: Step) -> LeaveMigMode | None:
        """Undo a step, and return what is left of it."""
        if isinstance(step, DisableMigMode | ShareByMps):
            return None
        if isinstance(step, ShareByTime) and self._same_step(record.uid, step) is not None:
            return None  # the last claim that shares the GPU restores how it was
        if self._changes.is_absent(step.gpu):
            LOG.warning(
                "A GPU is gone, and with it what was done for a claim",
                device=step.device,
                gpu=step.gpu,
            )
            return None
        run = self._changes.run
        match step:
            case ShareByTime():
                await run(step.gpu, step.device, sharing_changes.restore, self._host, step)
            case SetComputeMode():
                await run(step.gpu, step.device, sharing_changes.restore_compute_mode, step)
            case LeaveMigMode():
                return None if await self._leave_mode(step) else step
            case MakeMigDevice():
                await run(step.gpu, step.device, mig_changes.destroy, step)
                if not (step.keeps_mode or await self._leave_mode(step)):
                    return record.left_mode(step)
        return None

    async def _is_step_done(self, step: Step) -> bool:
        match step:
            case MakeMigDevice():
                return await self._changes.run(step.gpu, step.device, mig_changes.exists, step)
            case DisableMigMode():
                return await self._changes.run(step.gpu, step.device, mig_changes.is_mig_mode_off)
            case ShareByTime():
                return await self._changes.run(
                    step.gpu, step.device, sharing_changes.is_shared, self._host, step
                )
            case SetComputeMode():
                return await self._changes.run(
                    step.gpu, step.device, sharing_changes.has_compute_mode, step
                )
            case ShareByMps() | LeaveMigMode():
                raise AssertionError(_NOTHING_TO_DO)


async def _on_each_gpu(
    steps: Sequence[Step], call: Callable[[Step], Awaitable[ResultT]]
) -> tuple[ResultT, ...]:
    """Call it for all steps: those of a GPU in their order, GPUs side by side.

    All that can be called is: the first failure of a GPU ends only what follows on that GPU.

    Returns:
        The results in the order of the steps.

    Raises:
        DriverError: The first one that is not of the hardware, or the first one.
    """
    by_gpu: dict[GpuUUID, list[int]] = {}
    for at, step in enumerate(steps):
        by_gpu.setdefault(step.gpu, []).append(at)

    async def call_all(places: Sequence[int]) -> Mapping[int, ResultT] | DriverError:
        try:
            return {at: await call(steps[at]) for at in places}
        except DriverError as error:
            return error  # what is under way on other GPUs is not cancelled

    if len(by_gpu) == 1:
        (places,) = by_gpu.values()
        results = [await call_all(places)]
    else:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(call_all(places)) for places in by_gpu.values()]
        results = [task.result() for task in tasks]
    done: dict[int, ResultT] = {}
    errors: list[DriverError] = []
    for result in results:
        if isinstance(result, DriverError):
            errors.append(result)
        else:
            done |= result
    if errors:
        raise min(errors, key=is_of_hardware)
    return tuple(done[at] for at in range(len(steps)))
