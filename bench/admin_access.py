# SPDX-License-Identifier: Apache-2.0
"""Measures ordinary claims while one GPU has many prepared results with admin access.

The reference driver's prepare slows down with every prepared result on the node; ours must not.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from nvdra_api.resource.claims import ClaimRef
from nvdra_testing.control_plane.apiserver import ApiServer
from nvdra_testing.node import plugin

from bench import prepare_rounds
from bench.figures import Samples, Summary
from bench.plugin_under_test import PluginUnderTest
from bench.prepare_rounds import WIDTH

RESULTS_PER_CLAIM = 32
"""The maximum for one claim."""

HELD = (1, 64, 256)
"""Numbers of prepared results on the last GPU. 1 is one ordinary claim."""

LAST = f"gpu-{WIDTH - 1}"


async def measure(
    under_test: PluginUnderTest, server: ApiServer, node: str, count: int
) -> dict[str, Any]:
    """Measure prepares on seven GPUs, with each of the `HELD` numbers of results on the eighth.

    The rounds alternate, so that all three see the same load of the machine.
    """
    plugin.allow_admin_access(server)
    samples = {held: Samples() for held in HELD}
    for number in range(count + 1):
        for held in HELD:
            kept = Samples() if number == 0 else samples[held]  # the first round warms up
            async with _held(under_test, server, node, held):
                await prepare_rounds.one_after_another(
                    under_test.target, under_test.claims, kept, WIDTH - 1
                )
    return {str(held): vars(Summary.of(each.prepare)) for held, each in samples.items()}


@asynccontextmanager
async def _held(
    under_test: PluginUnderTest, server: ApiServer, node: str, results: int
) -> AsyncIterator[None]:
    claims = _claims(server, node, results)
    for claim in claims:
        await under_test.target.prepare(claim)
    try:
        yield
    finally:
        for claim in claims:
            await under_test.target.unprepare(claim)


def _claims(server: ApiServer, node: str, results: int) -> Sequence[ClaimRef]:
    if results == 1:
        return [plugin.create_allocated_claim(server, node, [LAST])]
    devices = [LAST] * RESULTS_PER_CLAIM
    return [
        plugin.create_allocated_claim(server, node, devices, admin=True)
        for _ in range(results // RESULTS_PER_CLAIM)
    ]
