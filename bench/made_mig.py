# SPDX-License-Identifier: Apache-2.0
"""Measures MIG devices that are made for claims: one, all of a GPU, all of eight GPUs.

With the latencies of real hardware the time is NVML's: 0.3 s to make a device, 1 s to destroy it,
2 s to switch a GPU's MIG mode. Without them it is the driver's own. Also: how long a node of
sixteen GPUs takes to publish all that can be made of them.

`python -m bench.made_mig --kube 1.34` measures that alone, on the API server of another release.
"""

import argparse
import asyncio
import json
import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from nvdra_api.resource.claims import ClaimRef
from nvdra_lab import environment, versions
from nvdra_lab.artifacts import binaries
from nvdra_lab.progress import Progress
from nvdra_testing.control_plane import apiserver
from nvdra_testing.control_plane.apiserver import ApiServer
from nvdra_testing.node import plugin

from bench import first_slice, installation
from bench.call_targets import PluginTarget
from bench.figures import Summary
from bench.plugin_under_test import run_plugin_under_test
from bench.prepare_rounds import WIDTH

GATES = {"FEATURE_GATES": "DynamicMIG=true"}

PRESETS = ("realistic", "instant")
"""The simulator's latencies: those of real hardware, and none."""

PER_GPU = 7
"""The smallest devices that an H100 has room for."""

SLICES_ROUNDS = 3
MANY_GPUS: Mapping[str, Any] = {
    "profile": None,
    "gpus": [
        {"model": "rtx-pro-6000", "bus_id": f"0000:{number:02x}:00.0", "minor": number}
        for number in range(1, 17)
    ],
}
"""Sixteen GPUs of the model with the most profiles and placements."""
MANY_DEVICES = 16 * 31


def main() -> None:
    """Print how long the slices of sixteen GPUs take, and how large they are."""
    parser = argparse.ArgumentParser(prog="python -m bench.made_mig", description=main.__doc__)
    parser.add_argument("--kube", default="1.36", help="release of Kubernetes (%(default)s)")
    places = environment.read()
    release = versions.resolve(parser.parse_args().kube, binaries.releases(places, "kubernetes"))
    gates = versions.gates(release, {})
    with (
        tempfile.TemporaryDirectory(prefix="nvb-") as directory,
        apiserver.run_apiserver(
            Path(directory),
            kubernetes=release,
            feature_gates=versions.as_text(gates),
            etcd_flags=(),
        ) as server,
    ):
        found = Summary.of(_slices(server, installation.program(places)))
        slices = server.request("GET", first_slice.SLICES)["items"]
    node = slices[-1]["spec"]["nodeName"]
    sizes = [len(json.dumps(each)) for each in slices if each["spec"]["nodeName"] == node]
    print(
        f"Kubernetes {release} with {', '.join(gates) or 'no gates'}: "
        f"{MANY_DEVICES} devices of sixteen GPUs "
        f"published after {found.p50:.2f} s (target 1.5) in {len(sizes)} slices, the largest of "
        f"{max(sizes) / 1024:.0f} KiB; load {os.getloadavg()[0]:.1f}"
    )


async def measure(
    server: ApiServer, directory: Path, program: Path, rounds: int, progress: Progress
) -> dict[str, Any]:
    """Times in milliseconds by preset, and `slices_s` in seconds.

    Args:
        server: The API server.
        directory: For sockets and state files; its path must be short.
        program: The plugin's program.
        rounds: How often all devices of one GPU, and of all, are made.
        progress: Shows the progress.
    """
    found: dict[str, Any] = {}
    for preset in PRESETS:
        name = f"mig-{preset}"
        async with run_plugin_under_test(
            server, directory / name, program, name, GATES, latency={"preset": preset}
        ) as at:
            with progress.step(f"{rounds} rounds of MIG devices made, NVML {preset}"):
                found[preset] = await _rounds(at.target, _Devices(server, name), rounds)
    with progress.step(f"{SLICES_ROUNDS} starts with sixteen GPUs and all their profiles"):
        found["slices_s"] = vars(Summary.of(_slices(server, program)))
    return found


class _Devices:
    """Creates allocated claims for the smallest MIG devices."""

    def __init__(self, server: ApiServer, node: str) -> None:
        self._server = server
        self._node = node

    def claims(self, gpus: int) -> list[ClaimRef]:
        """A claim for each device of the first GPUs."""
        return [
            plugin.create_allocated_claim(
                self._server, self._node, [f"gpu-{gpu}-mig-1g10gb-19-{place}"]
            )
            for place in range(PER_GPU)
            for gpu in range(gpus)
        ]


async def _rounds(target: PluginTarget, devices: _Devices, rounds: int) -> dict[str, Any]:
    alone: list[float] = []
    gone: list[float] = []
    at_once: dict[int, list[float]] = {1: [], WIDTH: []}
    await _all_at_once(target, devices.claims(1))
    for _ in range(rounds):
        for claim in devices.claims(1):
            alone.append(await _milliseconds(target, "prepare", [claim]))
            gone.append(await _milliseconds(target, "unprepare", [claim]))
        for gpus, taken in at_once.items():
            taken.append(await _all_at_once(target, devices.claims(gpus)))
    one, many = (PER_GPU * gpus / median(taken) * 1000 for gpus, taken in at_once.items())
    return {
        "prepare_ms": vars(Summary.of(alone)),
        "unprepare_ms": vars(Summary.of(gone)),
        "one_gpu_ms": vars(Summary.of(at_once[1])),
        "all_gpus_ms": vars(Summary.of(at_once[WIDTH])),
        "one_gpu_per_s": round(one, 2),
        "all_gpus_per_s": round(many, 2),
    }


async def _all_at_once(target: PluginTarget, held: Sequence[ClaimRef]) -> float:
    taken = await _milliseconds(target, "prepare", held)
    await _milliseconds(target, "unprepare", held)
    return taken


async def _milliseconds(target: PluginTarget, what: str, held: Sequence[ClaimRef]) -> float:
    """The time of as many calls at once as there are claims."""
    call = getattr(target, what)
    begin = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for claim in held:
            group.create_task(call(claim))
    return (time.perf_counter() - begin) * 1000


def _slices(server: ApiServer, program: Path) -> list[float]:
    return [
        first_slice.first_slice_s(server, program, devices=MANY_DEVICES, environ=GATES, **MANY_GPUS)
        for _ in range(SLICES_ROUNDS)
    ]


if __name__ == "__main__":
    main()
