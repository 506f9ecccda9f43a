# SPDX-License-Identifier: Apache-2.0
"""Sets the label of our own pod that names the clique of its node.

Controllers recognize nodes without fabric by an empty value. The same write removes what an earlier
container of the pod has said of its connections.
Source: docs/reference/compute-domain.md, "Labels and finalizers"; docs/reference/imex.md, "The run
command".
"""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Final

from nvdra_api import names
from nvdra_api.errors import DriverError
from nvdra_api.ids import CliqueID
from nvdra_runtime.kube.client import Client
from nvdra_runtime.process import background_tasks
from nvdra_runtime.process.backoff import Backoff
from nvdra_runtime.telemetry import logs

LOG = logs.logger(__name__)

_CALL_TIMEOUT_S: Final = 10.0
_FAILURE_BACKOFF: Final = Backoff(first_s=0.5, ceiling_s=60.0)


@asynccontextmanager
async def set_in_background(
    api: Client,
    namespace: str,
    pod: str,
    clique: CliqueID,
    links_annotation: Callable[[], str | None],
) -> AsyncIterator[None]:
    """Set the label in the background for the block, retrying until it is set.

    Args:
        api: Client of the API server.
        namespace: Namespace of our pod.
        pod: Name of our pod.
        clique: The label's value.
        links_annotation: What the pod's annotation about connections is to say at that time.
    """
    set_label = partial(_set_until_done, api, namespace, pod, clique, links_annotation)
    async with background_tasks.running(label=set_label):
        yield


async def _set_until_done(
    api: Client,
    namespace: str,
    pod: str,
    clique: CliqueID,
    links_annotation: Callable[[], str | None],
) -> None:
    path = f"/api/v1/namespaces/{namespace}/pods/{pod}"
    failures = 0
    while True:
        change = {
            "metadata": {
                "labels": {names.CLIQUE_LABEL: clique},
                "annotations": {names.LINKS_ANNOTATION: links_annotation()},
            }
        }
        try:
            await api.patch(path, change, asyncio.get_running_loop().time() + _CALL_TIMEOUT_S)
        except DriverError as error:
            failures += 1
            retry_s = _FAILURE_BACKOFF.delay(failures, random.random())  # noqa: S311 - spreads load
            LOG.warning("Cannot label this pod", error=error, retry_s=round(retry_s, 1))
            await asyncio.sleep(retry_s)
        else:
            LOG.v(2, "Labelled this pod", clique=clique)
            return
