"""Claim, its config and what is held → what the claim will hold, or why it cannot.

Pure: it looks at values and refuses with a reason. `prepare` carries it out.
Source: spec/compute-domain.md §§7.6, 7.7, 14.2 (KW-44), 14.3 (KW-51).
"""

from collections.abc import Iterable, Mapping, Sequence

from nvdra_api.protocol.configs import Configured
from nvdra_api.types.claims import ClaimRef, DeviceResult, ResourceClaim
from nvdra_api.types.configs import (
    ComputeDomainChannelConfig,
    ComputeDomainDaemonConfig,
    DriverConfig,
)
from nvdra_api.types.errors import PermanentError, Reason
from nvdra_api.types.holdings import DeviceInUseError
from nvdra_api.types.ids import ClaimUID, DeviceName, DomainUID, NodeName, PodUID, PoolName

from nvdra_cd_plugin import layout, membership
from nvdra_cd_plugin.records import DomainHolding, HeldDevice


class NodeTakenError(DeviceInUseError):
    """The node's channels are another domain's; waited for, because its last claim may go."""

    def __init__(self, wanted: DomainHolding, holder: DomainHolding, node: NodeName) -> None:
        device = wanted.device.device
        super().__init__(wanted.ref, device, holder, (device,))
        self.reason = Reason.NODE_IN_OTHER_DOMAIN
        self.message = (
            f"node {node} works for {_domain_of(holder)} by claim {holder.namespace}/"
            f"{holder.name} (UID {holder.uid}) for {holder.users}, and can be in one at a time"
        )


def kind_of(result: DeviceResult) -> type[DriverConfig]:
    """Which kind of config fits a result's device.

    Raises:
        PermanentError: `UnknownDevice`.
    """
    if layout.number(result.device, layout.CHANNEL) is not None:
        return ComputeDomainChannelConfig
    if layout.number(result.device, layout.DAEMON) is not None:
        return ComputeDomainDaemonConfig
    raise _unknown(result, f"{result.device} is neither a channel nor a daemon")


def make(
    claim: ResourceClaim,
    configured: Sequence[Configured],
    node: NodeName,
    *,
    is_host_managed: bool,
) -> DomainHolding:
    """What the claim will hold; without CDI names, which come when they are written.

    Args:
        claim: As the API server returned it.
        configured: Our results, each with the config in force for it.
        node: This node; results of another pool are not ours to prepare.
        is_host_managed: The host runs IMEX, so there are no daemons, and any channel may be given.

    Raises:
        PermanentError: `UnknownDevice`; `InvalidConfig`: more than one device, or no domain's UID.
    """
    if len(configured) != 1:
        names = ", ".join(entry.result.device for entry in configured)
        raise PermanentError(
            Reason.INVALID_CONFIG,
            f"claim {claim.ref} has {len(configured)} devices of ours ({names}); one is all a "
            "claim can have",
            "use the claim template that the ComputeDomain names",
            claim=str(claim.ref),
        )
    (entry,) = configured
    _check_device(entry.result, node, is_host_managed)
    config = entry.config
    assert isinstance(config, ComputeDomainChannelConfig | ComputeDomainDaemonConfig)
    is_channel = isinstance(config, ComputeDomainChannelConfig)
    pods = [each for each in claim.status.reserved_for or () if each.resource == "pods"]
    return DomainHolding(
        namespace=claim.ref.namespace,
        name=claim.ref.name,
        uid=claim.ref.uid,
        domain=_domain(claim, entry, config.domain_id),
        mode=config.allocation_mode if isinstance(config, ComputeDomainChannelConfig) else "",
        pods=tuple(PodUID(pod.uid) for pod in pods),
        pod_names=tuple(pod.name for pod in pods),
        devices=(
            HeldDevice(
                request=entry.result.base_request,
                pool=PoolName(entry.result.pool),
                device=DeviceName(entry.result.device),
                kind=layout.CHANNEL if is_channel else layout.DAEMON,
                share_id=entry.result.share_id,
            ),
        ),
    )


def check_free(
    wanted: DomainHolding, held: Mapping[ClaimUID, DomainHolding], node: NodeName
) -> None:
    """Refuse a device that another claim holds. Called with the device's lock held.

    Raises:
        DeviceInUseError: Naming the holder; `NodeTakenError` where that is of another domain.
    """
    device = wanted.device.device
    for holder in held.values():
        if holder.uid != wanted.uid and holder.device.device == device:
            if holder.is_channel and holder.domain != wanted.domain:
                raise NodeTakenError(wanted, holder, node)
            raise DeviceInUseError(wanted.ref, device, holder, (device,))


def check_known(wanted: DomainHolding, unreadable: Iterable[ClaimRef], doubt: str) -> None:
    """Refuse to give anything away while nobody can tell that it is free.

    Args:
        wanted: What is wanted.
        unreadable: Claims whose records do not tell what they hold.
        doubt: Why claims may hold something of which no record tells.

    Raises:
        PermanentError: `StateCorrupt`.
    """
    others = [str(ref) for ref in unreadable if ref.uid != wanted.uid]
    if not others and not doubt:
        return
    why = f"the record of claim {others[0]} cannot be read" if others else doubt
    raise PermanentError(
        Reason.STATE_CORRUPT,
        f"whether {wanted.device.device} is free cannot be told: {why}",
        "delete the pods of that claim; once it is unprepared, the record is gone"
        if others
        else "make the kubelet's file readable for the plugin, or drain the node and reboot it",
        claim=str(wanted.ref),
    )


def _domain_of(holder: DomainHolding) -> str:
    if not holder.domain:
        return "a ComputeDomain that is not known any more"
    named = f"{holder.domain_namespace}/{holder.domain_name} (UID {holder.domain})"
    return f"ComputeDomain {named if holder.domain_name else holder.domain}"


def _check_device(result: DeviceResult, node: NodeName, is_host_managed: bool) -> None:
    if result.pool != node:
        raise _unknown(result, f"pool {result.pool} is not this node's pool {node}")
    is_daemon = layout.number(result.device, layout.DAEMON) is not None
    if is_daemon and is_host_managed:
        raise _unknown(result, f"the host of node {node} runs IMEX itself, so there are no daemons")
    if not is_host_managed and not result.device.endswith("-0"):
        raise _unknown(result, f"node {node} offers no {result.device}")


def _domain(claim: ResourceClaim, entry: Configured, domain_id: str) -> DomainUID:
    if membership.is_uid(domain_id):
        return DomainUID(domain_id)
    field = f"status.allocation.devices.config[{entry.entry}].opaque.parameters.domainID"
    raise PermanentError(
        Reason.INVALID_CONFIG,
        f"claim {claim.ref} cannot be configured: {field}: {domain_id[:100]!r} is not the UID of a "
        "ComputeDomain",
        "use the claim template that the ComputeDomain names, which has its UID",
        claim=str(claim.ref),
        field=field,
    )


def _unknown(result: DeviceResult, problem: str) -> PermanentError:
    return PermanentError(
        Reason.UNKNOWN_DEVICE,
        f"request {result.request}: {problem}",
        "delete the pod so that it is scheduled anew; kubectl get resourceslices shows what the "
        "node offers",
        device=result.device,
    )
