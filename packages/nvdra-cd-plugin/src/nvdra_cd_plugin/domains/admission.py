# SPDX-License-Identifier: Apache-2.0
"""Rules about which claim may get a channel or a daemon's device of a ComputeDomain.

Pure: what the API server returned is an argument.
Source: docs/reference/compute-domain.md, "Prepare and unprepare", "Security" (KW-50 to KW-52).
"""

from collections.abc import Collection

from nvdra_api import names
from nvdra_api.errors import PermanentError, Reason
from nvdra_api.ids import DomainUID, NodeName
from nvdra_api.meta import JsonObject
from nvdra_api.resource.claims import ClaimRef
from nvdra_api.v1beta1.compute_domain import AllocationMode

from nvdra_cd_plugin.domains.domain import Domain


def check_channel_namespace(claim: ClaimRef, domain: Domain) -> None:
    """Refuse a workload's claim that is not in the domain's own namespace.

    Raises:
        PermanentError: `NamespaceMismatch`.
    """
    if claim.namespace != domain.namespace:
        # The message does not name the domain: it belongs to another tenant.
        raise PermanentError(
            Reason.NAMESPACE_MISMATCH,
            f"claim {claim} asks for a channel of ComputeDomain {domain.uid}, which is not in "
            f"namespace {claim.namespace}",
            "use the claim template that the domain names, in the domain's own namespace",
            claim=str(claim),
            domain=domain.uid,
        )


def channel_count(domain: Domain, requested: str, available: int) -> int:
    """How many channels a claim gets: every one if domain and claim both say so, else one."""
    return available if domain.allows_all_channels and requested == AllocationMode.ALL else 1


def check_daemon_namespace(claim: ClaimRef, managed: Collection[str]) -> None:
    """Refuse a daemon's claim outside the namespaces in which daemons run.

    Raises:
        PermanentError: `NamespaceMismatch`.
    """
    if claim.namespace not in managed:
        raise PermanentError(
            Reason.NAMESPACE_MISMATCH,
            f"claim {claim} is of class {names.DAEMON_CLASS}, which is only for daemons in "
            f"{', '.join(sorted(managed))}",
            f"a workload claims a channel: use class {names.CHANNEL_CLASS}, by the claim template "
            "that its ComputeDomain names",
            claim=str(claim),
        )


def check_daemon_pod(
    claim: ClaimRef, uid: DomainUID, pod: JsonObject | None, node: NodeName
) -> None:
    """Refuse a daemon's claim unless its domain's own daemon pod on this node uses it.

    Args:
        claim: The daemon's claim.
        uid: The domain that the claim names.
        pod: The pod that the claim is reserved for, as the API server returned it; None if there
            is no such pod.
        node: This node.

    Raises:
        PermanentError: `NotADaemon`.
    """
    problem = _pod_problem(uid, pod, node)
    if problem:
        raise PermanentError(
            Reason.NOT_A_DAEMON,
            f"claim {claim} is for the daemon of ComputeDomain {uid} on {node}, and {problem}",
            "only pods of the domain's own DaemonSet, which the controller makes, may have it; "
            "delete the pod",
            claim=str(claim),
            domain=uid,
        )


def _pod_problem(uid: DomainUID, pod: JsonObject | None, node: NodeName) -> str:
    """Why the pod is not the domain's daemon on this node; empty if it is."""
    if pod is None:
        return "no pod that is there uses it"
    metadata, name = pod["metadata"], f"pod {pod['metadata']['name']}"
    expected = names.daemon_name(uid)
    owners: list[JsonObject] = metadata.get("ownerReferences") or []
    owner: JsonObject = next((each for each in owners if each.get("controller")), {})
    if owner.get("kind") != "DaemonSet" or owner.get("name") != expected:
        return f"{name}, which uses it, is not of DaemonSet {expected}"
    if (metadata.get("labels") or {}).get(names.DOMAIN_LABEL) != uid:
        return f"{name}, which uses it, does not have the domain's label"
    if (pod.get("spec") or {}).get("nodeName") != node:
        return f"{name}, which uses it, is not on this node"
    return ""
