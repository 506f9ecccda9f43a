# SPDX-License-Identifier: Apache-2.0
"""Whether the API server keeps fields of slices that other fields are wrong without.

It drops fields without a word when their feature gate is off. Partitions that overlap would look
independent without their counters, and GPUs that are not shared would have capacities for shares.
So it is asked before such a field is published.
"""

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Final

from nvdra_api.errors import DriverError, Reason
from nvdra_api.gates import Feature
from nvdra_api.ids import NodeName
from nvdra_api.meta import JsonObject
from nvdra_runtime.http.probes import PassingRemark
from nvdra_runtime.kube.client import Client
from nvdra_runtime.kube.event_recorder import EventRecorder, node_reference
from nvdra_runtime.process import timeouts
from nvdra_runtime.resourceslices import arrangement, slice_spec
from nvdra_runtime.resourceslices.arrangement import SliceLimits
from nvdra_runtime.telemetry import logs

from nvdra_gpu_plugin.publishing.kept_fields import KeptFields

LOG = logs.logger(__name__)

_RETRY_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class SliceFields:
    """Fields of slices that belong together.

    Attributes:
        what: What the API server keeps or does not keep, in texts.
        api_gate: The feature gate of Kubernetes without which the fields are dropped.
        feature: The gate of this driver for which they are published.
        dropped: What follows if they are dropped, and what to do.
        example: A part of a slice that has them, as in v1. Every release accepts it.
        loss: What the gate of this driver is without them.
    """

    what: str
    api_gate: str
    feature: Feature
    dropped: str
    example: JsonObject
    loss: str = "has no effect"


_SINCE_1_36: Final = (
    "on kube-apiserver and kube-scheduler (it is on by default since Kubernetes 1.36)"
)

COUNTERS: Final = SliceFields(
    what="the counters of devices",
    api_gate=slice_spec.COUNTERS_GATE,
    feature=Feature.DYNAMIC_MIG,
    dropped="the API server does not keep the counters of devices, so that no MIG devices are made "
    "for claims, and GPUs are offered as without DynamicMIG; enable the feature gate "
    f"{slice_spec.COUNTERS_GATE} {_SINCE_1_36}, or disable the gate DynamicMIG of this driver",
    # A slice with counters and devices is rejected since 1.35.
    example={"sharedCounters": [{"name": "dry-run", "counters": {"slices": {"value": "1"}}}]},
)

COUNTERS_OF_FORMS: Final = replace(
    COUNTERS,
    feature=Feature.PASSTHROUGH,
    dropped="the API server does not keep the counters of devices, so that of a GPU that a claim "
    "has, the other form is withdrawn, and two claims that are allocated both forms at once wait "
    f"for each other; enable the feature gate {slice_spec.COUNTERS_GATE} {_SINCE_1_36}",
    loss="does not keep claims apart",
)
"""Of GPUs that are offered in two forms, without the gate DynamicMIG."""

SHARES: Final = SliceFields(
    what="that devices can be shared",
    api_gate=slice_spec.SHARES_GATE,
    feature=Feature.CONSUMABLE_SHARES,
    dropped="the API server does not keep that devices can be shared, so that each is offered to "
    "one claim at a time, as without ConsumableShares; enable the feature gate "
    f"{slice_spec.SHARES_GATE} {_SINCE_1_36}, or set --consumable-shares=disabled",
    example={"devices": [{"name": "dry-run", "allowMultipleAllocations": True}]},
)


class FieldSupport:
    """What the API server does with some fields."""

    def __init__(self, fields: SliceFields, node: NodeName, events: EventRecorder) -> None:
        """Create it without any request.

        Args:
            fields: The fields.
            node: This node.
            events: Records Events of the Node.
        """
        self._fields = fields
        self._node = node
        self._events = events
        self._kept = KeptFields(node, fields.example, fields.api_gate)
        self._told: tuple[bool, str] | None = None
        self._is_wanted = asyncio.Event()
        self._is_known = asyncio.Event()
        self._woken = asyncio.Event()
        self._on_change: list[Callable[[], None]] = []

    @property
    def is_kept(self) -> bool:
        """Whether the API server is known to keep the fields."""
        return bool(self._kept.is_kept)

    @property
    def limits(self) -> SliceLimits | None:
        """What the API server accepts of slices; None if it does not keep the fields."""
        if not self._kept.is_kept:
            return None
        return arrangement.limits_of(self._kept.release)

    @property
    def remark(self) -> PassingRemark | None:
        """What `/readyz` says if the fields are not kept."""
        return PassingRemark(self._fields.dropped) if self._kept.is_kept is False else None

    def on_change(self, notify: Callable[[], None]) -> None:
        """Call `notify` whenever something else is known."""
        self._on_change.append(notify)

    async def wait_known(self) -> None:
        """Wait until the API server has answered. It is asked once a caller waits."""
        self._is_wanted.set()
        await self._is_known.wait()

    def note_dropped(self, fields: Collection[str]) -> None:
        """Take note of what the API server has dropped from a slice."""
        if self._kept.note_dropped(fields):
            self._tell()

    def note_restart(self) -> None:
        """Ask again, because the API server may have been replaced."""
        self._woken.set()

    async def run(self, api: Client) -> None:
        """Ask once a caller waits, and again when woken. Run until cancelled."""
        await self._is_wanted.wait()
        while True:
            self._woken.clear()
            try:
                if await self._kept.ask(api):
                    self._tell()
            except DriverError as error:
                LOG.warning(
                    "It is not known whether the API server keeps fields of slices",
                    what=self._fields.what,
                    error=str(error),
                )
                await asyncio.sleep(_RETRY_S)
            else:
                await timeouts.wait_for_event(self._woken, None)

    def _tell(self) -> None:
        """Notify the listeners and the user, unless they know."""
        is_kept = bool(self._kept.is_kept)
        told, self._told = self._told, (is_kept, self._kept.version)
        self._is_known.set()
        if told == self._told:
            return
        if not is_kept:
            LOG.error(
                "Fields of slices are not published",
                feature=str(self._fields.feature),
                error=self._fields.dropped,
            )
            text = f"{self._fields.feature} {self._fields.loss}: {self._fields.dropped}"
            node = (node_reference(self._node),)
            self._events.emit(node, "Warning", Reason.FEATURE_GATE_DISABLED, text)
        elif told is not None and not told[0]:
            LOG.info("The API server keeps fields of slices", what=self._fields.what)
        for notify in self._on_change:
            notify()
