# SPDX-License-Identifier: Apache-2.0
"""Looks for a device plugin on this node, and says so in the log, in Events and in `/readyz`.

The plugin stays ready: it gives GPUs to claims as ever, and only an administrator can decide which
of the two is to go.
"""

import asyncio
from typing import Final

from nvdra_api.ids import NodeName
from nvdra_runtime.http.probes import PassingRemark
from nvdra_runtime.kube.event_recorder import EventRecorder, EventType, node_reference
from nvdra_runtime.process.worker import Worker
from nvdra_runtime.telemetry import logs

from nvdra_gpu_plugin.device_plugin.allocation_file import AllocationFile, AllocationsUnreadable
from nvdra_gpu_plugin.device_plugin.gpu_resources import OfferedGpus
from nvdra_gpu_plugin.hardware.node_gpus import NodeGpus

LOG = logs.logger(__name__)

_LOOK_S: Final = 5.0
"""As often as the device monitor looks. A notification of the directory would be lost on a node
whose kubelet makes the directory later, or anew."""

_FOUND: Final = "DevicePluginPresent"
_GONE: Final = "DevicePluginGone"


class DevicePluginDetection:
    """What is known of a device plugin on this node."""

    def __init__(
        self,
        node: NodeName,
        gpus: NodeGpus,
        file: AllocationFile,
        files: Worker,
        events: EventRecorder,
    ) -> None:
        """Create it without reading anything.

        Args:
            node: This node.
            gpus: Whether there are GPUs that could be given twice.
            file: The kubelet's file.
            files: The worker thread for files.
            events: Records Events of the Node.
        """
        self._node = node
        self._gpus = gpus
        self._file = file
        self._files = files
        self._events = events
        self._offered = OfferedGpus()
        self._reported: tuple[str, ...] = ()
        self._problem = ""

    @property
    def remark(self) -> PassingRemark | None:
        """What `/readyz` says; None if this driver is alone, or has no GPU to give."""
        if not self._has_gpus:
            return None
        text = self._offered.text
        if self._problem:
            text = f"it is not known whether a device plugin offers GPUs: {self._problem}"
        return PassingRemark(text) if text else None

    async def run(self) -> None:
        """Look now and then. Run until cancelled."""
        while True:
            await self._look()
            await asyncio.sleep(_LOOK_S)

    @property
    def _has_gpus(self) -> bool:
        snapshot = self._gpus.snapshot
        return snapshot is not None and bool(snapshot.inventory.gpus)

    async def _look(self) -> None:
        try:
            self._offered = await self._files.run(self._file.read)
        except AllocationsUnreadable as error:
            if str(error) != self._problem:
                LOG.warning("It is not known whether a device plugin offers GPUs", error=str(error))
            self._problem = str(error)
            return
        self._problem = ""
        if self._has_gpus:
            self._report()

    def _report(self) -> None:
        """Say it when other resources are offered or held than before; not for each pod."""
        resources = tuple(sorted({*self._offered.devices, *self._offered.pods}))
        before, self._reported = self._reported, resources
        if resources == before:
            return
        if resources:
            LOG.warning("A device plugin shares this node's GPUs", error=self._offered.text)
            self._emit("Warning", _FOUND, self._offered.text)
        else:
            LOG.info("No device plugin shares this node's GPUs any more")
            self._emit(
                "Normal", _GONE, "no device plugin offers or holds this node's GPUs any more"
            )

    def _emit(self, type_: EventType, reason: str, text: str) -> None:
        self._events.emit((node_reference(self._node),), type_, reason, text)
