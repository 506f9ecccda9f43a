# SPDX-License-Identifier: Apache-2.0
"""`python -m bench.clique_growth`: what it costs that a clique grows.

Many members, each with the daemon's own membership code and its own connections, join the clique of
one domain on a real API server and become ready a moment later. They share a process and have no
nvidia-imex. The controller is a process of its own. Counted are the bytes that the members'
connections receive (everything, TLS included), the writes of the clique by whomever, as the API
server counts them, and the time until the last member is ready. Exits with 1 if a target is missed.
"""

import argparse
import asyncio
import contextlib
import json
import math
import random
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

from nvdra_api import names
from nvdra_api.errors import DriverError
from nvdra_api.ids import CliqueID, DomainUID, NodeName, PodUID
from nvdra_imex_daemon.membership.announcer import Announcer
from nvdra_imex_daemon.membership.entries import MemberIdentity, MemberStatus
from nvdra_imex_daemon.membership.member_list import MemberList
from nvdra_imex_daemon.membership.member_store import CliqueMemberStore, Pod
from nvdra_runtime.kube import client
from nvdra_runtime.kube.client import Client, KubeSettings
from nvdra_runtime.kube.errors import NotFound
from nvdra_testing.control_plane import apiserver, controller, domain_objects, request_counts
from nvdra_testing.control_plane.apiserver import ApiServer
from nvdra_testing.control_plane.request_counts import RequestCounts
from nvdra_testing.polling import wait_until

MEMBERS = (18, 72, 144, 256)
"""A rack of compute trays, four of them, and more."""

BYTES_IN_SIZES, WRITES_EACH, CONFLICTS_EACH = 8.0, 2.0, 0.2
"""Targets, per member: received bytes in sizes of the finished clique, writes, conflicts."""

SPREAD_S = 3.0
"""Members start within this time, like the pods of a DaemonSet on different nodes."""
IMEX_START_S = (0.5, 1.5)
"""From joining until IMEX is READY."""
LONGEST_S = 300.0
CLIQUE = CliqueID(domain_objects.CLIQUE)


class Growth(NamedTuple):
    """The result for one number of members.

    Attributes:
        members: How many members there were.
        formed_s: From the first start until all entries were Ready.
        size_bytes: Size of the finished clique as the API server sends it.
        received_bytes: Bytes that the members' connections received, for each member.
        writes: Writes of the clique that succeeded, for each member.
        conflicts: Writes of the clique that were refused because it had changed, for each member.
        pod_writes: Writes of the members' own pods, for each member.
        status_writes: Writes of the domain's status, altogether.
    """

    members: int
    formed_s: float
    size_bytes: int
    received_bytes: float
    writes: float
    conflicts: float
    pod_writes: float
    status_writes: int

    @property
    def received_sizes(self) -> float:
        """The received bytes in sizes of the finished clique."""
        return self.received_bytes / self.size_bytes

    @property
    def misses_target(self) -> bool:
        """Whether one of the targets is missed."""
        return (
            self.received_sizes > BYTES_IN_SIZES
            or self.writes > WRITES_EACH
            or self.conflicts > CONFLICTS_EACH
        )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.clique_growth", description=__doc__)
    parser.add_argument(
        "--members",
        type=int,
        nargs="+",
        default=list(MEMBERS),
        help="how many members (18 72 144 256)",
    )
    parser.add_argument(
        "--without-controller",
        action="store_true",
        help="no controller runs while the clique grows",
    )
    given = parser.parse_args()
    print(_HEADER)
    found = []
    for count in given.members:
        found.append(measure(count, with_controller=not given.without_controller))
        print(line(found[-1]), flush=True)
    return int(any(each.misses_target for each in found))


_HEADER = (
    "members   formed s   clique KB   received KB/member   sizes   writes/member   "
    "conflicts/member   pod writes/member   status writes"
)


def line(found: Growth) -> str:
    """The result as a line of the table."""
    return (
        f"{found.members:7} {found.formed_s:10.1f} {found.size_bytes / 1000:11.1f} "
        f"{found.received_bytes / 1000:20.1f} {found.received_sizes:7.1f} {found.writes:15.2f} "
        f"{found.conflicts:18.2f} {found.pod_writes:19.2f} {found.status_writes:15}"
    )


def summary(found: Growth) -> dict[str, Any]:
    """The result for the report."""
    return {**found._asdict(), "received_sizes": found.received_sizes}


def measure(count: int, *, with_controller: bool = True, kubernetes: str = "") -> Growth:
    """Let a clique of so many members grow on an API server of its own."""
    with (
        tempfile.TemporaryDirectory(prefix="nvb-") as name,
        apiserver.run_apiserver(Path(name), kubernetes=kubernetes) as server,
    ):
        domain_objects.install_crds(server)
        return asyncio.run(_measure(server, Path(name), count, with_controller=with_controller))


async def _measure(
    server: ApiServer, directory: Path, count: int, *, with_controller: bool
) -> Growth:
    driver = domain_objects.create_namespace(server, "nvdra")
    flags = f"--max-nodes-per-imex-domain={count}"
    settings = KubeSettings(str(server.kubeconfig), qps=10_000, burst=10_000)
    async with client.connect(settings) as api, _counted(server, directory) as counter:
        with controller.run_controller(server, directory, driver, flags, "-v=0") as running:
            await wait_until(running.is_ready, 30)
            domain = server.create(
                domain_objects.domains_path(domain_objects.create_namespace(server)),
                domain_objects.domain(),
            )
            uid = DomainUID(domain["metadata"]["uid"])
            path = f"/apis/apps/v1/namespaces/{driver}/daemonsets/{names.daemon_name(uid)}"
            await wait_until(lambda: _exists(server, path), 30)
            if not with_controller:
                await running.stop()
            pods = await _create_pods(api, driver, uid, count)
            before = request_counts.parse(server.text("/metrics"))
            received = await counter.read()
            began = time.monotonic()
            stop = asyncio.Event()
            clique_path = domain_objects.cliques_path(driver, names.clique_name(uid, CLIQUE))
            async with asyncio.TaskGroup() as group:
                members = [
                    group.create_task(_member(counter.kubeconfig, driver, uid, pod, count, stop))
                    for pod in pods
                ]
                formed_s = await _formed(api, clique_path, count, began)
                await asyncio.sleep(1.0)  # the last writes arrive everywhere
                growth = await _growth(server, clique_path, count, formed_s, before, counter)
                stop.set()
                await asyncio.gather(*members)
            return growth._replace(received_bytes=growth.received_bytes - received / count)


async def _growth(
    server: ApiServer,
    path: str,
    count: int,
    formed_s: float,
    before: RequestCounts,
    counter: "_Counter",
) -> Growth:
    spent = request_counts.parse(server.text("/metrics")).since(before)
    clique = server.request("GET", path)
    indexes = [each["index"] for each in clique["daemons"]]
    assert sorted(indexes) == list(range(count)), "every member has an index of its own"
    assert len(clique["metadata"]["ownerReferences"]) == count

    return Growth(
        count,
        formed_s,
        len(json.dumps(clique, separators=(",", ":"))),
        await counter.read() / count,
        spent.writes("computedomaincliques") / count,
        spent.writes("computedomaincliques", request_counts.CONFLICT) / count,
        spent.writes("pods") / count,
        round(spent.writes("computedomains/status")),
    )


async def _formed(api: Client, path: str, count: int, began: float) -> float:
    """Seconds until all entries are Ready; asks seldom, so that it costs little."""
    while time.monotonic() - began < LONGEST_S:
        await asyncio.sleep(0.25)
        try:
            stored = await api.get(path, asyncio.get_running_loop().time() + 10)
        except NotFound:
            continue
        entries = stored.get("daemons") or ()
        if len(entries) == count and all(each["status"] == "Ready" for each in entries):
            return time.monotonic() - began
    raise TimeoutError(f"the clique has not formed in {LONGEST_S:g} s")


async def _member(
    kubeconfig: Path, namespace: str, uid: DomainUID, pod: Any, count: int, stop: asyncio.Event
) -> None:
    """One daemon without IMEX."""
    number = int(pod["metadata"]["name"].rpartition("-")[2])
    chance = random.Random(number)
    await asyncio.sleep(chance.uniform(0, SPREAD_S))
    metadata = pod["metadata"]
    member = MemberIdentity(
        CLIQUE,
        NodeName(pod["spec"]["nodeName"]),
        pod["status"]["podIP"],
        PodUID(metadata["uid"]),
        count,
    )
    own_pod = Pod(namespace, metadata["name"], metadata["uid"])
    store = CliqueMemberStore(uid, member, own_pod)
    settings = KubeSettings(str(kubeconfig), qps=20, burst=40)
    async with client.connect(settings) as api:
        announcer = Announcer(api, own_pod, CLIQUE, count, lambda: None, int(time.time()))
        members = MemberList(api, store, member, lambda _: None, announcer=announcer)
        async with members.running():
            starting = MemberStatus(is_ready=False, message="nvidia-imex is starting")
            await _reported(members, starting)
            await asyncio.sleep(chance.uniform(*IMEX_START_S))
            while not stop.is_set():
                await _reported(members, MemberStatus(is_ready=True))
                await _changed(members, stop)


async def _reported(members: MemberList, status: MemberStatus) -> None:
    """Report a status until we are listed, again and again as the daemon does."""
    failures = 0
    while True:
        serial = members.change_count
        try:
            await members.report(status)
        except DriverError:
            failures += 1
            pause_s = min(10.0, 0.2 * 2**failures, members.recheck_in_s)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await members.changed_since(serial)
        else:
            return


async def _changed(members: MemberList, stop: asyncio.Event) -> None:
    """Wait until the clique has changed, or our status stays unwritten, or the end."""
    tasks = {
        asyncio.create_task(members.changed_since(members.change_count)),
        asyncio.create_task(stop.wait()),
    }
    timeout_s = None if members.recheck_in_s == math.inf else members.recheck_in_s
    _, pending = await asyncio.wait(tasks, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    for task in pending:
        task.cancel()


async def _create_pods(api: Client, namespace: str, uid: DomainUID, count: int) -> list[Any]:
    """The nodes and the daemons' pods, as DaemonSet, scheduler and kubelets make them."""
    deadline = asyncio.get_running_loop().time() + LONGEST_S
    labels = {names.DOMAIN_LABEL: uid}
    at_once = asyncio.Semaphore(16)

    async def create(number: int) -> Any:
        node, name = f"node-{number:03d}", f"{names.daemon_name(uid)}-{number:03d}"
        metadata = {"name": node, "labels": labels}
        path = f"/api/v1/namespaces/{namespace}/pods"
        container = {"name": names.DAEMON_CONTAINER, "image": "daemon:1"}
        body = {
            "metadata": {"name": name, "labels": labels},
            "spec": {"nodeName": node, "containers": [container]},
        }
        status = {
            "phase": "Running",
            "podIP": f"10.4.{number // 250}.{number % 250 + 1}",
            "conditions": [{"type": "Ready", "status": "True"}],
        }
        async with at_once:
            await api.create("/api/v1/nodes", {"metadata": metadata}, deadline)
            made = await api.create(path, body, deadline)
            return await api.replace(f"{path}/{name}/status", {**made, "status": status}, deadline)

    return list(await asyncio.gather(*map(create, range(count))))


def _exists(server: ApiServer, path: str) -> bool:
    try:
        server.request("GET", path)
    except OSError:
        return False
    return True


class _Counter:
    """The process that counts the members' bytes."""

    def __init__(self, process: asyncio.subprocess.Process, kubeconfig: Path) -> None:
        self.kubeconfig = kubeconfig
        self._process = process

    async def read(self) -> int:
        """Bytes received so far."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(b"\n")
        return int(await self._process.stdout.readline())


@asynccontextmanager
async def _counted(server: ApiServer, directory: Path) -> AsyncIterator[_Counter]:
    """A kubeconfig whose connections are counted."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "bench.byte_counter", server.url.rpartition(":")[2]),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        port = int(await process.stdout.readline())
        path = directory / "counted.kubeconfig"
        url = f"https://127.0.0.1:{port}"
        path.write_text(apiserver.kubeconfig(url, server.ca_file, {"token": server.token}))
        yield _Counter(process, path)
    finally:
        process.stdin.close()
        await process.wait()


if __name__ == "__main__":
    sys.exit(main())
