"""ComputeDomain and ComputeDomainClique, as far as we read them (resource.nvidia.com/v1beta1).

What exists and what its fields mean; who writes which field is said with it. Conditions, counters
and what a clique's entry says beyond the reference's are optional everywhere: objects that the
reference driver wrote are read as well. Source: spec/compute-domain.md §§3.1, 3.2.
"""

from datetime import datetime
from enum import StrEnum
from typing import Final, Literal

from pydantic import Field

from nvdra_api.types.ids import CliqueID, DomainUID, NodeName, PodUID
from nvdra_api.types.meta import ApiModel, ObjectMeta

NO_CLIQUE: Final = CliqueID("")
"""Clique ID of a node that has no NVLink fabric."""
NO_INDEX: Final = -1
"""Index of a node that has no NVLink fabric: it has no place among IMEX's peers."""


class Readiness(StrEnum):
    """What a domain, a node of it and a daemon in a clique can be."""

    READY = "Ready"
    NOT_READY = "NotReady"


class AllocationMode(StrEnum):
    """How many IMEX channels a workload's claim gets."""

    SINGLE = "Single"
    ALL = "All"


class ConditionType(StrEnum):
    """The conditions of a domain; `Ready` is the one to wait for, the others say why not."""

    ACCEPTED = "Accepted"
    """The domain can be served: nothing in it or around it forbids that."""
    CHILDREN_READY = "ChildrenReady"
    """The DaemonSet and both claim templates are there, as they should be."""
    READY = "Ready"
    """Every member works, and there are as many as `numNodes` asks for; equals `status.status`."""
    DEGRADED = "Degraded"
    """Something needs a person although the domain may work."""


class Condition(ApiModel):
    """One entry of `status.conditions`, the shape of every Kubernetes condition."""

    type: str
    status: Literal["True", "False", "Unknown"]
    reason: str = ""
    message: str = ""
    last_transition_time: datetime | None = None
    observed_generation: int = 0


class ClaimTemplateRef(ApiModel):
    """Names the template that the controller makes for the workload's claims."""

    name: str = ""


class DomainChannel(ApiModel):
    """`spec.channel`: what a workload of the domain gets."""

    resource_claim_template: ClaimTemplateRef = ClaimTemplateRef()
    allocation_mode: str = AllocationMode.SINGLE


class ComputeDomainSpec(ApiModel):
    """`spec` of a domain; it cannot be changed after creation."""

    num_nodes: int = 0
    """How many nodes must be members before the domain is Ready; 0 means whoever comes."""
    channel: DomainChannel | None = None
    """None only in an object that the reference's CRD let through without a spec."""


class DomainNode(ApiModel):
    """One member (`status.nodes[]`), written by the controller."""

    name: NodeName
    ip_address: str = ""
    """IP of the daemon's pod, not of the node."""
    clique_id: CliqueID = Field(default=NO_CLIQUE, alias="cliqueID")
    index: int = 0
    """Place among the peers of its clique; `NO_INDEX` without fabric."""
    status: str = Readiness.NOT_READY


class ComputeDomainStatus(ApiModel):
    """`status` of a domain, written by the controller alone."""

    status: str = ""
    """A `Readiness`, or empty while nobody has written it."""
    nodes: tuple[DomainNode, ...] = ()
    conditions: tuple[Condition, ...] = ()
    ready_nodes: int = 0
    """How many of `nodes` are Ready."""
    expected_nodes: int = 0
    """How many must be: the members, or `numNodes` where that is more."""
    cliques: int = 0
    """Over how many NVLink cliques the members are spread."""

    def condition(self, kind: ConditionType) -> Condition | None:
        """The condition of that type, if it was ever written."""
        return next((found for found in self.conditions if found.type == kind), None)


class ComputeDomain(ApiModel):
    """A ComputeDomain as the API server returned it."""

    metadata: ObjectMeta
    spec: ComputeDomainSpec = ComputeDomainSpec()
    status: ComputeDomainStatus = ComputeDomainStatus()

    @property
    def uid(self) -> DomainUID:
        """What its children, nodes and cliques are labelled with."""
        return DomainUID(self.metadata.uid)


class CliqueDaemon(ApiModel):
    """One daemon in a clique (`daemons[]`), written by that daemon alone."""

    node_name: NodeName
    ip_address: str = ""
    """IP of the daemon's pod, where its peers reach it."""
    clique_id: CliqueID = Field(default=NO_CLIQUE, alias="cliqueID")
    index: int = 0
    """Its place, 0 to max-1, unique in the clique: its DNS name is made from it."""
    status: str = Readiness.NOT_READY
    """A `Readiness`: what the daemon last heard from its own IMEX."""
    pod_uid: PodUID | None = Field(default=None, alias="podUID")
    """Which incarnation speaks; None in an entry of the reference's daemon."""
    message: str | None = None
    """What the daemon still lacks, one line for people; None when Ready."""


class ComputeDomainClique(ApiModel):
    """A ComputeDomainClique as the API server returned it."""

    metadata: ObjectMeta
    daemons: tuple[CliqueDaemon, ...] = ()
