# SPDX-License-Identifier: Apache-2.0
"""Reports the node's GPUs: Events of the Node, the log, and how many devices there are."""

from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby

from nvdra_api.errors import Reason
from nvdra_api.ids import GpuUUID, NodeName
from nvdra_runtime.kube.event_recorder import EventRecorder, node_reference
from nvdra_runtime.telemetry import logs
from nvdra_runtime.telemetry.metrics.plugin_metrics import PluginMetrics

from nvdra_gpu_plugin.devices import device_names
from nvdra_gpu_plugin.devices.gpu_forms import Withheld
from nvdra_gpu_plugin.devices.inventory import Fault, Inventory
from nvdra_gpu_plugin.hardware.device_state import DeviceState
from nvdra_gpu_plugin.publishing.device_taints import DeviceTaints
from nvdra_gpu_plugin.publishing.vfio_report import VfioReport

LOG = logs.logger(__name__)

NO_GPU = (
    "the NVIDIA driver works and finds no GPU on this node, so nothing is offered; GPUs that "
    "appear later are offered without a restart"
)


class GpuReport:
    """What was reported of one node's GPUs.

    Attributes:
        vfio: Reports them with regard to virtual machines; None without the gate.
    """

    def __init__(
        self,
        node: NodeName,
        events: EventRecorder,
        metrics: PluginMetrics,
        taints: DeviceTaints | None = None,
        vfio: VfioReport | None = None,
    ) -> None:
        """Create it without reporting anything.

        Args:
            node: This node.
            events: Records Events of the Node.
            metrics: Counts the devices.
            taints: As those of a `PoolUpdater`.
            vfio: The attribute.
        """
        self._node = (node_reference(node),)
        self._events = events
        self._metrics = metrics
        self._taints = taints
        self.vfio = vfio
        self._state = DeviceState()
        self._withdrawn: Sequence[Fault] = ()

    def count(self, state: DeviceState) -> None:
        """Count the devices."""
        avoided = None if self._taints is None else self._taints.avoided
        counts = _device_counts(state, avoided)
        if self.vfio is not None:
            counts = {**counts, **_vfio_counts(self.vfio, avoided or set())}
        self._metrics.set_devices(counts)

    def report(self, state: DeviceState, withdrawn: Sequence[Fault]) -> None:
        """Report what differs from the previous state.

        Args:
            state: What is known of the GPUs.
            withdrawn: Those that are not published, with the reasons.
        """
        self.count(state)
        if state.is_for_machines_only:  # no GPU needs the driver
            state = replace(state, node_fault=None)
        previous, self._state = self._state, state
        if state.node_fault is not None and state.node_fault != previous.node_fault:
            LOG.warning("The node's GPUs cannot be used", error=state.node_fault.text)
            self._warn(
                state.node_fault.reason,
                f"the node's GPUs cannot be used: {state.node_fault.text}; they are inspected "
                "again automatically",
            )
        if state.node_fault is None and previous.node_fault is not None:
            LOG.info("The node's GPUs can be used again")
            text = "the driver works, and the node's GPUs can be used again"
            self._events.emit(self._node, "Normal", "DriverWorks", text)
        if state.is_empty and not previous.is_empty:
            LOG.info("The node has no GPU")
            self._events.emit(self._node, "Normal", "NoGPU", NO_GPU)
        self._report_gpu_changes(state, withdrawn)
        if state.snapshot is not None and state.snapshot is not previous.snapshot:
            _log_devices(state.snapshot.inventory)

    def _report_gpu_changes(self, state: DeviceState, withdrawn: Sequence[Fault]) -> None:
        previous, self._withdrawn = self._withdrawn, withdrawn
        new = [fault for fault in withdrawn if fault not in previous]
        faulty = {fault.device for fault in withdrawn}
        for fault in new:
            LOG.warning("A GPU is not published", board=fault.device, error=fault.text)
            self._metrics.health_event(fault.reason)
        for fault in previous:
            if fault.device not in faulty and state.snapshot is not None:
                LOG.info("A GPU is published again", board=fault.device)
        for reason, faults in _by_reason(new):
            self._warn(
                reason, "these GPUs are not offered: " + " / ".join(fault.text for fault in faults)
            )

    def _warn(self, reason: Reason, text: str) -> None:
        self._events.emit(self._node, "Warning", reason, text)


def _device_counts(
    state: DeviceState, avoided: Container[GpuUUID] | None
) -> Mapping[tuple[str, str], int]:
    """How many devices of each kind can be handed out, and how many cannot.

    Each is counted once: one that cannot be used is unhealthy, whether it is tainted or not.

    Args:
        state: What is known of the GPUs.
        avoided: GPUs with a taint that keeps pods away; None if none is looked at.
    """
    inventory = Inventory() if state.snapshot is None else state.snapshot.inventory
    faulty = {fault.device for fault in state.faults}
    unusable = {name for name in faulty if device_names.parse_mig_name(name) is not None}
    gpu_faults = len(state.faults) - len(unusable)
    unusable |= {
        mig.name for gpu in inventory.gpus if gpu.name in faulty for mig in gpu.mig_devices
    }
    usable = inventory.without(state.faults)
    tainted = Counter(
        device.kind for device in usable.devices if usable.gpu_of(device).uuid in (avoided or ())
    )
    healthy = Counter(device.kind for device in usable.devices) - tainted
    healthy["gpu"] += len(state.passthrough.lent)  # it stays published
    unhealthy = {"gpu": gpu_faults, "mig": len(unusable)}
    kinds = ["gpu"]
    if unusable or any(gpu.is_mig_enabled for gpu in inventory.gpus):
        kinds.append("mig")
    counts: dict[tuple[str, str], int] = {}
    for kind in kinds:
        counts |= {(kind, "healthy"): healthy[kind], (kind, "unhealthy"): unhealthy[kind]}
        if avoided is not None:
            counts[kind, "tainted"] = tainted[kind]
    return counts


def _vfio_counts(report: VfioReport, avoided: Container[GpuUUID]) -> Mapping[tuple[str, str], int]:
    """How many vfio devices can be handed out, and how many cannot because of their GPUs.

    Those that the node's hardware or settings exclude count as neither.
    """
    busy = report.wanted
    offered = [offer.device for offer in report.offers if offer.reason is None]
    tainted = sum(each.uuid in busy or each.parent_uuid in avoided for each in offered)
    failed = (Withheld.UNHEALTHY, Withheld.UNDO_FAILED)
    unhealthy = [each for each in report.offers if each.reason and each.reason.obstacle in failed]
    kind = "vfio"
    return {
        (kind, "healthy"): len(offered) - tainted,
        (kind, "tainted"): tainted,
        (kind, "unhealthy"): len(unhealthy),
    }


def _by_reason(faults: Iterable[Fault]) -> list[tuple[Reason, list[Fault]]]:
    ordered = sorted(faults, key=lambda fault: fault.reason)
    return [(reason, list(each)) for reason, each in groupby(ordered, lambda each: each.reason)]


def _log_devices(inventory: Inventory) -> None:
    for gpu in inventory.gpus:
        if gpu.is_mig_enabled and not gpu.mig_devices and not gpu.partitions:
            LOG.warning(
                "A GPU in MIG mode has no MIG device, so that nothing of it is published",
                gpu=gpu.name,
                uuid=gpu.uuid,
            )
        for bare in gpu.bare_instances:
            LOG.warning(
                "A MIG GPU instance that no claim has made has no compute instance: it is not "
                "offered, and nothing that overlaps it is",
                gpu=gpu.name,
                uuid=gpu.uuid,
                gpu_instance=bare.id,
                profile=bare.profile.name,
            )
        for device in gpu.devices:
            LOG.v(4, f"About to announce device {device.name}", uuid=device.uuid, pci=device.pci)
