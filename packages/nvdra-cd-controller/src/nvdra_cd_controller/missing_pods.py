# SPDX-License-Identifier: Apache-2.0
"""Finds out why the DaemonSet of a domain has made no pod for a node.

Only Events of the DaemonSet say it. They are read when a node has had no pod for some seconds, and
again from time to time while that lasts.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from nvdra_api.errors import DriverError
from nvdra_api.ids import DomainUID
from nvdra_runtime.computedomain import failed_creates
from nvdra_runtime.kube.client import Client
from nvdra_runtime.telemetry import logs

from nvdra_cd_controller import api_paths
from nvdra_cd_controller.domain_snapshot import Child
from nvdra_cd_controller.members import Member

LOG: Final = logs.logger(__name__)

FIRST_AFTER_S: Final = 3.0
"""A pod usually exists a moment after its node is labelled."""
AGAIN_AFTER_S: Final = 15.0
_CALL_TIMEOUT_S: Final = 5.0


@dataclass
class _Inquiry:
    due: float
    cause: str = ""


class MissingPods:
    """What is known of the missing pods of all domains."""

    def __init__(self, api: Client) -> None:
        self._api = api
        self._inquiries: dict[DomainUID, _Inquiry] = {}

    def cause(self, uid: DomainUID) -> str:
        """Why a domain's DaemonSet could not make a pod; empty if nothing is known."""
        known = self._inquiries.get(uid)
        return known.cause if known else ""

    async def inquire(
        self, uid: DomainUID, members: Sequence[Member], daemonsets: Sequence[Child]
    ) -> float | None:
        """Ask if it is time to. Returns the seconds until it is; None if no pod is missing."""
        if all(member.has_pod for member in members):
            self._inquiries.pop(uid, None)
            return None
        now = asyncio.get_running_loop().time()
        known = self._inquiries.setdefault(uid, _Inquiry(now + FIRST_AFTER_S))
        if now < known.due:
            return known.due - now
        known.due = now + AGAIN_AFTER_S
        try:
            known.cause = await self._ask(daemonsets, now + _CALL_TIMEOUT_S)
        except DriverError as error:
            LOG.v(2, "Cannot read why a daemon's pod is missing", uid=uid, error=str(error))
        return AGAIN_AFTER_S

    def forget(self, uid: DomainUID) -> None:
        """Forget a domain that is gone."""
        self._inquiries.pop(uid, None)

    async def _ask(self, daemonsets: Sequence[Child], deadline: float) -> str:
        for child in daemonsets:
            params = {"fieldSelector": failed_creates.selector(child.name)}
            path = api_paths.path("Event", child.namespace)
            page = await self._api.get(path, deadline, params)
            latest = failed_creates.latest(page.get("items") or ())
            if latest is not None:
                return failed_creates.cause(latest)
        return ""
