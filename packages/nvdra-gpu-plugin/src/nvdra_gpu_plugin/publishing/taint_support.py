"""Whether the API server keeps taints of devices.

It drops them without a word when its feature gate is off, so that only what it has stored tells.
What is known is forgotten when its version changes.
"""

import asyncio
from collections.abc import Callable, Collection
from typing import Any, Final

from nvdra_api.errors import DriverError
from nvdra_runtime.kube.client import Client
from nvdra_runtime.kubeletplugin import kubelet_version
from nvdra_runtime.resourceslices import slice_spec
from nvdra_runtime.telemetry import logs

LOG = logs.logger(__name__)

_INTERVAL_S: Final = 3600.0
_DROPPED_INTERVAL_S: Final = 300.0
"""Between two questions for the version, while taints are kept and while they are dropped."""

_RETRY_S: Final = 10.0
_CALL_TIMEOUT_S: Final = 10.0

_KNOWS_NONE: Final = (1, 35)
"""The release of Kubernetes with the effect `None`."""


class TaintSupport:
    """What the API server does with taints.

    Attributes:
        is_served: Whether it keeps them, as far as is known.
        knows_none: Whether it accepts the effect `None`. It rejects a slice with another.
    """

    def __init__(self) -> None:
        self.is_served = True
        self.knows_none = False
        self._version = ""
        self._on_change: list[Callable[[], None]] = []

    def on_change(self, notify: Callable[[], None]) -> None:
        """Call `notify` whenever something else is known."""
        self._on_change.append(notify)

    def note_dropped(self, fields: Collection[str]) -> None:
        """Take note of what the API server has dropped from a slice."""
        if slice_spec.TAINTS_GATE in fields and self.is_served:
            self.is_served = False
            LOG.error(
                "The API server does not keep taints of devices; pods may be sent to GPUs that "
                "are not well, and lost GPUs are withdrawn",
                missing=slice_spec.TAINTS_GATE,
            )
            self._notify()

    async def run(self, api: Client) -> None:
        """Ask for the version again and again. Run until cancelled."""
        while True:
            deadline = asyncio.get_running_loop().time() + _CALL_TIMEOUT_S
            try:
                self._set_version(await api.get("/version", deadline))
            except DriverError as error:
                LOG.v(2, "The version of the API server is not known", error=str(error))
                await asyncio.sleep(_RETRY_S)
            else:
                await asyncio.sleep(_INTERVAL_S if self.is_served else _DROPPED_INTERVAL_S)

    def _set_version(self, document: dict[str, Any]) -> None:
        version = str(document.get("gitVersion", ""))
        if version == self._version:
            return
        self.is_served = self.is_served or bool(self._version)
        self._version = version
        self.knows_none = kubelet_version.release(version) >= _KNOWS_NONE
        self._notify()

    def _notify(self) -> None:
        for notify in self._on_change:
            notify()
