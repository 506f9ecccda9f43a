"""What a prepared claim holds: the record's content, and its JSON in the state store.

The store keeps a record's claim, state and boot id; what is written here is ours alone. Fields are
only ever added, with a default: an older record must stay readable.
"""

from collections.abc import Iterable

from nvdra_api.types.claims import ClaimRef
from nvdra_api.types.ids import ClaimUID, DeviceName, GpuUUID, PciAddress, PodUID, PoolName
from pydantic import BaseModel, ConfigDict


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True)


class HeldDevice(_Frozen):
    """One allocated device of a prepared claim, and what the kubelet was told about it."""

    request: str
    """Base request name: what the kubelet matches containers by."""
    pool: PoolName
    device: DeviceName
    pci: PciAddress
    uuid: GpuUUID
    """Empty, like the address, in a record that was rebuilt while the board was not there."""
    kind: str = "gpu"
    is_admin: bool = False
    """Monitoring access: it excludes nobody and is excluded by nobody."""
    share_id: str | None = None
    cdi_id: str


class Holding(_Frozen):
    """A claim that is prepared on this node."""

    namespace: str
    name: str
    uid: ClaimUID
    generation: str
    """The CDI spec that the devices were named from; kept while a record names it."""
    pods: tuple[PodUID, ...] = ()
    """Pods the claim was reserved for when it was prepared."""
    pod_names: tuple[str, ...] = ()
    """Their names, in the same order, in the claim's namespace; for people."""
    devices: tuple[HeldDevice, ...]

    @property
    def kind(self) -> str:
        """Kind of its devices, for telemetry: `gpu`."""
        return self.devices[0].kind if self.devices else ""

    @property
    def ref(self) -> ClaimRef:
        """The claim, as logs and answers name it."""
        return ClaimRef(self.namespace, self.name, self.uid)


def generations(holdings: Iterable[Holding]) -> frozenset[str]:
    """The CDI specs that somebody still stands on."""
    return frozenset(holding.generation for holding in holdings)
