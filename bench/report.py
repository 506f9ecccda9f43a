"""Results → `results.json` and the tables of `RESULTS.md`."""

import json
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


def write(results: dict[str, Any]) -> str:
    """Write both files; the second one's text."""
    (HERE / "results.json").write_text(json.dumps(results, indent=2) + "\n")
    text = "\n".join(_lines(results)) + "\n"
    (HERE / "RESULTS.md").write_text(text)
    return text


def _lines(results: dict[str, Any]) -> Iterable[str]:
    machine = results["machine"]
    yield "# Measurements"
    yield ""
    yield f"`{results['command']}` on {machine['date']}; written by it, not by hand."
    yield ""
    yield from _table(("measure", "p50", "p99", "floor", "of floor", "target"), _measures(results))
    yield ""
    yield from _conditions(results)
    yield ""
    yield "## The simulated NVML"
    yield ""
    simulator = (
        (f"{name.removesuffix('_ms')}", f"{value:.4f} ms")
        for name, value in results["simulator"].items()
    )
    yield from _table(("measure", "median"), simulator)


def _measures(results: dict[str, Any]) -> Iterable[Sequence[str]]:
    plugin, floor = results["plugin"], results["floor"]
    for name, key, target in (
        ("prepare, one at a time", "prepare_ms", "≤ 3.0 ms, p99 ≤ 8"),
        ("prepare, one of 8 at once", "at_once_call_ms", "≤ 12 ms"),
        ("unprepare", "unprepare_ms", "≤ 1.2 ms"),
    ):
        ours, bare = plugin[key], floor[key]
        yield (
            name,
            f"{ours['p50']:.2f} ms",
            f"{ours['p99']:.2f} ms",
            f"{bare['p50']:.2f} ms",
            f"{ours['p50'] / bare['p50']:.2f} x",
            target,
        )
    rate, bare_rate = plugin["at_once_per_s"], floor["at_once_per_s"]
    ratio = f"{rate / bare_rate:.2f} x"
    yield ("8 at once, throughput", f"{rate}/s", "", f"{bare_rate}/s", ratio, "≥ 400/s")
    starts = results["first_slice_s"]
    yield ("process start to first slice", f"{starts['p50']:.2f} s", "", "", "", "≤ 1.0 s")
    resident = results["resident_mib"]
    what = f"resident set after {resident['prepares']} prepares"
    yield (what, f"{resident['mib']:.0f} MiB", "", "", "", "≤ 95 MiB")


def _conditions(results: dict[str, Any]) -> Iterable[str]:
    machine, rounds = results["machine"], results["rounds"]
    stack = ", ".join(f"{name} {version}" for name, version in machine["stack"].items())
    flags = " ".join(machine["etcd_flags"]) or "none beyond where it listens and stores: it syncs"
    for condition in (
        f"Machine: {machine['cpu']}, {machine['cores']} cores shared by plugin, API server, etcd "
        f"and client, nothing pinned; load {machine['load_before']} before the run; kernel "
        f"{machine['kernel']}, {machine['filesystem']}.",
        f"Versions: {machine['plugin']} ({machine['commit']}), Python {machine['python']}, "
        f"Kubernetes {machine['kubernetes']}, {stack}.",
        f"etcd's flags: {flags}.",
        "The plugin: installed from wheels with compiled byte code, default settings, no OTLP "
        "export, a fresh process on a simulated dgx-h100 with eight GPUs.",
        f"{rounds['sequential']} rounds of eight new claims prepared one after another, then "
        f"unprepared; {rounds['bursts']} rounds of eight new claims in eight calls at once. Claims "
        "are made and allocated through the API before the clock starts; times are those of a "
        "grpc.aio client, its own work included. The start is the median of "
        f"{results['first_slice_s']['samples']}, on nodes never served before, seen by a watch.",
        "Floor: a server with one grpc.aio handler that does one TLS GET of a claim on a kept "
        "connection and one synced SQLite commit (unprepare: the commit alone), called by the "
        "same client, in every third round.",
    ):
        yield from textwrap.wrap(condition, 100, initial_indent="- ", subsequent_indent="  ")


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterable[str]:
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * len(head)}"
    for row in rows:
        yield f"| {' | '.join(row)} |"
