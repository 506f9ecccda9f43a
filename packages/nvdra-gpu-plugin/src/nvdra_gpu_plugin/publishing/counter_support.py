"""Whether the API server keeps the counters of partitions, and how it wants them.

It drops them without a word when its feature gate is off, and then partitions that overlap would
look independent. So it is asked before any partition is published: by a slice that it is to check
and not to store (dry run), which it answers as it would have stored it. What a slice of ours has
lost counts as an answer, too.
"""

import asyncio
from collections.abc import Callable, Collection
from typing import Any, Final

from nvdra_api import names
from nvdra_api.errors import DriverError, PermanentError, Reason
from nvdra_api.ids import NodeName
from nvdra_runtime.http.probes import PassingRemark
from nvdra_runtime.kube import apiversions
from nvdra_runtime.kube.client import Client
from nvdra_runtime.kube.event_recorder import EventRecorder, node_reference
from nvdra_runtime.kubeletplugin import kubelet_version
from nvdra_runtime.process import timeouts
from nvdra_runtime.resourceslices import arrangement, slice_spec
from nvdra_runtime.resourceslices.arrangement import SliceLimits
from nvdra_runtime.telemetry import logs

LOG = logs.logger(__name__)

_RETRY_S: Final = 10.0
_CALL_TIMEOUT_S: Final = 10.0

DROPPED: Final = (
    "the API server does not keep the counters of devices, so that no MIG devices are made for "
    f"claims, and GPUs are offered as without DynamicMIG; enable the feature gate "
    f"{slice_spec.COUNTERS_GATE} on kube-apiserver and kube-scheduler (it is on by default since "
    "Kubernetes 1.36), or disable the gate DynamicMIG of this driver"
)


class CounterSupport:
    """What the API server does with counters."""

    def __init__(self, node: NodeName, events: EventRecorder) -> None:
        """Create it without any request.

        Args:
            node: This node.
            events: Records Events of the Node.
        """
        self._node = node
        self._events = events
        self._version = ""
        self._is_kept: bool | None = None
        self._has_lost = False
        self._is_wanted = asyncio.Event()
        self._is_known = asyncio.Event()
        self._woken = asyncio.Event()
        self._on_change: list[Callable[[], None]] = []

    @property
    def limits(self) -> SliceLimits | None:
        """What the API server accepts of counters; None if it does not keep them."""
        if not self._is_kept:
            return None
        return arrangement.limits_of(kubelet_version.release(self._version))

    @property
    def remark(self) -> PassingRemark | None:
        """What `/readyz` says if counters are not kept."""
        return PassingRemark(DROPPED) if self._is_kept is False else None

    def on_change(self, notify: Callable[[], None]) -> None:
        """Call `notify` whenever something else is known."""
        self._on_change.append(notify)

    async def wait_known(self) -> None:
        """Wait until the API server has answered. It is not asked before somebody waits."""
        self._is_wanted.set()
        await self._is_known.wait()

    def note_dropped(self, fields: Collection[str]) -> None:
        """Take note of what the API server has dropped from a slice."""
        if slice_spec.COUNTERS_GATE in fields:
            self._has_lost = True
            self._set(is_kept=False)

    def note_restart(self) -> None:
        """Ask again, because the API server may have been replaced."""
        self._woken.set()

    async def run(self, api: Client) -> None:
        """Ask once somebody waits, and again when woken. Run until cancelled."""
        await self._is_wanted.wait()
        while True:
            self._woken.clear()
            try:
                await self._ask(api)
            except DriverError as error:
                LOG.warning("It is not known whether counters are kept", error=str(error))
                await asyncio.sleep(_RETRY_S)
            else:
                await timeouts.wait_for_event(self._woken, None)

    async def _ask(self, api: Client) -> None:
        """Ask for the version, and for counters if the answer may be another one.

        Raises:
            DriverError: The API server does not answer.
        """
        found = await api.get("/version", _deadline())
        version = str(found.get("gitVersion", ""))
        is_other = version != self._version
        if is_other:
            self._has_lost = False
        if is_other or not (self._is_kept or self._has_lost):
            is_kept = await self._keeps_counters(api)
            self._version = version
            self._set(is_kept=is_kept, is_other=is_other)

    async def _keeps_counters(self, api: Client) -> bool:
        """Whether a slice would be stored with its counter set.

        If the dry run is refused, for example by an admission webhook that does not know it, the
        first slice tells.
        """
        version = await api.dra_api_version(_deadline())
        path = f"{apiversions.slices_path(version)}?dryRun=All"
        try:
            stored = await api.create(path, _slice(self._node, version), _deadline())
        except PermanentError as error:
            LOG.warning("The API server refuses to check a slice", error=str(error))
            return True
        return bool(stored["spec"].get("sharedCounters"))

    def _set(self, *, is_kept: bool, is_other: bool = False) -> None:
        was_kept, self._is_kept = self._is_kept, is_kept
        self._is_known.set()
        if was_kept is is_kept and not is_other:
            return
        if not is_kept:
            LOG.error("Partitions are not published", error=DROPPED)
            text = f"DynamicMIG has no effect: {DROPPED}"
            node = (node_reference(self._node),)
            self._events.emit(node, "Warning", Reason.FEATURE_GATE_DISABLED, text)
        elif was_kept is False:
            LOG.info("The API server keeps the counters of devices")
        for notify in self._on_change:
            notify()


def _slice(node: NodeName, version: str) -> dict[str, Any]:
    """A slice with nothing but a counter set, which every release accepts."""
    return {
        "apiVersion": apiversions.group_version(version),
        "kind": "ResourceSlice",
        "metadata": {"generateName": f"dry-run-{names.GPU_DRIVER}-"},
        "spec": {
            "driver": names.GPU_DRIVER,
            "nodeName": node,
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
            "sharedCounters": [{"name": "dry-run", "counters": {"slices": {"value": "1"}}}],
        },
    }


def _deadline() -> float:
    return asyncio.get_running_loop().time() + _CALL_TIMEOUT_S
