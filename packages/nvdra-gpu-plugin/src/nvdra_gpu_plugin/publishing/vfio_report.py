# SPDX-License-Identifier: Apache-2.0
"""Reports GPUs with regard to virtual machines: Events of the Node, the log, metrics, `/readyz`.

It also has the taints of vfio devices whose GPUs are in use.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from nvdra_api.errors import Reason
from nvdra_api.ids import NodeName, VfioUUID
from nvdra_api.resource.slices import DeviceTaint
from nvdra_runtime.http.probes import PassingRemark
from nvdra_runtime.kube.event_recorder import EventRecorder, node_reference
from nvdra_runtime.telemetry import logs
from nvdra_runtime.telemetry.metrics.plugin_metrics import PluginMetrics

from nvdra_gpu_plugin.devices import vfio_devices
from nvdra_gpu_plugin.passthrough.busy_gpus import BusyGpus
from nvdra_gpu_plugin.publishing import vfio_offers, vfio_taints
from nvdra_gpu_plugin.publishing.taint_support import TaintSupport
from nvdra_gpu_plugin.publishing.vfio_offers import VfioOffer

LOG = logs.logger(__name__)


class VfioReport:
    """What was reported of one node's GPUs.

    Attributes:
        offers: The GPUs as they were last reported.
    """

    def __init__(
        self,
        node: NodeName,
        events: EventRecorder,
        metrics: PluginMetrics,
        busy: BusyGpus,
        support: TaintSupport,
    ) -> None:
        """Create it without reporting anything.

        Args:
            node: This node.
            events: Records Events of the Node.
            metrics: Counts the GPUs.
            busy: The GPUs that are in use beside claims.
            support: Whether the API server keeps taints.
        """
        self.offers: tuple[VfioOffer, ...] = ()
        self._node = (node_reference(node),)
        self._events = events
        self._metrics = metrics
        self._busy = busy
        self._support = support

    @property
    def taints(self) -> Mapping[VfioUUID, Sequence[DeviceTaint]]:
        """The taints to publish of GPUs that are in use, by their vfio devices."""
        return self.wanted if self._support.is_served else {}

    @property
    def wanted(self) -> Mapping[VfioUUID, Sequence[DeviceTaint]]:
        """The same, whether or not they can be published."""
        return {
            vfio_devices.uuid_at(pci): (vfio_taints.busy(command),)
            for pci, command in self._busy.commands.items()
        }

    @property
    def remark(self) -> PassingRemark | None:
        """What `/readyz` says of GPUs that cannot be passed through."""
        texts = vfio_offers.texts(self.offers)
        return PassingRemark("; ".join(texts)) if texts else None

    def on_taints_change(self, notify: Callable[[], None]) -> None:
        """Call `notify` whenever other taints are to be published."""
        self._busy.on_change(notify)
        self._support.on_change(notify)

    def report(self, offers: tuple[VfioOffer, ...]) -> None:
        """Report what differs from the previous look."""
        before, self.offers = {offer.device.pci: offer for offer in self.offers}, offers
        self._metrics.set_kernel_drivers(Counter(offer.driver for offer in offers))
        self._metrics.set_vfio_withheld(
            Counter(offer.reason.obstacle for offer in offers if offer.reason is not None)
        )
        news = []
        for offer in offers:
            former = before.get(offer.device.pci)
            if former is None or former.reason != offer.reason:
                _log(offer, former)
                news.append(offer)
        for text in vfio_offers.texts(news):
            self._events.emit(self._node, "Warning", Reason.VFIO_NOT_POSSIBLE, text)


def _log(offer: VfioOffer, former: VfioOffer | None) -> None:
    """Log what has become of a GPU: loudly if a person has to act, or has acted."""
    device, reason = offer.device, offer.reason
    facts = {"device": device.name, "pci": device.pci, "kernel_driver": offer.driver}
    if reason is not None and reason.is_told:
        LOG.warning(
            "A GPU cannot be passed through",
            **facts,
            obstacle=reason.obstacle,
            cause=reason.cause,
            remedy=reason.remedy,
        )
    elif reason is not None:
        LOG.v(2, "A GPU is not offered to virtual machines now", **facts, cause=reason.cause)
    elif former is None:
        LOG.v(4, f"About to announce device {device.name}", uuid=device.uuid, pci=device.pci)
    elif former.reason is not None and former.reason.is_told:
        LOG.info("A GPU can be passed through again", **facts)
