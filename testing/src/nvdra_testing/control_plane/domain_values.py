# SPDX-License-Identifier: Apache-2.0
"""Typed values for unit tests of ComputeDomains: a domain, clique entries, pods, child config."""

from typing import Any

from nvdra_api.gates import FeatureGates
from nvdra_api.ids import CliqueID, DomainUID, NodeName, PodUID
from nvdra_api.v1beta1 import ComputeDomain, ComputeDomainClique
from nvdra_api.v1beta1.compute_domain_clique import ComputeDomainDaemonInfo
from nvdra_cd_controller.children import ChildConfig
from nvdra_runtime.computedomain.daemon_pods import DaemonPod

UID = DomainUID("11111111-2222-3333-4444-555555555555")
CLIQUE = CliqueID("2df84740-d3cb-b5ce-4e7e-98352b5a71b5.2")
OTHER_CLIQUE = CliqueID("2df84740-d3cb-b5ce-4e7e-98352b5a71b5.3")

CHILD_CONFIG = ChildConfig(
    namespace="nvdra",
    image="registry.example.com/daemon:1",
    pull_policy="",
    pull_secrets=(),
    priority_class="",
    resources={},
    verbosity=4,
    logging_format="text",
    max_nodes=18,
    gates=FeatureGates(),
    http_endpoint="",
    variables={},
    is_host_managed=False,
)


def domain_json(num_nodes: int = 0, **more: Any) -> dict[str, Any]:
    """The stored ComputeDomain `team-a/ring`, as JSON."""
    channel = {"resourceClaimTemplate": {"name": "ring-channel"}, "allocationMode": "Single"}
    return {
        "apiVersion": "resource.nvidia.com/v1beta1",
        "kind": "ComputeDomain",
        "metadata": {
            "name": "ring",
            "namespace": "team-a",
            "uid": UID,
            "resourceVersion": "7",
            "generation": 1,
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "finalizers": ["resource.nvidia.com/computeDomain"],
        },
        "spec": {"numNodes": num_nodes, "channel": channel},
        **more,
    }


def domain(num_nodes: int = 0, **more: Any) -> ComputeDomain:
    """The stored ComputeDomain `team-a/ring`, decoded."""
    return ComputeDomain.model_validate(domain_json(num_nodes, **more))


def address(node: str) -> str:
    """The address of a node's first daemon pod."""
    return f"10.4.0.{sum(node.encode()) % 250}"


def clique_entry(
    node: str, index: int, status: str = "Ready", clique: CliqueID = CLIQUE, **more: Any
) -> ComputeDomainDaemonInfo:
    """The entry of the daemon in a node's first pod; `pod_uid=None` for the reference driver's."""
    return ComputeDomainDaemonInfo(
        node_name=NodeName(node),
        ip_address=more.pop("ip_address", address(node)),
        clique_id=clique,
        index=index,
        status=status,
        **{"pod_uid": PodUID(f"pod-{node}"), **more},
    )


def clique(*entries: ComputeDomainDaemonInfo, name: CliqueID = CLIQUE) -> ComputeDomainClique:
    """A clique of the domain."""
    return ComputeDomainClique.model_validate(
        {"metadata": {"name": f"{UID}.{name}", "namespace": "nvdra"}, "daemons": entries}
    )


def daemon_pod(node: str, **more: Any) -> DaemonPod:
    """The first daemon pod of a node, running."""
    known = {
        "name": f"daemon-{node}",
        "namespace": "nvdra",
        "uid": PodUID(f"pod-{node}"),
        "domain": UID,
        "node": NodeName(node),
        "ip": address(node),
        "created": "2026-01-01T00:00:00Z",
        "is_ready": True,
    }
    return DaemonPod(**{**known, **more})
