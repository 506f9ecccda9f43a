# SPDX-License-Identifier: Apache-2.0
"""Whether the API server keeps taints of devices.

Until this is known they are published, because nothing else is wrong without them.
"""

import asyncio
from collections.abc import Callable, Collection
from typing import Final

from nvdra_api import names
from nvdra_api.errors import DriverError
from nvdra_api.ids import NodeName
from nvdra_api.meta import JsonObject
from nvdra_runtime.kube.client import Client
from nvdra_runtime.resourceslices import slice_spec
from nvdra_runtime.telemetry import logs

from nvdra_gpu_plugin.publishing.kept_fields import KeptFields

LOG = logs.logger(__name__)

_INTERVAL_S: Final = 3600.0
_DROPPED_INTERVAL_S: Final = 300.0
"""Between two questions for the version, while taints are kept and while they are dropped."""

_RETRY_S: Final = 10.0

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
    """What the API server does with taints."""

    def __init__(self, node: NodeName) -> None:
        """Create it without any request.

        Args:
            node: This node.
        """
        self._kept = KeptFields(node, _EXAMPLE, slice_spec.TAINTS_GATE)
        self._was_served = True
        self._on_change: list[Callable[[], None]] = []

    @property
    def is_served(self) -> bool:
        """Whether it keeps them; true until this is known."""
        return self._kept.is_kept is not False

    @property
    def is_known(self) -> bool:
        """Whether the API server has answered, so that `is_served` is more than a hope."""
        return self._kept.is_kept is not None

    @property
    def knows_none(self) -> bool:
        """Whether it accepts the effect `None`. One that does not rejects a slice with it."""
        return self._kept.release >= _KNOWS_NONE

    def on_change(self, notify: Callable[[], None]) -> None:
        """Call `notify` whenever something else is known."""
        self._on_change.append(notify)

    def note_dropped(self, fields: Collection[str]) -> None:
        """Take note of what the API server has dropped from a slice."""
        if self._kept.note_dropped(fields) and self._was_served:
            self._tell()

    async def run(self, api: Client) -> None:
        """Ask again and again. Run until cancelled."""
        while True:
            try:
                if await self._kept.ask(api):
                    self._tell()
            except DriverError as error:
                LOG.warning("It is not known whether the API server keeps taints", error=str(error))
                await asyncio.sleep(_RETRY_S)
            else:
                await asyncio.sleep(_INTERVAL_S if self.is_served else _DROPPED_INTERVAL_S)

    def _tell(self) -> None:
        if self._was_served and not self.is_served:
            LOG.error(
                "The API server does not keep taints of devices; pods may be sent to GPUs that "
                "are not well, and lost GPUs are withdrawn",
                missing=slice_spec.TAINTS_GATE,
            )
        self._was_served = self.is_served
        for notify in self._on_change:
            notify()
