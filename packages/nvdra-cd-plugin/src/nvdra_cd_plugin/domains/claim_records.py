# SPDX-License-Identifier: Apache-2.0
"""What is recorded about a prepared claim: its domain, its device, and what it was given.

A channel claim is recorded before its node is labelled, a daemon's claim when it has its files.
The state store keeps a record as the JSON of `DomainClaimRecord`. New fields need a default, so
that an older record stays readable.
"""

from nvdra_api.ids import CliqueID, DomainUID
from nvdra_api.v1beta1.compute_domain import NO_CLIQUE
from nvdra_runtime.claims import records
from nvdra_runtime.claims.records import Change, ChangingRecord
from pydantic import Field

from nvdra_cd_plugin.domains.domain import Domain
from nvdra_cd_plugin.node import device_names


class DomainDeviceRecord(records.DeviceRecord):
    """The allocated channel or daemon of a claim."""

    cdi_names: tuple[str, ...] = ()
    """Empty while a channel's claim waits for its daemon, and on a node without a fabric."""

    @property
    def cdi_ids(self) -> tuple[str, ...]:
        """The CDI names that the container runtime is asked for."""
        return self.cdi_names


class JoinDomain(Change):
    """The node is a member of the claim's domain, and its daemon is ready.

    The node's label is not undone with an attempt that fails: the domain would flap.
    """

    FOUND = frozenset({"clique", "allows_all_channels"})

    clique: CliqueID | None = None
    """The node's clique when its daemon was ready, in this boot; None until then."""
    allows_all_channels: bool = False
    """Whether the domain lets a claim have every channel of the node, as it was read then."""

    @property
    def place(self) -> str:
        """The node is in one domain at a time."""
        return "node"


class DomainClaimRecord(ChangingRecord):
    """A claim of a ComputeDomain on this node.

    Its change is not written: the kind of the claim and the mode of the plugin say it, and
    `is_joining` and the record's boot how far it is. So every release reads what another one wrote.
    """

    steps: tuple[JoinDomain, ...] = Field((), exclude=True)
    steps_boot: str = Field("", exclude=True)
    domain: DomainUID
    """Empty in a record that was recovered for a claim that no longer exists."""
    domain_namespace: str = ""
    """Of the record that is not stored yet, this and the name are what the claim's annotations say,
    which may be wrong."""
    domain_name: str = ""
    has_member_traces: bool = False
    """The domain was large when it was found: `Domain.has_member_traces`."""
    is_joining: bool = False
    """The claim waits for this node's daemon and has no channel yet. It is recorded nevertheless,
    because the node is labelled for it."""
    mode: str = ""
    """How many channels the claim asked for: an `AllocationMode`."""
    channels: int = 0
    """How many channels the claim was given, counted from the allocated one; 0 for a daemon and
    without a fabric."""
    clique: CliqueID = NO_CLIQUE
    """The node's clique when the claim was prepared."""
    devices: tuple[DomainDeviceRecord, ...]

    @property
    def device(self) -> DomainDeviceRecord:
        """The claim's only device."""
        return self.devices[0]

    def with_domain(self, domain: Domain) -> "DomainClaimRecord":
        """The same record with what the domain's object said."""
        return self.model_copy(
            update={
                "domain_namespace": domain.namespace,
                "domain_name": domain.name,
                "has_member_traces": domain.has_member_traces,
            }
        )

    def to_domain(self) -> Domain:
        """The domain as far as the record knows it."""
        return Domain(
            self.domain,
            self.domain_namespace,
            self.domain_name,
            allows_all_channels=any(step.allows_all_channels for step in self.steps),
            has_member_traces=self.has_member_traces,
        )

    def with_join(self, boot: str, *, has_joined: bool) -> "DomainClaimRecord":
        """The same record with its change, in this boot; `has_joined`: it has its channels."""
        clique = self.clique if has_joined else None
        step = JoinDomain(device=self.device.device, clique=clique)
        return self.model_copy(update={"steps": (step,), "steps_boot": boot})

    @property
    def is_waiting(self) -> bool:
        """Whether the claim gets its channels when its change is in force."""
        return any(step.clique is None for step in self.steps)

    def completed(
        self, clique: CliqueID, channels: int, cdi_names: tuple[str, ...]
    ) -> "DomainClaimRecord":
        """The same record after everything that the CDI names refer to has been written."""
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
        """Whether the claim is a workload's, for a channel."""
        return self.kind == device_names.CHANNEL

    @property
    def first_channel(self) -> int:
        """The number of the allocated channel."""
        return device_names.device_number(self.device.device, device_names.CHANNEL) or 0
