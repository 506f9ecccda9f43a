"""Records of prepared GPU claims, as they are written to the state file.

Fields are only added, with a default, so that older records can still be read.
"""

from collections.abc import Iterable

from nvdra_api import names
from nvdra_api.ids import GpuUUID, PciAddress
from nvdra_runtime.claims.records import DeviceRecord, PreparedClaimRecord


class GpuDeviceRecord(DeviceRecord):
    """One allocated GPU of a prepared claim."""

    pci: PciAddress
    uuid: GpuUUID
    """Like the PCI address, empty in a record that was recovered while the GPU was missing."""
    kind: str = "gpu"
    is_admin: bool = False
    """Admin access excludes nobody and is excluded by nobody."""
    cdi_id: str

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
    """Generation of the CDI spec that the devices' names refer to."""
    devices: tuple[GpuDeviceRecord, ...]

    @property
    def is_foreign(self) -> bool:
        """Whether the reference driver prepared it, with a CDI spec for the claim alone."""
        kind = f"{names.GPU_CDI_CLAIM_KIND}="
        return any(device.cdi_id.startswith(kind) for device in self.devices)


def generations(records: Iterable[GpuClaimRecord]) -> frozenset[str]:
    """The generations of CDI specs that the records refer to."""
    return frozenset(record.generation for record in records)
