# SPDX-License-Identifier: Apache-2.0
"""Builds records for claims that the kubelet knows and that have no record here.

The part of `nvdra_runtime.claims.record_recovery` that is about ComputeDomains.
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import Final

from nvdra_api import names
from nvdra_api.errors import DriverError, PermanentError
from nvdra_api.gates import FeatureGates
from nvdra_api.ids import CliqueID, DomainUID, NodeName
from nvdra_api.v1beta1.compute_domain import NO_CLIQUE
from nvdra_runtime.claims import opaque_configs
from nvdra_runtime.claims.claim_reader import ClaimReader
from nvdra_runtime.claims.kubelet_checkpoint import CheckpointClaim

from nvdra_cd_plugin.claims import plan
from nvdra_cd_plugin.domains import admission
from nvdra_cd_plugin.domains.claim_records import DomainClaimRecord, DomainDeviceRecord
from nvdra_cd_plugin.domains.lookup import DomainLookup
from nvdra_cd_plugin.fabric.monitor import FabricMonitor
from nvdra_cd_plugin.node import device_names
from nvdra_cd_plugin.node.file_worker import FileWorker
from nvdra_cd_plugin.node.imex_devices import ImexDevices

_FIRST_QUERY_S: Final = 5.0
"""How long to wait for the clique. NVML takes about a second to open; without a driver the recovery
must not wait longer."""


class RecordBuilder:
    """Builds records from the kubelet's checkpoint and the API server."""

    def __init__(
        self,
        node: NodeName,
        gates: FeatureGates,
        claims: ClaimReader,
        domains: DomainLookup,
        fabric: FabricMonitor,
        devices: ImexDevices,
        files: FileWorker,
        *,
        is_host_managed: bool,
    ) -> None:
        self._node = node
        self._gates = gates
        self._claims = claims
        self._domains = domains
        self._fabric = fabric
        self._devices = devices
        self._files = files
        self._is_host_managed = is_host_managed

    async def build(
        self, claims: Sequence[CheckpointClaim], deadline: float
    ) -> AsyncGenerator[DomainClaimRecord, None]:
        """Build a record for each claim; `claims.record_recovery` stores it.

        Raises:
            RetryableError: `ApiUnavailable`: a claim's config cannot be read yet.
        """
        for claim in claims:
            try:
                yield await self._from_api(claim, deadline)
            except PermanentError:
                # The claim no longer exists or has changed; it keeps its device until unprepared.
                yield _from_checkpoint(claim)

    async def _from_api(self, claim: CheckpointClaim, deadline: float) -> DomainClaimRecord:
        found = await self._claims.fetch(claim.ref, deadline)
        configured = opaque_configs.resolve(
            found, names.COMPUTE_DOMAIN_DRIVER, plan.config_type, self._gates
        )
        record = plan.make(found, configured, self._node, is_host_managed=self._is_host_managed)
        domain = await self._domains.find(record, deadline)
        (device, *_) = claim.devices(names.COMPUTE_DOMAIN_DRIVER)
        clique = await self._clique(deadline)
        count = 0
        if record.is_channel and device.cdi_ids:
            available = await self._files.run(deadline, self._devices.channel_count)
            count = admission.channel_count(domain, record.mode, available)
        return record.with_domain(domain).completed(clique, count, device.cdi_ids)

    async def _clique(self, deadline: float) -> CliqueID:
        """The node's clique; none if it does not become known soon after the start."""
        soon = min(deadline, asyncio.get_running_loop().time() + _FIRST_QUERY_S)
        try:
            return await self._fabric.wait_clique(soon)
        except DriverError:
            return NO_CLIQUE


def _from_checkpoint(claim: CheckpointClaim) -> DomainClaimRecord:
    """A record with what the kubelet's checkpoint has."""
    (device, *_) = claim.devices(names.COMPUTE_DOMAIN_DRIVER)
    is_channel = device_names.device_number(device.device, device_names.CHANNEL) is not None
    return DomainClaimRecord(
        namespace=claim.namespace,
        name=claim.name,
        uid=claim.uid,
        domain=DomainUID(""),
        pods=claim.pods,
        devices=(
            DomainDeviceRecord(
                request=device.requests[0] if device.requests else "",
                pool=device.pool,
                device=device.device,
                kind=device_names.CHANNEL if is_channel else device_names.DAEMON,
                share_id=device.share_id,
                cdi_names=device.cdi_ids,
            ),
        ),
    )
