# SPDX-License-Identifier: Apache-2.0
"""Watches the domain's label on this node's Node, and corrects it while a channel needs it.

Without the label the node's daemon ends, and the workload loses the memory that it shares with its
peers. A label that no recorded channel needs is removed by `claims.periodic_cleanup`.

Source: docs/reference/compute-domain.md, "Overview".
"""

import asyncio
import math
import random
from collections.abc import Callable
from typing import Final

from nvdra_api import names
from nvdra_api.errors import DriverError
from nvdra_api.ids import NodeName
from nvdra_api.meta import JsonObject
from nvdra_runtime.kube.client import Client
from nvdra_runtime.kube.informer import Informer, fixed_path
from nvdra_runtime.process.backoff import Backoff
from nvdra_runtime.telemetry import logs

from nvdra_cd_plugin.membership.node_membership import NodeMembership

LOG = logs.logger(__name__)

_NODES: Final = "/api/v1/nodes"
_WRITE_TIMEOUT_S: Final = 10.0
_BACKOFF: Final = Backoff(first_s=0.5, ceiling_s=60)
"""Between two corrections, so that a program that removes the label again and again is not answered
with a write each time."""
_BACKOFF_RESET_S: Final = 300.0
"""After so long without a correction the delays start again at the shortest."""


class LabelWatch:
    """Watches one Node."""

    def __init__(
        self,
        node: NodeName,
        api: Client,
        membership: NodeMembership,
        on_watch_restart: Callable[[str], None],
    ) -> None:
        """Create it without any request.

        Args:
            node: This node.
            api: The API server.
            membership: Knows the right label and sets it.
            on_watch_restart: Called when the watch starts again.
        """
        self._node = node
        self._membership = membership
        self._corrections = 0
        self._corrected_at = -math.inf
        self._informer = Informer(
            api,
            fixed_path(_NODES),
            {"fieldSelector": f"metadata.name={node}"},
            on_watch_restart,
            transform=_trim_to_label,
        )

    async def run(self) -> None:
        """Run until cancelled."""
        seen_count = 0
        async with self._informer.running():
            while True:
                seen_count = await self._informer.wait_for_change(seen_count)
                while self._is_wrong() and await self._correct():
                    pass

    def _is_wrong(self) -> bool:
        stored = self._informer.get(self._node)
        return stored is not None and self._membership.needs_correction(_label(stored))

    async def _correct(self) -> bool:
        """Correct the label and wait until the watch can show it; False if it has to stay."""
        clock = asyncio.get_running_loop().time
        is_rare = clock() - self._corrected_at > _BACKOFF_RESET_S
        self._corrections = 1 if is_rare else self._corrections + 1
        self._corrected_at = clock()
        is_known = True
        try:
            is_known = await self._membership.reconcile_label(clock() + _WRITE_TIMEOUT_S)
        except DriverError as error:
            LOG.warning("Failed to correct the node label", error=str(error))
        await asyncio.sleep(_BACKOFF.delay(self._corrections, random.random()))  # noqa: S311
        return is_known


def _label(node: JsonObject) -> str | None:
    label: str | None = node["metadata"]["labels"].get(names.DOMAIN_LABEL)
    return label


def _trim_to_label(node: JsonObject) -> JsonObject:
    """Keep the label only: a Node is large and changes often."""
    metadata = node["metadata"]
    labels = metadata.get("labels") or {}
    kept = {key: labels[key] for key in (names.DOMAIN_LABEL,) if key in labels}
    identity = {key: metadata[key] for key in ("name", "uid", "resourceVersion")}
    return {"metadata": {**identity, "labels": kept}}
