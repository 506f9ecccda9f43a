"""What the API server holds of one domain, at one moment.

Values only; `cluster` takes them from what is watched. Nothing in here is written back but what
`children` and `status` make of it.
"""

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from nvdra_api.protocol.apiversions import JsonObject
from nvdra_api.protocol.daemon_pods import DaemonPod
from nvdra_api.types.domains import ComputeDomain, ComputeDomainClique
from nvdra_api.types.ids import DomainUID, NodeName

Kind = Literal["ResourceClaimTemplate", "DaemonSet"]


class Child(NamedTuple):
    """One object that a domain was given."""

    kind: Kind
    object: JsonObject

    def __str__(self) -> str:
        """`DaemonSet nvdra/computedomain-daemon-…`, for people."""
        return f"{self.kind} {self.namespace}/{self.name}"

    @property
    def name(self) -> str:
        """Of the object."""
        return str(self.object["metadata"]["name"])

    @property
    def namespace(self) -> str:
        """Where it is."""
        return str(self.object["metadata"]["namespace"])

    @property
    def is_leaving(self) -> bool:
        """Is it being deleted?"""
        return bool(self.object["metadata"].get("deletionTimestamp"))

    @property
    def finalizers(self) -> tuple[str, ...]:
        """What keeps it from going."""
        return tuple(self.object["metadata"].get("finalizers") or ())


@dataclass(frozen=True, slots=True)
class View:
    """One domain and what carries its UID.

    Attributes:
        uid: Of the domain.
        domain: None once it is gone.
        stored: The domain as JSON, to write its status over.
        daemonsets: In all managed namespaces.
        daemon_templates: Likewise.
        workload_templates: Usually one, in the domain's namespace.
        cliques: In all managed namespaces.
        pods: Of its DaemonSets.
        nodes: Those that carry its label.
    """

    uid: DomainUID
    domain: ComputeDomain | None = None
    stored: JsonObject = field(default_factory=dict)
    daemonsets: tuple[Child, ...] = ()
    daemon_templates: tuple[Child, ...] = ()
    workload_templates: tuple[Child, ...] = ()
    cliques: tuple[ComputeDomainClique, ...] = ()
    pods: tuple[DaemonPod, ...] = ()
    nodes: tuple[NodeName, ...] = ()

    @property
    def children(self) -> tuple[Child, ...]:
        """All three kinds, the workload's template first."""
        return (*self.workload_templates, *self.daemon_templates, *self.daemonsets)

    @property
    def is_leaving(self) -> bool:
        """Is the domain being deleted, or gone?"""
        return self.domain is None or self.domain.metadata.deletion_timestamp is not None
