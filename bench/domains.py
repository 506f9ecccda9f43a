"""`python -m bench.domains`: how soon domains have what they are given, and how soon it is gone.

One controller at default settings beside a real API server whose etcd syncs its writes. Domains are
created and deleted together; the clock runs from the first request until a watch has seen the last
object. Then the controller's memory. Exits with 1 where a target is missed.
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

import apiserver
import controller
import domains
from apiserver import ApiServer
from controller import Controller
from nvdra_api.runtime.kube import client
from nvdra_api.runtime.kube.client import Client, KubeSettings
from nvdra_api.runtime.kube.reflector import Reflector
from waiting import until

MADE_S, GONE_S, MEMORY_MIB = 1.0, 2.0, 95.0
LONGEST_S = 120.0
REST_S = 2.5

LABELLED = {"labelSelector": "resource.nvidia.com/computeDomain"}
TEMPLATES = "/apis/resource.k8s.io/v1/resourceclaimtemplates"


class Round(NamedTuple):
    """One round: seconds, those of processor time until all was made among them, and MiB."""

    made_s: float
    told_s: float
    made_cpu_s: float
    made_server_cpu_s: float
    gone_s: float
    memory_mib: float
    writes: float


class Measured(NamedTuple):
    """The rounds; and seconds until domains are Ready whose daemons another process plays."""

    rounds: list[Round]
    formed_s: float


class Watched(NamedTuple):
    """What the bench sees of the cluster."""

    domains: Reflector
    daemonsets: Reflector
    templates: Reflector


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.domains", description=__doc__)
    parser.add_argument("--domains", type=int, default=50, help="how many (50)")
    parser.add_argument("--rounds", type=int, default=3, help="how often (3); the median counts")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="nvb-") as name:
        rounds, formed_s = measured(Path(name), given.domains, given.rounds)
    print(f"{given.domains} domains   made s  (controller's, API server's processor)   told s")
    for each in rounds:
        print(
            f"{each.made_s:19.2f} {each.made_cpu_s:13.2f} {each.made_server_cpu_s:13.2f} "
            f"{each.told_s:20.2f}   gone {each.gone_s:.2f} s   {each.memory_mib:.0f} MiB   "
            f"{each.writes:.0f} writes"
        )
    made, gone = _median(rounds, lambda r: r.made_s), _median(rounds, lambda r: r.gone_s)
    memory = max(each.memory_mib for each in rounds)
    print(
        f"median: made {made:.2f} s (target {MADE_S:g}), gone {gone:.2f} s (target {GONE_S:g}); "
        f"most memory {memory:.0f} MiB (target {MEMORY_MIB:g}); load {os.getloadavg()[0]:.1f}\n"
        f"Ready with a daemon each, played by another process: {formed_s:.2f} s"
    )
    return int(made > MADE_S or gone > GONE_S or memory > MEMORY_MIB)


def measured(directory: Path, count: int, rounds: int, *, kubernetes: str = "") -> Measured:
    """All of it, with a controller and an API server of their own in a folder."""
    with apiserver.started(directory, kubernetes=kubernetes, etcd_flags=()) as server:
        domains.define(server)
        return asyncio.run(_measured(server, directory, count, rounds))


def summary(measured: Measured, count: int) -> dict[str, Any]:
    """What the report has of it: medians in seconds, most memory in MiB."""
    rounds = measured.rounds
    return {
        "count": count,
        "rounds": len(rounds),
        "made_s": _median(rounds, lambda each: each.made_s),
        "told_s": _median(rounds, lambda each: each.told_s),
        "formed_s": measured.formed_s,
        "gone_s": _median(rounds, lambda each: each.gone_s),
        "writes_each": _median(rounds, lambda each: each.writes) / count,
        "resident_mib": max(each.memory_mib for each in rounds),
    }


async def _measured(server: ApiServer, directory: Path, count: int, rounds: int) -> Measured:
    driver, team = domains.namespace(server, "nvdra"), domains.namespace(server)
    settings = KubeSettings(str(server.kubeconfig), qps=10_000, burst=10_000)
    async with client.connected(settings) as api, _watching(api, driver) as seen:
        with controller.started(server, directory, driver, "-v=2") as running:
            await until(running.is_ready, 30)
            pids = running.process.pid, server.process.pid if server.process else 0
            made = [await _round(api, seen, running, pids, team, count) for _ in range(rounds)]
            await asyncio.sleep(REST_S)
            return Measured(made, await _formed_s(api, server, seen, driver, team, count))


async def _round(
    api: Client,
    seen: Watched,
    running: Controller,
    pids: tuple[int, int],
    team: str,
    count: int,
) -> Round:
    path = domains.domains_path(team)
    deadline = asyncio.get_running_loop().time() + LONGEST_S
    names = [f"ring-{number}" for number in range(count)]
    # The controller's own rate limit fills up again, as on any quiet day.
    await asyncio.sleep(REST_S)
    before, spent = _writes(running), [_processor_s(pid) for pid in pids]
    began = time.monotonic()
    await _each(names, lambda name: api.create(path, domains.domain(name), deadline))
    await until(lambda: _children(seen) == 3 * count, LONGEST_S)
    made_s = time.monotonic() - began
    cpu_s, server_cpu_s = (_processor_s(pid) - was for pid, was in zip(pids, spent, strict=True))
    await until(lambda: _ready(seen) == count, LONGEST_S)
    told_s = time.monotonic() - began
    await asyncio.sleep(REST_S)
    memory = _resident_mib(running.process.pid)
    began = time.monotonic()
    await _each(names, lambda name: api.delete(f"{path}/{name}", deadline))
    await until(lambda: not seen.domains.snapshot() and not _children(seen), LONGEST_S)
    gone_s = time.monotonic() - began
    return Round(made_s, told_s, cpu_s, server_cpu_s, gone_s, memory, _writes(running) - before)


async def _formed_s(
    api: Client, server: ApiServer, seen: Watched, driver: str, team: str, count: int
) -> float:
    """From the first create until every domain is told Ready with its one node."""
    argv = [sys.executable, "-m", "bench.daemons", str(server.kubeconfig), driver]
    deadline = asyncio.get_running_loop().time() + LONGEST_S
    wanted = [domains.domain(f"formed-{number}", numNodes=1) for number in range(count)]
    player = await asyncio.create_subprocess_exec(*argv, stdout=asyncio.subprocess.PIPE)
    try:
        assert player.stdout is not None
        assert await player.stdout.readline(), "the player of daemons ended at its start"
        began = time.monotonic()
        async with asyncio.TaskGroup() as group:
            for each in wanted:
                group.create_task(api.create(domains.domains_path(team), each, deadline))
        await until(lambda: _ready(seen) == count, LONGEST_S)
        return time.monotonic() - began
    finally:
        player.terminate()
        await player.wait()


async def _each(names: list[str], call: Callable[[str], Coroutine[Any, Any, Any]]) -> None:
    async with asyncio.TaskGroup() as group:
        for name in names:
            group.create_task(call(name))


def _children(seen: Watched) -> int:
    return len(seen.daemonsets.snapshot()) + len(seen.templates.snapshot())


def _ready(seen: Watched) -> int:
    return sum(
        (each.get("status") or {}).get("status") == "Ready"
        for each in seen.domains.snapshot().values()
    )


@asynccontextmanager
async def _watching(api: Client, driver: str) -> AsyncIterator[Watched]:
    def reflector(path: str, params: dict[str, str]) -> Reflector:
        async def locate(deadline: float, is_lost: bool) -> str:
            del deadline, is_lost
            return path

        return Reflector(api, locate, params, lambda _: None)

    seen = Watched(
        reflector(f"{domains.API}/computedomains", {}),
        reflector(f"/apis/apps/v1/namespaces/{driver}/daemonsets", LABELLED),
        reflector(TEMPLATES, LABELLED),
    )
    async with AsyncExitStack() as stack:
        for each in seen:
            await stack.enter_async_context(each.running())
            await each.synced()
        yield seen


def _writes(running: Controller) -> float:
    """Requests that change something, as the controller counts them."""
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


def _resident_mib(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmRSS:"))
    return int(line.split()[1]) / 1024


def _median(rounds: list[Round], figure: Callable[[Round], float]) -> float:
    ordered = sorted(map(figure, rounds))
    return ordered[len(ordered) // 2]


if __name__ == "__main__":
    sys.exit(main())
