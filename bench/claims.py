"""Everything that is measured with a client in the kubelet's place."""

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, NamedTuple

import otlp
from apiserver import ApiServer
from nvdra_lab.progress import Progress

from bench import callers, growth, rounds, shares, steps
from bench.callers import Caller
from bench.figures import Samples
from bench.rounds import WIDTH, Claims
from bench.stations import Station, station

FLOOR_EVERY = 3
"""The floor is measured in every third round: enough for a ratio under the same load."""

TRACED = 10
"""Rounds whose traces are read for the steps: the newest, which the plugin still remembers."""

_Measure = Callable[[Caller, Claims, Samples], Awaitable[object]]


class Counts(NamedTuple):
    """How often.

    Attributes:
        rounds: Of eight claims one after another.
        bursts: Of eight claims at once.
        prepares: After which the resident set is read a second time.
    """

    rounds: int
    bursts: int
    prepares: int


async def prepares(
    server: ApiServer, directory: Path, program: Path, counts: Counts, progress: Progress
) -> dict[str, Any]:
    """The plugin beside the floor, what it weighs then and what its traces say.

    Args:
        server: The API server.
        directory: For sockets and state files; short.
        program: The plugin's.
        counts: How often.
        progress: Told how far it is.
    """
    ours, bare = Samples(), Samples()
    async with AsyncExitStack() as stack:
        ours_at = await stack.enter_async_context(
            station(server, directory / "plain", program, "bench")
        )
        floor = await stack.enter_async_context(
            callers.running_floor(program.with_name("python"), directory, server)
        )

        async def alternate(measure: _Measure, count: int, what: str) -> None:
            with progress.step(f"{count} rounds of eight claims, {what}") as step:
                await measure(ours_at.caller, ours_at.claims, Samples())  # connections, caches
                await measure(floor, ours_at.claims, Samples())
                for number in range(count):
                    step.detail = f"round {number + 1}"
                    await measure(ours_at.caller, ours_at.claims, ours)
                    if number % FLOOR_EVERY == 0:
                        await measure(floor, ours_at.claims, bare)

        await alternate(rounds.one_after_another, counts.rounds, "one after another")
        spent = await _steps(ours_at)
        await alternate(rounds.all_at_once, counts.bursts, "eight at once")
        done = WIDTH * (counts.rounds + counts.bursts + 2 + TRACED)
        with progress.step(f"{counts.prepares} prepares, for the resident set"):
            weights = await growth.measure(ours_at, done, counts.prepares)
    return {
        "plugin": ours.summary(WIDTH),
        "floor": bare.summary(WIDTH),
        "steps_ms": spent,
        "resident_mib": weights,
    }


async def beside_shares(
    server: ApiServer, directory: Path, program: Path, count: int, progress: Progress
) -> dict[str, Any]:
    """Ordinary prepares while one GPU is held by many admin results."""
    async with station(server, directory / "shares", program, "shares") as at:
        with progress.step(f"{count} rounds beside 1, 64 and 256 results held on one GPU"):
            return await shares.measure(at, server, "shares", count)


async def exporting(
    server: ApiServer, directory: Path, program: Path, count: int, progress: Progress
) -> dict[str, Any]:
    """Prepares with every span sent to a collector on this machine, and without; in turns."""
    with otlp.receiver() as collector:
        variables = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.endpoint}
        async with (
            station(server, directory / "export", program, "export", variables) as with_,
            station(server, directory / "silent", program, "silent") as without,
        ):
            samples = {"on": (with_, Samples()), "off": (without, Samples())}
            with progress.step(f"{count} rounds with OTLP export, and as many without"):
                for number in range(count + 1):
                    for at, kept in samples.values():
                        into = Samples() if number == 0 else kept
                        await rounds.one_after_another(at.caller, at.claims, into)
    received = len(collector.spans())
    return {
        **{name: {"p50": _median(kept.prepare)} for name, (_, kept) in samples.items()},
        "spans": received,
    }


async def _steps(at: Station) -> dict[str, float]:
    uids: list[str] = []
    for _ in range(TRACED):
        held = await rounds.one_after_another(at.caller, at.claims, Samples())
        uids += [claim.uid for claim in held]
    return steps.medians_ms(at.process, uids)


def _median(samples: list[float]) -> float:
    return round(sorted(samples)[len(samples) // 2], 3)
