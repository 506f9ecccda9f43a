# SPDX-License-Identifier: Apache-2.0
"""MIG devices that are made for claims, with the MIG mode that they need."""

from nvdra_api.ids import GpuUUID
from nvdra_runtime.claims.changes import ChangeKind, Keep

from nvdra_gpu_plugin.claims.changes.mig_mode import ModeSwitch
from nvdra_gpu_plugin.devices.claim_index import GpuClaimIndex
from nvdra_gpu_plugin.devices.claim_records import GpuClaimRecord
from nvdra_gpu_plugin.devices.steps import LeaveMigMode, MakeMigDevice
from nvdra_gpu_plugin.hardware import mig_changes
from nvdra_gpu_plugin.hardware.gpu_changes import GpuChanges


class MigDeviceKind(ChangeKind[GpuClaimRecord, MakeMigDevice]):
    """Makes and destroys MIG devices."""

    def __init__(
        self,
        gpus: GpuChanges,
        switch: ModeSwitch,
        claims: GpuClaimIndex,
        boot_id: str,
        *,
        keeps_mode: bool,
    ) -> None:
        """Create it without any effect.

        Args:
            gpus: Changes GPUs.
            switch: Switches MIG mode.
            claims: The claims of the node.
            boot_id: ID of the current boot.
            keeps_mode: Whether a GPU that was switched to MIG mode stays in it without claims.
        """
        self._gpus = gpus
        self._switch = switch
        self._claims = claims
        self._boot_id = boot_id
        self._keeps_mode = keeps_mode

    async def inspect(self, claim: GpuClaimRecord, change: MakeMigDevice) -> MakeMigDevice:
        """Nothing may be in the place: it would be taken for the claim's."""
        is_on = await self._gpus.run(change.gpu, change.device, mig_changes.check_free, change)
        keeps_mode = self._is_kept(claim, change.gpu, is_on=is_on)
        return change.anew().model_copy(update={"keeps_mode": keeps_mode})

    def _is_kept(self, claim: GpuClaimRecord, gpu: GpuUUID, *, is_on: bool) -> bool:
        """Whether MIG mode stays on after the claims of a GPU, of which one may have switched it.

        It does if it was on before them.
        """
        for other in self._claims.changing(gpu, self._boot_id):
            if any(mode.gpu == gpu for mode in other.left_modes):
                return False
            for made in other.made if other.uid != claim.uid else ():
                if made.gpu == gpu:
                    return made.keeps_mode
        return is_on or self._keeps_mode

    async def apply(
        self, claim: GpuClaimRecord, change: MakeMigDevice, keep: Keep[MakeMigDevice]
    ) -> MakeMigDevice:
        """Its GPU instance is recorded before it gets a compute instance."""
        gpu, device = change.gpu, change.device
        await self._switch.on(gpu, device)
        instance = await self._gpus.run(gpu, device, mig_changes.make_instance, change)
        part = change.model_copy(update={"made_instance": instance})
        if part != change:
            await keep(part)
        made = await self._gpus.run(gpu, device, mig_changes.make_device, part)
        return change.model_copy(update={"made_instance": None, "made": made})

    async def is_in_force(self, claim: GpuClaimRecord, change: MakeMigDevice) -> bool:
        """Whether the device that was made is there."""
        return await self._gpus.run(change.gpu, change.device, mig_changes.exists, change)

    async def check_place(self, change: MakeMigDevice) -> None:
        """What is left of the device is no obstacle."""
        await self._gpus.run(change.gpu, change.device, mig_changes.check_place, change)

    async def revert(self, claim: GpuClaimRecord, change: MakeMigDevice) -> LeaveMigMode | None:
        """Destroy the device, and with the last one of the GPU leave the mode."""
        await self._gpus.run(change.gpu, change.device, mig_changes.destroy, change)
        if change.keeps_mode or await self._switch.leave(change.gpu, change.device):
            return None
        return claim.left_mode(change)
