# SPDX-License-Identifier: Apache-2.0
"""Updates the node's pool whenever its GPUs change, and has reported what is wrong with them.

Without a working driver the pool is empty. A GPU that does not work is not published. The reason is
in the log, in `/readyz` and in Events of the Node. What was published, also by an earlier process,
stays while its GPU may still be starting. A GPU that a claim holds under the name of before a
reboot is not offered under its present one: the scheduler would think that it is free.
"""

import asyncio
from collections.abc import Callable, Sequence

from nvdra_api.errors import Reason
from nvdra_api.ids import DeviceName, GpuUUID, VfioUUID
from nvdra_api.resource.slices import DeviceTaint
from nvdra_runtime.process import background_tasks
from nvdra_runtime.resourceslices.pool import Pool, Slice
from nvdra_runtime.resourceslices.publisher import Publisher

from nvdra_gpu_plugin.devices.inventory import Fault, Inventory
from nvdra_gpu_plugin.hardware.device_state import DeviceState
from nvdra_gpu_plugin.hardware.node_gpus import NodeGpus
from nvdra_gpu_plugin.publishing import layout
from nvdra_gpu_plugin.publishing.device_taints import DeviceTaints
from nvdra_gpu_plugin.publishing.field_support import FieldSupport
from nvdra_gpu_plugin.publishing.gpu_report import GpuReport
from nvdra_gpu_plugin.publishing.offer import Offer
from nvdra_gpu_plugin.share_policy import SharePolicy


class PoolUpdater:
    """Updates the pool of one node."""

    def __init__(
        self,
        make_pool: Callable[..., Pool],
        gpus: NodeGpus,
        offer: Offer,
        publisher: Publisher,
        report: GpuReport,
        taints: DeviceTaints | None = None,
        counters: FieldSupport | None = None,
        sharing: tuple[SharePolicy, FieldSupport] | None = None,
    ) -> None:
        """Create it without any request.

        Args:
            make_pool: `layout.pool` with the gates and the name of this node.
            gpus: The node's GPUs.
            offer: What of the GPUs that work is offered.
            publisher: Publishes the pool.
            report: Reports what is wrong with the GPUs.
            taints: The taints of GPUs that are not well; None without health checks.
            counters: What the API server does with counters; None without partitions.
            sharing: How devices are shared, and what the API server does with that; None if each
                is for one claim at a time.
        """
        self._make_pool = make_pool
        self._gpus = gpus
        self._offer = offer
        self._publisher = publisher
        self._report = report
        self._taints = taints
        self._counters = counters
        self._sharing = sharing
        self._vfio = report.vfio
        self._published: Slice | None = None
        self._changed = asyncio.Event()
        offer.on_change(self._changed.set)
        if taints is not None:
            taints.on_change(self._changed.set)
            taints.on_change(lambda: report.count(gpus.state))
        if counters is not None:
            counters.on_change(self._changed.set)
        if sharing is not None:
            sharing[1].on_change(self._changed.set)
        if report.vfio is not None:
            report.vfio.on_taints_change(self._changed.set)

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
                self._report_state()  # lost GPUs, too
            await self._changed.wait()

    def _has_counters(self, published: Slice) -> bool:
        snapshot = self._gpus.state.snapshot
        if snapshot is not None and (snapshot.inventory.partitions or snapshot.inventory.vfio):
            return True
        return bool(published.shared_counters)

    async def _note_changes(self) -> None:
        serial = 0
        while True:
            serial = await self._gpus.changed_since(serial)
            self._changed.set()

    def _pool(self, state: DeviceState, published: Slice) -> Pool:
        taints = self._published_taints()
        limits = None if self._counters is None else self._counters.limits
        policy = None
        if self._sharing is not None and self._sharing[1].is_kept:
            policy = self._sharing[0]
        if state.snapshot is None and state.is_released:  # as an earlier process has left it
            return self._make_pool(
                Inventory(), awaited=published, taints=taints, limits=limits, policy=policy
            )
        withdrawn, has_counters = self._withdrawn(state), limits is not None
        if state.snapshot is None:
            self._offered(Inventory(), withdrawn, state, has_counters=has_counters)
            return self._make_pool(Inventory())
        inventory = state.snapshot.inventory
        faulty = {fault.device for fault in withdrawn}
        lost = [DeviceName(each.device) for each in state.faults if each not in withdrawn]
        awaited = layout.still_awaited(published, inventory, (*state.awaited, *lost), faulty)
        offered = self._offered(inventory, withdrawn, state, has_counters=has_counters)
        return self._make_pool(
            offered, awaited=awaited, taints=taints, limits=limits, policy=policy
        )

    def _published_taints(self) -> layout.Taints:
        of_gpus = {} if self._taints is None else self._taints.by_uuid
        of_vfio = {} if self._vfio is None else self._vfio.taints
        found: list[tuple[GpuUUID | VfioUUID, Sequence[DeviceTaint]]] = []
        found += of_gpus.items()
        found += of_vfio.items()
        return dict(found)

    def _offered(
        self,
        inventory: Inventory,
        withdrawn: Sequence[Fault],
        state: DeviceState,
        *,
        has_counters: bool,
    ) -> Inventory:
        """What is offered; it is reported, too."""
        offered = self._offer.of(inventory, withdrawn, state.passthrough, has_counters=has_counters)
        if self._vfio is not None:
            self._vfio.report(offered.vfio)
            self._report.count(state)
        return offered.inventory

    def _withdrawn(self, state: DeviceState) -> Sequence[Fault]:
        """The GPUs that are not published. One with a taint that keeps pods away stays.

        So does one that has just answered that it is lost: its health is looked at once it has
        described itself. One that has not, to this process, has a taint if an earlier process knew
        of its loss, and otherwise none.
        """
        if self._taints is None or not self._taints.is_served:
            return state.faults
        if self._published is None:
            return [fault for fault in state.faults if not fault.is_lost]
        inventory = Inventory() if state.snapshot is None else state.snapshot.inventory
        avoided = self._taints.avoided
        tainted = {gpu.name for gpu in inventory.gpus if gpu.uuid in avoided}
        tainted |= layout.gpus_among(self._published, avoided)
        return [
            fault
            for fault in state.faults
            if fault.reason is not Reason.DEVICE_UNHEALTHY
            or not (
                fault.device in tainted or (fault.is_lost and fault.device in inventory.by_name)
            )
        ]

    async def _report_changes(self) -> None:
        serial = 0
        while True:
            serial = await self._gpus.changed_since(serial)
            self._report_state()

    def _report_state(self) -> None:
        state = self._gpus.state
        self._report.report(state, self._withdrawn(state))
