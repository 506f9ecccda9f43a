"""What a claim of GPUs holds: the record's content, and its JSON in the state store.

The store keeps a record's claim, state and boot id; what is written here is ours alone. Fields are
only ever added, with a default: an older record must stay readable.
"""

from collections.abc import Iterable

from nvdra_api.types.holdings import HeldDevice, Holding
from nvdra_api.types.ids import GpuUUID, PciAddress


class HeldGpu(HeldDevice):
    """One allocated GPU of a prepared claim."""

    pci: PciAddress
    uuid: GpuUUID
    """Empty, like the address, in a record that was rebuilt while the board was not there."""
    kind: str = "gpu"
    is_admin: bool = False
    """Monitoring access: it excludes nobody and is excluded by nobody."""
    cdi_id: str

    @property
    def label(self) -> str:
        """Its name, and whether it is for monitoring."""
        return f"{self.device} (admin)" if self.is_admin else self.device

    @property
    def cdi_ids(self) -> tuple[str, ...]:
        """What the container runtime is asked for: one name."""
        return (self.cdi_id,)


class GpuHolding(Holding):
    """A claim of GPUs that is prepared on this node."""

    generation: str
    """The CDI spec that the devices were named from; kept while a record names it."""
    devices: tuple[HeldGpu, ...]


def generations(holdings: Iterable[GpuHolding]) -> frozenset[str]:
    """The CDI specs that somebody still stands on."""
    return frozenset(holding.generation for holding in holdings)
