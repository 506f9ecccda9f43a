# SPDX-License-Identifier: Apache-2.0
"""What the plugin knows of a ComputeDomain: what never changes, and whether it is large."""

from dataclasses import dataclass
from typing import Final

from nvdra_api.ids import DomainUID
from nvdra_api.v1beta1 import ComputeDomain
from nvdra_api.v1beta1.compute_domain import AllocationMode
from nvdra_runtime.computedomain import domain_settings
from nvdra_runtime.computedomain.domain_settings import DomainSettings

MAX_MEMBERS_IN_ONE_TRACE: Final = 64
"""Of larger domains each member has a trace of its own. A member's first attempt has about ten
spans; backends take some thousands of one trace."""


@dataclass(frozen=True, slots=True)
class Domain:
    """The facts about one ComputeDomain; all but the last are immutable.

    Attributes:
        uid: Its UID.
        namespace: The namespace of the domain and of its workload's claims.
        name: The name of the object.
        allows_all_channels: Whether a workload may have every channel of a node.
        num_nodes: How many members IMEX waits for where it knows its peers by address.
        settings: What its daemons were made with; None if the domain does not say it.
        has_member_traces: Whether it had so many nodes when it was read that the spans of each are
            in a trace of their own.
    """

    uid: DomainUID
    namespace: str
    name: str
    allows_all_channels: bool = False
    num_nodes: int = 0
    settings: DomainSettings | None = None
    has_member_traces: bool = False

    def __str__(self) -> str:
        """`<namespace>/<name>`, as users know it."""
        return f"{self.namespace}/{self.name}"


def domain_of(obj: ComputeDomain) -> Domain:
    """The facts of the object."""
    channel, status = obj.spec.channel, obj.status
    members = max(obj.spec.num_nodes, status.expected_nodes, len(status.nodes))
    return Domain(
        uid=obj.uid,
        namespace=obj.metadata.namespace,
        name=obj.metadata.name,
        allows_all_channels=channel is not None and channel.allocation_mode == AllocationMode.ALL,
        num_nodes=obj.spec.num_nodes,
        # Without a UID it is believed here: the controller, which may be older, has written it.
        settings=domain_settings.from_annotations(
            obj.metadata.annotations, obj.uid, needs_uid=False
        ),
        has_member_traces=members > MAX_MEMBERS_IN_ONE_TRACE,
    )
