"""What is on the node → the node's ResourceSlices, on every trigger; for now there is one: start.

A node without a working driver publishes an empty pool, says why in the log and in `/readyz`, and
is looked at again until there is one.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from nvdra_api.runtime.kube.events import Events, node_subject
from nvdra_api.runtime.kube.publisher import Publisher
from nvdra_api.runtime.telemetry import logs
from nvdra_api.runtime.telemetry.metrics import Metrics
from nvdra_api.types.errors import Reason
from nvdra_api.types.gates import Gates
from nvdra_api.types.ids import NodeName

from nvdra_gpu_plugin import layout
from nvdra_gpu_plugin.hardware import Hardware, NoDriver, Snapshot
from nvdra_gpu_plugin.held import HeldClaims
from nvdra_gpu_plugin.inventory import Inventory
from nvdra_gpu_plugin.records import generations

LOG = logs.logger(__name__)

_LOOK_AGAIN_S = 5.0
"""A driver that is installed later is used within this time; one look costs milliseconds."""


class Publication:
    """Looks at the hardware until it is there, and publishes what it sees."""

    def __init__(
        self,
        node: NodeName,
        gates: Gates,
        hardware: Hardware,
        held: HeldClaims,
        publisher: Publisher,
        events: Events,
        metrics: Metrics,
    ) -> None:
        self._node = node
        self._gates = gates
        self._hardware = hardware
        self._held = held
        self._publisher = publisher
        self._events = events
        self._metrics = metrics

    async def run(self) -> None:
        """Return once the node's GPUs are published."""
        told = ""
        while True:
            try:
                snapshot = await self._hardware.look()
            except NoDriver as error:
                if str(error) != told:
                    told = str(error)
                    self._warn(told)
                self._publisher.publish(layout.pool(Inventory(), self._gates, self._node))
                await asyncio.sleep(_LOOK_AGAIN_S)
                continue
            self._announce(snapshot)
            await self._hardware.retire_specs(generations(self._held.values()))
            return

    def _warn(self, problem: str) -> None:
        LOG.warning("No GPU can be offered yet", node=self._node, error=problem)
        text = f"the node's GPUs cannot be used: {problem}; they are looked at again by themselves"
        self._events.emit((node_subject(self._node),), "Warning", Reason.DRIVER_MISMATCH, text)

    def _announce(self, snapshot: Snapshot) -> None:
        pool = layout.pool(snapshot.inventory, self._gates, self._node)
        self._publisher.publish(pool)
        for fault in snapshot.inventory.faults:
            LOG.warning("A GPU is left out", board=fault.board, error=fault.reason)
        for gpu in snapshot.inventory.gpus:
            if gpu.is_mig_enabled:
                LOG.warning("A GPU in MIG mode is not offered whole", gpu=gpu.name, uuid=gpu.uuid)
            else:
                LOG.v(4, f"About to announce device {gpu.name}", uuid=gpu.uuid, pci=gpu.pci)
        offered = sum(len(slice_.devices) for slice_ in pool.slices)
        self._metrics.devices({("gpu", "healthy"): offered})


@asynccontextmanager
async def running(publication: Publication) -> AsyncIterator[None]:
    """Publish while the block runs."""
    async with asyncio.TaskGroup() as group:
        task = group.create_task(publication.run(), name="publication")
        try:
            yield
        finally:
            task.cancel()
