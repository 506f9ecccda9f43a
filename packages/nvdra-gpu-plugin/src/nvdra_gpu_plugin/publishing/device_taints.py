# SPDX-License-Identifier: Apache-2.0
"""The taints that are published, and the Events of them.

They follow from the health of the GPUs and from what the API server keeps.
"""

from collections.abc import Callable, Mapping, Sequence, Set
from typing import Final

from nvdra_api.errors import Reason
from nvdra_api.ids import GpuUUID, NodeName
from nvdra_api.resource.slices import DeviceTaint
from nvdra_runtime.http.probes import PassingRemark
from nvdra_runtime.kube.event_recorder import EventRecorder, EventType, node_reference
from nvdra_runtime.telemetry import logs
from nvdra_runtime.telemetry.metrics.plugin_metrics import PluginMetrics

from nvdra_gpu_plugin.devices.claim_index import GpuClaimIndex
from nvdra_gpu_plugin.hardware.node_gpus import NodeGpus
from nvdra_gpu_plugin.health import explanations, recovery_actions
from nvdra_gpu_plugin.health.gpu_health import INFORMATIONAL, XID_KEY
from nvdra_gpu_plugin.health.health_monitor import HealthMonitor
from nvdra_gpu_plugin.health.recovery_actions import RecoveryAction
from nvdra_gpu_plugin.publishing.taint_support import TaintSupport

LOG = logs.logger(__name__)

_HEALED: Final = "DeviceHealed"
_NOT_SERVED: Final = (
    "the API server does not keep taints of devices (feature gate DRADeviceTaints), so that new "
    "pods may still be sent to it"
)

_EFFECTS: Final = {
    "NoSchedule": "new pods are kept away from",
    "NoExecute": "its pods are deleted, and new ones kept away from",
}


class DeviceTaints:
    """The taints of one node's GPUs."""

    def __init__(
        self,
        node: NodeName,
        gpus: NodeGpus,
        health: HealthMonitor,
        support: TaintSupport,
        claims: GpuClaimIndex,
        events: EventRecorder,
        metrics: PluginMetrics,
    ) -> None:
        """Create it without any request.

        Args:
            node: This node.
            gpus: Names the GPUs.
            health: What is known of their health.
            support: What the API server keeps.
            claims: Says which pods have which GPU.
            events: Records Events of the Node, and of claims and their pods.
            metrics: Counts taints.
        """
        self._node = node
        self._gpus = gpus
        self._health = health
        self._support = support
        self._claims = claims
        self._events = events
        self._metrics = metrics
        self._was_served, self._was_known = True, False
        self._reported: Mapping[GpuUUID, Sequence[DeviceTaint]] = {}
        self._on_change: list[Callable[[], None]] = []
        health.on_change(self._notify)
        support.on_change(self._notify)

    @property
    def is_served(self) -> bool:
        """Whether the API server keeps taints, as far as is known."""
        return self._support.is_served

    @property
    def by_uuid(self) -> Mapping[GpuUUID, Sequence[DeviceTaint]]:
        """The taints to publish, by the UUID of the GPU."""
        return self.wanted if self.is_served else {}

    @property
    def wanted(self) -> Mapping[GpuUUID, Sequence[DeviceTaint]]:
        """The taints that the GPUs should have, whether or not they can be published."""
        return self._health.taints(self._support.knows_none)

    @property
    def avoided(self) -> Set[GpuUUID]:
        """The GPUs with a taint that keeps pods away, whether or not it can be published."""
        return {
            uuid
            for uuid, taints in self.wanted.items()
            if any(taint.effect != INFORMATIONAL for taint in taints)
        }

    @property
    def remark(self) -> PassingRemark | None:
        """What `/readyz` says of GPUs that are not well."""
        texts = [f"{self._name(uuid)} has {', '.join(self.texts(uuid))}" for uuid in self.wanted]
        texts += [
            f"{self._name(uuid)} is not monitored: {text}"
            for uuid, text in self._health.unmonitored.items()
        ]
        if not texts:
            return None
        return PassingRemark("; ".join(texts if self.is_served else [*texts, _NOT_SERVED]))

    def texts(self, uuid: GpuUUID) -> Sequence[str]:
        """The taints of a GPU as texts, with the recovery action that NVML asks for."""
        action = self._health.actions.get(uuid, RecoveryAction.NONE)
        name = f" (recovery action: {recovery_actions.describe(action)})" if action else ""
        return [
            describe(taint) + (name if taint.key == XID_KEY else "")
            for taint in self.wanted.get(uuid, ())
        ]

    def on_change(self, notify: Callable[[], None]) -> None:
        """Call `notify` whenever other taints are to be published."""
        self._on_change.append(notify)

    def _notify(self) -> None:
        self._report()
        for notify in self._on_change:
            notify()

    def _report(self) -> None:
        """Say what differs from what was said before.

        An Event says what a taint does, so it waits until it is known whether taints are kept.
        """
        wanted, before = self.wanted, self._reported
        is_known = self._support.is_known
        is_news = is_known and (not self._was_known or (self._was_served and not self.is_served))
        self._reported = wanted
        self._was_served, self._was_known = self.is_served, is_known
        news: list[tuple[GpuUUID, DeviceTaint]] = []
        for uuid in {**wanted, **before}:
            now, then = (set(map(describe, each.get(uuid, ()))) for each in (wanted, before))
            for taint in wanted.get(uuid, ()):
                if describe(taint) not in then:
                    self._log_new(uuid, taint)
                if is_known and (is_news or describe(taint) not in then):
                    news.append((uuid, taint))
            if then - now:
                self._report_gone(uuid, then - now, is_well=not now)
        self._tell(news)

    def _log_new(self, uuid: GpuUUID, taint: DeviceTaint) -> None:
        LOG.warning("A GPU is not well", gpu=self._name(uuid), uuid=uuid, taint=describe(taint))
        self._metrics.health_event(taint.key.partition("/")[2])

    def _tell(self, news: Sequence[tuple[GpuUUID, DeviceTaint]]) -> None:
        """Write Events of the Node, then of those who have these GPUs.

        A taint that keeps no pod away has no Event. Users get one only for what no earlier process
        has found.
        """
        texts: dict[GpuUUID, dict[str, str]] = {}
        actions = self._health.actions
        for uuid, taint in news:
            found = explanations.find(taint, actions.get(uuid, RecoveryAction.NONE))
            if found is None:
                continue
            effect = f"{_EFFECTS[taint.effect]} it" if self.is_served else _NOT_SERVED
            text = f"{self._name(uuid)} ({uuid}) {found.of(taint, f'{effect}; ')}"
            self._emit("Warning", Reason.DEVICE_UNHEALTHY, text, f"{uuid} {taint.key}")
            if taint not in self._health.restored.get(uuid, ()):
                texts.setdefault(uuid, {})[taint.key] = text
        for record, gpus in self._claims.users_of(texts):
            about = " ".join(f"{uuid} {key}" for uuid in gpus for key in texts[uuid])
            text = " / ".join(text for uuid in gpus for text in texts[uuid].values())
            self._events.emit_for_claim(
                record.ref, None, "Warning", Reason.DEVICE_UNHEALTHY, text, about=about
            )

    def _report_gone(self, uuid: GpuUUID, taints: set[str], *, is_well: bool) -> None:
        LOG.info("A GPU has lost a taint", gpu=self._name(uuid), uuid=uuid, taints=sorted(taints))
        if is_well and not all(taint.endswith(f":{INFORMATIONAL}") for taint in taints):
            text = f"{self._name(uuid)} ({uuid}) is well again and has no taint any more"
            self._emit("Normal", _HEALED, text, uuid)

    def _emit(self, type_: EventType, reason: str, text: str, about: str) -> None:
        self._events.emit((node_reference(self._node),), type_, reason, text, about=about)

    def _name(self, uuid: GpuUUID) -> str:
        snapshot = self._gpus.snapshot
        known = None if snapshot is None else snapshot.inventory.by_uuid.get(uuid)
        return "a GPU" if known is None else known.name


def describe(taint: DeviceTaint) -> str:
    """A taint as kubectl shows those of Nodes: `key=value:effect`."""
    value = f"={taint.value}" if taint.value else ""
    return f"{taint.key}{value}:{taint.effect}"
