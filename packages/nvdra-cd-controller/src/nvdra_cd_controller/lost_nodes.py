# SPDX-License-Identifier: Apache-2.0
"""Finds out that the node of a daemon is lost whose pod has not been Ready yet.

For the pods of a lost node the node controller of Kubernetes sets the condition Ready to False,
which says nothing of a pod where it is False already: of one whose daemon said that it is ready a
moment before the readiness probe would have. Only the Node says it then. Nodes are read when such
a pod stays for some seconds, and again from time to time while that lasts. A container
that was started since then ends the loss: only a kubelet reports it.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from nvdra_api.errors import DriverError
from nvdra_api.ids import DomainUID, NodeName
from nvdra_api.meta import JsonObject
from nvdra_runtime.computedomain.daemon_pods import DaemonPod
from nvdra_runtime.kube.client import Client
from nvdra_runtime.telemetry import logs

from nvdra_cd_controller import api_paths

LOG: Final = logs.logger(__name__)

FIRST_AFTER_S: Final = 15.0
"""The readiness probe of a daemon usually passes within its period of 5 s."""
AGAIN_AFTER_S: Final = 10.0
MAX_AT_ONCE: Final = 16
"""Nodes that are read for one domain at a time, the longest unread ones first."""
_CALL_TIMEOUT_S: Final = 5.0


@dataclass
class _Inquiry:
    """What is asked about a pod's node, as long as the pod's container is the same."""

    running_since: str
    due: float
    lost_because: str = ""

    def is_about(self, pod: DaemonPod) -> bool:
        """Whether it is about this container."""
        return self.running_since == pod.running_since


class LostNodes:
    """What is known of the nodes of all daemons that say READY and whose pods are not Ready."""

    def __init__(self, api: Client) -> None:
        self._api = api
        self._inquiries: dict[DomainUID, dict[NodeName, _Inquiry]] = {}

    def judged(self, uid: DomainUID, pods: Sequence[DaemonPod]) -> tuple[DaemonPod, ...]:
        """The pods, of which those on lost nodes are down."""
        known = self._inquiries.get(uid)
        if known is None:
            return tuple(pods)
        return tuple(_judged(pod, known.get(pod.node)) for pod in pods)

    async def inquire(self, uid: DomainUID, pods: Sequence[DaemonPod]) -> float | None:
        """Ask if it is time to. Returns the seconds until it is; None if no node may be lost."""
        now = asyncio.get_running_loop().time()
        before = self._inquiries.pop(uid, {})
        known: dict[NodeName, _Inquiry] = {}
        for pod in filter(_is_unconfirmed, pods):
            former = before.get(pod.node)
            if former is None or not former.is_about(pod):
                former = _Inquiry(pod.running_since, now + FIRST_AFTER_S)
            known[pod.node] = former
        if not known:
            return None
        self._inquiries[uid] = known
        due = sorted((inquiry.due, node) for node, inquiry in known.items() if inquiry.due <= now)
        async with asyncio.TaskGroup() as group:
            for _, node in due[:MAX_AT_ONCE]:
                known[node].due = now + AGAIN_AFTER_S
                group.create_task(self._ask(node, known[node], now + _CALL_TIMEOUT_S))
        return max(0.0, min(inquiry.due for inquiry in known.values()) - now)

    def forget(self, uid: DomainUID) -> None:
        """Forget a domain that is gone."""
        self._inquiries.pop(uid, None)

    async def _ask(self, node: NodeName, inquiry: _Inquiry, deadline: float) -> None:
        try:
            params = {"fieldSelector": f"metadata.name={node}"}
            page = await self._api.get(api_paths.path("Node"), deadline, params)
        except DriverError as error:
            LOG.v(2, "Cannot read whether a node is lost", node=node, error=str(error))
        else:
            inquiry.lost_because = next(map(_lost_because, page.get("items") or ()), "")


def _judged(pod: DaemonPod, inquiry: _Inquiry | None) -> DaemonPod:
    if inquiry is None or not inquiry.is_about(pod) or not _is_unconfirmed(pod):
        return pod
    return replace(pod, down_because=inquiry.lost_because)


def _is_unconfirmed(pod: DaemonPod) -> bool:
    """Whether the daemon says that it is ready, and nothing else says anything of it."""
    has_said = pod.announcement is not None and pod.announcement.is_ready
    return has_said and not pod.is_ready and not pod.down_because and bool(pod.node)


def _lost_because(node: JsonObject) -> str:
    """Why nothing is known of a node, in the words of the node controller; empty if it is there."""
    for condition in (node.get("status") or {}).get("conditions") or ():
        if condition.get("type") == "Ready" and condition.get("status") == "Unknown":
            words = " ".join(str(condition.get("message") or "").split())
            return "its node is lost" + (f": {words}" if words else "")
    return ""
