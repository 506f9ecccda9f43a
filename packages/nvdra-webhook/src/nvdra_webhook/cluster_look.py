# SPDX-License-Identifier: Apache-2.0
"""Looks at the cluster now and then, for warnings: which classes and MIG profiles there are.

Names are kept, not objects, and nothing is watched: a cluster can have ten thousand slices, and a
warning that is late does no harm.
"""

import asyncio
import itertools
import random
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

from nvdra_api.errors import DriverError
from nvdra_api.names import GPU_DRIVER
from nvdra_runtime.kube import apiversions
from nvdra_runtime.kube.client import Client
from nvdra_runtime.process.backoff import Backoff
from nvdra_runtime.telemetry import logs

from nvdra_webhook.admission.cluster_names import ClusterNames

LOG: Final = logs.logger(__name__)

PAGE: Final = 250
"""Objects of one page; a slice is 10 to 100 KiB."""
_TIMEOUT_S: Final = 30.0
_FIRST_PAUSE_S: Final = 5.0
"""Pauses double from here to the interval: just installed, a driver still publishes its classes and
devices."""


class ClusterLook:
    """What the last look at the cluster has found."""

    def __init__(self, api: Client, interval_s: float) -> None:
        self._api = api
        self._interval_s = interval_s
        self._found = ClusterNames()

    def names(self) -> ClusterNames:
        """What is known now; nothing before the first look and after one that failed."""
        return self._found

    async def repeat(self) -> None:
        """Look at the cluster at intervals. Run until cancelled."""
        pauses = Backoff(first_s=_FIRST_PAUSE_S, ceiling_s=self._interval_s)
        for count in itertools.count(1):
            try:
                self._found = await self.look()
            except DriverError as error:
                self._found = ClusterNames()
                LOG.warning("Cannot look at classes and slices for warnings", error=str(error))
            await asyncio.sleep(pauses.delay(count, random.random()))  # noqa: S311 - spreads load

    async def look(self) -> ClusterNames:
        """List classes and slices once.

        Raises:
            DriverError: The API server does not answer, or does not let us.
        """
        deadline = asyncio.get_running_loop().time() + _TIMEOUT_S
        version = await self._api.dra_api_version(deadline)
        base = f"/apis/{apiversions.group_version(version)}"
        classes = {each["metadata"]["name"] async for each in self._list(f"{base}/deviceclasses")}
        profiles: set[str] = set()
        has_devices = False
        selector = {"fieldSelector": f"spec.driver={GPU_DRIVER}"}
        async for each in self._list(apiversions.slices_path(version), selector):
            found = apiversions.slice_from_version(version, each)
            for device in found["spec"].get("devices") or ():
                has_devices = True
                profile = (device.get("attributes") or {}).get("profile", {}).get("string")
                if profile:
                    profiles.add(profile)
        return ClusterNames(frozenset(classes), frozenset(profiles) if has_devices else None)

    async def _list(
        self, path: str, selector: Mapping[str, str] | None = None
    ) -> AsyncIterator[dict[str, Any]]:
        token = ""
        while True:
            params = {"limit": str(PAGE), **(selector or {})}
            if token:
                params["continue"] = token
            deadline = asyncio.get_running_loop().time() + _TIMEOUT_S
            page = await self._api.get(path, deadline, params)
            for each in page.get("items") or ():
                yield each
            token = (page.get("metadata") or {}).get("continue", "")
            if not token:
                return
