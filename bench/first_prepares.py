# SPDX-License-Identifier: Apache-2.0
"""Measures prepares for which the plugin has to open NVML, beside those that follow.

These are the first one after a start and one that waits while NVML is released, on GPUs that answer
at once and on cold ones: without persistence mode, a GPU starts for its first client.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from nvdra_api.resource.claims import ClaimRef
from nvdra_runtime.kubeletplugin import debug_client
from nvdra_testing.control_plane.apiserver import ApiServer
from nvdra_testing.kubelet import kubelet_client
from nvdra_testing.kubelet.kubelet_client import KubeletClient
from nvdra_testing.node import plugin
from nvdra_testing.node.plugin import Node, PluginProcess

from bench import prepare_rounds
from bench.call_targets import PluginTarget
from bench.figures import Samples, Summary
from bench.prepare_rounds import WIDTH, Claims

NODE = "first"

COLD_MS = 1000
"""How long a cold GPU takes here; real ones take 1 to 3 s."""

FOLLOWING = 4
"""Number of prepares after the first one, for comparison."""

WAITING_S = 0.1
"""Until a call has arrived that is to wait."""

_TIMEOUT_S = 60.0


async def measure(server: ApiServer, directory: Path, program: Path, count: int) -> dict[str, Any]:
    """Medians in milliseconds.

    Args:
        server: The API server.
        directory: Directory for the node's files; its path must be short.
        program: The plugin's program.
        count: Starts, and releases of NVML, with GPUs that are warm and as often with cold ones.
    """
    plugin.create_node_object(server, NODE)
    claims, next_ones = Claims(server, NODE), Samples()
    found: dict[str, list[float]] = {}
    (directory / NODE).mkdir()
    with plugin.simulated_node(directory / NODE, NODE) as node:
        async with kubelet_client.run_kubelet(node.kubelet) as kubelet:
            for kind, initialisation_ms in (("warm", 0), ("cold", COLD_MS)):
                for gpu in range(WIDTH):
                    node.simctl("gpu", "initialisation", str(gpu), str(initialisation_ms))
                started = found.setdefault(f"start_{kind}", [])
                resumed = found.setdefault(f"release_{kind}", [])
                for _ in range(count):
                    first, waiting = await claims.new(2)
                    async with _running(server, node, kubelet, program) as (process, target):
                        started.append(await _first_ms(target, first))
                        await prepare_rounds.one_after_another(target, claims, next_ones, FOLLOWING)
                        resumed.append(await _waiting_ms(process, target, waiting))
    return {
        **{name: vars(Summary.of(samples)) for name, samples in found.items()},
        "next": vars(Summary.of(next_ones.prepare)),
        "cold_gpu_ms": COLD_MS,
    }


@asynccontextmanager
async def _running(
    server: ApiServer, node: Node, kubelet: KubeletClient, program: Path
) -> AsyncIterator[tuple[PluginProcess, PluginTarget]]:
    """A new process. It is the only client of the GPUs, which are cold after it has ended."""
    with plugin.run_plugin(server, node, program=[str(program)]) as process:
        registered = await kubelet.wait_registered(plugin.DRIVER, plugin.START_S)
        yield process, PluginTarget(registered)
    await kubelet.wait_deregistered(plugin.DRIVER)


async def _first_ms(target: PluginTarget, claim: ClaimRef) -> float:
    """Milliseconds of a prepare that is the kubelet's first call."""
    begin = time.perf_counter()
    await target.prepare(claim)
    duration = (time.perf_counter() - begin) * 1000
    await target.unprepare(claim)
    return duration


async def _waiting_ms(process: PluginProcess, target: PluginTarget, claim: ClaimRef) -> float:
    """Milliseconds from the request to resume until a prepare is answered that waits for it."""
    await _ask(process, "release", {"duration_s": _TIMEOUT_S, "is_forced": True})
    waiting = asyncio.create_task(target.prepare(claim))
    await asyncio.sleep(WAITING_S)
    begin = time.perf_counter()
    resuming = asyncio.create_task(_ask(process, "resume", {}))
    await waiting
    duration = (time.perf_counter() - begin) * 1000
    await resuming
    await target.unprepare(claim)
    return duration


async def _ask(process: PluginProcess, verb: str, document: dict[str, Any]) -> None:
    path = f"/debug/nvml/{verb}"
    answer = await asyncio.to_thread(
        debug_client.ask, verb, process.debug, "POST", path, _TIMEOUT_S, json.dumps(document)
    )
    if answer.code != 200:
        raise RuntimeError(f"{verb}: {answer.body.decode()}")
