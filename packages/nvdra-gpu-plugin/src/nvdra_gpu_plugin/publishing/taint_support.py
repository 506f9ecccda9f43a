"""Whether the API server keeps taints of devices.

It drops them without a word when its feature gate is off, so it is asked by a slice that it is to
check and not to store (dry run), and asked again when its version changes. What a slice of ours has
lost counts as an answer, too.
"""

import asyncio
from collections.abc import Callable, Collection
from typing import Final

from nvdra_api import names
from nvdra_api.errors import DriverError
from nvdra_api.ids import NodeName
from nvdra_api.meta import JsonObject
from nvdra_runtime.kube.client import Client
from nvdra_runtime.kubeletplugin import kubelet_version
from nvdra_runtime.resourceslices import slice_spec
from nvdra_runtime.telemetry import logs

from nvdra_gpu_plugin.publishing import dry_run

LOG = logs.logger(__name__)

_INTERVAL_S: Final = 3600.0
_DROPPED_INTERVAL_S: Final = 300.0
"""Between two questions for the version, while taints are kept and while they are dropped."""

_RETRY_S: Final = 10.0
_CALL_TIMEOUT_S: Final = 10.0

_KNOWS_NONE: Final = (1, 35)
"""The release of Kubernetes with the effect `None`."""

_EXAMPLE: Final[JsonObject] = {
    "devices": [
        {
            "name": "dry-run",
            "taints": [{"key": f"{names.GPU_DRIVER}/dry-run", "effect": "NoSchedule"}],
        }
    ]
}


class TaintSupport:
    """What the API server does with taints.

    Attributes:
        is_served: Whether it keeps them; true until this is known.
        knows_none: Whether it accepts the effect `None`. It rejects a slice with another.
    """

    def __init__(self, node: NodeName) -> None:
        """Create it without any request.

        Args:
            node: This node.
        """
        self.is_served = True
        self.knows_none = False
        self._node = node
        self._version = ""
        self._has_lost = False
        self._on_change: list[Callable[[], None]] = []

    @property
    def is_known(self) -> bool:
        """Whether the API server has answered, so that `is_served` is more than a hope."""
        return bool(self._version) or not self.is_served

    def on_change(self, notify: Callable[[], None]) -> None:
        """Call `notify` whenever something else is known."""
        self._on_change.append(notify)

    def note_dropped(self, fields: Collection[str]) -> None:
        """Take note of what the API server has dropped from a slice."""
        if slice_spec.TAINTS_GATE not in fields:
            return
        self._has_lost = True
        if self.is_served:
            self._set_served(is_served=False)
            self._notify()

    async def run(self, api: Client) -> None:
        """Ask again and again. Run until cancelled."""
        while True:
            try:
                await self._ask(api)
            except DriverError as error:
                LOG.warning("It is not known whether the API server keeps taints", error=str(error))
                await asyncio.sleep(_RETRY_S)
            else:
                await asyncio.sleep(_INTERVAL_S if self.is_served else _DROPPED_INTERVAL_S)

    async def _ask(self, api: Client) -> None:
        """Ask for the version, and for taints if the answer may be another one.

        What a slice of ours has lost is believed as long as the version is the same: of several API
        servers, another one may answer.

        Raises:
            DriverError: The API server does not answer.
        """
        document = await api.get("/version", _deadline())
        version = str(document.get("gitVersion", ""))
        if version == self._version and (self.is_served or self._has_lost):
            return
        if self._version and version != self._version:
            self._has_lost = False
        is_kept = await dry_run.keeps(
            api, self._node, _EXAMPLE, slice_spec.TAINTS_GATE, _deadline()
        )
        self._version = version
        self.knows_none = kubelet_version.release(version) >= _KNOWS_NONE
        self._set_served(is_served=is_kept and not self._has_lost)
        self._notify()

    def _set_served(self, *, is_served: bool) -> None:
        if self.is_served and not is_served:
            LOG.error(
                "The API server does not keep taints of devices; pods may be sent to GPUs that "
                "are not well, and lost GPUs are withdrawn",
                missing=slice_spec.TAINTS_GATE,
            )
        self.is_served = is_served

    def _notify(self) -> None:
        for notify in self._on_change:
            notify()


def _deadline() -> float:
    return asyncio.get_running_loop().time() + _CALL_TIMEOUT_S
