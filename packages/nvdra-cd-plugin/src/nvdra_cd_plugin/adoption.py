"""Claims that the kubelet knows and no record tells of: whose are they, and what were they given?

The part of `nvdra_api.runtime.plugin.rebuild` that is about ComputeDomains.
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import Final

from nvdra_api.protocol import configs
from nvdra_api.runtime.plugin.evidence import KnownClaim
from nvdra_api.runtime.plugin.fetching import Fetch
from nvdra_api.types import names
from nvdra_api.types.domains import NO_CLIQUE
from nvdra_api.types.errors import DriverError, PermanentError
from nvdra_api.types.gates import Gates
from nvdra_api.types.ids import CliqueID, DomainUID, NodeName

from nvdra_cd_plugin import layout, membership, plan
from nvdra_cd_plugin.disk import Disk
from nvdra_cd_plugin.domains import Domains
from nvdra_cd_plugin.fabric_watch import FabricWatch
from nvdra_cd_plugin.node_devices import NodeDevices
from nvdra_cd_plugin.records import DomainHolding, HeldDevice

_FIRST_LOOK_S: Final = 5.0
"""NVML takes a second or so to open; a node without a driver keeps nobody longer than this."""


class Adoption:
    """Finds out what claims hold that no record tells of."""

    def __init__(
        self,
        node: NodeName,
        gates: Gates,
        fetch: Fetch,
        domains: Domains,
        fabric: FabricWatch,
        devices: NodeDevices,
        disk: Disk,
        *,
        is_host_managed: bool,
    ) -> None:
        self._node = node
        self._gates = gates
        self._fetch = fetch
        self._domains = domains
        self._fabric = fabric
        self._devices = devices
        self._disk = disk
        self._is_host_managed = is_host_managed

    async def adopt(
        self, claims: Sequence[KnownClaim], deadline: float
    ) -> AsyncGenerator[DomainHolding, None]:
        """What each of them holds; `plugin.rebuild` records it.

        Raises:
            RetryableError: `ApiUnavailable`: its config cannot be read yet.
        """
        for claim in claims:
            try:
                yield await self._of_config(claim, deadline)
            except PermanentError:
                yield _bare(claim)  # it is gone, or not as it was: it holds its device until then

    async def _of_config(self, claim: KnownClaim, deadline: float) -> DomainHolding:
        found = await self._fetch(claim.ref, deadline)
        configured = configs.resolve(found, names.COMPUTE_DOMAIN_DRIVER, plan.kind_of, self._gates)
        planned = plan.make(found, configured, self._node, is_host_managed=self._is_host_managed)
        domain = await self._domains.find(planned.domain, planned.namespace, deadline)
        (known, *_) = claim.devices(names.COMPUTE_DOMAIN_DRIVER)
        clique = await self._clique(deadline)
        count = 0
        if planned.is_channel and known.cdi_ids:
            there_are = await self._disk.run(deadline, self._devices.count)
            count = membership.channel_count(domain, planned.mode, there_are)
        return planned.of(domain).given(clique, count, known.cdi_ids)

    async def _clique(self, deadline: float) -> CliqueID:
        """The node's; none where the driver does not say it soon after the start."""
        soon = min(deadline, asyncio.get_running_loop().time() + _FIRST_LOOK_S)
        try:
            return await self._fabric.clique(soon)
        except DriverError:
            return NO_CLIQUE


def _bare(claim: KnownClaim) -> DomainHolding:
    """What the kubelet alone can tell of a claim."""
    (known, *_) = claim.devices(names.COMPUTE_DOMAIN_DRIVER)
    is_channel = layout.number(known.device, layout.CHANNEL) is not None
    return DomainHolding(
        namespace=claim.namespace,
        name=claim.name,
        uid=claim.uid,
        domain=DomainUID(""),
        pods=claim.pods,
        devices=(
            HeldDevice(
                request=known.requests[0] if known.requests else "",
                pool=known.pool,
                device=known.device,
                kind=layout.CHANNEL if is_channel else layout.DAEMON,
                share_id=known.share_id,
                cdi_names=known.cdi_ids,
            ),
        ),
    )
