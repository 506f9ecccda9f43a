"""`python -m bench`: measure, then write `results.json` and `RESULTS.md`."""

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import apiserver
import kubelet_client
import plugin
from apiserver import ApiServer
from nvdra_lab import environment, versions
from nvdra_lab.progress import Progress

from bench import callers, installation, machine, report, rounds, starts
from bench.callers import PluginCaller
from bench.figures import Samples, Summary
from bench.rounds import WIDTH, Claims

ETCD_FLAGS: tuple[str, ...] = ()
"""Nothing is turned off: etcd syncs every write, as in production."""

NODE = "bench"
FLOOR_EVERY = 3
"""The floor is measured in every third round: enough for a ratio under the same load."""


def main() -> None:
    """Measure everything, in less than three minutes with the default options."""
    arguments = _arguments()
    progress = Progress()
    places = environment.read()
    with progress.step("the plugin's wheels, installed", "about 10 s"):
        program = installation.program(places)
    with tempfile.TemporaryDirectory(prefix="nvb-") as name:
        directory = Path(name)
        facts = machine.facts(program, ETCD_FLAGS, directory)
        (directory / "api").mkdir()
        with apiserver.started(directory / "api", etcd_flags=ETCD_FLAGS) as server:
            measured = asyncio.run(_claims(server, directory, program, arguments, progress))
            durations = _starts(server, program, arguments.starts, progress)
    results = {
        "command": " ".join(["python -m bench", *sys.argv[1:]]),
        "machine": {**facts, "kubernetes": versions.DEFAULT},
        "rounds": {"sequential": arguments.rounds, "bursts": arguments.bursts},
        **measured,
        "first_slice_s": vars(Summary.of(durations)),
        "simulator": _simulator(progress),
    }
    print(report.write(results))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description="Measure the GPU plugin against a real API server on a simulated dgx-h100 and "
        "write bench/results.json and bench/RESULTS.md. Needs root (device nodes).",
    )
    for flag, default, what in (
        ("--rounds", 100, "rounds of eight claims prepared one after another"),
        ("--bursts", 25, "rounds of eight claims prepared at once"),
        ("--starts", 7, "starts of the plugin, of which the median is quoted"),
    ):
        parser.add_argument(flag, type=_at_least_two, default=default, help=f"{what} ({default})")
    return parser.parse_args()


def _at_least_two(text: str) -> int:
    number = int(text)
    if number < 2:
        raise ValueError(text)
    return number


async def _claims(
    server: ApiServer,
    directory: Path,
    program: Path,
    arguments: argparse.Namespace,
    progress: Progress,
) -> dict[str, Any]:
    """Everything about claims: the plugin beside the floor, and what the plugin weighs then."""
    plugin.register(server, NODE)
    claims, ours, bare = Claims(server, NODE), Samples(), Samples()
    with (
        plugin.node(directory, NODE) as node,
        plugin.running(server, node, program=[str(program)]) as process,
    ):
        async with (
            kubelet_client.kubelet(node.kubelet) as kubelet,
            callers.running_floor(program.with_name("python"), directory, server) as floor,
        ):
            registered = await kubelet.registered(plugin.DRIVER, plugin.START_S)
            caller = PluginCaller(registered)
            for measure, count, what in (
                (rounds.one_after_another, arguments.rounds, "one after another"),
                (rounds.all_at_once, arguments.bursts, "eight at once"),
            ):
                with progress.step(f"{count} rounds of eight claims, {what}") as step:
                    await measure(caller, claims, Samples())  # connections, caches
                    await measure(floor, claims, Samples())
                    for number in range(count):
                        step.detail = f"round {number + 1}"
                        await measure(caller, claims, ours)
                        if number % FLOOR_EVERY == 0:
                            await measure(floor, claims, bare)
            prepares = WIDTH * (arguments.rounds + arguments.bursts + 2)
            resident = {"mib": round(process.resident_mib(), 1), "prepares": prepares}
    return {"plugin": ours.summary(WIDTH), "floor": bare.summary(WIDTH), "resident_mib": resident}


def _starts(server: ApiServer, program: Path, count: int, progress: Progress) -> Sequence[float]:
    with progress.step(f"{count} starts of the plugin") as step:
        durations = []
        for number in range(count):
            step.detail = f"start {number + 1}"
            durations.append(starts.first_slice_s(server, program))
        return durations


def _simulator(progress: Progress) -> dict[str, float]:
    """In a process of its own: it loads the simulated library for good."""
    with progress.step("the simulated NVML"):
        argv = [sys.executable, "-m", "bench.sim"]
        done = subprocess.run(argv, capture_output=True, text=True, check=True)
        figures: dict[str, float] = json.loads(done.stdout)
        return figures


if __name__ == "__main__":
    main()
