# SPDX-License-Identifier: Apache-2.0
"""The kinds of changes."""

from typing import Any, Final

from nvdra_runtime.claims.changes import ChangeKind
from nvdra_runtime.claims.records import Change
from nvdra_runtime.node.host import Host

from nvdra_gpu_plugin.claims.changes.compute_mode import ComputeModeKind
from nvdra_gpu_plugin.claims.changes.mig_device import MigDeviceKind
from nvdra_gpu_plugin.claims.changes.mig_mode import LeftMigModeKind, MigModeOffKind, ModeSwitch
from nvdra_gpu_plugin.claims.changes.mps_daemon import MpsDaemonKind
from nvdra_gpu_plugin.claims.changes.time_slice import TimeSliceKind
from nvdra_gpu_plugin.claims.changes.vfio_binding import VfioBindingKind
from nvdra_gpu_plugin.devices.claim_index import GpuClaimIndex
from nvdra_gpu_plugin.devices.claim_records import GpuClaimRecord
from nvdra_gpu_plugin.devices.steps import (
    BindVfio,
    DisableMigMode,
    LeaveMigMode,
    MakeMigDevice,
    SetComputeMode,
    ShareByMps,
    ShareByTime,
)
from nvdra_gpu_plugin.hardware.gpu_changes import GpuChanges
from nvdra_gpu_plugin.hardware.mode_refusals import ModeRefusals
from nvdra_gpu_plugin.mps.daemons import MpsDaemons


class ChangeKinds:
    """The kind of each change."""

    def __init__(
        self,
        host: Host,
        gpus: GpuChanges,
        refusals: ModeRefusals,
        claims: GpuClaimIndex,
        boot_id: str,
        daemons: MpsDaemons,
        vfio: VfioBindingKind,
        *,
        keeps_mig_mode: bool,
    ) -> None:
        """Create them without any effect.

        Args:
            host: The node's files.
            gpus: Changes GPUs.
            refusals: Takes note of GPUs whose MIG mode cannot be switched.
            claims: The claims of the node.
            boot_id: ID of the current boot.
            daemons: Starts and stops MPS control daemons.
            vfio: Binds GPUs to vfio.
            keeps_mig_mode: Whether a GPU that was switched to MIG mode stays in it without claims.
        """
        switch = ModeSwitch(gpus, refusals)
        self._kinds: Final[dict[type[Change], ChangeKind[GpuClaimRecord, Any]]] = {
            MakeMigDevice: MigDeviceKind(gpus, switch, claims, boot_id, keeps_mode=keeps_mig_mode),
            DisableMigMode: MigModeOffKind(gpus, switch),
            LeaveMigMode: LeftMigModeKind(switch),
            BindVfio: vfio,
            ShareByTime: TimeSliceKind(gpus, claims, boot_id, host),
            SetComputeMode: ComputeModeKind(gpus),
            ShareByMps: MpsDaemonKind(daemons),
        }

    def __call__(self, change: Change) -> ChangeKind[GpuClaimRecord, Any]:
        """The kind that carries out a change."""
        return self._kinds[type(change)]
