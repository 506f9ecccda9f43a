"""Ordinary claims beside one GPU of which many admin results are held.

The reference's prepare slows down with every result held on the node; ours must not.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import plugin
from apiserver import ApiServer
from nvdra_api.types.claims import ClaimRef

from bench import rounds
from bench.figures import Samples, Summary
from bench.rounds import WIDTH
from bench.stations import Station

RESULTS_PER_CLAIM = 32
"""The most that one claim may have."""

HELD = (1, 64, 256)
"""Results held on the last GPU; the first is one ordinary claim: eight held in all."""

LAST = f"gpu-{WIDTH - 1}"


async def measure(station: Station, server: ApiServer, node: str, count: int) -> dict[str, Any]:
    """Prepares on the seven other GPUs, while that much is held on the eighth.

    Rounds of the three take turns, so that they meet the same machine.
    """
    plugin.allow_admin_access(server)
    samples = {held: Samples() for held in HELD}
    for number in range(count + 1):
        for held in HELD:
            kept = Samples() if number == 0 else samples[held]  # the first round warms up
            async with _held(station, server, node, held):
                await rounds.one_after_another(station.caller, station.claims, kept, WIDTH - 1)
    return {str(held): vars(Summary.of(each.prepare)) for held, each in samples.items()}


@asynccontextmanager
async def _held(
    station: Station, server: ApiServer, node: str, results: int
) -> AsyncIterator[None]:
    claims = _claims(server, node, results)
    for claim in claims:
        await station.caller.prepare(claim)
    try:
        yield
    finally:
        for claim in claims:
            await station.caller.unprepare(claim)


def _claims(server: ApiServer, node: str, results: int) -> Sequence[ClaimRef]:
    if results == 1:
        return [plugin.allocated_claim(server, node, [LAST])]
    devices = [LAST] * RESULTS_PER_CLAIM
    return [
        plugin.allocated_claim(server, node, devices, admin=True)
        for _ in range(results // RESULTS_PER_CLAIM)
    ]
