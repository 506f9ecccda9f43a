# SPDX-License-Identifier: Apache-2.0
"""Publishes the node's ResourceSlice and clique label whenever the fabric's status changes.

While the node's clique is unknown, the pool is empty. The reason is in the log, in `/readyz` and in
Events of the Node.
"""

import asyncio
from typing import Final

from nvdra_api.errors import DriverError, Reason
from nvdra_api.ids import NodeName
from nvdra_runtime.kube.event_recorder import EventRecorder, node_reference
from nvdra_runtime.resourceslices.publisher import Publisher
from nvdra_runtime.telemetry import logs
from nvdra_runtime.telemetry.metrics.plugin_metrics import PluginMetrics

from nvdra_cd_plugin.fabric.monitor import FabricMonitor, FabricStatus
from nvdra_cd_plugin.membership.node_labels import NodeLabels
from nvdra_cd_plugin.node.device_names import CHANNEL, DAEMON
from nvdra_cd_plugin.publishing import layout

LOG = logs.logger(__name__)

_LABEL_INTERVAL_S = 600.0
"""Other programs may change the label, which is not watched."""

_WRITE_TIMEOUT_S: Final = 10.0


class PoolUpdater:
    """Publishes what the node offers, and reports why it offers nothing."""

    def __init__(
        self,
        node: NodeName,
        fabric: FabricMonitor,
        publisher: Publisher,
        events: EventRecorder,
        metrics: PluginMetrics,
        labels: NodeLabels | None,
        *,
        is_host_managed: bool,
    ) -> None:
        """Create it without publishing.

        Args:
            node: This node.
            fabric: The node's fabric.
            publisher: Publishes the node's slices.
            events: Records Events of the Node.
            metrics: The plugin's metrics.
            labels: The node's labels, for the clique's label; None if that label is disabled.
            is_host_managed: The host runs IMEX, so no daemon is published.
        """
        self._node = node
        self._fabric = fabric
        self._publisher = publisher
        self._events = events
        self._metrics = metrics
        self._labels = labels
        self._is_host_managed = is_host_managed

    async def run(self) -> None:
        """Publish now and after each change, until cancelled."""
        seen_count = 0
        while True:
            seen_count = await self._fabric.wait_for_change(seen_count)
            self._update_pool(self._fabric.status)

    async def run_clique_label(self) -> None:
        """Keep the clique's label correct, until cancelled.

        The label is checked after each change and as often as the fabric is queried.
        """
        seen_count = 0
        while self._labels is not None:
            try:
                async with asyncio.timeout(_LABEL_INTERVAL_S if seen_count else None):
                    seen_count = await self._fabric.wait_for_change(seen_count)
            except TimeoutError:
                LOG.v(4, "Checking the clique label")
            await self._update_label(self._labels)

    def _update_pool(self, status: FabricStatus) -> None:
        is_usable = status.clique is not None
        pool = layout.pool(self._node, is_usable=is_usable, is_host_managed=self._is_host_managed)
        self._publisher.publish(pool)
        kinds = [CHANNEL] if self._is_host_managed else [CHANNEL, DAEMON]
        health = "healthy" if is_usable else "unhealthy"
        self._metrics.set_devices({(kind, health): 1 for kind in kinds})
        if status.problem is not None and status.problem.reason is not Reason.NVML_RELEASED:
            # Of a release the GPU plugin has told.
            self._events.emit(
                (node_reference(self._node),),
                "Warning",
                status.problem.reason,
                status.problem.event_text,
            )

    async def _update_label(self, labels: NodeLabels) -> None:
        clique = self._fabric.status.clique
        if clique is None:
            return
        try:
            deadline = asyncio.get_running_loop().time() + _WRITE_TIMEOUT_S
            await labels.set_clique_label(clique, deadline)
        except DriverError as error:
            LOG.warning("Failed to write the clique label", error=str(error))
