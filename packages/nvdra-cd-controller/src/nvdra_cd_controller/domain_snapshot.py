# SPDX-License-Identifier: Apache-2.0
"""A snapshot of one domain: the objects that the API server holds of it at one moment.

These are values only. `informers` takes them from its caches; `children` and `status` compute what
is written back.
"""

from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

from nvdra_api.ids import DomainUID, NodeName
from nvdra_api.meta import JsonObject
from nvdra_api.v1beta1 import ComputeDomain, ComputeDomainClique
from nvdra_runtime.computedomain.daemon_pods import DaemonPod

Kind = Literal["ResourceClaimTemplate", "DaemonSet", "NetworkPolicy"]
TEMPLATE: Final = "ResourceClaimTemplate"


class Child(NamedTuple):
    """One object that the controller creates for a domain."""

    kind: Kind
    object: JsonObject

    def __str__(self) -> str:
        """The child as people are told of it: `DaemonSet nvdra/computedomain-daemon-…`."""
        return f"{self.kind} {self.namespace}/{self.name}"

    @property
    def name(self) -> str:
        """The object's name."""
        return str(self.object["metadata"]["name"])

    @property
    def namespace(self) -> str:
        """The object's namespace."""
        return str(self.object["metadata"]["namespace"])

    @property
    def is_terminating(self) -> bool:
        """Whether the object is being deleted."""
        return bool(self.object["metadata"].get("deletionTimestamp"))

    @property
    def finalizers(self) -> tuple[str, ...]:
        """The finalizers that delay the object's deletion."""
        return tuple(self.object["metadata"].get("finalizers") or ())


@dataclass(frozen=True, slots=True)
class DomainSnapshot:
    """One domain and the objects that carry its UID.

    Attributes:
        uid: UID of the domain.
        domain: The domain; None if it is deleted.
        stored: The domain as JSON, on which a status update is based.
        daemonsets: Its DaemonSets in all managed namespaces.
        daemon_templates: Its daemons' claim templates in all managed namespaces.
        workload_templates: Its workload's claim templates, usually one, in the domain's namespace.
        network_policies: Those of its daemons, in all managed namespaces.
        cliques: Its cliques in all managed namespaces.
        clique_objects: The same as JSON, on which writes of them are based.
        has_unread_cliques: Whether there are more, as a daemon's token can make any number.
        pods: The pods of its DaemonSets.
        nodes: The nodes that carry its label.
    """

    uid: DomainUID
    domain: ComputeDomain | None = None
    stored: JsonObject = field(default_factory=dict)
    daemonsets: tuple[Child, ...] = ()
    daemon_templates: tuple[Child, ...] = ()
    workload_templates: tuple[Child, ...] = ()
    network_policies: tuple[Child, ...] = ()
    cliques: tuple[ComputeDomainClique, ...] = ()
    clique_objects: tuple[JsonObject, ...] = ()
    has_unread_cliques: bool = False
    pods: tuple[DaemonPod, ...] = ()
    nodes: tuple[NodeName, ...] = ()

    @property
    def children(self) -> tuple[Child, ...]:
        """All children, the workload's templates first."""
        return (
            *self.workload_templates,
            *self.daemon_templates,
            *self.daemonsets,
            *self.network_policies,
        )

    @property
    def is_terminating(self) -> bool:
        """Whether the domain is being deleted, or is deleted already."""
        return self.domain is None or self.domain.metadata.deletion_timestamp is not None
