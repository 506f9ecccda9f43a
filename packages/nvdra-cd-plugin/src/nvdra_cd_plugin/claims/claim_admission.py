# SPDX-License-Identifier: Apache-2.0
"""What a claim is to get, and whether its domain, its namespace and its pods let it have that.

Source: docs/reference/compute-domain.md, "Prepare and unprepare", "Security" (KW-50 to KW-52).
"""

from collections.abc import Collection

from nvdra_api import names
from nvdra_api.gates import FeatureGates
from nvdra_api.ids import NodeName, PodUID
from nvdra_api.meta import JsonObject
from nvdra_api.resource.claims import ResourceClaim
from nvdra_runtime.claims import opaque_configs
from nvdra_runtime.claims.device_wait_queue import DeviceWaitQueue
from nvdra_runtime.kube.client import Client
from nvdra_runtime.kube.errors import NotFound
from nvdra_runtime.telemetry import keys
from nvdra_runtime.telemetry.instrumentation import Telemetry

from nvdra_cd_plugin.claims import plan
from nvdra_cd_plugin.domains import admission
from nvdra_cd_plugin.domains.api_retry import retry_for_claim
from nvdra_cd_plugin.domains.claim_records import DomainClaimRecord
from nvdra_cd_plugin.domains.domain import Domain
from nvdra_cd_plugin.domains.lookup import DomainLookup


class ClaimAdmission:
    """Admits the claims of one node."""

    def __init__(
        self,
        node: NodeName,
        gates: FeatureGates,
        namespaces: Collection[str],
        api: Client,
        domains: DomainLookup,
        waits: DeviceWaitQueue,
        telemetry: Telemetry,
        *,
        is_host_managed: bool,
    ) -> None:
        """Create it without any request.

        Args:
            node: This node.
            gates: The feature gates, which decide which configs are accepted.
            namespaces: The namespaces in which daemons may be.
            api: The API server.
            domains: Reads the domains of claims.
            waits: Ends a wait for the API server when the claim is no longer wanted.
            telemetry: Where spans and measurements go.
            is_host_managed: The host runs IMEX, so claims of daemons are refused.
        """
        self._node = node
        self._gates = gates
        self._namespaces = namespaces
        self._api = api
        self._domains = domains
        self._waits = waits
        self._telemetry = telemetry
        self._is_host_managed = is_host_managed

    def plan(self, claim: ResourceClaim) -> DomainClaimRecord:
        """The record that the claim will have, as far as the claim says it.

        Raises:
            PermanentError: `InvalidConfig`, `UnknownDevice`.
        """
        with self._telemetry.step("resolve config"):
            configured = opaque_configs.resolve(
                claim, names.COMPUTE_DOMAIN_DRIVER, plan.config_type, self._gates
            )
            return plan.make(claim, configured, self._node, is_host_managed=self._is_host_managed)

    async def admit(self, record: DomainClaimRecord, deadline: float) -> Domain:
        """The claim's domain, if the claim may have what it asks for.

        Raises:
            PermanentError: `DomainNotFound`, `NamespaceMismatch`, `NotADaemon`.
            RetryableError: `ApiUnavailable`.
        """
        with self._telemetry.step("find domain", {keys.DOMAIN_UID: record.domain}):
            if not record.is_channel:
                await self._check_daemon(record, deadline)
            domain = await self.find(record, deadline)
        if record.is_channel:
            admission.check_channel_namespace(record.ref, domain)
        return domain

    async def find(self, record: DomainClaimRecord, deadline: float) -> Domain:
        """The domain of a claim that was admitted before.

        Raises:
            DriverError: `DomainNotFound`, `ApiUnavailable`.
        """
        return await self._domains.find_for_claim(record, deadline)

    async def _check_daemon(self, record: DomainClaimRecord, deadline: float) -> None:
        """Return only if the claim is used by its domain's own daemon on this node."""
        admission.check_daemon_namespace(record.ref, self._namespaces)
        pods = [
            await self._pod(record, name, uid, deadline)
            for name, uid in zip(record.pod_names, record.pods, strict=True)
        ]
        for pod in pods or [None]:
            admission.check_daemon_pod(record.ref, record.domain, pod, self._node)

    async def _pod(
        self, record: DomainClaimRecord, name: str, uid: PodUID, deadline: float
    ) -> JsonObject | None:
        """The pod, or None if it no longer exists under this UID."""
        path = f"/api/v1/namespaces/{record.namespace}/pods/{name}"
        try:
            pod = await retry_for_claim(
                record.ref, self._waits, deadline, lambda attempt: self._api.get(path, attempt)
            )
        except NotFound:
            return None
        return pod if pod["metadata"]["uid"] == uid else None
