# SPDX-License-Identifier: Apache-2.0
"""Writes the results to `results.json` and to the tables of `RESULTS.md`."""

import json
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from bench import webhook

HERE = Path(__file__).parent

MOST_MIB = {"nvdra-cd-plugin": 95, "nvdra-cd-controller": 95, "nvdra-imex-daemon": 80}
"""Target of the resident set of each component, in MiB."""


def write(results: dict[str, Any]) -> str:
    """Write both files. Returns the text of `RESULTS.md`."""
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
    yield from _table(("measure", "p50", "p99", "beside", "ratio", "target"), _measures(results))
    yield ""
    yield from _conditions(results)
    yield ""
    yield "## One prepare, step by step"
    yield ""
    steps = results["steps_ms"]
    yield from _table(
        ("step", "median"), ((name, f"{value:.2f} ms") for name, value in steps.items())
    )
    yield ""
    yield "From the plugin's traces. `prepare` is the sum; its caller also waits for gRPC at both"
    yield "ends."
    yield ""
    yield "## MIG devices made for claims"
    yield ""
    yield from _made_mig(results["made_mig"])
    if "vfio_claims" in results:
        yield ""
        yield "## GPUs for virtual machines"
        yield ""
        yield from _vfio_claims(results["vfio_claims"])
    if "pods" in results:
        yield ""
        yield "## Pods on two nodes"
        yield ""
        yield from _pods(results["pods"])
    yield ""
    yield "## Compute domains"
    yield ""
    yield from _domains(results["domains"])
    if "many_domains" in results:
        yield ""
        yield from _many_domains(results["many_domains"])
    if "cliques" in results:
        yield ""
        yield from _cliques(results["cliques"], results.get("cliques_alone", ()))
    if "rack" in results:
        yield ""
        yield from _rack(results["rack"])
    if "webhook" in results:
        yield ""
        yield "## The admission webhook"
        yield ""
        yield from _webhook(results["webhook"])
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
        ("prepare, one at a time", "prepare_ms", "≤ 3.0 ms at 2.0 (1.50 x), p99 ≤ 8"),
        ("prepare, one of 8 at once", "at_once_call_ms", "≤ 12 ms at 7.7 (1.56 x)"),
        ("unprepare", "unprepare_ms", "≤ 1.2 ms at 0.9 (1.33 x)"),
    ):
        ours, bare = plugin[key], floor[key]
        yield (
            name,
            f"{ours['p50']:.2f} ms",
            f"{ours['p99']:.2f} ms",
            f"{bare['p50']:.2f} ms",
            _times(ours["p50"], bare["p50"]),
            target,
        )
    rate, bare_rate = plugin["at_once_per_s"], floor["at_once_per_s"]
    ratio = _times(rate, bare_rate)
    yield (
        "8 at once, throughput",
        f"{rate}/s",
        "",
        f"{bare_rate}/s",
        ratio,
        "≥ 400/s at 695 (0.58 x)",
    )
    starts = results["first_slice_s"]
    yield ("process start to first slice", f"{starts['p50']:.2f} s", "", "", "", "≤ 1.0 s")
    yield from _beside_release(results["release_ms"], starts, results["released_first_slice_s"])
    gates = results["gates_ms"]
    yield from _side_by_side(gates["on"], gates["off"], "with all gates", "without")
    what = "with all gates and device metadata"
    yield from _side_by_side(gates["metadata"], gates["off"], what, "without")
    if "peer_ms" in results:
        peer = results["peer_ms"]
        yield from _side_by_side(peer["ours"], peer["peer"], "beside the peer", "the peer")
    yield from _first_prepares(results["first_prepare_ms"])
    for count, mib in results["resident_mib"].items():
        target = "≤ 95 MiB, no growth"
        yield (f"resident set after {count} prepares", f"{mib:.0f} MiB", "", "", "", target)
    yield from _shares(results["shares_ms"])
    on, off = (results["export_ms"][name]["p50"] for name in ("on", "off"))
    yield (
        "prepare with OTLP export",
        f"{on:.2f} ms",
        "",
        f"{off:.2f} ms (off)",
        _times(on, off),
        "",
    )


def _side_by_side(
    ours: dict[str, Any], theirs: dict[str, Any], what: str, label: str
) -> Iterable[Sequence[str]]:
    """A plugin in turns with another one."""
    for name, key in (
        ("prepare", "prepare_ms"),
        ("one of 8 prepares at once", "at_once_call_ms"),
        ("unprepare", "unprepare_ms"),
    ):
        yield (
            f"{name} {what}",
            f"{ours[key]['p50']:.2f} ms",
            f"{ours[key]['p99']:.2f} ms",
            f"{theirs[key]['p50']:.2f} ms ({label})",
            _times(ours[key]["p50"], theirs[key]["p50"]),
            "",
        )


def _beside_release(
    calls: dict[str, Any], starts: dict[str, float], former_starts: dict[str, float]
) -> Iterable[Sequence[str]]:
    """The same plugin as its latest release, in turns with it."""
    version = calls["version"]
    label = f"({version})"
    yield from _side_by_side(calls["now"], calls["former"], f"beside release {version}", version)
    start, former_start = starts["p50"], former_starts["p50"]
    yield (
        f"start to first slice beside release {calls['version']}",
        f"{start:.2f} s",
        "",
        f"{former_start:.2f} s {label}",
        _times(start, former_start),
        "",
    )


def _first_prepares(firsts: dict[str, Any]) -> Iterable[Sequence[str]]:
    warm, cold = firsts["next"]["p50"], firsts["cold_gpu_ms"]
    for what, key, beside_ms, beside in (
        ("first prepare after a start", "start_warm", warm, f"{warm:.2f} ms (the next ones)"),
        (
            "first prepare after NVML was released",
            "release_warm",
            warm,
            f"{warm:.2f} ms (likewise)",
        ),
        ("first prepare after a start, cold GPUs", "start_cold", cold, f"{cold} ms (the GPU)"),
        ("first prepare after a release, cold GPUs", "release_cold", cold, f"{cold} ms (the GPU)"),
    ):
        p50 = firsts[key]["p50"]
        yield (what, f"{p50:.1f} ms", "", beside, _times(p50, beside_ms), "")


def _shares(shares: dict[str, Any]) -> Iterable[Sequence[str]]:
    """The first row is the baseline of the others."""
    alone = shares["1"]["p50"]
    for held, summary in shares.items():
        what = "one claim" if held == "1" else f"{held} admin results"
        yield (
            f"prepare on seven GPUs, {what} held on the eighth",
            f"{summary['p50']:.2f} ms",
            f"{summary['p99']:.2f} ms",
            f"{alone:.2f} ms (one claim)",
            _times(summary["p50"], alone),
            "" if held == "1" else "≤ 1.2 x",
        )


def _made_mig(found: dict[str, Any]) -> Iterable[str]:
    presets = [found[name] for name in ("realistic", "instant")]
    rows = [
        (title, *(f"{each[key]['p50']:.0f} ms, p99 {each[key]['p99']:.0f}" for each in presets), "")
        for title, key in (
            ("one made and prepared", "prepare_ms"),
            ("one unprepared and destroyed", "unprepare_ms"),
            ("7 at once on one GPU", "one_gpu_ms"),
            ("56 at once on eight GPUs", "all_gpus_ms"),
        )
    ]
    rows.append(
        (
            "devices a second, eight GPUs beside one",
            *(
                f"{each['all_gpus_per_s']:.1f} beside {each['one_gpu_per_s']:.1f}: "
                + _times(each["all_gpus_per_s"], each["one_gpu_per_s"])
                for each in presets
            ),
            "≥ 6 x (real)",
        )
    )
    start = found["slices_s"]
    rows.append(
        ("start to all slices of 16 GPUs, 496 devices", "", f"{start['p50']:.2f} s", "≤ 1.5 s")
    )
    yield from _table(("measure", "NVML as slow as real", "NVML at once", "target"), rows)
    yield ""
    yield from textwrap.wrap(
        "Devices of profile 1g.10gb on H100 GPUs, each for a claim of its own; the first on a GPU "
        "switches its MIG mode on, the last one off. NVML takes as long as on real hardware, or no "
        "time.",
        100,
    )


def _vfio_claims(found: dict[str, Any]) -> Iterable[str]:
    rows = [
        (title, f"{found[key]['p50']:.0f} ms", f"{found[key]['p99']:.0f} ms", target)
        for title, key, target in (
            ("a GPU bound to vfio and prepared", "prepare_ms", "≤ 1500 ms"),
            ("unprepared and given back", "unprepare_ms", ""),
            ("refused while a process has the GPU open", "refused_ms", "≤ 1000 ms"),
        )
    ]
    alone = found["other_alone_ms"]["p50"]
    rows += [
        (title, f"{found[key]['p50']:.0f} ms", f"{found[key]['p99']:.0f} ms", target)
        for title, key, target in (
            ("a prepare of another GPU, alone", "other_alone_ms", ""),
            ("the same beside a GPU that is bound", "other_during_ms", ""),
            ("the same beside one that is refused", "other_refused_ms", f"≤ {2 * alone:.0f} ms"),
        )
    ]
    yield from _table(("measure", "p50", "p99", "target"), rows)
    yield ""
    yield from _table(
        ("step", "median"), ((name, f"{value:.1f} ms") for name, value in found["steps_ms"].items())
    )
    yield ""
    yield from textwrap.wrap(
        "On a simulated sysfs, and GPUs that take no time to start. The reference takes a second "
        "at least, as it looks for the first time after one.",
        100,
    )


def _pods(pods: dict[str, Any]) -> Iterable[str]:
    rows = [
        (
            name,
            *(f"{pods[key][f'{kind}_s']['p50']:.2f} s" for kind in ("plain", "claimed")),
            f"{pods[key]['difference_s']['p50']:.2f} s",
            reference,
            f"{pods[key]['until_scheduled_s']['p50']:.2f} s",
            f"{pods[key]['prepare_s'] * 1000:.0f} ms",
            str(pods[key]["plain_s"]["samples"]),
        )
        for name, key, reference in (
            ("one at a time", "one", "0.06 s"),
            ("sixteen at once", "sixteen", "0.4 s"),
        )
    ]
    head = (
        "pods",
        "without a claim",
        "with one GPU each",
        "difference",
        "the reference's",
        "of it until scheduled",
        "of it the plugin",
        "times",
    )
    yield from _table(head, rows)
    yield ""
    yield from textwrap.wrap(
        "The time from the event that a pod is added until its container runs; for sixteen pods, "
        "from the first to the last. Pods with and without a claim alternate; the difference is "
        "the median of the differences of neighbours. Until it is scheduled, a pod waits for its "
        "claim to be created and allocated, which Kubernetes does. The plugin's part is the mean "
        "time of a prepare in its metrics. The rest is spent by the kubelet, the container runtime "
        "and the hooks of the CDI spec.",
        100,
    )


def _domains(found: dict[str, Any]) -> Iterable[str]:
    count = found["count"]
    rows = (
        (f"{count} domains have all their objects", f"{found['made_s']:.2f} s", "≤ 1 s"),
        ("and all have a status", f"{found['told_s']:.2f} s", ""),
        (f"{count} domains are Ready with one daemon each", f"{found['formed_s']:.2f} s", ""),
        (f"{count} deleted domains are gone", f"{found['gone_s']:.2f} s", "≤ 2 s"),
        ("writes in the life of a domain", f"{found['writes_each']:.1f}", ""),
        ("maximum resident set of the controller", f"{found['resident_mib']:.0f} MiB", "≤ 95 MiB"),
    )
    yield from _table(("measure", "median", "target"), rows)
    yield ""
    yield from textwrap.wrap(
        f"All {count} are created, and deleted, at once; medians of {found['rounds']} rounds. The "
        "time is from the first request until a watch has reported the last object: a DaemonSet "
        "and two claim templates per domain. The controller is a separate process with default "
        "settings; etcd syncs. There is no kubelet, so no daemon starts. For the row with daemons, "
        "another process labels a node and writes the pod and the clique entry of its daemon.",
        100,
    )


def _many_domains(found: dict[str, Any]) -> Iterable[str]:
    rows = [
        (
            title,
            f"{start['steady_s']:.1f} s",
            str(sum(start["requests"].values())),
            str(sum(start["idle"].values())),
            f"{start['most_mib']:.0f} MiB",
        )
        for title, start in (
            ("as it was", found["unchanged"]),
            ("with another image of the daemons", found["changed"]),
        )
    ]
    rows.append(
        (
            "(while they form)",
            f"{found['formed_s']:.1f} s",
            "",
            "",
            f"{found['forming_mib']:.0f} MiB",
        )
    )
    heads = (
        f"the controller of {found['count']} domains starts",
        "steady after, ≤ 60 s",
        "requests until then",
        "in a minute afterwards, 0",
        "maximum resident set, ≤ 120 MiB",
    )
    yield from _table(heads, rows)
    yield ""
    yield from textwrap.wrap(
        "Each domain has one node with a simulated daemon. The controller may send 50 requests a "
        "second; with another image it changes every DaemonSet. The time is from the start of the "
        "process until its last request. Watches are not counted as requests.",
        100,
    )


def _cliques(found: Sequence[dict[str, Any]], alone: Sequence[dict[str, Any]]) -> Iterable[str]:
    titled = [(f"{each['members']}", each) for each in found]
    titled += [(f"{each['members']}, no controller runs", each) for each in alone]
    rows = (
        (
            title,
            f"{each['formed_s']:.1f} s",
            f"{each['received_sizes']:.1f}",
            f"{each['writes']:.2f}",
            f"{each['conflicts']:.2f}",
        )
        for title, each in titled
    )
    heads = (
        "members of a clique",
        "formed",
        "sizes received, ≤ 8",
        "writes, ≤ 2",
        "conflicts, ≤ 0.2",
    )
    yield from _table(heads, rows)
    yield ""
    yield from textwrap.wrap(
        "Members with the daemon's own membership code share a process; they start within 3 s and "
        "are ready a second after they are listed. For each member: what its connections receive, "
        "TLS and everything else included, in sizes of the finished clique; and the clique's "
        "writes by whomever, as the API server counts them. Each member also writes its own pod "
        "twice. Without a controller each first waits 15 s for one, and then for its turn.",
        100,
    )


def _rack(rack: dict[str, Any]) -> Iterable[str]:
    rows = (
        (step, f"{summary['p50']:.2f} s", str(summary["samples"]))
        for step, summary in rack["steps_s"].items()
    )
    yield from _table(("one domain over two nodes, until both are", "median", "times"), rows)
    yield ""
    yield from textwrap.wrap(
        "On two real nodes of one rack: from the event that the first of two pods is added until "
        "both containers run. The domain and its claim templates exist before. Each time is when "
        "both nodes have reached the step.",
        100,
    )
    yield ""
    requests = (
        (kind, f"{summary['p50']:.2f}") for kind, summary in rack.get("requests", {}).items()
    )
    yield from _table(("requests meanwhile by all components", "for each node"), requests)
    yield ""
    sizes = (
        (name, f"{mib:.0f} MiB", f"≤ {MOST_MIB[name]} MiB")
        for name, mib in rack["resident_mib"].items()
    )
    yield from _table(("resident set there, without child processes", "maximum", "target"), sizes)


def _webhook(found: dict[str, Any]) -> Iterable[str]:
    head = ("measure", "the webhook", "a handler that admits everything", "target")
    yield from _table(head, webhook.lines(found))
    yield ""
    yield from textwrap.wrap(
        f"wrk sends {found['bodies']} different requests, of which each has a config that is right "
        f"or wrong in another way, over {found['connections']} TLS connections, and compares every "
        f"verdict; medians of {found['rounds']} rounds; load {found['load_before']} before. One "
        "process, with metrics. The other handler has the same server, decodes the review, and "
        "admits.",
        100,
    )


def _times(ours: float, other: float) -> str:
    return f"{ours / other:.2f} x"


def _conditions(results: dict[str, Any]) -> Iterable[str]:
    machine, rounds = results["machine"], results["rounds"]
    stack = ", ".join(f"{name} {version}" for name, version in machine["stack"].items())
    flags = " ".join(machine["etcd_flags"]) or "none beyond where it listens and stores: it syncs"
    for condition in (
        f"Machine: {machine['cpu']}, {machine['cores']} cores shared by plugin, API server, etcd "
        f"and client, without pinning; load {machine['load_before']} before the run; kernel "
        f"{machine['kernel']}, {machine['filesystem']}.",
        f"Versions: {machine['plugin']} ({machine['commit']}), Python {machine['python']}, "
        f"Kubernetes {machine['kubernetes']}, {stack}.",
        f"etcd's flags: {flags}.",
        "The plugin: installed from wheels with compiled byte code, default settings, no OTLP "
        "export unless a row says so, a fresh process on a simulated dgx-h100 with eight GPUs.",
        f"{rounds['sequential']} rounds of eight new claims prepared one after another, then "
        f"unprepared; {rounds['bursts']} rounds of eight new claims in eight calls at once. Claims "
        "are created and allocated through the API before the measurement; times are those of a "
        "grpc.aio client, including its own work. The start is the median of "
        f"{results['first_slice_s']['samples']} starts on new nodes, observed by a watch.",
        "First prepares: the call that the kubelet makes as soon as the plugin is registered, and, "
        "from the request to resume on, one that waits while NVML is released; medians of "
        f"{results['first_prepare_ms']['start_warm']['samples']}. Cold GPUs lack persistence mode "
        f"and take {results['first_prepare_ms']['cold_gpu_ms']} ms for their first client.",
        'The column "beside" is the floor, unless it says otherwise: a server with one grpc.aio '
        "handler that does one TLS GET of a claim on a kept connection and one synced SQLite "
        "commit (unprepare: the commit only), called by the same client in every third round.",
        'A target with "at" is for a machine whose floor has that value; on other machines compare '
        "the ratios.",
    ):
        yield from textwrap.wrap(condition, 100, initial_indent="- ", subsequent_indent="  ")


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterable[str]:
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * len(head)}"
    for row in rows:
        yield f"| {' | '.join(row)} |"
