# SPDX-License-Identifier: Apache-2.0
"""Records of prepared GPU claims, as they are written to the state file.

Fields are only added, with a default, so that older records can still be read.
"""

from collections.abc import Sequence
from typing import Final, Self

from nvdra_api import names
from nvdra_api.ids import DeviceUUID, GpuUUID, MigUUID, PciAddress
from nvdra_api.meta import JsonObject
from nvdra_api.v1beta1.sharing import Interval
from nvdra_runtime.claims.records import Change, ChangingRecord, DeviceRecord
from pydantic import BaseModel, ConfigDict

from nvdra_gpu_plugin.devices.steps import (
    BindVfio,
    LeaveMigMode,
    MakeMigDevice,
    ShareByMps,
    ShareByTime,
    Step,
)

MPS_SUFFIX: Final = "-mps"
"""Of the CDI name of what clients of an MPS daemon get."""


class ClaimMetadataRecord(BaseModel):
    """What the device metadata files of a claim say, apart from its devices."""

    model_config = ConfigDict(frozen=True)

    pod_claim_name: str = ""
    """The claim's name in the pod, if the claim was made from a template."""
    generation: int = 1
    """It grows whenever the files say something else."""


class DeviceMetadataRecord(BaseModel):
    """What the device metadata file of a request says of one device."""

    model_config = ConfigDict(frozen=True)

    request: str
    """The request as in the allocation, with the subrequest: `main` or `main/sub`."""
    attributes: dict[str, JsonObject] = {}
    """As in a ResourceSlice of the v1 API: `{"productName": {"string": "NVIDIA H100"}}`. The UUID
    of a MIG device that is made for the claim is the record's."""
    cdi_id: str = ""
    """The CDI name that mounts the request's file, on the first device of each request."""


class GpuDeviceRecord(DeviceRecord):
    """One allocated GPU, or MIG device of a GPU, of a prepared claim."""

    pci: PciAddress
    """Of the GPU."""
    uuid: DeviceUUID
    """Like the PCI address, empty in a record that was recovered while the GPU was missing. A GPU
    that is missing after a reboot has no PCI address. Of a MIG device that is made for the claim,
    empty until it is made."""
    kind: str = "gpu"
    """`gpu`, `mig` or `vfio`."""
    parent_uuid: GpuUUID = GpuUUID("")
    """The GPU of a MIG device; empty as the UUID is, and for a whole GPU. Of a vfio device, empty
    if NVML has not described the GPU in this boot."""
    profile: str = ""
    """The profile of a MIG device, such as `1g.5gb`. It tells whether a device with its UUID is
    still the same: NVML derives the UUID from the place on the GPU."""
    memory_slices: tuple[int, int] | None = None
    """First one and number of those of a MIG device that is made for the claim; None for a device
    that exists anyway."""
    is_admin: bool = False
    """Admin access excludes no claim and no claim excludes it."""
    is_shared: bool = False
    """Whether it is a share of the device, which other claims may have shares of, too."""
    cdi_id: str
    mps_cdi_id: str = ""
    """What clients of an MPS daemon get beside the device; empty without one."""
    metadata: DeviceMetadataRecord | None = None
    """None without the gate `DeviceMetadata`."""

    @property
    def wait_key(self) -> str:
        """Claims that wait for the same key get the device in the order in which they came.

        That of a whole GPU is its PCI address: a claim that waits for a MIG device does not wait
        behind claims of other MIG devices of the same GPU.
        """
        if self.is_made:
            return self.device
        return self.uuid if self.kind == "mig" else self.pci

    @property
    def is_made(self) -> bool:
        """Whether it is a MIG device that is made for the claim, and destroyed with it."""
        return self.memory_slices is not None

    @property
    def is_vfio(self) -> bool:
        """Whether it is a GPU that is bound to vfio for the claim, and given back with it."""
        return self.kind == "vfio"

    @property
    def is_of_change(self) -> bool:
        """Whether it is there by a change of the claim, and in a CDI spec of the claim's own."""
        return self.is_made or self.is_vfio

    @property
    def gpu_uuid(self) -> GpuUUID:
        """The GPU that it is, or is a part of; empty if it is not known."""
        if self.is_vfio:
            return self.parent_uuid
        return self.parent_uuid or GpuUUID(self.uuid)

    @property
    def display_name(self) -> str:
        """The device's name, and whether the claim has admin access or a share."""
        if self.is_admin:
            return f"{self.device} (admin)"
        return f"{self.device} (share)" if self.is_shared else self.device

    @property
    def cdi_ids(self) -> tuple[str, ...]:
        """The qualified CDI names: of the device, its MPS daemon, and its request's metadata."""
        mounted = "" if self.metadata is None else self.metadata.cdi_id
        return (self.cdi_id, *filter(None, (self.mps_cdi_id, mounted)))


class GpuClaimRecord(ChangingRecord):
    """A prepared claim of GPUs."""

    generation: str
    """Generation of the CDI spec that the devices' names refer to: the driver's version, or a hash
    in records of releases up to 0.1.0. Empty in a record that was recovered from the kubelet's
    checkpoint when no spec had its names."""
    devices: tuple[GpuDeviceRecord, ...]
    steps: tuple[Step, ...] = ()
    """What preparing the claim does to hardware, in this order."""
    metadata: ClaimMetadataRecord | None = None
    """None if the claim has no device metadata files."""

    @property
    def is_foreign(self) -> bool:
        """Whether the reference driver prepared it, with a CDI spec for the claim alone."""
        kind = f"{names.GPU_CDI_CLAIM_KIND}="
        return any(device.cdi_id.startswith(kind) for device in self.devices)

    @property
    def has_all_gpus(self) -> bool:
        """Whether all its GPUs were on the node when the record was written."""
        return all((device.is_vfio or device.gpu_uuid) and device.pci for device in self.devices)

    @property
    def made(self) -> tuple[MakeMigDevice, ...]:
        """The MIG devices that are made for it."""
        return tuple(step for step in self.steps if isinstance(step, MakeMigDevice))

    @property
    def left_modes(self) -> tuple[LeaveMigMode, ...]:
        """The GPUs whose MIG mode it has left on, when all else is undone."""
        return tuple(step for step in self.steps if isinstance(step, LeaveMigMode))

    @property
    def bound(self) -> tuple[BindVfio, ...]:
        """The GPUs that are bound to vfio for it."""
        return tuple(step for step in self.steps if isinstance(step, BindVfio))

    @property
    def daemons(self) -> tuple[ShareByMps, ...]:
        """The MPS daemons that run for it."""
        return tuple(step for step in self.steps if isinstance(step, ShareByMps))

    def time_slice(self, gpu: GpuUUID) -> Interval | None:
        """The time slice that is set on a GPU for it; None if it does not change it."""
        step = self.time_sharing(gpu)
        return None if step is None else step.interval

    def time_sharing(self, gpu: GpuUUID) -> ShareByTime | None:
        """The step that lets processes take turns on a GPU; None if it has none."""
        found = (step for step in self.steps if isinstance(step, ShareByTime))
        return next((each for each in found if each.gpu == gpu), None)

    @property
    def has_own_spec(self) -> bool:
        """Whether devices of it are in a CDI spec of its own."""
        return bool(self.made or self.bound or self.daemons) and not self.is_foreign

    def uuids_of(self, step: ShareByMps) -> tuple[DeviceUUID, ...]:
        """The UUIDs of the devices that share a daemon, sorted; those that are not made are not."""
        found = {device.uuid for device in self.devices if device.device in step.devices}
        return tuple(sorted(uuid for uuid in found if uuid))

    def left_mode(self, step: MakeMigDevice) -> LeaveMigMode:
        """What is left to undo of a step when its MIG device is gone and the mode is on."""
        pci = next(device.pci for device in self.devices if device.device == step.device)
        return LeaveMigMode(gpu=step.gpu, device=step.device, pci=pci)

    def ended(self, left: Sequence[Change]) -> Self:
        """The record of the claim, which has ended, when only these changes are left to undo."""
        return super().ended(left).model_copy(update={"metadata": None})

    def with_steps(self, steps: Sequence[Change]) -> Self:
        """The record after steps were done or undone: its devices have the UUIDs of what exists."""
        uuids = {
            step.device: step.made.uuid if step.made else MigUUID("")
            for step in steps
            if isinstance(step, MakeMigDevice)
        }
        devices = tuple(
            device.model_copy(update={"uuid": uuids[device.device]})
            if device.is_made and device.device in uuids
            else device
            for device in self.devices
        )
        return self.model_copy(update={"steps": tuple(steps), "devices": devices})
