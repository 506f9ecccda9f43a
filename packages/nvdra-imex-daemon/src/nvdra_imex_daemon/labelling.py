"""The label on our own pod that says which clique its node is in.

Controllers tell nodes without fabric by it: there the value is empty. Source:
spec/compute-domain.md §2.2, §8.3.
"""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from nvdra_api.protocol.backoff import Backoff
from nvdra_api.runtime.kube.client import Client
from nvdra_api.runtime.process import background
from nvdra_api.runtime.telemetry import logs
from nvdra_api.types import names
from nvdra_api.types.errors import DriverError
from nvdra_api.types.ids import CliqueID

LOG = logs.logger(__name__)

_CALL_S: Final = 10.0
_FAILED: Final = Backoff(first_s=0.5, ceiling_s=60.0)


@asynccontextmanager
async def running(api: Client, namespace: str, pod: str, clique: CliqueID) -> AsyncIterator[None]:
    """Set the label, again and again until it is set; nothing waits for it."""
    async with background.tasks(label=_label(api, namespace, pod, clique)):
        yield


async def _label(api: Client, namespace: str, pod: str, clique: CliqueID) -> None:
    path = f"/api/v1/namespaces/{namespace}/pods/{pod}"
    change = {"metadata": {"labels": {names.CLIQUE_LABEL: clique}}}
    failures = 0
    while True:
        try:
            await api.patch(path, change, asyncio.get_running_loop().time() + _CALL_S)
        except DriverError as error:
            failures += 1
            retry_s = _FAILED.delay(failures, random.random())  # noqa: S311 - spreads load
            LOG.warning("Cannot label our pod", error=error, retry_s=round(retry_s, 1))
            await asyncio.sleep(retry_s)
        else:
            LOG.v(2, "Labelled our pod", clique=clique)
            return
