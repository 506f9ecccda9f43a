# SPDX-License-Identifier: Apache-2.0
"""Asks the API server why this node's daemon is silent: its pod first, then its DaemonSet.

The caller waits and has little time left, so a request that is not answered at once is given up.
"""

import asyncio
from collections.abc import Sequence
from typing import Final

from nvdra_api import names
from nvdra_api.errors import DriverError
from nvdra_api.ids import DomainUID, NodeName
from nvdra_api.meta import JsonObject
from nvdra_runtime.computedomain import daemon_pods, failed_creates
from nvdra_runtime.computedomain.daemon_pods import DaemonPod
from nvdra_runtime.kube.client import Client
from nvdra_runtime.kube.errors import NotFound
from nvdra_runtime.telemetry import logs

from nvdra_cd_plugin.daemon import daemonset_status
from nvdra_cd_plugin.daemon.readiness import PodLookupResult

LOG = logs.logger(__name__)

_LOOKUP_TIMEOUT_S: Final = 0.5
"""For all requests of one lookup."""


class DaemonPodLookup:
    """Finds the pods of daemons for one node."""

    def __init__(self, node: NodeName, api: Client, managed: Sequence[str]) -> None:
        """Create it without any request.

        Args:
            node: This node.
            api: The API server.
            managed: The namespaces in which daemons may be; the driver's own is the first.
        """
        self._node = node
        self._api = api
        self._managed = managed

    async def find(self, domain: DomainUID) -> PodLookupResult | None:
        """The domain's pods for this node, or why there are none; None if nothing is known."""
        deadline = asyncio.get_running_loop().time() + _LOOKUP_TIMEOUT_S
        try:
            pods = await self._pods(domain, deadline)
        except DriverError as error:
            LOG.v(2, "Failed to read the daemon's pod", error=str(error))
            return None
        if any(pod.node == self._node for pod in pods):
            return PodLookupResult(pods)
        try:
            return PodLookupResult(pods, await self._why_no_pod(domain, deadline))
        except DriverError as error:
            LOG.v(2, "Failed to read the daemon's DaemonSet", error=str(error))
            return PodLookupResult(pods)

    async def _pods(self, domain: DomainUID, deadline: float) -> tuple[DaemonPod, ...]:
        """The domain's pods that are bound to this node or to none."""
        found: list[DaemonPod] = []
        for namespace in self._managed:
            path = f"/api/v1/namespaces/{namespace}/pods"
            for node in (self._node, ""):
                params = {
                    "labelSelector": f"{names.DOMAIN_LABEL}={domain}",
                    "fieldSelector": f"spec.nodeName={node}",
                }
                page = await self._api.get(path, deadline, params)
                found += map(daemon_pods.read, page["items"])
        return tuple(found)

    async def _why_no_pod(self, domain: DomainUID, deadline: float) -> str:
        name = names.daemon_name(domain)
        found: dict[str, JsonObject] = {}
        events: list[JsonObject] = []
        for namespace in self._managed:
            path = f"/apis/apps/v1/namespaces/{namespace}/daemonsets/{name}"
            try:
                found[namespace] = await self._api.get(path, deadline)
            except NotFound:
                continue
            params = {"fieldSelector": failed_creates.selector(name)}
            path = f"/api/v1/namespaces/{namespace}/events"
            events += (await self._api.get(path, deadline, params))["items"]
        return daemonset_status.why_no_pod(found, events, f"{self._managed[0]}/{name}")
