"""What a claim of ours holds: a channel, from the moment its node is labelled, or a daemon's place.

The record's content, and its JSON in the state store. Fields are only ever added, with a default:
an older record must stay readable.
"""

from nvdra_api.types import holdings
from nvdra_api.types.domains import NO_CLIQUE
from nvdra_api.types.ids import CliqueID, DomainUID

from nvdra_cd_plugin import layout
from nvdra_cd_plugin.membership import Domain


class HeldDevice(holdings.HeldDevice):
    """The allocated channel or daemon of a claim."""

    cdi_names: tuple[str, ...] = ()
    """None of a channel that is waited for, and of one on a node without fabric."""

    @property
    def cdi_ids(self) -> tuple[str, ...]:
        """What the container runtime is asked for."""
        return self.cdi_names


class DomainHolding(holdings.Holding):
    """A claim of a ComputeDomain on this node."""

    domain: DomainUID
    """Empty in a record that was rebuilt for a claim that is gone."""
    domain_namespace: str = ""
    domain_name: str = ""
    is_joining: bool = False
    """The channel is not given yet: the node's own daemon is waited for. The claim is held all the
    same, because the node is labelled for it."""
    mode: str = ""
    """How many channels the claim asked for: an `AllocationMode`."""
    channels: int = 0
    """How many it was given, from the allocated one on; 0 for a daemon and without fabric."""
    clique: CliqueID = NO_CLIQUE
    """The node's, when the claim was prepared."""
    devices: tuple[HeldDevice, ...]

    @property
    def device(self) -> HeldDevice:
        """The one there is."""
        return self.devices[0]

    def of(self, domain: Domain) -> "DomainHolding":
        """The same, with what the domain is called."""
        return self.model_copy(
            update={"domain_namespace": domain.namespace, "domain_name": domain.name}
        )

    def given(self, clique: CliqueID, channels: int, cdi_names: tuple[str, ...]) -> "DomainHolding":
        """The same, once everything that the names stand for is there."""
        device = self.device.model_copy(update={"cdi_names": cdi_names})
        return self.model_copy(
            update={
                "is_joining": False,
                "clique": clique,
                "channels": channels,
                "devices": (device,),
            }
        )

    @property
    def is_channel(self) -> bool:
        """Whether it is a workload's."""
        return self.kind == layout.CHANNEL

    @property
    def first_channel(self) -> int:
        """Number of the allocated channel."""
        return layout.number(self.device.device, layout.CHANNEL) or 0
