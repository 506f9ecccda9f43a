"""The domain's label on our own Node, put right as soon as somebody changes it while it is needed.

Without it the node's daemon ends, and with it what the workload shares with its peers. A label that
no held channel needs is `sweeping`'s to take off. Source: spec/compute-domain.md §1.
"""

import asyncio
import math
import random
from collections.abc import Callable
from typing import Final

from nvdra_api.protocol.apiversions import JsonObject
from nvdra_api.protocol.backoff import Backoff
from nvdra_api.runtime.kube.client import Client
from nvdra_api.runtime.kube.reflector import Reflector
from nvdra_api.runtime.telemetry import logs
from nvdra_api.types import names
from nvdra_api.types.errors import DriverError
from nvdra_api.types.ids import NodeName

from nvdra_cd_plugin.joining import Membership

LOG = logs.logger(__name__)

_NODES: Final = "/api/v1/nodes"
_CORRECT_S: Final = 10.0
_AGAIN: Final = Backoff(first_s=0.5, ceiling_s=60)
"""Between two corrections: whoever takes the label off again and again is not outrun."""
_CALM_S: Final = 300.0
"""After so long without a correction the pauses begin anew."""


class LabelWatch:
    """Watches one Node; `run` does it."""

    def __init__(
        self,
        node: NodeName,
        api: Client,
        joining: Membership,
        observe_restart: Callable[[str], None],
    ) -> None:
        """Nothing is watched yet.

        Args:
            node: This node.
            api: The API server.
            joining: Knows which label is right, and puts it there.
            observe_restart: Told when a watch begins anew.
        """

        async def locate(deadline: float, is_lost: bool) -> str:
            del deadline, is_lost  # there is one version of Nodes
            return _NODES

        self._node = node
        self._joining = joining
        self._corrections = 0
        self._corrected_at = -math.inf
        self._reflector = Reflector(
            api,
            locate,
            {"fieldSelector": f"metadata.name={node}"},
            observe_restart,
            trim=_label_alone,
        )

    async def run(self) -> None:
        """For ever."""
        serial = 0
        async with self._reflector.running():
            while True:
                serial = await self._reflector.changed_since(serial)
                while self._is_wrong() and await self._is_worth_another_look():
                    pass

    def _is_wrong(self) -> bool:
        stored = self._reflector.get(self._node)
        return stored is not None and self._joining.lacks(_label(stored))

    async def _is_worth_another_look(self) -> bool:
        """Correct it, and wait until that can be seen; False when it has to stay as it is."""
        clock = asyncio.get_running_loop().time
        is_calm = clock() - self._corrected_at > _CALM_S
        self._corrections = 1 if is_calm else self._corrections + 1
        self._corrected_at = clock()
        is_known = True
        try:
            is_known = await self._joining.keep(clock() + _CORRECT_S)
        except DriverError as error:
            LOG.warning("The node's label cannot be put right now", error=str(error))
        await asyncio.sleep(_AGAIN.delay(self._corrections, random.random()))  # noqa: S311
        return is_known


def _label(node: JsonObject) -> str | None:
    label: str | None = node["metadata"]["labels"].get(names.DOMAIN_LABEL)
    return label


def _label_alone(node: JsonObject) -> JsonObject:
    """A Node is large, and changes often."""
    metadata = node["metadata"]
    labels = metadata.get("labels") or {}
    kept = {key: labels[key] for key in (names.DOMAIN_LABEL,) if key in labels}
    names_of_it = ("name", "uid", "resourceVersion")
    return {"metadata": {**{key: metadata[key] for key in names_of_it}, "labels": kept}}
