# SPDX-License-Identifier: Apache-2.0
"""Measures the plugin's resident set after many prepares."""

from typing import Any

from bench import prepare_rounds
from bench.figures import Samples
from bench.plugin_under_test import PluginUnderTest
from bench.prepare_rounds import WIDTH

FEW, MANY = 1_000, 10_000


async def measure(under_test: PluginUnderTest, done: int, many: int = MANY) -> dict[str, Any]:
    """Resident set in MiB after 1,000 prepares and after `many`, of which `done` are done already.

    The same eight claims are prepared and unprepared repeatedly. Every prepare reads the claim,
    verifies the devices and writes the record, like the first one.
    """
    held = await under_test.claims.new()
    weights: dict[str, float] = {}
    for limit in (FEW, many):
        while done < limit:
            await prepare_rounds.again(under_test.target, held, Samples())
            done += WIDTH
        weights[str(limit)] = round(under_test.process.resident_mib(), 1)
    return weights
