# SPDX-License-Identifier: Apache-2.0
"""The benchmarks in which a client calls the plugin in place of the kubelet."""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from nvdra_lab.progress import Progress
from nvdra_testing.control_plane.apiserver import ApiServer
from nvdra_testing.telemetry import otlp_receiver

from bench import admin_access, call_targets, memory_growth, prepare_rounds, prepare_steps
from bench.call_targets import CallTarget
from bench.figures import Samples, Summary
from bench.plugin_under_test import PluginUnderTest, run_plugin_under_test
from bench.prepare_rounds import WIDTH, Claims

FLOOR_EVERY = 3
"""The floor is measured in every third round, which is enough for a ratio under the same load."""

TRACED = 10
"""Number of rounds whose traces are read: the newest ones, which the plugin has in memory."""

_Measure = Callable[[CallTarget, Claims, Samples], Awaitable[object]]


class Counts(NamedTuple):
    """Numbers of repetitions.

    Attributes:
        rounds: Rounds of eight claims one after another.
        bursts: Rounds of eight claims at once.
        prepares: Prepares before the resident set is read a second time.
    """

    rounds: int
    bursts: int
    prepares: int


async def prepares(
    server: ApiServer, directory: Path, program: Path, counts: Counts, progress: Progress
) -> dict[str, Any]:
    """Measure the plugin and the floor, then the plugin's memory and the steps in its traces.

    Args:
        server: The API server.
        directory: For sockets and state files; its path must be short.
        program: The plugin's program.
        counts: Numbers of repetitions.
        progress: Shows the progress.
    """
    ours, bare = Samples(), Samples()
    async with AsyncExitStack() as stack:
        ours_at = await stack.enter_async_context(
            run_plugin_under_test(server, directory / "plain", program, "bench")
        )
        floor = await stack.enter_async_context(
            call_targets.run_floor(program.with_name("python"), directory, server)
        )

        async def alternate(measure: _Measure, count: int, what: str) -> None:
            with progress.step(f"{count} rounds of eight claims, {what}") as step:
                await measure(ours_at.target, ours_at.claims, Samples())  # connections, caches
                await measure(floor, ours_at.claims, Samples())
                for number in range(count):
                    step.detail = f"round {number + 1}"
                    await measure(ours_at.target, ours_at.claims, ours)
                    if number % FLOOR_EVERY == 0:
                        await measure(floor, ours_at.claims, bare)

        await alternate(prepare_rounds.one_after_another, counts.rounds, "one after another")
        spent = await _steps(ours_at)
        await alternate(prepare_rounds.all_at_once, counts.bursts, "eight at once")
        done = WIDTH * (counts.rounds + counts.bursts + 2 + TRACED)
        with progress.step(f"{counts.prepares} prepares, for the resident set"):
            weights = await memory_growth.measure(ours_at, done, counts.prepares)
    return {
        "plugin": ours.summary(WIDTH),
        "floor": bare.summary(WIDTH),
        "steps_ms": spent,
        "resident_mib": weights,
    }


async def beside_admin_claims(
    server: ApiServer, directory: Path, program: Path, count: int, progress: Progress
) -> dict[str, Any]:
    """Measure ordinary prepares while one GPU has many results with admin access."""
    async with run_plugin_under_test(server, directory / "shares", program, "shares") as at:
        with progress.step(f"{count} rounds beside 1, 64 and 256 results held on one GPU"):
            return await admin_access.measure(at, server, "shares", count)


async def exporting(
    server: ApiServer, directory: Path, program: Path, count: int, progress: Progress
) -> dict[str, Any]:
    """Measure prepares with and without export of spans to a local collector, in turns."""
    with otlp_receiver.receiver() as collector:
        variables = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.endpoint}
        async with (
            run_plugin_under_test(
                server, directory / "export", program, "export", variables
            ) as with_,
            run_plugin_under_test(server, directory / "silent", program, "silent") as without,
        ):
            with progress.step(f"{count} rounds with OTLP export, and as many without"):
                samples = await _in_turns({"on": with_, "off": without}, count)
    received = len(collector.spans())
    return {
        **{name: {"p50": _median(kept.prepare)} for name, kept in samples.items()},
        "spans": received,
    }


class Candidate(NamedTuple):
    """A program that is measured beside another one, with additional environment variables."""

    program: Path
    environ: Mapping[str, str] = MappingProxyType({})


async def side_by_side(
    server: ApiServer,
    directory: Path,
    candidates: Mapping[str, Candidate],
    count: int,
    progress: Progress,
) -> dict[str, Any]:
    """Measure prepares of several plugins, in turns.

    Args:
        server: The API server.
        directory: For sockets and state files; its path must be short.
        candidates: The programs by short names, which are also those of their nodes.
        count: Rounds of eight claims with each.
        progress: Shows the progress.
    """
    names = " and ".join(candidates)
    async with AsyncExitStack() as stack:
        plugins = {
            name: await stack.enter_async_context(
                run_plugin_under_test(server, directory / name, program, name, environ)
            )
            for name, (program, environ) in candidates.items()
        }
        with progress.step(f"{count} rounds in turns: {names}"):
            samples = await _in_turns(plugins, count)
        with progress.step("the same with eight claims at once"):
            bursts = await _in_turns(plugins, count, prepare_rounds.all_at_once)
    return {
        name: {
            "prepare_ms": vars(Summary.of(samples[name].prepare)),
            "at_once_call_ms": vars(Summary.of(bursts[name].burst_call)),
            "unprepare_ms": vars(Summary.of(samples[name].unprepare)),
        }
        for name in plugins
    }


async def _in_turns(
    plugins: Mapping[str, PluginUnderTest],
    count: int,
    measure: _Measure = prepare_rounds.one_after_another,
) -> dict[str, Samples]:
    """Rounds of eight claims with each plugin in turn; the first is not counted."""
    samples = {name: Samples() for name in plugins}
    for number in range(count + 1):
        for name, at in plugins.items():
            into = Samples() if number == 0 else samples[name]
            await measure(at.target, at.claims, into)
    return samples


async def _steps(at: PluginUnderTest) -> dict[str, float]:
    uids: list[str] = []
    for _ in range(TRACED):
        held = await prepare_rounds.one_after_another(at.target, at.claims, Samples())
        uids += [claim.uid for claim in held]
    return prepare_steps.medians_ms(at.process, uids)


def _median(samples: list[float]) -> float:
    return round(sorted(samples)[len(samples) // 2], 3)
