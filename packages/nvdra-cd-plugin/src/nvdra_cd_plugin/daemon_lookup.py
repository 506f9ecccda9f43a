"""Asking the API server why this node's daemon says nothing: its pod, else its DaemonSet.

For somebody who waits and whose time is nearly up: what is not answered at once is not told.
"""

import asyncio
from collections.abc import Sequence
from typing import Final

from nvdra_api.protocol import daemon_pods
from nvdra_api.protocol.apiversions import JsonObject
from nvdra_api.protocol.daemon_pods import DaemonPod
from nvdra_api.runtime.kube.client import Client
from nvdra_api.runtime.kube.errors import NotFound
from nvdra_api.runtime.telemetry import logs
from nvdra_api.types import names
from nvdra_api.types.errors import DriverError
from nvdra_api.types.ids import DomainUID, NodeName

from nvdra_cd_plugin import daemonsets
from nvdra_cd_plugin.readiness import Found

LOG = logs.logger(__name__)

_ANSWER_S: Final = 0.5
"""For all the questions of one look."""


class DaemonLookup:
    """Looks at the daemons that are meant for this node."""

    def __init__(self, node: NodeName, api: Client, managed: Sequence[str]) -> None:
        """Nothing is asked yet.

        Args:
            node: This node.
            api: The API server.
            managed: Namespaces of daemons, the driver's own first.
        """
        self._node = node
        self._api = api
        self._managed = managed

    async def found(self, domain: DomainUID) -> Found | None:
        """The domain's pods for this node, or why there are none; None if nobody says."""
        deadline = asyncio.get_running_loop().time() + _ANSWER_S
        try:
            pods = await self._pods(domain, deadline)
        except DriverError as error:
            LOG.v(2, "The daemon's pod cannot be looked at", error=str(error))
            return None
        if any(pod.node == self._node for pod in pods):
            return Found(pods)
        try:
            return Found(pods, await self._why_none(domain, deadline))
        except DriverError as error:
            LOG.v(2, "The daemon's DaemonSet cannot be looked at", error=str(error))
            return Found(pods)

    async def _pods(self, domain: DomainUID, deadline: float) -> tuple[DaemonPod, ...]:
        """Those not bound yet among them."""
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

    async def _why_none(self, domain: DomainUID, deadline: float) -> str:
        name = names.daemon_name(domain)
        found: dict[str, JsonObject] = {}
        events: list[JsonObject] = []
        for namespace in self._managed:
            path = f"/apis/apps/v1/namespaces/{namespace}/daemonsets/{name}"
            try:
                found[namespace] = await self._api.get(path, deadline)
            except NotFound:
                continue
            about = (
                f"involvedObject.kind=DaemonSet,involvedObject.name={name},"
                f"reason={daemonsets.FAILED}"
            )
            path = f"/api/v1/namespaces/{namespace}/events"
            events += (await self._api.get(path, deadline, {"fieldSelector": about}))["items"]
        return daemonsets.why_none(found, events, f"{self._managed[0]}/{name}")
