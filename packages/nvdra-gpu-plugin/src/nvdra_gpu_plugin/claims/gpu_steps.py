# SPDX-License-Identifier: Apache-2.0
"""What the steps of claims do to GPUs, in both directions, and whether it is done.

Callers hold the locks of the GPUs, and keep the records.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, TypeVar

from nvdra_api.errors import DriverError, Reason
from nvdra_api.ids import GpuUUID
from nvdra_runtime.telemetry import logs
from nvdra_runtime.telemetry.instrumentation import Telemetry

from nvdra_gpu_plugin.claims.changes.registry import ChangeKinds
from nvdra_gpu_plugin.devices.claim_records import GpuClaimRecord
from nvdra_gpu_plugin.devices.steps import Step
from nvdra_gpu_plugin.hardware.gpu_changes import GpuChanges

LOG = logs.logger(__name__)

Keep = Callable[[GpuClaimRecord], Awaitable[None]]
ResultT = TypeVar("ResultT")

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
    """The changes of a node's GPUs that claims need."""

    def __init__(
        self,
        kinds: ChangeKinds,
        gpus: GpuChanges,
        boot_id: str,
        telemetry: Telemetry,
    ) -> None:
        """Create it without any effect.

        Args:
            kinds: Carry out changes.
            gpus: The GPUs.
            boot_id: ID of the current boot.
            telemetry: Traces changes.
        """
        self._kinds = kinds
        self._gpus = gpus
        self._boot_id = boot_id
        self._telemetry = telemetry

    async def inspect(self, record: GpuClaimRecord) -> GpuClaimRecord:
        """The record, before its first change, with what undoing the changes must restore.

        Nothing may be in the places of MIG devices: it would be taken for the claim's.

        Raises:
            DriverError: It cannot be known, or a place is taken.
        """
        return record.with_steps(
            await _on_each_gpu(
                record.steps, lambda step: self._kinds.of(step).inspect(record, step)
            )
        )

    async def do(self, record: GpuClaimRecord, keep: Keep) -> GpuClaimRecord:
        """Change GPUs, and return the record with what was made.

        Args:
            record: Before the first change.
            keep: Writes the record as it is after a part of a change.

        Raises:
            DriverError: A change failed. What can be changed on other GPUs is.
        """
        if not record.gpu_steps:
            return record
        current = list(record.steps)

        async def apply(step: Step) -> Step:
            place = record.steps.index(step)

            async def keep_part(part: Step) -> None:
                current[place] = part
                await keep(record.with_steps(tuple(current)))

            made: Step = await self._kinds.of(step).apply(step, keep_part)
            return made

        with self._telemetry.step("do steps"):
            done = await _on_each_gpu(record.gpu_steps, apply)
        return record.with_steps((*done, *record.daemons))

    async def undo(self, record: GpuClaimRecord) -> tuple[Step, ...]:
        """Undo the changes of GPUs, the last one first; a reboot has undone them all.

        Returns:
            What is left to undo: a program keeps GPUs in MIG mode.

        Raises:
            DriverError: A change cannot be undone. What can be undone on other GPUs is. If a
                process uses one GPU and another one does not work, that of the process.
        """
        if record.steps_boot != self._boot_id or not record.gpu_steps:
            return ()

        async def revert(step: Step) -> Step | None:
            if self._gpus.is_absent(step.gpu):
                LOG.warning(
                    "A GPU is gone, and with it what was done for a claim",
                    device=step.device,
                    gpu=step.gpu,
                )
                return None
            rest: Step | None = await self._kinds.of(step).revert(record, step)
            return rest

        with self._telemetry.step("undo steps"):
            left = await _on_each_gpu(tuple(reversed(record.gpu_steps)), revert)
        return tuple(filter(None, left))

    async def not_in_force(self, record: GpuClaimRecord) -> Sequence[Step]:
        """The changes of GPUs that are not in force: in another boot, all of them.

        Raises:
            DriverError: A GPU does not say it.
        """
        if record.steps_boot != self._boot_id:
            return record.gpu_steps
        return [
            step for step in record.gpu_steps if not await self._kinds.of(step).is_in_force(step)
        ]

    async def check_places(self, steps: Sequence[Step]) -> None:
        """Check that nothing foreign is where changes were that are not in force any more.

        Raises:
            PermanentError: `UnknownDevice`: something is.
        """
        for step in steps:
            await self._kinds.of(step).check_place(step)

    async def check_free(self, record: GpuClaimRecord, steps: Sequence[Step]) -> None:
        """Check that nothing is in the places of changes.

        Raises:
            DriverError: Something is.
        """
        for step in steps:
            await self._kinds.of(step).inspect(record, step)


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
