# SPDX-License-Identifier: Apache-2.0
"""`python -m bench.many_domains`: a controller with a thousand ComputeDomains of one node each.

The domains are formed with simulated daemons. Then a controller that may send 50 requests a second
is started, once as it was, and once with another image for the daemons, so that it must change
every DaemonSet. Counted are the seconds from the start of its process until its last request, what
it asks of the API server afterwards, and its memory. All requests pass a counting proxy, which runs
in this process. Exits with 1 if a target is missed.
"""

import argparse
import asyncio
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from nvdra_runtime.kube import client
from nvdra_runtime.kube.client import KubeSettings
from nvdra_testing.control_plane import apiserver, controller, domain_objects
from nvdra_testing.control_plane.apiserver import ApiServer
from nvdra_testing.faults import api_proxy
from nvdra_testing.faults.api_proxy import FaultyProxy
from nvdra_testing.polling import wait_until

from bench import domains

COUNT = 1000
STEADY_S, MEMORY_MIB = 60.0, 120.0
"""Targets: seconds from a start until the last request, and MiB at any time."""

QPS = 50
QUIET_S = 8.0
"""A controller that has asked nothing for so long is steady; the longest wait for a retry is less,
and that for a domain's root span too."""
IDLE_S = 60.0
LONGEST_S = 300.0
FLAGS = (f"--kube-api-qps={QPS}", f"--kube-api-burst={QPS}", "-v=0")
ANOTHER_IMAGE = "--image-name=registry.example.com/daemon:2"


class Start(NamedTuple):
    """The result of one start of the controller.

    Attributes:
        steady_s: From the start of the process until its last request before it became quiet.
        requests: What it had asked for by then, watches excluded: verb and resource → how often.
        idle: What it asked for while it was idle, in the same way.
        steady_mib: Its resident set then.
        most_mib: The most that its resident set has been.
    """

    steady_s: float
    requests: Mapping[str, int]
    idle: Mapping[str, int]
    steady_mib: float
    most_mib: float

    @property
    def misses_target(self) -> bool:
        """Whether one of the targets is missed."""
        return self.steady_s > STEADY_S or bool(self.idle) or self.most_mib > MEMORY_MIB


class Measured(NamedTuple):
    """The results: of the controller that formed the domains, and of two starts afterwards.

    Attributes:
        domain_count: How many domains there were.
        formed_s: From the first request until the last domain was Ready.
        forming_mib: The most that the controller's resident set was meanwhile.
        unchanged: A start without anything to change.
        changed: A start that changes every DaemonSet.
    """

    domain_count: int
    formed_s: float
    forming_mib: float
    unchanged: Start
    changed: Start

    @property
    def misses_target(self) -> bool:
        """Whether one of the targets is missed."""
        is_large = self.forming_mib > MEMORY_MIB
        return is_large or self.unchanged.misses_target or self.changed.misses_target


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.many_domains", description=__doc__)
    parser.add_argument("--domains", type=int, default=COUNT, help=f"how many ({COUNT})")
    parser.add_argument(
        "--idle", type=float, default=IDLE_S, help=f"seconds to count when idle ({IDLE_S:g})"
    )
    given = parser.parse_args()
    found = measure(given.domains, idle_s=given.idle)
    for title, each in (("unchanged", found.unchanged), ("another image", found.changed)):
        print(
            f"{found.domain_count} domains, started {title}: steady after {each.steady_s:.1f} s "
            f"(target {STEADY_S:g}), {sum(each.requests.values())} requests {dict(each.requests)}; "
            f"then in {given.idle:g} s: {dict(each.idle) or 'watches alone'}; "
            f"{each.steady_mib:.0f} MiB, at most {each.most_mib:.0f} MiB (target {MEMORY_MIB:g})"
        )
    print(
        f"formed in {found.formed_s:.1f} s with at most {found.forming_mib:.0f} MiB; "
        f"load {os.getloadavg()[0]:.1f}"
    )
    return int(found.misses_target)


def measure(count: int, *, idle_s: float = IDLE_S, kubernetes: str = "") -> Measured:
    """Run the benchmark on an API server of its own, whose etcd syncs its writes."""
    with (
        tempfile.TemporaryDirectory(prefix="nvb-") as name,
        apiserver.run_apiserver(Path(name), kubernetes=kubernetes, etcd_flags=()) as server,
    ):
        domain_objects.install_crds(server)
        return asyncio.run(_measure(server, Path(name), count, idle_s))


def summary(found: Measured) -> dict[str, Any]:
    """The results for the report."""
    return {
        "count": found.domain_count,
        "formed_s": found.formed_s,
        "forming_mib": found.forming_mib,
        "unchanged": found.unchanged._asdict(),
        "changed": found.changed._asdict(),
    }


async def _measure(server: ApiServer, directory: Path, count: int, idle_s: float) -> Measured:
    driver = domain_objects.create_namespace(server, "nvdra")
    async with domains.simulated_daemons(server, driver):
        formed_s, forming_mib = await _form(server, directory, driver, count)
        async with api_proxy.run_proxy(server, directory) as proxy:
            unchanged = await _start(server, directory, driver, proxy, idle_s)
            changed = await _start(server, directory, driver, proxy, idle_s, ANOTHER_IMAGE)
    return Measured(count, formed_s, forming_mib, unchanged, changed)


async def _form(server: ApiServer, directory: Path, driver: str, count: int) -> tuple[float, float]:
    """Create the domains. Returns the seconds until all are Ready, and the controller's MiB."""
    path = domain_objects.domains_path(domain_objects.create_namespace(server))
    deadline = asyncio.get_running_loop().time() + LONGEST_S
    settings = KubeSettings(str(server.kubeconfig), qps=10_000, burst=10_000)
    async with client.connect(settings) as api, domains.watching(api, driver) as seen:
        with controller.run_controller(server, directory, driver, "-v=0") as running:
            await wait_until(running.is_ready, 30)
            started = time.monotonic()
            async with asyncio.TaskGroup() as group:
                for number in range(count):
                    wanted = domain_objects.domain(f"node-{number}", numNodes=1)
                    group.create_task(api.create(path, wanted, deadline))
            await wait_until(lambda: domains.ready_count(seen) == count, LONGEST_S)
            formed_s = time.monotonic() - started
            await asyncio.sleep(QUIET_S)  # the last writes and their spans
            memory_mib = domains.resident_mib(running.process.pid, most=True)
            await running.stop()
    return formed_s, memory_mib


async def _start(
    server: ApiServer,
    directory: Path,
    driver: str,
    proxy: FaultyProxy,
    idle_s: float,
    *flags: str,
) -> Start:
    """Start the controller, wait until it is steady, and watch it being idle."""
    clock = asyncio.get_running_loop().time
    before, started = len(proxy.requests), clock()
    with controller.run_controller(
        server, directory, driver, *FLAGS, *flags, kubeconfig=proxy.kubeconfig
    ) as running:

        def asked() -> list[tuple[float, str]]:
            return [each for each in proxy.requests[before:] if "watch=true" not in each[1]]

        def is_quiet() -> bool:
            return bool(asked()) and clock() - asked()[-1][0] > QUIET_S

        await wait_until(running.is_ready, LONGEST_S)
        await wait_until(is_quiet, LONGEST_S)
        requests = asked()
        steady_mib = domains.resident_mib(running.process.pid)
        await asyncio.sleep(idle_s)
        idle = Counter(_kind(what) for _, what in asked()[len(requests) :])
        most_mib = domains.resident_mib(running.process.pid, most=True)
        await running.stop()
    kinds = Counter(_kind(what) for _, what in requests)
    return Start(requests[-1][0] - started, kinds, idle, steady_mib, most_mib)


def _kind(request: str) -> str:
    """The verb and the resource of a request, such as `PUT computedomains/status`."""
    verb, _, url = request.partition(" ")
    parts = url.partition("?")[0].strip("/").split("/")
    parts = parts[2:] if parts[0] == "api" else parts[3:]  # without the API's version
    parts = parts[2:] if parts[:1] == ["namespaces"] and len(parts) > 2 else parts
    resource, *rest = parts or ["-"]
    return f"{verb} {'/'.join((resource, *rest[1:]))}"


if __name__ == "__main__":
    sys.exit(main())
