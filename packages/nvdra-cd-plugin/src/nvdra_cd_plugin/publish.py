"""What is known of the node's fabric → the node's ResourceSlice, whenever that changes.

A node whose clique nobody knows yet publishes an empty pool; why, is in the log, in `/readyz` and
in Events of the Node.
"""

import asyncio
from typing import Final

from nvdra_api.runtime.kube.events import Events, node_subject
from nvdra_api.runtime.kube.publisher import Publisher
from nvdra_api.runtime.telemetry import logs
from nvdra_api.runtime.telemetry.metrics import Metrics
from nvdra_api.types.errors import DriverError
from nvdra_api.types.ids import NodeName

from nvdra_cd_plugin import layout
from nvdra_cd_plugin.fabric_watch import EVERY_S, FabricWatch, View
from nvdra_cd_plugin.node_label import NodeLabels

LOG = logs.logger(__name__)

_LABEL_S: Final = 10.0


class Publication:
    """Publishes what the node can be used for, and tells what is wrong with it."""

    def __init__(
        self,
        node: NodeName,
        fabric: FabricWatch,
        publisher: Publisher,
        events: Events,
        metrics: Metrics,
        labels: NodeLabels | None,
        *,
        is_host_managed: bool,
    ) -> None:
        """Nothing is published yet.

        Args:
            node: This node.
            fabric: Its fabric.
            publisher: Of its slices.
            events: Where the node's administrator is told.
            metrics: Of this plugin.
            labels: The node's labels, to tell its clique there; None where nobody asked for that.
            is_host_managed: There are no daemons.
        """
        self._node = node
        self._fabric = fabric
        self._publisher = publisher
        self._events = events
        self._metrics = metrics
        self._labels = labels
        self._is_host_managed = is_host_managed

    async def run(self) -> None:
        """Publish for ever: now, and whenever something else is known."""
        serial = 0
        while True:
            serial = await self._fabric.changed_since(serial)
            self._announce(self._fabric.view)

    async def show_clique(self) -> None:
        """Keep the clique's label true, for ever; put right again at every look at the fabric."""
        serial = 0
        while self._labels is not None:
            try:
                async with asyncio.timeout(EVERY_S if serial else None):
                    serial = await self._fabric.changed_since(serial)
            except TimeoutError:
                LOG.v(4, "The label of the clique is looked at")
            await self._show(self._labels)

    def _announce(self, view: View) -> None:
        is_usable = view.clique is not None
        pool = layout.pool(self._node, is_usable=is_usable, is_host_managed=self._is_host_managed)
        self._publisher.publish(pool)
        kinds = [layout.CHANNEL] if self._is_host_managed else [layout.CHANNEL, layout.DAEMON]
        state = "healthy" if is_usable else "unhealthy"
        self._metrics.devices({(kind, state): 1 for kind in kinds})
        if view.problem is not None:
            self._events.emit(
                (node_subject(self._node),), "Warning", view.problem.reason, view.problem.advice
            )

    async def _show(self, labels: NodeLabels) -> None:
        view = self._fabric.view
        if view.clique is None:
            return
        try:
            deadline = asyncio.get_running_loop().time() + _LABEL_S
            await labels.show_clique(view.clique, deadline)
        except DriverError as error:
            LOG.warning("The label of the clique cannot be written", error=str(error))
