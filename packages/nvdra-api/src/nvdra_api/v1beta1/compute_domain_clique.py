# SPDX-License-Identifier: Apache-2.0
"""ComputeDomainClique: the IMEX daemons of one ComputeDomain in one NVLink clique.

The daemons write this object to find each other. Users do not create it.
Source: docs/reference/compute-domain.md, "ComputeDomainClique".
"""

from pydantic import Field

from nvdra_api.ids import CliqueID, NodeName, PodUID
from nvdra_api.meta import ApiModel, ObjectMeta
from nvdra_api.names import CLIQUE_KIND, NVIDIA_API_VERSION
from nvdra_api.v1beta1.compute_domain import NO_CLIQUE, Readiness


class ComputeDomainDaemonInfo(ApiModel):
    """One daemon of a clique (`daemons[]`). Each daemon writes its own entry."""

    node_name: NodeName
    ip_address: str = Field(
        default="",
        description="IP address of the daemon's pod, where its peers reach it.",
        json_schema_extra={"required": True},
    )
    clique_id: CliqueID = Field(
        default=NO_CLIQUE, alias="cliqueID", json_schema_extra={"required": True}
    )
    index: int = Field(
        default=0,
        description="Index of the daemon, unique in the clique. Its DNS name is made from it.",
        json_schema_extra={"minimum": 0},
    )
    status: str = Field(
        default=Readiness.NOT_READY,
        description="What nvidia-imex last reported to its daemon.",
        json_schema_extra={"enum": [Readiness.READY, Readiness.NOT_READY]},
    )
    pod_uid: PodUID | None = Field(
        default=None,
        alias="podUID",
        description="UID of the pod that wrote the entry. Unset in an entry of the reference "
        "driver's daemon.",
        json_schema_extra={"maxLength": 128},
    )
    message: str | None = Field(
        default=None,
        description="What the daemon is waiting for, in one line. Unset when it is ready.",
        json_schema_extra={"maxLength": 1024},
    )


class ComputeDomainClique(ApiModel):
    """A ComputeDomainClique as the API server returns it."""

    api_version: str = NVIDIA_API_VERSION
    kind: str = CLIQUE_KIND
    metadata: ObjectMeta
    daemons: tuple[ComputeDomainDaemonInfo, ...] = Field(
        default=(), json_schema_extra={"maxItems": 1024}
    )
