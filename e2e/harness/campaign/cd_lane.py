"""One domain, its users and its controller, on an API server that no other lane uses.

A controller looks after every domain of a cluster, so that two lanes cannot share one. Between the
two the interposer speaks plain HTTP to the controller, which makes a trace of it readable; it
forwards all, and every answer is the real server's.
"""

import asyncio
import contextlib
import json
import signal
import urllib.error
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import apiserver
import domains
import interposer
import strace
from cd_world import LABEL, World
from controller import Controller
from interposer import Interposer
from strace import MAIN
from waiting import until

from campaign.points import Node
from campaign.writers import Writers

READY_S = 15
"""Nothing depends on how long a start takes; other tests may run beside this one."""
REST_S = 0.2
"""A controller that asks nothing for so long is done: twice what it waits by itself."""
ROOT = "compute domain"
MARK = "nvdra.nvidia.com/trace-root"
LEADING = (
    "--leader-election-enabled",
    "--leader-election-lease-lock-name=nvdra-controller",
    "--leader-election-lease-duration=8s",
    "--leader-election-renew-deadline=6s",
    "--leader-election-retry-period=700ms",
)
"""A leader keeps its lease on a machine that has much else to do; READY_S is longer."""

Json = dict[str, Any]

_ALL_RIGHTS = {
    "metadata": {"name": "controllers"},
    "roleRef": {
        "apiGroup": "rbac.authorization.k8s.io",
        "kind": "ClusterRole",
        "name": "cluster-admin",
    },
    "subjects": [
        {
            "apiGroup": "rbac.authorization.k8s.io",
            "kind": "Group",
            "name": "system:serviceaccounts",
        }
    ],
}
"""What a controller may do is another test's."""


@dataclass(eq=False)
class Lane:
    """One installation of the driver, one domain at a time, one controller or two.

    Attributes:
        is_shared: There are two controllers, and a lease between them.
        controller: The one that works; None between two.
        standby: The one that waits for the lease, where there are two.
        uid: Of the domain that is there, or was last.
        is_marked: Whether the mark of a written root was ever seen on that domain.
        seen: The version of that domain's DaemonSet at the last look for the mark; empty before.
        writers: What the controllers wrote in the operation.
        statuses: By operation, a domain's status after nobody disturbed it.
    """

    world: World
    proxy: Interposer
    directory: Path
    is_shared: bool = False
    controller: Controller | None = None
    standby: Controller | None = None
    uid: str = ""
    is_marked: bool = False
    seen: str = ""
    statuses: dict[str, Json] = field(default_factory=dict)
    _running: list[tuple[Controller, ExitStack]] = field(default_factory=list)
    _count: int = 0

    def __post_init__(self) -> None:
        """Begin with no writes at all."""
        self.writers = Writers(self.proxy)

    @property
    def names(self) -> Node:
        """How to read what a trace says of this lane."""
        return Node(str(self.directory), self.proxy.port)

    @property
    def pid(self) -> int:
        """Of the controller that works."""
        assert self.controller is not None
        return self.controller.process.pid

    def share(self, *, is_shared: bool) -> None:
        """From now on there are two controllers, or one without a lease."""
        if self.is_shared != is_shared:
            self.close()
            self.is_shared = is_shared

    async def start(self) -> None:
        """Have a controller that works and has seen everything, and one that waits, perhaps."""
        if self.controller is None:
            self.controller, self.standby = self.standby or self._launch(), None
        one = self.controller
        await self.until(lambda: one.is_ready() and "stand-by" not in one.get("/readyz?verbose"))
        if self.is_shared and self.standby is None:
            self.standby = self._launch()
            await self.until(self.standby.is_ready)

    async def renewed(self) -> None:
        """Wait until the leader renews its lease, if there is one: then it does not again soon."""
        if self.is_shared:
            before = self._renewals()
            await self.until(lambda: self._renewals() > before)

    async def ended(self) -> int:
        """Wait for the controller's end; its exit code."""
        assert self.controller is not None
        process = self.controller.process
        await self.until(lambda: process.poll() is not None)
        return int(process.returncode)

    def kill(self) -> int:
        """Kill the controller; its exit code."""
        assert self.controller is not None
        self.controller.process.kill()
        return self.controller.process.wait()

    def forget(self) -> None:
        """The controller is dead, or is killed now."""
        for one, stack in self._running:
            if one is self.controller:
                stack.close()
        self.controller = None

    def close(self) -> None:
        """End all controllers."""
        for _, stack in self._running:
            stack.close()
        self._running.clear()
        self.controller = self.standby = None

    def renew(self) -> None:
        """After something went wrong: other namespaces, other controllers."""
        self.close()
        self.world.abandon()
        self.world.driver = domains.namespace(self.world.server, "nvdra")
        self.world.team = domains.namespace(self.world.server)
        self.statuses.clear()

    @contextlib.contextmanager
    def halted(self) -> Iterator[None]:
        """The controller sees all that happens in the block at once, when the block is left."""
        assert self.controller is not None
        self.controller.process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.controller.process.send_signal(signal.SIGCONT)

    def threads(self) -> dict[int, str]:
        """The controller's threads."""
        found = strace.threads(self.pid)
        return {tid: MAIN if tid == self.pid else name for tid, name in found.items()}

    async def until(self, is_so: Callable[[], object]) -> None:
        """Wait for it; what the controller said goes with a failure."""
        try:
            await until(is_so, READY_S)
        except TimeoutError as error:
            raise AssertionError(f"waited in vain\n{self.log()[-2000:]}") from error

    async def right(self, wrong: Callable[[], str]) -> None:
        """Wait until the controller asks nothing any more and nothing is wrong."""
        loop = asyncio.get_running_loop()
        until = loop.time() + READY_S
        await self.rest()
        while found := wrong():
            assert loop.time() < until, f"{found}\n{self.log()[-2000:]}"
            await self.rest()

    async def rest(self) -> None:
        """Wait until the controller asks nothing of the API server, but for the lease."""
        loop = asyncio.get_running_loop()
        began = loop.time()

        def last() -> float:
            asked = (at for at, what in reversed(self.proxy.asked) if "/leases" not in what)
            return max(began, next(asked, began))

        await self.until(lambda: loop.time() - last() > REST_S)

    def children(self) -> Json:
        """Every template and DaemonSet in the lane's namespaces, by what it is for."""
        world, get = self.world, self.world.server.call
        return {
            "daemons' template": get("GET", world.templates(world.driver))["items"],
            "workload's template": get("GET", world.templates(world.team))["items"],
            "DaemonSet": get("GET", world.daemonsets_path())["items"],
        }

    def labelled(self) -> list[str]:
        """Nodes that carry a domain's label."""
        nodes = self.world.server.call("GET", f"/api/v1/nodes?labelSelector={LABEL}")["items"]
        return [each["metadata"]["name"] for each in nodes]

    def note_mark(self) -> bool:
        """Look for the mark of a written root; whether it is there now."""
        found = self.world.get(self.world.daemonset_path(self.uid))
        if found is None:
            return False
        self.seen = found["metadata"]["resourceVersion"]
        self.is_marked |= _has_mark(found)
        return _has_mark(found)

    async def was_marked(self) -> bool:
        """Whether the mark was ever there, since `note_mark` has last seen a DaemonSet, too."""
        self.note_mark()
        if not self.is_marked and self.seen:
            collection, _, name = self.world.daemonset_path(self.uid).rpartition("/")
            look = self.world.server.watched
            versions = await asyncio.to_thread(look, collection, name, self.seen)
            self.is_marked = any(map(_has_mark, versions))
        return self.is_marked

    def roots(self) -> int:
        """How often the controller that works has written the root of the domain's trace."""
        assert self.controller is not None
        try:
            text = self.controller.get(f"/debug/traces/{self.uid}?format=json", debug=True)
        except urllib.error.HTTPError as error:
            with error:
                if error.code != 404:
                    raise
            return 0
        return _count(json.loads(text)["spans"])

    def log(self) -> str:
        """What the last controller wrote."""
        path = self.directory / f"controller-{self._count}.log"
        return path.read_text() if path.exists() else ""

    def _renewals(self) -> int:
        return sum(each.startswith("PUT ") and "/leases/" in each for each in self.proxy.answered)

    def _launch(self) -> Controller:
        self._count += 1
        lease = f"--leader-election-lease-lock-namespace={self.world.driver}"
        flags = (*LEADING, lease) if self.is_shared else ()
        name, stack = f"controller-{self._count}", ExitStack()
        starting = self.world.controlled(*flags, name=name, kubeconfig=self._introduced(name))
        one = stack.enter_context(starting)
        self._running.append((one, stack))
        return one

    def _introduced(self, name: str) -> Path:
        """A kubeconfig for the interposer that says who asks."""
        server = self.world.server
        accounts = f"/api/v1/namespaces/{self.world.driver}/serviceaccounts"
        server.create(accounts, {"metadata": {"name": name}})
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
        token = server.create(f"{accounts}/{name}/token", body)["status"]["token"]
        self.writers.names[token] = name
        path = self.directory / f"{name}.kubeconfig"
        url = f"http://127.0.0.1:{self.proxy.port}"
        path.write_text(apiserver.kubeconfig(url, server.authority, {"token": token}))
        return path


@asynccontextmanager
async def opened(directory: Path) -> AsyncIterator[Lane]:
    """A lane below an empty directory, with an API server of its own, until the block is left."""
    (directory / "api").mkdir()
    with ExitStack() as stack:
        starting = apiserver.started(directory / "api")
        # Beside other lanes, on a thread that lives as long as the loop: the servers end with it.
        server = await asyncio.to_thread(stack.enter_context, starting)
        await asyncio.to_thread(domains.define, server)
        server.create("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", _ALL_RIGHTS)
        async with interposer.interposed(server, directory) as proxy:
            world = World(
                server, directory, domains.namespace(server, "nvdra"), domains.namespace(server)
            )
            lane = Lane(world, proxy, directory)
            try:
                yield lane
            finally:
                lane.close()


def _has_mark(daemonset: Json) -> bool:
    return MARK in (daemonset["metadata"].get("annotations") or {})


def _count(spans: list[Json]) -> int:
    return sum((span["name"] == ROOT) + _count(span.get("children") or []) for span in spans)
