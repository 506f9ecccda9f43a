"""The labels of our own Node: the domain it works for, and its NVLink clique where asked for.

The domain's label is what makes its DaemonSet start a daemon here; nobody but this plugin sets it,
and the controller takes it off when the domain goes. Source: spec/compute-domain.md §§1, 7.7.1,
14.1 (KW-9), 14.2 (KW-43).
"""

import asyncio
from collections.abc import Callable
from typing import Final

from nvdra_api.runtime.kube.client import Client
from nvdra_api.runtime.kube.errors import Conflict, NotFound
from nvdra_api.runtime.telemetry import logs
from nvdra_api.types import names
from nvdra_api.types.errors import Reason, RetryableError
from nvdra_api.types.ids import CliqueID, DomainUID, NodeName

LOG = logs.logger(__name__)

_TRIES: Final = 8
"""A Node changes every few seconds: who was faster is not faster for ever."""


class NodeLabels:
    """The labels of one Node."""

    def __init__(self, node: NodeName, api: Client) -> None:
        self._node = node
        self._api = api
        self._path = f"/api/v1/nodes/{node}"
        self._changing = asyncio.Lock()

    async def join(self, uid: DomainUID, deadline: float) -> bool:
        """Label the node as a member of the domain; whether it was not yet.

        Raises:
            RetryableError: `NodeInOtherDomain`; `ApiUnavailable`.
        """
        async with self._changing:
            for _ in range(_TRIES):
                labels, version = await self._read(deadline)
                if self._is_set(labels, uid):
                    return False
                if await self._wrote({names.DOMAIN_LABEL: uid}, version, deadline):
                    LOG.v(1, "The node is labelled", domain=uid)
                    return True
            raise self._contended()

    async def leave(self, uid: DomainUID, deadline: float) -> None:
        """Take the domain's label off, if it is the one that is there; any one for an empty UID.

        Raises:
            RetryableError: `ApiUnavailable`.
        """
        async with self._changing:
            for _ in range(_TRIES):
                try:
                    labels, version = await self._read(deadline)
                except NotFound:
                    return  # the Node is gone, and its labels with it
                there = labels.get(names.DOMAIN_LABEL)
                if there is None or uid not in ("", there):
                    return
                if await self._wrote({names.DOMAIN_LABEL: None}, version, deadline):
                    LOG.v(1, "The node's label is taken off", domain=there)
                    return
            raise self._contended()

    async def keep(self, right: Callable[[str | None], str | None], deadline: float) -> None:
        """Have the label that is right at that moment: somebody may have changed it.

        Args:
            right: What there should be instead of what there is; None is no label.
            deadline: Monotonic seconds.

        Raises:
            RetryableError: `ApiUnavailable`.
        """
        async with self._changing:
            labels, version = await self._read(deadline)
            there = labels.get(names.DOMAIN_LABEL)
            uid = right(there)
            if there == uid:
                return
            if await self._wrote({names.DOMAIN_LABEL: uid}, version, deadline):
                LOG.warning(
                    "The node's label is put right",
                    domain=uid or "none",
                    former=there or "none",
                )

    async def show_clique(self, clique: CliqueID, deadline: float) -> None:
        """Have the node's clique in a label, or no such label where it has none.

        Raises:
            RetryableError: `ApiUnavailable`.
        """
        labels, _ = await self._read(deadline)
        if labels.get(names.GPU_CLIQUE_LABEL, "") != clique:
            change = {"metadata": {"labels": {names.GPU_CLIQUE_LABEL: clique or None}}}
            await self._api.patch(self._path, change, deadline)

    def _is_set(self, labels: dict[str, str], uid: DomainUID) -> bool:
        there = labels.get(names.DOMAIN_LABEL, "")
        if there and there != uid:
            raise RetryableError(
                Reason.NODE_IN_OTHER_DOMAIN,
                f"node {self._node} is labelled as a member of ComputeDomain {there}, and can be "
                "in one at a time",
                "it leaves that one when the last claim of it here is unprepared; where none is "
                f"held, kubectl label node {self._node} {names.DOMAIN_LABEL}- takes it out",
                domain=there,
            )
        return bool(there)

    async def _read(self, deadline: float) -> tuple[dict[str, str], str]:
        """The labels, and of which version they are."""
        metadata = (await self._api.get(self._path, deadline))["metadata"]
        return dict(metadata.get("labels") or {}), str(metadata["resourceVersion"])

    async def _wrote(self, labels: dict[str, str | None], version: str, deadline: float) -> bool:
        """Change labels of this version of the Node; False when there is a newer one."""
        change = {"metadata": {"labels": labels, "resourceVersion": version}}
        try:
            await self._api.patch(self._path, change, deadline)
        except Conflict:
            return False
        return True

    def _contended(self) -> RetryableError:
        return RetryableError(
            Reason.API_UNAVAILABLE,
            f"node {self._node} changes faster than its labels can be written",
            "it is tried again; see who writes to the Node",
        )
