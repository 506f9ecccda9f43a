"""Rounds of eight new claims on eight GPUs: one after another, and all at once."""

import asyncio
import time
from collections.abc import Awaitable, Sequence
from concurrent.futures import ThreadPoolExecutor

import plugin
from apiserver import ApiServer
from nvdra_api.types.claims import ClaimRef

from bench.callers import Caller
from bench.figures import Samples

WIDTH = 8
"""GPUs of the node, so also claims that can be held at once."""

SETTLE_S = 0.05
"""From the creation of claims to the first call: the API server and etcd finish their work."""


class Claims:
    """Makes claims, before any clock runs."""

    def __init__(self, server: ApiServer, node: str) -> None:
        self._server = server
        self._node = node
        self._threads = ThreadPoolExecutor(4)

    async def new(self, count: int = WIDTH) -> list[ClaimRef]:
        """One new claim for each of the first GPUs, allocated."""
        made = list(self._threads.map(self._claim, range(count)))
        await asyncio.sleep(SETTLE_S)
        return made

    def _claim(self, index: int) -> ClaimRef:
        return plugin.allocated_claim(self._server, self._node, [f"gpu-{index}"])


async def one_after_another(
    caller: Caller, claims: Claims, samples: Samples, count: int = WIDTH
) -> Sequence[ClaimRef]:
    """Prepare new claims, each when the one before is answered, then take them back."""
    held = await claims.new(count)
    await again(caller, held, samples)
    return held


async def again(caller: Caller, held: Sequence[ClaimRef], samples: Samples) -> None:
    """Prepare claims that there are, one after another, then take them back."""
    samples.prepare += [await _milliseconds(caller.prepare(claim)) for claim in held]
    samples.unprepare += [await _milliseconds(caller.unprepare(claim)) for claim in held]


async def all_at_once(caller: Caller, claims: Claims, samples: Samples) -> None:
    """Prepare eight new claims in eight calls at once, then take them back, one after another."""
    held = await claims.new()
    begin = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        calls = [group.create_task(_milliseconds(caller.prepare(claim))) for claim in held]
    samples.burst.append((time.perf_counter() - begin) * 1000)
    samples.burst_call += [call.result() for call in calls]
    for claim in held:
        await caller.unprepare(claim)


async def _milliseconds(call: Awaitable[None]) -> float:
    begin = time.perf_counter()
    await call
    return (time.perf_counter() - begin) * 1000
