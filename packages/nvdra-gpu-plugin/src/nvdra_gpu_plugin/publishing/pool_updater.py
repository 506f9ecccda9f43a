# SPDX-License-Identifier: Apache-2.0
"""Updates the node's pool whenever its GPUs change, and reports what is wrong with them.

Without a working driver the pool is empty. A GPU that does not work is not published. The reason is
in the log, in `/readyz` and in Events of the Node. What was published, also by an earlier process,
stays while its GPU may still be starting. A GPU that a claim holds under the name of before a
reboot is not offered under its present one: the scheduler would think that it is free.
"""

import asyncio
from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from itertools import groupby

from nvdra_api.errors import Reason
from nvdra_api.gates import FeatureGates
from nvdra_api.ids import DeviceName, GpuUUID, NodeName
from nvdra_runtime.kube.event_recorder import EventRecorder, node_reference
from nvdra_runtime.process import background_tasks
from nvdra_runtime.resourceslices.pool import Pool, Slice
from nvdra_runtime.resourceslices.publisher import Publisher
from nvdra_runtime.telemetry import logs
from nvdra_runtime.telemetry.metrics.plugin_metrics import PluginMetrics

from nvdra_gpu_plugin.devices import device_names
from nvdra_gpu_plugin.devices.inventory import Fault, Inventory
from nvdra_gpu_plugin.hardware.device_state import DeviceState
from nvdra_gpu_plugin.hardware.mode_refusals import ModeRefusals
from nvdra_gpu_plugin.hardware.node_gpus import NodeGpus
from nvdra_gpu_plugin.publishing import layout
from nvdra_gpu_plugin.publishing.device_taints import DeviceTaints
from nvdra_gpu_plugin.publishing.field_support import FieldSupport
from nvdra_gpu_plugin.share_policy import SharePolicy

LOG = logs.logger(__name__)

NO_GPU = (
    "the NVIDIA driver works and finds no GPU on this node, so nothing is offered; GPUs that "
    "appear later are offered without a restart"
)


class PoolUpdater:
    """Updates the pool of one node."""

    def __init__(
        self,
        node: NodeName,
        gates: FeatureGates,
        gpus: NodeGpus,
        mode_refusals: ModeRefusals,
        publisher: Publisher,
        events: EventRecorder,
        metrics: PluginMetrics,
        taints: DeviceTaints | None = None,
        counters: FieldSupport | None = None,
        sharing: tuple[SharePolicy, FieldSupport] | None = None,
    ) -> None:
        """Create it without any request.

        Args:
            node: This node, and its pool.
            gates: Which forms of attributes are published.
            gpus: The node's GPUs.
            mode_refusals: The GPUs whose MIG mode cannot be switched now.
            publisher: Publishes the pool.
            events: Records Events of the Node.
            metrics: Counts devices.
            taints: The taints of GPUs that are not well; None if nobody looks at their health.
            counters: What the API server does with counters; None without partitions.
            sharing: How devices are shared, and what the API server does with that; None if each
                is for one claim at a time.
        """
        self._node = node
        self._gates = gates
        self._gpus = gpus
        self._mode_refusals = mode_refusals
        self._publisher = publisher
        self._events = events
        self._metrics = metrics
        self._taints = taints
        self._counters = counters
        self._sharing = sharing
        self._published: Slice | None = None
        self._reported = DeviceState()
        self._reported_withdrawn: Sequence[Fault] = ()
        self._changed = asyncio.Event()
        mode_refusals.on_change(self._changed.set)
        if taints is not None:
            taints.on_change(self._changed.set)
            taints.on_change(self._count)
        if counters is not None:
            counters.on_change(self._changed.set)
        if sharing is not None:
            sharing[1].on_change(self._changed.set)

    async def run(self) -> None:
        """Publish and report the GPUs now and whenever they change. Run until cancelled."""
        await background_tasks.run_all(
            pool_changes=self._publish_changes,
            device_reports=self._report_changes,
            device_changes=self._note_changes,
        )

    async def _publish_changes(self) -> None:
        """Publish, once it is known which devices an earlier process has published."""
        published = await self._publisher.stored_content()
        await self._gpus.changed_since(0)
        while True:
            if self._counters is not None and self._has_counters(published):
                await self._counters.wait_known()
            if self._sharing is not None:
                await self._sharing[1].wait_known()
            self._changed.clear()
            is_first, self._published = self._published is None, published
            pool = self._pool(self._gpus.state, published)
            self._publisher.publish(pool)
            published = pool.content
            if is_first:
                self._report(self._gpus.state)  # lost GPUs, too
            await self._changed.wait()

    def _has_counters(self, published: Slice) -> bool:
        snapshot = self._gpus.state.snapshot
        has_partitions = snapshot is not None and bool(snapshot.inventory.partitions)
        return has_partitions or bool(published.shared_counters)

    async def _note_changes(self) -> None:
        serial = 0
        while True:
            serial = await self._gpus.changed_since(serial)
            self._changed.set()

    def _pool(self, state: DeviceState, published: Slice) -> Pool:
        taints = {} if self._taints is None else self._taints.by_uuid
        limits = None if self._counters is None else self._counters.limits
        policy = None
        if self._sharing is not None and self._sharing[1].is_kept:
            policy = self._sharing[0]
        if state.snapshot is None and state.is_released:  # as an earlier process has left it
            return layout.pool(
                Inventory(), self._gates, self._node, published, taints, limits, policy
            )
        if state.snapshot is None:
            return layout.pool(Inventory(), self._gates, self._node)
        inventory, withdrawn = state.snapshot.inventory, self._withdrawn(state)
        faulty = {fault.device for fault in withdrawn}
        lost = [DeviceName(each.device) for each in state.faults if each not in withdrawn]
        awaited = layout.still_awaited(published, inventory, (*state.awaited, *lost), faulty)
        offered = inventory.without(withdrawn).keeping_modes(self._mode_refusals.kept_modes)
        return layout.pool(offered, self._gates, self._node, awaited, taints, limits, policy)

    def _withdrawn(self, state: DeviceState) -> Sequence[Fault]:
        """The GPUs that are not published. One with a taint that keeps pods away stays.

        So does one that has just answered that it is lost: its health is looked at once it has
        described itself. One that has not, to this process, has a taint if an earlier process knew
        of its loss, and otherwise none.
        """
        if self._taints is None or not self._taints.is_served:
            return state.faults
        if self._published is None:
            return [each for each in state.faults if not each.is_lost]
        inventory = Inventory() if state.snapshot is None else state.snapshot.inventory
        avoided = self._taints.avoided
        tainted = {gpu.name for gpu in inventory.gpus if gpu.uuid in avoided}
        tainted |= layout.gpus_among(self._published, avoided)
        return [
            each
            for each in state.faults
            if each.reason is not Reason.DEVICE_UNHEALTHY
            or not (each.device in tainted or (each.is_lost and each.device in inventory.by_name))
        ]

    async def _report_changes(self) -> None:
        serial = 0
        while True:
            serial = await self._gpus.changed_since(serial)
            self._report(self._gpus.state)

    def _count(self) -> None:
        avoided = None if self._taints is None else self._taints.avoided
        self._metrics.set_devices(_device_counts(self._gpus.state, avoided))

    def _report(self, state: DeviceState) -> None:
        """Report what differs from the previous state."""
        self._count()
        previous, self._reported = self._reported, state
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
            self._events.emit((node_reference(self._node),), "Normal", "DriverWorks", text)
        if state.is_empty and not previous.is_empty:
            LOG.info("The node has no GPU")
            self._events.emit((node_reference(self._node),), "Normal", "NoGPU", NO_GPU)
        self._report_gpu_changes(state)
        if state.snapshot is not None and state.snapshot is not previous.snapshot:
            _log_devices(state.snapshot.inventory)

    def _report_gpu_changes(self, state: DeviceState) -> None:
        previous, withdrawn = self._reported_withdrawn, self._withdrawn(state)
        self._reported_withdrawn = withdrawn
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
        self._events.emit((node_reference(self._node),), "Warning", reason, text)


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
