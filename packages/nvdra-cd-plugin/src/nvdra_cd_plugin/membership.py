"""Who may have what of a ComputeDomain: which claim a channel, which pod a daemon's place.

Pure; what the API server holds is an argument. Source: spec/compute-domain.md §§7.7, 14.3 (KW-50
to KW-52).
"""

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from nvdra_api.protocol.apiversions import JsonObject
from nvdra_api.types import names
from nvdra_api.types.claims import ClaimRef
from nvdra_api.types.domains import AllocationMode, ComputeDomain
from nvdra_api.types.errors import PermanentError, Reason
from nvdra_api.types.ids import DomainUID, NodeName

_UID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@dataclass(frozen=True, slots=True)
class Domain:
    """What of a ComputeDomain cannot change.

    Attributes:
        uid: Its UID.
        namespace: Where its workload's claims are.
        name: Of the object.
        is_all: Whether a workload may have every channel of a node.
        num_nodes: How many members it waits for, where IMEX knows its peers by address.
    """

    uid: DomainUID
    namespace: str
    name: str
    is_all: bool = False
    num_nodes: int = 0

    def __str__(self) -> str:
        """`<namespace>/<name>`, as users know it."""
        return f"{self.namespace}/{self.name}"


def read(domain: ComputeDomain) -> Domain:
    """What of the object cannot change."""
    channel = domain.spec.channel
    return Domain(
        uid=domain.uid,
        namespace=domain.metadata.namespace,
        name=domain.metadata.name,
        is_all=channel is not None and channel.allocation_mode == AllocationMode.ALL,
        num_nodes=domain.spec.num_nodes,
    )


def is_uid(text: str) -> bool:
    """Whether it is a UID as the API server makes them: nothing else may become part of a path."""
    return _UID.fullmatch(text) is not None


def check_namespace(claim: ClaimRef, domain: Domain) -> None:
    """A workload's claim must be of the domain's own namespace.

    Raises:
        PermanentError: `NamespaceMismatch`.
    """
    if claim.namespace != domain.namespace:
        # The domain's name stays untold: it is another tenant's.
        raise PermanentError(
            Reason.NAMESPACE_MISMATCH,
            f"claim {claim} asks for a channel of ComputeDomain {domain.uid}, which is not in "
            f"namespace {claim.namespace}",
            "use the claim template that the domain names, in the domain's own namespace",
            claim=str(claim),
            domain=domain.uid,
        )


def channel_count(domain: Domain, asked: str, there_are: int) -> int:
    """How many channels a claim gets: what the domain allows, unless the claim asks for less."""
    return there_are if domain.is_all and asked == AllocationMode.ALL else 1


def check_managed(claim: ClaimRef, managed: Collection[str]) -> None:
    """A daemon's claim must be where daemons are.

    Raises:
        PermanentError: `NamespaceMismatch`.
    """
    if claim.namespace not in managed:
        raise PermanentError(
            Reason.NAMESPACE_MISMATCH,
            f"claim {claim} is of class {names.DAEMON_CLASS}, which is for daemons in "
            f"{', '.join(sorted(managed))} alone",
            f"a workload claims a channel: use class {names.CHANNEL_CLASS}, by the claim template "
            "that its ComputeDomain names",
            claim=str(claim),
        )


def check_pod(claim: ClaimRef, uid: DomainUID, pod: JsonObject | None, node: NodeName) -> None:
    """A daemon's claim must be used by its domain's own daemon pod on this node.

    Args:
        claim: The daemon's claim.
        uid: The domain that it names.
        pod: Who it is reserved for, as the API server has it; None where that is nobody.
        node: This node.

    Raises:
        PermanentError: `NotADaemon`.
    """
    problem = _stranger(uid, pod, node)
    if problem:
        raise PermanentError(
            Reason.NOT_A_DAEMON,
            f"claim {claim} is for the daemon of ComputeDomain {uid} on {node}, and {problem}",
            "only pods of the domain's own DaemonSet, which the controller makes, may have it; "
            "delete the pod",
            claim=str(claim),
            domain=uid,
        )


def _stranger(uid: DomainUID, pod: JsonObject | None, node: NodeName) -> str:
    """What is wrong with the pod; empty when nothing is."""
    if pod is None:
        return "no pod that is there uses it"
    metadata, name = pod["metadata"], f"pod {pod['metadata']['name']}"
    wanted = names.daemon_name(uid)
    owners: list[JsonObject] = metadata.get("ownerReferences") or []
    owner: JsonObject = next((each for each in owners if each.get("controller")), {})
    if owner.get("kind") != "DaemonSet" or owner.get("name") != wanted:
        return f"{name}, which uses it, is not of DaemonSet {wanted}"
    if (metadata.get("labels") or {}).get(names.DOMAIN_LABEL) != uid:
        return f"{name}, which uses it, is not labelled as the domain's"
    if (pod.get("spec") or {}).get("nodeName") != node:
        return f"{name}, which uses it, is not on this node"
    return ""
