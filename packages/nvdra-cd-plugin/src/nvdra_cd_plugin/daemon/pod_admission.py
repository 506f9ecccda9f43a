# SPDX-License-Identifier: Apache-2.0
"""Checks, by the API server, that a daemon's claim is used by the daemon's own pod."""

from collections.abc import Collection

from nvdra_api.ids import NodeName, PodUID
from nvdra_api.meta import JsonObject
from nvdra_runtime.claims.device_wait_queue import DeviceWaitQueue
from nvdra_runtime.kube.client import Client
from nvdra_runtime.kube.errors import NotFound

from nvdra_cd_plugin.domains import admission
from nvdra_cd_plugin.domains.api_retry import retry_for_claim
from nvdra_cd_plugin.domains.claim_records import DomainClaimRecord


class PodAdmission:
    """Admits the pods of daemons on one node."""

    def __init__(
        self, node: NodeName, api: Client, namespaces: Collection[str], waits: DeviceWaitQueue
    ) -> None:
        """Create it without any request.

        Args:
            node: This node.
            api: The API server.
            namespaces: The namespaces in which daemons may be.
            waits: Ends a wait for the API server when the claim is no longer wanted.
        """
        self._node = node
        self._api = api
        self._namespaces = namespaces
        self._waits = waits

    async def admit(self, record: DomainClaimRecord, deadline: float) -> None:
        """Return only if the claim is used by its domain's own daemon on this node.

        Raises:
            PermanentError: `NamespaceMismatch`, `NotADaemon`.
            RetryableError: `ApiUnavailable`.
        """
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
