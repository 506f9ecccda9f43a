# SPDX-License-Identifier: Apache-2.0
"""`python -m bench`: runs the benchmarks and writes `results.json` and `RESULTS.md`."""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from nvdra_gpu_plugin.__about__ import __version__
from nvdra_lab import environment, versions
from nvdra_lab.artifacts import binaries
from nvdra_lab.progress import Progress
from nvdra_testing.cluster.installation import CD_PLUGIN, GPUS_ONLY
from nvdra_testing.control_plane import apiserver
from nvdra_testing.control_plane.apiserver import ApiServer

from bench import (
    claims,
    clique_growth,
    domain_on_nodes,
    domains,
    first_prepares,
    first_slice,
    installation,
    lab,
    machine,
    made_mig,
    many_domains,
    memory_growth,
    peer,
    pods,
    report,
    vfio_claims,
    webhook,
)
from bench.claims import Candidate
from bench.figures import Summary

KUBERNETES = "1.36"

FIRSTS = 5
"""Starts, and releases of NVML, whose first prepare is measured; as many on cold GPUs."""

ALL_GATES = {
    "FEATURE_GATES": "DynamicMIG=true,ConsumableShares=true,TimeSlicingSettings=true,"
    "NVMLDeviceHealthCheck=true,MPSSupport=true",
    "CONSUMABLE_SHARES": "unlimited",
    "IMAGE_NAME": "registry.example.com/nvdra-gpu-plugin",
}
"""All of whole GPUs and MIG devices. No claim shares by MPS, so no image of a daemon is needed."""

METADATA = {**ALL_GATES, "FEATURE_GATES": f"{ALL_GATES['FEATURE_GATES']},DeviceMetadata=true"}
"""The same, and every claim has files of its own."""

MIG_ROUNDS = 6
"""Rounds of MIG devices made on one GPU and on eight."""

AT_ONCE, DOMAIN_ROUNDS = 50, 3
"""Number of compute domains, and how often they are created and deleted."""

ALONE_AT_MOST = 72
"""Members of the largest clique that grows without a controller too; it takes a minute."""

ETCD_FLAGS: tuple[str, ...] = ()
"""None: etcd syncs every write, as in production."""


def main() -> None:
    """Run all benchmarks. This takes about half an hour with the default options."""
    arguments = _arguments()
    webhook.wrk()  # what is missing is said now, not after a quarter of an hour
    progress = Progress()
    places = environment.read()
    with progress.step("the plugin's wheels, installed", "about 10 s"):
        program = installation.program(places)
    with progress.step("those of the latest release", "about 20 s"):
        released = installation.released_program(places)
    with tempfile.TemporaryDirectory(prefix="nvb-") as name, ExitStack() as stack:
        directory = Path(name)
        peer_program = None
        if arguments.peer:
            with progress.step(f"the files of the image in {arguments.peer}"):
                peer_program = stack.enter_context(peer.program(arguments.peer, directory))
        facts = machine.facts(program, ETCD_FLAGS, directory)
        release = versions.resolve(KUBERNETES, binaries.releases(places, "kubernetes"))
        (directory / "api").mkdir()
        with apiserver.run_apiserver(
            directory / "api", kubernetes=KUBERNETES, etcd_flags=ETCD_FLAGS
        ) as server:
            measured = asyncio.run(
                _claims(server, directory, program, released, peer_program, arguments, progress)
            )
            with progress.step(f"{2 * FIRSTS} first prepares", "about 20 s"):
                firsts = asyncio.run(first_prepares.measure(server, directory, program, FIRSTS))
            made = asyncio.run(made_mig.measure(server, directory, program, MIG_ROUNDS, progress))
            with progress.step(f"{vfio_claims.ROUNDS} GPUs to virtual machines and back"):
                passed = asyncio.run(vfio_claims.measure(server, program, vfio_claims.ROUNDS))
            starts = _starts(server, (program, released[0]), arguments.starts, progress)
        (directory / "domains").mkdir()
        with progress.step(f"{AT_ONCE} compute domains, created and deleted", "about 1 min"):
            measured_domains = domains.measured(
                directory / "domains", AT_ONCE, DOMAIN_ROUNDS, kubernetes=KUBERNETES
            )
    results = {
        "command": " ".join(["python -m bench", *sys.argv[1:]]),
        "machine": {**facts, "kubernetes": str(release)},
        "rounds": {"sequential": arguments.rounds, "bursts": arguments.bursts},
        **measured,
        "first_prepare_ms": firsts,
        "made_mig": made,
        "vfio_claims": passed,
        "first_slice_s": vars(Summary.of(starts[program])),
        "released_first_slice_s": vars(Summary.of(starts[released[0]])),
        "domains": domains.summary(measured_domains, AT_ONCE),
        "simulator": _simulator(progress),
    }
    with progress.step("the admission webhook", "about 40 s"):
        results["webhook"] = webhook.measure()
    if arguments.domains:
        with progress.step(f"{arguments.domains} domains of one node", "about 4 min"):
            found = many_domains.measure(arguments.domains, kubernetes=KUBERNETES)
        results["many_domains"] = many_domains.summary(found)
    if arguments.members:
        results |= _cliques(arguments.members, progress)
    if arguments.pods:
        with lab.running(progress, pods.PROFILE, GPUS_ONLY) as cluster:
            results["pods"] = pods.measure(cluster, arguments.pods, arguments.pods // 3, progress)
        with lab.running(progress, domain_on_nodes.PROFILE, component=CD_PLUGIN) as cluster:
            results["rack"] = domain_on_nodes.measure(cluster, arguments.pods // 3, progress)
    print(report.write(results))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description="Measure the GPU plugin and compute domains against a real API server on "
        "simulated hardware, and write bench/results.json and bench/RESULTS.md. Needs root (device "
        "nodes).",
    )
    release = f"%(prog)s of nvdra-gpu-plugin {__version__}"
    parser.add_argument("--version", action="version", version=release)
    for flag, default, what in (
        ("--rounds", 100, "rounds of eight claims prepared one after another"),
        ("--bursts", 25, "rounds of eight claims prepared at once"),
        ("--starts", 7, "starts of the plugin, of which the median is quoted"),
        ("--prepares", memory_growth.MANY, "prepares after which the resident set is read again"),
    ):
        parser.add_argument(flag, type=_at_least_two, default=default, help=f"{what} ({default})")
    parser.add_argument(
        "--members",
        type=int,
        nargs="*",
        default=list(clique_growth.MEMBERS),
        help="members of the cliques that grow; none leaves them out (18 72 144 256)",
    )
    parser.add_argument(
        "--domains",
        type=int,
        default=many_domains.COUNT,
        help="domains of one node each with which the controller is started; 0 leaves them out "
        f"({many_domains.COUNT})",
    )
    parser.add_argument(
        "--pods",
        type=int,
        default=15,
        help="pods started one at a time on a cluster of two nodes, with a claim and without, and "
        "a third as often sixteen at once and a domain over both nodes; 0 leaves them and their "
        "clusters out (15)",
    )
    parser.add_argument(
        "--peer",
        type=Path,
        default=os.environ.get("BENCH_PEER") or None,
        metavar="ARCHIVE",
        help="an OCI archive of another driver's image, beside whose plugin ours is measured (the "
        "variable BENCH_PEER; none)",
    )
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
    released: tuple[Path, str],
    peer: Path | None,
    arguments: argparse.Namespace,
    progress: Progress,
) -> dict[str, Any]:
    """Run all benchmarks of claims."""
    measured = await claims.prepares(
        server,
        directory,
        program,
        claims.Counts(arguments.rounds, arguments.bursts, arguments.prepares),
        progress,
    )
    some = max(2, arguments.rounds // 5)
    ours = Candidate(program)

    async def beside(**candidates: Candidate) -> dict[str, Any]:
        return await claims.side_by_side(server, directory, candidates, some, progress)

    return {
        **measured,
        "shares_ms": await claims.beside_admin_claims(server, directory, program, some, progress),
        "export_ms": await claims.exporting(server, directory, program, some, progress),
        "release_ms": {
            "version": released[1],
            **await beside(now=ours, former=Candidate(released[0])),
        },
        "gates_ms": await beside(
            on=Candidate(program, ALL_GATES), off=ours, metadata=Candidate(program, METADATA)
        ),
        **({"peer_ms": await beside(ours=ours, peer=Candidate(peer))} if peer else {}),
    }


def _starts(
    server: ApiServer, programs: Sequence[Path], count: int, progress: Progress
) -> dict[Path, list[float]]:
    """The times to the first slice of each program, which are started in turns."""
    with progress.step(f"{count} starts of the plugin, and as many of the release") as step:
        durations: dict[Path, list[float]] = {program: [] for program in programs}
        for number in range(count):
            step.detail = f"start {number + 1}"
            for program in programs:
                durations[program].append(first_slice.first_slice_s(server, program))
        return durations


def _cliques(members: Sequence[int], progress: Progress) -> dict[str, Any]:
    """Cliques that grow, and those of them again that grow fast enough without a controller."""
    alone = [count for count in members if count <= ALONE_AT_MOST]
    found: dict[str, Any] = {}
    for key, counts, with_controller, title, duration in (
        ("cliques", members, True, "cliques that grow", "about 2 min"),
        ("cliques_alone", alone, False, "the same without a controller", "about 3 min"),
    ):
        with progress.step(title, duration):
            found[key] = [
                clique_growth.summary(
                    clique_growth.measure(
                        count, with_controller=with_controller, kubernetes=KUBERNETES
                    )
                )
                for count in counts
            ]
    return found


def _simulator(progress: Progress) -> dict[str, float]:
    """Run in a separate process, because the simulated library cannot be unloaded."""
    with progress.step("the simulated NVML"):
        argv = [sys.executable, "-m", "bench.simulated_nvml"]
        done = subprocess.run(argv, capture_output=True, text=True, check=True)
        figures: dict[str, float] = json.loads(done.stdout)
        return figures


if __name__ == "__main__":
    main()
