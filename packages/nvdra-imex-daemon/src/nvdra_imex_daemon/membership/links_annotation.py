# SPDX-License-Identifier: Apache-2.0
"""Writes what is wrong with the connections of our IMEX to an annotation of our own pod.

The controller reads it there: the schema of the clique has no place for it.
Source: docs/reference/compute-domain.md, "Labels and finalizers".
"""

import asyncio
from dataclasses import replace
from typing import Final

from nvdra_api import names
from nvdra_api.ids import CliqueID
from nvdra_runtime.computedomain import imex_links
from nvdra_runtime.computedomain.imex_links import ImexLinks
from nvdra_runtime.kube.client import Client
from nvdra_runtime.telemetry import logs

LOG = logs.logger(__name__)

_CALL_TIMEOUT_S: Final = 10.0


class LinksAnnotation:
    """The annotation of one pod.

    Attributes:
        value: What it says; None if there is none. An earlier container's is removed with the write
            of the clique's label.
    """

    def __init__(self, api: Client, namespace: str, pod: str) -> None:
        self._api = api
        self._path = f"/api/v1/namespaces/{namespace}/pods/{pod}"
        self._links = imex_links.WELL
        self._node_clique: CliqueID | None = None
        self._lock = asyncio.Lock()
        self.value: str | None = None

    async def write(self, links: ImexLinks) -> None:
        """Write these links, unless they are what was written last.

        Raises:
            DriverError: The API server did not accept the write; the next call tries it again.
        """
        self._links = links
        await self._write()

    async def write_node_clique(self, clique: CliqueID | None) -> None:
        """Write in which clique the GPUs of the node are, if not in ours; None if they are.

        Raises:
            DriverError: The API server did not accept the write; the next call tries it again.
        """
        self._node_clique = clique
        await self._write()

    async def _write(self) -> None:
        async with self._lock:
            await self._write_changed(replace(self._links, node_clique=self._node_clique))

    async def _write_changed(self, links: ImexLinks) -> None:
        value = imex_links.encode(links)
        if value == self.value:
            return
        change = {"metadata": {"annotations": {names.LINKS_ANNOTATION: value}}}
        await self._api.patch(
            self._path, change, asyncio.get_running_loop().time() + _CALL_TIMEOUT_S
        )
        self.value = value
        LOG.info(
            "What is wrong with the connections of nvidia-imex has changed",
            broken=dict(links.broken),
            node_clique=links.node_clique,
        )
