# SPDX-License-Identifier: Apache-2.0
"""`python -m bench.domains`: how fast the controller creates and deletes the objects of domains.

One controller with default settings uses a real API server whose etcd syncs its writes. All domains
are created and deleted at once; the time is from the first request until a watch has reported the
last object. The controller's memory is measured, too. Exits with 1 if a target is missed.
"""

import argparse
import asyncio
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

from nvdra_runtime.kube import client
from nvdra_runtime.kube.client import Client, KubeSettings
from nvdra_runtime.kube.informer import Informer
from nvdra_testing.control_plane import apiserver, controller, domain_objects
from nvdra_testing.control_plane.apiserver import ApiServer
from nvdra_testing.control_plane.controller import ControllerProcess
from nvdra_testing.polling import wait_until

CREATED_S, GONE_S, MEMORY_MIB = 1.0, 2.0, 95.0
LONGEST_S = 120.0
REST_S = 2.5

LABELLED = {"labelSelector": "resource.nvidia.com/computeDomain"}
TEMPLATES = "/apis/resource.k8s.io/v1/resourceclaimtemplates"


class Round(NamedTuple):
    """The results of one round: seconds of elapsed and processor time, MiB, number of writes."""

    created_s: float
    status_s: float
    created_cpu_s: float
    created_server_cpu_s: float
    gone_s: float
    memory_mib: float
    writes: float


class Measured(NamedTuple):
    """The rounds, and the seconds until domains are Ready whose daemons are simulated."""

    rounds: list[Round]
    formed_s: float


class Watched(NamedTuple):
    """The informers of the benchmark."""

    domains: Informer
    daemonsets: Informer
    templates: Informer


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.domains", description=__doc__)
    parser.add_argument("--domains", type=int, default=50, help="how many (50)")
    parser.add_argument("--rounds", type=int, default=3, help="how often (3); the median counts")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="nvb-") as name:
        rounds, formed_s = measured(Path(name), given.domains, given.rounds)
    print(f"{given.domains} domains   created s  (controller's, API server's processor)   status s")
    for each in rounds:
        print(
            f"{each.created_s:19.2f} {each.created_cpu_s:13.2f} {each.created_server_cpu_s:13.2f} "
            f"{each.status_s:20.2f}   gone {each.gone_s:.2f} s   {each.memory_mib:.0f} MiB   "
            f"{each.writes:.0f} writes"
        )
    created, gone = _median(rounds, lambda r: r.created_s), _median(rounds, lambda r: r.gone_s)
    memory = max(each.memory_mib for each in rounds)
    print(
        f"median: created {created:.2f} s (target {CREATED_S:g}), "
        f"gone {gone:.2f} s (target {GONE_S:g}); "
        f"most memory {memory:.0f} MiB (target {MEMORY_MIB:g}); load {os.getloadavg()[0]:.1f}\n"
        f"Ready with one simulated daemon each: {formed_s:.2f} s"
    )
    return int(created > CREATED_S or gone > GONE_S or memory > MEMORY_MIB)


def measured(directory: Path, count: int, rounds: int, *, kubernetes: str = "") -> Measured:
    """Run the benchmark with its own controller and API server in a directory."""
    with apiserver.run_apiserver(directory, kubernetes=kubernetes, etcd_flags=()) as server:
        domain_objects.install_crds(server)
        return asyncio.run(_measured(server, directory, count, rounds))


def summary(measured: Measured, count: int) -> dict[str, Any]:
    """The results for the report: medians in seconds, maximum memory in MiB."""
    rounds = measured.rounds
    return {
        "count": count,
        "rounds": len(rounds),
        "made_s": _median(rounds, lambda each: each.created_s),
        "told_s": _median(rounds, lambda each: each.status_s),
        "formed_s": measured.formed_s,
        "gone_s": _median(rounds, lambda each: each.gone_s),
        "writes_each": _median(rounds, lambda each: each.writes) / count,
        "resident_mib": max(each.memory_mib for each in rounds),
    }


async def _measured(server: ApiServer, directory: Path, count: int, rounds: int) -> Measured:
    driver, team = (
        domain_objects.create_namespace(server, "nvdra"),
        domain_objects.create_namespace(server),
    )
    settings = KubeSettings(str(server.kubeconfig), qps=10_000, burst=10_000)
    async with client.connect(settings) as api, watching(api, driver) as seen:
        with controller.run_controller(server, directory, driver, "-v=2") as running:
            await wait_until(running.is_ready, 30)
            pids = running.process.pid, server.process.pid if server.process else 0
            results = [await _round(api, seen, running, pids, team, count) for _ in range(rounds)]
            await asyncio.sleep(REST_S)
            return Measured(results, await _formed_s(api, server, seen, driver, team, count))


async def _round(
    api: Client,
    seen: Watched,
    running: ControllerProcess,
    pids: tuple[int, int],
    team: str,
    count: int,
) -> Round:
    path = domain_objects.domains_path(team)
    deadline = asyncio.get_running_loop().time() + LONGEST_S
    names = [f"ring-{number}" for number in range(count)]
    # The controller's client-side rate limit recovers.
    await asyncio.sleep(REST_S)
    before, spent = _writes(running), [_processor_s(pid) for pid in pids]
    started = time.monotonic()
    await _each(names, lambda name: api.create(path, domain_objects.domain(name), deadline))
    await wait_until(lambda: child_count(seen) == 3 * count, LONGEST_S)
    created_s = time.monotonic() - started
    cpu_s, server_cpu_s = (_processor_s(pid) - was for pid, was in zip(pids, spent, strict=True))
    await wait_until(lambda: ready_count(seen) == count, LONGEST_S)
    status_s = time.monotonic() - started
    await asyncio.sleep(REST_S)
    memory = resident_mib(running.process.pid)
    started = time.monotonic()
    await _each(names, lambda name: api.delete(f"{path}/{name}", deadline))
    await wait_until(lambda: not seen.domains.snapshot() and not child_count(seen), LONGEST_S)
    gone_s = time.monotonic() - started
    return Round(
        created_s, status_s, cpu_s, server_cpu_s, gone_s, memory, _writes(running) - before
    )


async def _formed_s(
    api: Client, server: ApiServer, seen: Watched, driver: str, team: str, count: int
) -> float:
    """Seconds from the first create until every domain is Ready with its one node."""
    deadline = asyncio.get_running_loop().time() + LONGEST_S
    wanted = [domain_objects.domain(f"formed-{number}", numNodes=1) for number in range(count)]
    async with simulated_daemons(server, driver):
        started = time.monotonic()
        async with asyncio.TaskGroup() as group:
            for each in wanted:
                group.create_task(api.create(domain_objects.domains_path(team), each, deadline))
        await wait_until(lambda: ready_count(seen) == count, LONGEST_S)
        return time.monotonic() - started


@asynccontextmanager
async def simulated_daemons(server: ApiServer, namespace: str) -> AsyncIterator[None]:
    """A process that simulates one daemon for every domain while the block runs."""
    player = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "bench.played_daemons", str(server.kubeconfig), namespace),
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert player.stdout is not None
        assert await player.stdout.readline(), (
            "the process that simulates the daemons ended at its start"
        )
        yield
    finally:
        player.terminate()
        await player.wait()


async def _each(names: list[str], call: Callable[[str], Coroutine[Any, Any, Any]]) -> None:
    async with asyncio.TaskGroup() as group:
        for name in names:
            group.create_task(call(name))


def child_count(seen: Watched) -> int:
    """How many DaemonSets and claim templates there are."""
    return len(seen.daemonsets.snapshot()) + len(seen.templates.snapshot())


def ready_count(seen: Watched) -> int:
    """How many domains are Ready."""
    return sum(
        (each.get("status") or {}).get("status") == "Ready"
        for each in seen.domains.snapshot().values()
    )


@asynccontextmanager
async def watching(api: Client, driver: str) -> AsyncIterator[Watched]:
    """Watch the domains and their children while the block runs."""

    def informer(path: str, params: dict[str, str]) -> Informer:
        async def locate(deadline: float, is_lost: bool) -> str:
            del deadline, is_lost
            return path

        return Informer(api, locate, params, lambda _: None)

    seen = Watched(
        informer(f"{domain_objects.API}/computedomains", {}),
        informer(f"/apis/apps/v1/namespaces/{driver}/daemonsets", LABELLED),
        informer(TEMPLATES, LABELLED),
    )
    async with AsyncExitStack() as stack:
        for each in seen:
            await stack.enter_async_context(each.running())
            await each.wait_for_sync()
        yield seen


def _writes(running: ControllerProcess) -> float:
    """Number of write requests, from the controller's metrics."""
    return sum(
        float(line.rpartition(" ")[2])
        for line in running.get("/metrics").splitlines()
        if line.startswith("nvdra_api_requests_seconds_count")
        and 'verb="GET"' not in line
        and 'verb="WATCH"' not in line
    )


def _processor_s(pid: int) -> float:
    """User and system time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_mib(pid: int, *, most: bool = False) -> float:
    """The resident set of a process in MiB, or the most that it has been."""
    status = Path(f"/proc/{pid}/status").read_text()
    field = "VmHWM:" if most else "VmRSS:"
    line = next(line for line in status.splitlines() if line.startswith(field))
    return int(line.split()[1]) / 1024


def _median(rounds: list[Round], figure: Callable[[Round], float]) -> float:
    ordered = sorted(map(figure, rounds))
    return ordered[len(ordered) // 2]


if __name__ == "__main__":
    sys.exit(main())
