# SPDX-License-Identifier: Apache-2.0
"""Measures claims of GPUs for virtual machines: `python -m bench.vfio_claims` alone, as root.

The simulator takes no time to start GPUs, so the time is the driver's own and that of a sysfs that
is a program. What claims of other GPUs take meanwhile is measured, too: NVML is closed on the node
while a GPU leaves its driver.
"""

import argparse
import asyncio
import os
import tempfile
import time
from collections import defaultdict
from collections.abc import Awaitable
from pathlib import Path
from statistics import median
from typing import Any
from uuid import uuid4

from nvdra_lab import environment
from nvdra_testing.control_plane import apiserver
from nvdra_testing.control_plane.apiserver import ApiServer
from nvdra_testing.node import device_holders, passthrough_rig
from nvdra_testing.node import rig as rigs
from nvdra_testing.node.passthrough_rig import PassthroughRig

from bench import installation
from bench.call_targets import PluginTarget
from bench.figures import Summary

ROUNDS = 20
STEPS = (
    *("preflight", "wait free", "close sessions", "unbind", "bind", "reopen sessions"),
    *("write cdi", "commit state"),
)


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(prog="python -m bench.vfio_claims", description=main.__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    given = parser.parse_args()
    program = installation.program(environment.read())
    with (
        tempfile.TemporaryDirectory(prefix="nvb-") as directory,
        apiserver.run_apiserver(Path(directory), etcd_flags=()) as server,
    ):
        found = asyncio.run(measure(server, program, given.rounds))
    for name, value in found.items():
        print(f"{name}: {value}")
    print(f"load {os.getloadavg()[0]:.1f}")


async def measure(server: ApiServer, program: Path, rounds: int) -> dict[str, Any]:
    """Times in milliseconds.

    Args:
        server: The API server.
        program: The plugin's program.
        rounds: How often each is done.

    Returns:
        Summaries of `prepare_ms` and `unprepare_ms` of a vfio device, `refused_ms` while a process
        has its GPU open, and of a prepare of another GPU: `other_alone_ms`, `other_during_ms` of
        the first, and `other_refused_ms` of the second; medians of the parts, `steps_ms`.
    """
    latency = {"preset": "instant"}
    async with passthrough_rig.open_rig(server, f"vfio-{uuid4().hex[:6]}", latency=latency) as rig:
        rig.program = str(program)
        await rig.start_passing()
        target = PluginTarget(rig.dra)
        found: defaultdict[str, list[float]] = defaultdict(list)
        steps: defaultdict[str, list[float]] = defaultdict(list)
        for _ in range(rounds):
            found["other_alone_ms"].append(await _other(rig, target))
            claim = rig.create_claim("gpu-vfio-1")
            taken, other = await _both(target.prepare(claim), _other(rig, target))
            found["prepare_ms"].append(taken)
            found["other_during_ms"].append(other)
            for name in STEPS:
                spans = rigs.flatten_spans(rig.spans(claim, "prepare"))
                of_step = [span["duration_ms"] for span in spans if span["name"] == name]
                steps[name].append(sum(of_step))
            found["unprepare_ms"].append(await _milliseconds(target.unprepare(claim)))
            with device_holders.opened(rig.served.roots.dev / "nvidia1"):
                refused = rig.create_claim("gpu-vfio-1")
                taken, other = await _both(rig.dra.prepare([refused]), _other(rig, target))
            found["refused_ms"].append(taken)
            found["other_refused_ms"].append(other)
    summaries: dict[str, Any] = {name: vars(Summary.of(times)) for name, times in found.items()}
    return {**summaries, "steps_ms": {name: median(times) for name, times in steps.items()}}


async def _other(rig: PassthroughRig, target: PluginTarget) -> float:
    """The time of a prepare of another GPU, which a container gets."""
    claim = rig.create_claim("gpu-3")
    taken = await _milliseconds(target.prepare(claim))
    await target.unprepare(claim)
    return taken


async def _both(first: Awaitable[object], second: Awaitable[float]) -> tuple[float, float]:
    """The time of the first call, and the result of the second, which begins with it."""
    async with asyncio.TaskGroup() as group:
        timed = group.create_task(_milliseconds(first))
        other = group.create_task(_awaited(second))
    return timed.result(), other.result()


async def _awaited(call: Awaitable[float]) -> float:
    return await call


async def _milliseconds(call: Awaitable[object]) -> float:
    begin = time.perf_counter()
    await call
    return (time.perf_counter() - begin) * 1000


if __name__ == "__main__":
    main()
