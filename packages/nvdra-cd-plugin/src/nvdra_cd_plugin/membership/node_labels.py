# SPDX-License-Identifier: Apache-2.0
"""The labels of this node's Node: the domain it is a member of, and its NVLink clique.

The domain's label makes the domain's DaemonSet start a daemon on the node. Only this plugin sets
it; the controller removes it when the domain is deleted.

Source: docs/reference/compute-domain.md, "Overview", "Channel claim", "Scalability and latency"
(KW-9), "Races and correctness" (KW-43).
"""

import asyncio
from collections.abc import Callable
from typing import Final

from nvdra_api import names
from nvdra_api.errors import Reason, RetryableError
from nvdra_api.ids import CliqueID, DomainUID, NodeName
from nvdra_runtime.kube.client import Client
from nvdra_runtime.kube.errors import Conflict, NotFound
from nvdra_runtime.telemetry import logs

LOG = logs.logger(__name__)

_MAX_ATTEMPTS: Final = 8
"""A Node is written every few seconds, so a conflict rarely repeats."""


class NodeLabels:
    """The labels of one Node."""

    def __init__(self, node: NodeName, api: Client) -> None:
        self._node = node
        self._api = api
        self._path = f"/api/v1/nodes/{node}"
        self._lock = asyncio.Lock()

    async def set_domain_label(self, uid: DomainUID, deadline: float) -> bool:
        """Set the domain's label; return whether the node did not have it yet.

        Raises:
            RetryableError: `NodeInOtherDomain`, `ApiUnavailable`.
        """
        async with self._lock:
            for _ in range(_MAX_ATTEMPTS):
                labels, version = await self._read(deadline)
                if self._has_domain_label(labels, uid):
                    return False
                if await self._patch({names.DOMAIN_LABEL: uid}, version, deadline):
                    LOG.v(1, "Node labelled", domain=uid)
                    return True
            raise self._conflict_error()

    async def remove_domain_label(self, uid: DomainUID, deadline: float) -> None:
        """Remove the domain's label if the node has it; with an empty UID, any domain's label.

        Raises:
            RetryableError: `ApiUnavailable`.
        """
        async with self._lock:
            for _ in range(_MAX_ATTEMPTS):
                try:
                    labels, version = await self._read(deadline)
                except NotFound:
                    return  # the Node has been deleted, and its labels with it
                current = labels.get(names.DOMAIN_LABEL)
                if current is None or uid not in ("", current):
                    return
                if await self._patch({names.DOMAIN_LABEL: None}, version, deadline):
                    LOG.v(1, "Node label removed", domain=current)
                    return
            raise self._conflict_error()

    async def reconcile_domain_label(
        self, desired_label: Callable[[str | None], str | None], deadline: float
    ) -> None:
        """Change the domain's label to the desired one.

        Args:
            desired_label: Returns the label that the node should have for the label that it has;
                None is no label.
            deadline: Monotonic seconds.

        Raises:
            RetryableError: `ApiUnavailable`.
        """
        async with self._lock:
            labels, version = await self._read(deadline)
            current = labels.get(names.DOMAIN_LABEL)
            uid = desired_label(current)
            if current == uid:
                return
            if await self._patch({names.DOMAIN_LABEL: uid}, version, deadline):
                LOG.warning("Node label corrected", domain=uid or "none", former=current or "none")

    async def set_clique_label(self, clique: CliqueID, deadline: float) -> None:
        """Set the clique's label, or remove it where the node has no clique.

        Raises:
            RetryableError: `ApiUnavailable`.
        """
        labels, _ = await self._read(deadline)
        if labels.get(names.GPU_CLIQUE_LABEL, "") != clique:
            change = {"metadata": {"labels": {names.GPU_CLIQUE_LABEL: clique or None}}}
            await self._api.patch(self._path, change, deadline)

    def _has_domain_label(self, labels: dict[str, str], uid: DomainUID) -> bool:
        current = labels.get(names.DOMAIN_LABEL, "")
        if current and current != uid:
            raise RetryableError(
                Reason.NODE_IN_OTHER_DOMAIN,
                f"node {self._node} is labelled as a member of ComputeDomain {current}, and can be "
                "in only one at a time",
                "it leaves that one when its last claim on this node is unprepared; if there is no "
                f"such claim, run kubectl label node {self._node} {names.DOMAIN_LABEL}-",
                domain=current,
            )
        return bool(current)

    async def _read(self, deadline: float) -> tuple[dict[str, str], str]:
        """The labels and the Node's resourceVersion."""
        metadata = (await self._api.get(self._path, deadline))["metadata"]
        return dict(metadata.get("labels") or {}), str(metadata["resourceVersion"])

    async def _patch(self, labels: dict[str, str | None], version: str, deadline: float) -> bool:
        """Change labels of this version of the Node; return False if there is a newer version."""
        change = {"metadata": {"labels": labels, "resourceVersion": version}}
        try:
            await self._api.patch(self._path, change, deadline)
        except Conflict:
            return False
        return True

    def _conflict_error(self) -> RetryableError:
        return RetryableError(
            Reason.API_UNAVAILABLE,
            f"node {self._node} changes faster than its labels can be written",
            "the plugin tries again; find out who writes to the Node so often",
        )
