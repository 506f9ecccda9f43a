"""What is on the node → the node's ResourceSlices, whenever that changes.

A node without a working driver publishes an empty pool, and a board that does not work is left out
of it; why, is in the log, in `/readyz` and in Events of the Node.
"""

from collections.abc import Iterable
from itertools import groupby

from nvdra_api.runtime.kube.events import Events, node_subject
from nvdra_api.runtime.kube.publisher import Publisher
from nvdra_api.runtime.telemetry import logs
from nvdra_api.runtime.telemetry.metrics import Metrics
from nvdra_api.types.errors import Reason
from nvdra_api.types.gates import Gates
from nvdra_api.types.ids import NodeName

from nvdra_gpu_plugin import layout
from nvdra_gpu_plugin.hardware import Hardware
from nvdra_gpu_plugin.inventory import Fault, Inventory
from nvdra_gpu_plugin.survey import View

LOG = logs.logger(__name__)

NO_GPU = (
    "the NVIDIA driver works and finds no GPU on this node, so nothing is offered; GPUs that "
    "appear are offered by themselves"
)


class Publication:
    """Publishes what is on the node, and tells what is wrong with it."""

    def __init__(
        self,
        node: NodeName,
        gates: Gates,
        hardware: Hardware,
        publisher: Publisher,
        events: Events,
        metrics: Metrics,
    ) -> None:
        self._node = node
        self._gates = gates
        self._hardware = hardware
        self._publisher = publisher
        self._events = events
        self._metrics = metrics
        self._told = View()

    async def run(self) -> None:
        """Publish for ever: now, and whenever the hardware is seen to be another."""
        serial = 0
        while True:
            serial = await self._hardware.changed_since(serial)
            view = self._hardware.view
            self._announce(view)
            self._tell(view)

    def _announce(self, view: View) -> None:
        known = Inventory() if view.snapshot is None else view.snapshot.inventory
        pool = layout.pool(known.without(view.faults), self._gates, self._node)
        self._publisher.publish(pool)
        offered = sum(len(slice_.devices) for slice_ in pool.slices)
        self._metrics.devices({("gpu", "healthy"): offered, ("gpu", "unhealthy"): len(view.faults)})

    def _tell(self, view: View) -> None:
        """Tell what is new; what lasts has been told."""
        before, self._told = self._told, view
        if view.trouble is not None and view.trouble != before.trouble:
            LOG.warning("The node's GPUs cannot be used", error=view.trouble.text)
            self._warn(
                view.trouble.reason,
                f"the node's GPUs cannot be used: {view.trouble.text}; they are looked at again by "
                "themselves",
            )
        if view.trouble is None and before.trouble is not None:
            LOG.info("The node's GPUs can be used again")
        if view.is_empty and not before.is_empty:
            LOG.info("The node has no GPU")
            self._events.emit((node_subject(self._node),), "Normal", "NoGPU", NO_GPU)
        self._tell_of_boards(before, view)
        if view.snapshot is not None and view.snapshot is not before.snapshot:
            _log_devices(view.snapshot.inventory)

    def _tell_of_boards(self, before: View, view: View) -> None:
        new = [fault for fault in view.faults if fault not in before.faults]
        faulty = {fault.board for fault in view.faults}
        for fault in new:
            LOG.warning("A GPU is left out", board=fault.board, error=fault.text)
            self._metrics.health_event(fault.reason)
        for fault in before.faults:
            if fault.board not in faulty and view.snapshot is not None:
                LOG.info("A GPU is offered again", board=fault.board)
        for reason, faults in _by_reason(new):
            self._warn(reason, "not offered: " + " / ".join(fault.text for fault in faults))

    def _warn(self, reason: Reason, text: str) -> None:
        self._events.emit((node_subject(self._node),), "Warning", reason, text)


def _by_reason(faults: Iterable[Fault]) -> list[tuple[Reason, list[Fault]]]:
    ordered = sorted(faults, key=lambda fault: fault.reason)
    return [(reason, list(each)) for reason, each in groupby(ordered, lambda each: each.reason)]


def _log_devices(inventory: Inventory) -> None:
    for gpu in inventory.gpus:
        if gpu.is_mig_enabled:
            LOG.warning("A GPU in MIG mode is not offered whole", gpu=gpu.name, uuid=gpu.uuid)
        else:
            LOG.v(4, f"About to announce device {gpu.name}", uuid=gpu.uuid, pci=gpu.pci)
