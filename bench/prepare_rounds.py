# SPDX-License-Identifier: Apache-2.0
"""Rounds of eight new claims on eight GPUs: one after another, and all at once."""

import asyncio
import time
from collections.abc import Awaitable, Sequence
from concurrent.futures import ThreadPoolExecutor

from nvdra_api.resource.claims import ClaimRef
from nvdra_testing.control_plane.apiserver import ApiServer
from nvdra_testing.node import plugin

from bench.call_targets import CallTarget
from bench.figures import Samples

WIDTH = 8
"""Number of GPUs of the node, and of claims that can be prepared at the same time."""

SETTLE_S = 0.05
"""Time between the creation of claims and the first call, for the API server and etcd to finish."""


class Claims:
    """Creates allocated claims before a measurement starts."""

    def __init__(self, server: ApiServer, node: str) -> None:
        self._server = server
        self._node = node
        self._threads = ThreadPoolExecutor(4)

    async def new(self, count: int = WIDTH) -> list[ClaimRef]:
        """Create one allocated claim for each of the first GPUs."""
        created = list(self._threads.map(self._claim, range(count)))
        await asyncio.sleep(SETTLE_S)
        return created

    def _claim(self, index: int) -> ClaimRef:
        return plugin.create_allocated_claim(self._server, self._node, [f"gpu-{index}"])


async def one_after_another(
    target: CallTarget, claims: Claims, samples: Samples, count: int = WIDTH
) -> Sequence[ClaimRef]:
    """Prepare new claims one after another, then unprepare them."""
    held = await claims.new(count)
    await again(target, held, samples)
    return held


async def again(target: CallTarget, held: Sequence[ClaimRef], samples: Samples) -> None:
    """Prepare existing claims one after another, then unprepare them."""
    samples.prepare += [await _milliseconds(target.prepare(claim)) for claim in held]
    samples.unprepare += [await _milliseconds(target.unprepare(claim)) for claim in held]


async def all_at_once(target: CallTarget, claims: Claims, samples: Samples) -> None:
    """Prepare eight new claims in eight concurrent calls, then unprepare them one after another."""
    held = await claims.new()
    begin = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        calls = [group.create_task(_milliseconds(target.prepare(claim))) for claim in held]
    samples.burst.append((time.perf_counter() - begin) * 1000)
    samples.burst_call += [call.result() for call in calls]
    for claim in held:
        await target.unprepare(claim)


async def _milliseconds(call: Awaitable[None]) -> float:
    begin = time.perf_counter()
    await call
    return (time.perf_counter() - begin) * 1000
