"""Records of prepared GPU claims, as they are written to the state file.

Fields are only added, with a default, so that older records can still be read.
"""

from nvdra_api import names
from nvdra_api.ids import DeviceUUID, GpuUUID, PciAddress
from nvdra_runtime.claims.records import DeviceRecord, PreparedClaimRecord


class GpuDeviceRecord(DeviceRecord):
    """One allocated GPU, or MIG device of a GPU, of a prepared claim."""

    pci: PciAddress
    """Of the GPU."""
    uuid: DeviceUUID
    """Like the PCI address, empty in a record that was recovered while the GPU was missing. A GPU
    that is missing after a reboot has no PCI address."""
    kind: str = "gpu"
    """`gpu` or `mig`."""
    parent_uuid: GpuUUID = GpuUUID("")
    """The GPU of a MIG device; empty as the UUID is, and for a whole GPU."""
    profile: str = ""
    """The profile of a MIG device, such as `1g.5gb`. It tells whether a device with its UUID is
    still the same: NVML derives the UUID from the place on the GPU."""
    is_admin: bool = False
    """Admin access excludes nobody and is excluded by nobody."""
    cdi_id: str

    @property
    def wait_key(self) -> str:
        """Claims that wait for the same key get the device in the order in which they came.

        That of a whole GPU is its PCI address: who waits for a MIG device waits for nobody who
        waits for another one of the same GPU.
        """
        return self.uuid if self.kind == "mig" else self.pci

    @property
    def display_name(self) -> str:
        """The device's name, and whether the claim has admin access."""
        return f"{self.device} (admin)" if self.is_admin else self.device

    @property
    def cdi_ids(self) -> tuple[str, ...]:
        """The qualified CDI device names."""
        return (self.cdi_id,)


class GpuClaimRecord(PreparedClaimRecord):
    """A prepared claim of GPUs."""

    generation: str
    """Generation of the CDI spec that the devices' names refer to: the driver's version, or a hash
    in records of releases up to 0.1.0. Empty in a record that was recovered from the kubelet's
    checkpoint when no spec had its names."""
    devices: tuple[GpuDeviceRecord, ...]

    @property
    def is_foreign(self) -> bool:
        """Whether the reference driver prepared it, with a CDI spec for the claim alone."""
        kind = f"{names.GPU_CDI_CLAIM_KIND}="
        return any(device.cdi_id.startswith(kind) for device in self.devices)

    @property
    def has_all_gpus(self) -> bool:
        """Whether all its GPUs were on the node when the record was written."""
        return all(device.uuid and device.pci for device in self.devices)
