# SPDX-License-Identifier: Apache-2.0
"""Turns a claim and its config into the record that it will have, or refuses it with a reason.

Pure. Source: docs/reference/compute-domain.md, "Request handling", "Prepare and unprepare", "Races
and correctness" (KW-44), "Security" (KW-51).
"""

from collections.abc import Iterable, Mapping, Sequence

from nvdra_api.errors import PermanentError, Reason
from nvdra_api.ids import (
    ClaimUID,
    DeviceName,
    DomainUID,
    NodeName,
    PodUID,
    PoolName,
    is_uid,
)
from nvdra_api.resource.claims import ClaimRef, DeviceRequestAllocationResult, ResourceClaim
from nvdra_api.v1beta1 import ComputeDomainChannelConfig, ComputeDomainDaemonConfig, DeviceConfig
from nvdra_runtime.claims import records
from nvdra_runtime.claims.opaque_configs import ConfiguredResult
from nvdra_runtime.claims.records import DeviceInUseError
from nvdra_runtime.computedomain import claim_annotations

from nvdra_cd_plugin.domains.claim_records import DomainClaimRecord, DomainDeviceRecord
from nvdra_cd_plugin.node import device_names


class NodeInOtherDomainError(DeviceInUseError):
    """The node is a member of another domain. It leaves that one with its last claim."""

    def __init__(
        self, wanted: DomainClaimRecord, holder: DomainClaimRecord, node: NodeName
    ) -> None:
        device = wanted.device.device
        self._node = node
        self._domain = _domain_text(holder)
        self._domain_uid = holder.domain or "unknown"
        super().__init__(wanted.ref, device, holder, (device,), Reason.NODE_IN_OTHER_DOMAIN)

    @property
    def named_message(self) -> str:
        """The message with the other domain, its claim and pods."""
        holder = self.holder
        return (
            f"node {self._node} is a member of {self._domain} by claim {holder.namespace}/"
            f"{holder.name} (UID {holder.uid}) for {holder.pods_text}, and can be in only one at "
            "a time"
        )

    @property
    def anonymous_message(self) -> str:
        """The message without any name of the other domain; its UID is in the node's label."""
        return (
            f"node {self._node} is a member of ComputeDomain {self._domain_uid} of another "
            "namespace, and can be in only one at a time"
        )


def config_type(result: DeviceRequestAllocationResult) -> type[DeviceConfig]:
    """The type of config that fits a result's device.

    Raises:
        PermanentError: `UnknownDevice`.
    """
    if device_names.device_number(result.device, device_names.CHANNEL) is not None:
        return ComputeDomainChannelConfig
    if device_names.device_number(result.device, device_names.DAEMON) is not None:
        return ComputeDomainDaemonConfig
    raise _unknown(result, f"{result.device} is neither a channel nor a daemon")


def make(
    claim: ResourceClaim,
    configured: Sequence[ConfiguredResult],
    node: NodeName,
    *,
    is_host_managed: bool,
) -> DomainClaimRecord:
    """The record that the claim will have, still without CDI names.

    Args:
        claim: The claim as the API server returned it.
        configured: The results of this driver, each with the config that applies to it.
        node: This node; a result of another pool is refused.
        is_host_managed: The host runs IMEX, so there are no daemons and every channel is allowed.

    Raises:
        PermanentError: `UnknownDevice`; `InvalidConfig`: more than one device, or no UID of a
            domain in the config.
    """
    if len(configured) != 1:
        names = ", ".join(entry.result.device for entry in configured)
        raise PermanentError(
            Reason.INVALID_CONFIG,
            f"claim {claim.ref} has {len(configured)} devices of this driver ({names}); a claim "
            "can have one",
            "use the claim template that the ComputeDomain names",
            claim=str(claim.ref),
        )
    (entry,) = configured
    _check_device(entry.result, node, is_host_managed)
    config = entry.config
    assert isinstance(config, ComputeDomainChannelConfig | ComputeDomainDaemonConfig)
    is_channel = isinstance(config, ComputeDomainChannelConfig)
    pods = [each for each in claim.status.reserved_for or () if each.resource == "pods"]
    named = claim_annotations.domain_of(claim.metadata.annotations)
    return DomainClaimRecord(
        namespace=claim.ref.namespace,
        name=claim.ref.name,
        uid=claim.ref.uid,
        domain=_domain(claim, entry, config.domain_id),
        domain_namespace=named.namespace if named else "",
        domain_name=named.name if named else "",
        mode=config.allocation_mode if isinstance(config, ComputeDomainChannelConfig) else "",
        pods=tuple(PodUID(pod.uid) for pod in pods),
        pod_names=tuple(pod.name for pod in pods),
        devices=(
            DomainDeviceRecord(
                request=entry.result.base_request,
                pool=PoolName(entry.result.pool),
                device=DeviceName(entry.result.device),
                kind=device_names.CHANNEL if is_channel else device_names.DAEMON,
                share_id=entry.result.share_id,
            ),
        ),
    )


def check_free(
    wanted: DomainClaimRecord, prepared_claims: Mapping[ClaimUID, DomainClaimRecord], node: NodeName
) -> None:
    """Refuse a device that another claim has. The caller holds the device's lock.

    Raises:
        DeviceInUseError: Names the other claim; `NodeInOtherDomainError` if that claim's channel is
            of another domain.
    """
    device = wanted.device.device
    for holder in prepared_claims.values():
        if holder.uid != wanted.uid and holder.device.device == device:
            if holder.is_channel and holder.domain != wanted.domain:
                raise NodeInOtherDomainError(wanted, holder, node)
            raise DeviceInUseError(wanted.ref, device, holder, (device,))


def check_records_complete(
    wanted: DomainClaimRecord, unreadable: Iterable[ClaimRef], incomplete_reason: str
) -> None:
    """Refuse every device while it is unknown which devices are free.

    Args:
        wanted: The record of the claim that asks for a device.
        unreadable: Claims whose records cannot be read.
        incomplete_reason: Why claims without a record may have a device; empty if none may.

    Raises:
        PermanentError: `StateCorrupt`.
    """
    others = [ref for ref in unreadable if ref.uid != wanted.uid]
    if not others and not incomplete_reason:
        return
    unknown = f"it is unknown whether {wanted.device.device} is free"
    if others:
        # A workload in any namespace is told why its domain's daemon cannot start.
        holder = records.name_one(others, wanted.namespace if wanted.is_channel else "")
        raise PermanentError(
            Reason.STATE_CORRUPT,
            f"{unknown}: the record of {holder.text} cannot be read",
            "delete the pods of that claim, which the plugin's log names; once it is unprepared, "
            "the record is gone",
            operator_message=f"{unknown}: the record of {holder.operator_text} cannot be read",
            claim=str(wanted.ref),
            holder=str(others[0]),
        )
    raise PermanentError(
        Reason.STATE_CORRUPT,
        f"{unknown}: {incomplete_reason}",
        "make the kubelet's checkpoint readable, or drain the node and reboot it",
        claim=str(wanted.ref),
    )


def _domain_text(holder: DomainClaimRecord) -> str:
    if not holder.domain:
        return "a ComputeDomain that is not known any more"
    named = f"{holder.domain_namespace}/{holder.domain_name} (UID {holder.domain})"
    return f"ComputeDomain {named if holder.domain_name else holder.domain}"


def _check_device(
    result: DeviceRequestAllocationResult, node: NodeName, is_host_managed: bool
) -> None:
    if result.pool != node:
        raise _unknown(result, f"pool {result.pool} is not this node's pool {node}")
    is_daemon = device_names.device_number(result.device, device_names.DAEMON) is not None
    if is_daemon and is_host_managed:
        raise _unknown(result, f"the host of node {node} runs IMEX itself, so there are no daemons")
    if not is_host_managed and not result.device.endswith("-0"):
        raise _unknown(result, f"node {node} offers no {result.device}")


def _domain(claim: ResourceClaim, entry: ConfiguredResult, domain_id: str) -> DomainUID:
    if is_uid(domain_id):
        return DomainUID(domain_id)
    field = f"status.allocation.devices.config[{entry.config_index}].opaque.parameters.domainID"
    raise PermanentError(
        Reason.INVALID_CONFIG,
        f"claim {claim.ref} cannot be configured: {field}: {domain_id[:100]!r} is not the UID of a "
        "ComputeDomain",
        "use the claim template that the ComputeDomain names, which has its UID",
        claim=str(claim.ref),
        field=field,
    )


def _unknown(result: DeviceRequestAllocationResult, problem: str) -> PermanentError:
    return PermanentError(
        Reason.UNKNOWN_DEVICE,
        f"request {result.request}: {problem}",
        "delete the pod so that it is scheduled again; kubectl get resourceslices shows what the "
        "node offers",
        device=result.device,
    )
