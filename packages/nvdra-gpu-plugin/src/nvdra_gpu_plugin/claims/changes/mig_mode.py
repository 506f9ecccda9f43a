# SPDX-License-Identifier: Apache-2.0
"""MIG mode of GPUs: off for a claim of a whole one, or left on by claims of MIG devices."""

from nvdra_api.errors import DriverError
from nvdra_api.ids import DeviceName, GpuUUID
from nvdra_runtime.claims.changes import ChangeKind, Keep

from nvdra_gpu_plugin.devices.claim_records import GpuClaimRecord
from nvdra_gpu_plugin.devices.steps import DisableMigMode, LeaveMigMode
from nvdra_gpu_plugin.hardware import mig_changes
from nvdra_gpu_plugin.hardware.gpu_changes import GpuChanges
from nvdra_gpu_plugin.hardware.mode_refusals import REFUSALS, ModeRefusals


class ModeSwitch:
    """Switches the MIG mode of GPUs, and takes note of those that refuse."""

    def __init__(self, gpus: GpuChanges, refusals: ModeRefusals) -> None:
        self._gpus = gpus
        self._refusals = refusals

    async def on(self, gpu: GpuUUID, device: DeviceName) -> None:
        """Switch it on, unless it is.

        Raises:
            DriverError: That is not possible.
        """
        await self._switch(gpu, device, mig_changes.enable_mig_mode, is_on=True)

    async def off(self, gpu: GpuUUID, device: DeviceName) -> None:
        """Switch it off, unless it is.

        Raises:
            DriverError: That is not possible, or there are instances.
        """
        await self._switch(gpu, device, mig_changes.disable_mig_mode, is_on=False)

    async def leave(self, gpu: GpuUUID, device: DeviceName) -> bool:
        """Switch it off with the last instance. Returns False if that is not possible now.

        Raises:
            DriverError: The GPU does not work.
        """
        try:
            await self._switch(gpu, device, mig_changes.leave_mig_mode, is_on=False)
        except DriverError as error:
            if error.reason not in REFUSALS:
                raise
            return False
        return True

    async def _switch(
        self, gpu: GpuUUID, device: DeviceName, switch: mig_changes.SwitchMode, *, is_on: bool
    ) -> None:
        try:
            await self._gpus.run(gpu, device, switch, device)
        except DriverError as error:
            self._refusals.note_refused(gpu, device, error, is_on=is_on)
            raise
        self._refusals.note_mode(gpu, is_on=is_on)


class MigModeOffKind(ChangeKind[GpuClaimRecord, DisableMigMode]):
    """A whole GPU is out of MIG mode for a claim, and stays so."""

    def __init__(self, gpus: GpuChanges, switch: ModeSwitch) -> None:
        self._gpus = gpus
        self._switch = switch

    async def apply(
        self, claim: GpuClaimRecord, change: DisableMigMode, keep: Keep[DisableMigMode]
    ) -> DisableMigMode:
        """Switch the mode off."""
        await self._switch.off(change.gpu, change.device)
        return change

    async def is_in_force(self, claim: GpuClaimRecord, change: DisableMigMode) -> bool:
        """Whether the mode is off."""
        return await self._gpus.run(change.gpu, change.device, mig_changes.is_mig_mode_off)


class LeftMigModeKind(ChangeKind[GpuClaimRecord, LeaveMigMode]):
    """A GPU is in MIG mode after its claims, because a program keeps it."""

    def __init__(self, switch: ModeSwitch) -> None:
        self._switch = switch

    async def revert(self, claim: GpuClaimRecord, change: LeaveMigMode) -> LeaveMigMode | None:
        """Leave the mode, if the program has ended."""
        return None if await self._switch.leave(change.gpu, change.device) else change
