# SPDX-License-Identifier: Apache-2.0
"""ComputeDomain: nodes whose pods share GPU memory over Multi-Node NVLink.

The models read objects that the reference driver's controller wrote, so fields that this driver has
added are optional. `ComputeDomain.problems` validates what a user writes.
Source: docs/reference/compute-domain.md, "ComputeDomain".
"""

from collections.abc import Iterator
from enum import StrEnum
from typing import Final

from pydantic import Field

from nvdra_api.ids import CliqueID, DomainUID, NodeName
from nvdra_api.meta import ApiModel, Condition, JsonObject, ObjectMeta
from nvdra_api.names import (
    DOMAIN_KIND,
    MAX_NAME_LENGTH,
    NVIDIA_API_VERSION,
    is_dns_subdomain,
)
from nvdra_api.validation import Problem

NO_CLIQUE: Final = CliqueID("")
"""Clique ID of a node without NVLink fabric."""
NO_INDEX: Final = -1
"""Index of a node without NVLink fabric, which is not an IMEX peer of other nodes."""


class Readiness(StrEnum):
    """The status of a ComputeDomain, of its nodes and of the daemons in a clique."""

    READY = "Ready"
    NOT_READY = "NotReady"


class AllocationMode(StrEnum):
    """How many IMEX channels a workload's claim gets."""

    SINGLE = "Single"
    """One channel."""
    ALL = "All"
    """Every channel of the node."""


class ConditionType(StrEnum):
    """The conditions of a ComputeDomain. Wait for `Ready`; the others explain its value."""

    ACCEPTED = "Accepted"
    """Nothing in the domain or in the cluster prevents the driver from serving the domain."""
    CHILDREN_READY = "ChildrenReady"
    """The DaemonSet and both claim templates exist and are up to date."""
    READY = "Ready"
    """Every node is ready and there are at least `numNodes` nodes; the same as `status.status`."""
    DEGRADED = "Degraded"
    """An administrator has to act, although the domain may work."""


class ComputeDomainResourceClaimTemplate(ApiModel):
    """The claim template of the workload, which the controller creates."""

    name: str = Field(
        default="",
        description="Name of the ResourceClaimTemplate that is created in the domain's namespace, "
        "for pods to refer to.",
        json_schema_extra={"required": True, "minLength": 1, "maxLength": MAX_NAME_LENGTH},
    )


class ComputeDomainChannelSpec(ApiModel):
    """The IMEX channels that the claims of the workload get."""

    resource_claim_template: ComputeDomainResourceClaimTemplate = Field(
        default=ComputeDomainResourceClaimTemplate(), json_schema_extra={"required": True}
    )
    allocation_mode: str = Field(
        default=AllocationMode.SINGLE,
        description="Single is one channel, All every channel of the node.",
        json_schema_extra={"enum": [AllocationMode.ALL, AllocationMode.SINGLE]},
    )


class ComputeDomainSpec(ApiModel):
    """`spec` of a domain. It cannot be changed after the domain was created."""

    num_nodes: int = Field(
        default=0,
        description="How many nodes the domain must have before its status is Ready. 0 means any "
        "number. Deprecated.",
        json_schema_extra={"minimum": 0},
    )
    channel: ComputeDomainChannelSpec | None = Field(
        default=None, json_schema_extra={"required": True}
    )
    """None only in objects that were created with an older definition of the resource."""


class ComputeDomainNode(ApiModel):
    """One node of a domain (`status.nodes[]`), written by the controller."""

    name: NodeName
    ip_address: str = Field(
        default="",
        description="IP address of the pod of the node's IMEX daemon.",
        json_schema_extra={"required": True},
    )
    clique_id: CliqueID = Field(
        default=NO_CLIQUE,
        alias="cliqueID",
        description="NVLink clique of the node. Empty on a node without fabric.",
        json_schema_extra={"required": True},
    )
    index: int = Field(
        default=0,
        description="Index of the daemon in its clique. -1 on a node without fabric.",
    )
    status: str = Field(
        default=Readiness.NOT_READY,
        json_schema_extra={"enum": [Readiness.READY, Readiness.NOT_READY]},
    )


class ComputeDomainStatus(ApiModel):
    """`status` of a domain, written by the controller."""

    status: str = Field(
        default="",
        description="A summary for people. Empty until the controller has written it.",
        json_schema_extra={
            "required": True,
            "default": Readiness.NOT_READY,
            "enum": [Readiness.READY, Readiness.NOT_READY],
        },
    )
    nodes: tuple[ComputeDomainNode, ...] = Field(default=(), json_schema_extra={"maxItems": 2048})
    conditions: tuple[Condition, ...] = Field(default=(), json_schema_extra={"maxItems": 16})
    ready_nodes: int = Field(
        default=0, description="How many nodes are ready.", json_schema_extra={"minimum": 0}
    )
    expected_nodes: int = Field(
        default=0,
        description="How many nodes must be ready: the number of nodes or numNodes, whichever is "
        "greater.",
        json_schema_extra={"minimum": 0},
    )
    cliques: int = Field(
        default=0,
        description="How many NVLink cliques the nodes belong to.",
        json_schema_extra={"minimum": 0},
    )

    def condition(self, condition_type: ConditionType) -> Condition | None:
        """Return the condition of a type, or None if it was not written yet."""
        return next(
            (condition for condition in self.conditions if condition.type == condition_type), None
        )


class ComputeDomain(ApiModel):
    """A ComputeDomain as the API server returns it, or as a user creates it."""

    api_version: str = NVIDIA_API_VERSION
    kind: str = DOMAIN_KIND
    metadata: ObjectMeta
    spec: ComputeDomainSpec = Field(
        default=ComputeDomainSpec(), json_schema_extra={"required": True}
    )
    status: ComputeDomainStatus = ComputeDomainStatus()

    @property
    def uid(self) -> DomainUID:
        """The UID, which the labels of the domain's child objects and nodes refer to."""
        return DomainUID(self.metadata.uid)

    def problems(self) -> tuple[Problem, ...]:
        """Return what the API server would refuse in `metadata.name` and `spec`."""
        return tuple(self._problems())

    def to_manifest(self) -> JsonObject:
        """Return the JSON document, with the fields that were set."""
        body = self.model_dump(mode="json", by_alias=True, exclude_unset=True, exclude_none=True)
        return {"apiVersion": self.api_version, "kind": self.kind, **body}

    def _problems(self) -> Iterator[Problem]:
        if self.metadata.name or not self.metadata.generate_name:
            yield from _name_problems("metadata.name", self.metadata.name)
        if self.spec.num_nodes < 0:
            yield Problem(
                "spec.numNodes",
                f"Invalid value: {self.spec.num_nodes}: should be greater than or equal to 0",
            )
        channel = self.spec.channel
        if channel is None:
            yield Problem("spec.channel", "Required value")
            return
        template = channel.resource_claim_template.name
        yield from _name_problems("spec.channel.resourceClaimTemplate.name", template)
        if channel.allocation_mode not in tuple(AllocationMode):
            yield Problem(
                "spec.channel.allocationMode",
                f'Unsupported value: "{channel.allocation_mode}": supported values: '
                f'"{AllocationMode.ALL}", "{AllocationMode.SINGLE}"',
            )


def _name_problems(field: str, name: str) -> Iterator[Problem]:
    if not name:
        yield Problem(field, "Required value")
    elif len(name) > MAX_NAME_LENGTH:
        yield Problem(field, f"Too long: may not be more than {MAX_NAME_LENGTH} bytes")
    elif not is_dns_subdomain(name):
        yield Problem(
            field,
            f'Invalid value: "{name}": a lowercase RFC 1123 subdomain must consist of lower case '
            "alphanumeric characters, '-' or '.', and must start and end with an alphanumeric "
            "character",
        )
