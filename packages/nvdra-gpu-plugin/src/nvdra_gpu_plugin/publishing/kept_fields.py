# SPDX-License-Identifier: Apache-2.0
"""Whether the API server keeps some fields of slices, which it drops without a word if it does not.

It is asked by a slice that it is to check and not to store (dry run), which it answers as it would
have stored it, and asked again when its version changes. What a slice of ours has lost counts as an
answer, too.
"""

import asyncio
from collections.abc import Collection
from typing import Any, Final

from nvdra_api import names
from nvdra_api.errors import PermanentError
from nvdra_api.ids import NodeName
from nvdra_api.meta import JsonObject
from nvdra_runtime.kube import apiversions
from nvdra_runtime.kube.client import Client
from nvdra_runtime.kube.errors import Refused
from nvdra_runtime.kubeletplugin import kubelet_version
from nvdra_runtime.resourceslices import slice_spec
from nvdra_runtime.telemetry import logs

LOG = logs.logger(__name__)

_CALL_TIMEOUT_S: Final = 10.0


class KeptFields:
    """What is known of the fields of one feature gate of Kubernetes.

    Attributes:
        is_kept: Whether the API server keeps them; None until this is known.
        version: The version of the API server that has answered; empty before.
    """

    def __init__(self, node: NodeName, example: JsonObject, api_gate: str) -> None:
        """Create it without any request.

        Args:
            node: This node.
            example: A part of a slice's spec that has the fields, as in v1.
            api_gate: The feature gate without which they are dropped.
        """
        self.is_kept: bool | None = None
        self.version = ""
        self._node = node
        self._example = example
        self._api_gate = api_gate
        self._has_lost = False

    @property
    def release(self) -> tuple[int, int]:
        """The release of Kubernetes; (0, 0) if it is not known."""
        return kubelet_version.release(self.version)

    def note_dropped(self, fields: Collection[str]) -> bool:
        """Take note of what the API server has dropped from a slice: whether these are among it."""
        if self._api_gate not in fields:
            return False
        self._has_lost = True
        self.is_kept = False
        return True

    async def ask(self, api: Client) -> bool:
        """Ask for the version, and for the fields if the answer may be another one.

        What a slice of ours has lost is believed as long as the version is the same: of several API
        servers, another one may answer.

        Returns:
            Whether the fields were asked for.

        Raises:
            DriverError: The API server does not answer.
        """
        document = await api.get("/version", _deadline())
        version = str(document.get("gitVersion", ""))
        is_same = version == self.version
        if is_same and (self.is_kept or self._has_lost):
            return False
        if self.version and not is_same:
            self._has_lost = False
        is_kept = await self._would_keep(api)
        self.version = version
        self.is_kept = is_kept and not self._has_lost
        return True

    async def _would_keep(self, api: Client) -> bool:
        """Whether a slice would be stored with the fields.

        If the dry run is refused, for example by an admission webhook that does not know it, the
        first slice tells.
        """
        served = await api.dra_api_version(_deadline())
        path = f"{apiversions.slices_path(served)}?dryRun=All"
        sent = _slice(self._node, self._example)
        versioned = apiversions.slice_to_version(served, sent)
        try:
            stored = await api.create(path, versioned, _deadline())
        except (PermanentError, Refused) as error:
            LOG.warning("The API server refuses to check a slice", error=str(error))
            return True
        kept = apiversions.slice_from_version(served, stored)
        return self._api_gate not in slice_spec.dropped_fields(sent["spec"], kept["spec"])


def _slice(node: NodeName, part: JsonObject) -> dict[str, Any]:
    """A v1 slice with nothing but this part."""
    return {
        "metadata": {"generateName": f"dry-run-{names.GPU_DRIVER}-"},
        "spec": {
            "driver": names.GPU_DRIVER,
            "nodeName": node,
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
            **part,
        },
    }


def _deadline() -> float:
    return asyncio.get_running_loop().time() + _CALL_TIMEOUT_S
