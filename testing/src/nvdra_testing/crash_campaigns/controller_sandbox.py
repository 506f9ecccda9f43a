# SPDX-License-Identifier: Apache-2.0
"""One domain with its users and its controller, on an API server of its own.

A controller reconciles all domains of a cluster, so each sandbox needs its own API server. The
controller talks plain HTTP to a proxy in front of it, so that a trace of its calls can be read; the
proxy forwards all requests unchanged.
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

from nvdra_testing.control_plane import apiserver, domain_objects
from nvdra_testing.control_plane.controller import ControllerProcess
from nvdra_testing.control_plane.domain_installation import LABEL, DriverInstallation
from nvdra_testing.crash_campaigns.recorded_sandbox import RecordedSandbox
from nvdra_testing.faults import api_proxy, strace
from nvdra_testing.faults.api_proxy import FaultyProxy
from nvdra_testing.faults.strace import MAIN
from nvdra_testing.polling import wait_until

READY_S = 60
"""The longest wait for a start; other tests may run at the same time."""
IDLE_S = 0.2
"""A controller that sends no request for this long is idle: twice its own longest delay."""
ROOT_SPAN_NAME = "compute domain"
ROOT_ANNOTATION = "nvdra.nvidia.com/trace-root"
LEADER_ELECTION_FLAGS = (
    "--leader-election-enabled",
    "--leader-election-lease-lock-name=nvdra-controller",
    "--leader-election-lease-duration=8s",
    "--leader-election-renew-deadline=6s",
    "--leader-election-retry-period=700ms",
)
"""The lease is long enough for a busy machine, and shorter than READY_S."""
NETWORK_POLICIES_FLAG = "--cd-daemon-network-policy={}"
"""Every child that there can be is made."""

NETWORK_POLICY = "NetworkPolicy"
"""Its purpose among the children."""

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
"""The permissions of controllers are the subject of other tests."""


@dataclass(eq=False)
class ControllerSandbox(RecordedSandbox):
    """One installation of the driver, with one domain at a time and one or two controllers.

    Attributes:
        has_standby: Whether there are two controllers with a lease.
        controller: The working controller; None while there is none.
        standby: The controller that waits for the lease, if there is one.
        uid: The UID of the current or last domain.
        is_marked: Whether the annotation of a written root span was seen on that domain.
        last_version: The resourceVersion of that domain's DaemonSet when it was last read.
        statuses: Operation → the domain's status after an undisturbed run.
    """

    installation: DriverInstallation
    proxy: FaultyProxy
    directory: Path
    has_standby: bool = False
    controller: ControllerProcess | None = None
    standby: ControllerProcess | None = None
    uid: str = ""
    is_marked: bool = False
    last_version: str = ""
    statuses: dict[str, Json] = field(default_factory=dict)
    _running: list[tuple[ControllerProcess, ExitStack]] = field(default_factory=list)
    _count: int = 0

    @property
    def pid(self) -> int:
        """The process id of the working controller."""
        assert self.controller is not None
        return self.controller.process.pid

    def set_standby(self, *, has_standby: bool) -> None:
        """Use two controllers with a lease from now on, or one without."""
        if self.has_standby != has_standby:
            self.close()
            self.has_standby = has_standby

    async def start(self) -> None:
        """Start missing controllers, and wait until one works and the other waits for the lease."""
        if self.controller is None:
            self.controller, self.standby = self.standby or self._launch_controller(), None
        one = self.controller
        await self.wait_until(
            lambda: one.is_ready() and "stand-by" not in one.get("/readyz?verbose")
        )
        if self.has_standby and self.standby is None:
            self.standby = self._launch_controller()
            await self.wait_until(self.standby.is_ready)

    async def wait_lease_renewed(self) -> None:
        """Wait until the leader, if any, has just renewed its lease."""
        if self.has_standby:
            before = self._renewal_count()
            await self.wait_until(lambda: self._renewal_count() > before)

    async def wait_ended(self) -> int:
        """Wait for the controller's end, and return its exit code."""
        assert self.controller is not None
        process = self.controller.process
        await self.wait_until(lambda: process.poll() is not None)
        return int(process.returncode)

    def kill(self) -> int:
        """Kill the controller, and return its exit code."""
        assert self.controller is not None
        self.controller.process.kill()
        return self.controller.process.wait()

    def discard_controller(self) -> None:
        """Stop using the controller, and kill it if it still runs."""
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

    def reset(self) -> None:
        """After a failure, use new namespaces and new controllers."""
        self.close()
        self.installation.remove_domains_by_force()
        self.installation.driver_namespace = domain_objects.create_namespace(
            self.installation.server, "nvdra"
        )
        self.installation.user_namespace = domain_objects.create_namespace(self.installation.server)
        self.statuses.clear()

    @contextlib.contextmanager
    def pause_controller(self) -> Iterator[None]:
        """Pause the controller while the block runs.

        So that it sees all changes at once afterwards.
        """
        assert self.controller is not None
        self.controller.process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.controller.process.send_signal(signal.SIGCONT)

    def threads(self) -> dict[int, str]:
        """The names of the controller's threads by thread id."""
        found = strace.threads(self.pid)
        return {tid: MAIN if tid == self.pid else name for tid, name in found.items()}

    async def wait_until(self, is_so: Callable[[], object]) -> None:
        """Wait for a condition; an error contains the controller's log."""
        try:
            await wait_until(is_so, READY_S)
        except TimeoutError as error:
            raise AssertionError(f"timed out; the log ends:\n{self.log()[-2000:]}") from error

    async def wait_correct(self, wrong: Callable[[], str]) -> None:
        """Wait until the controller is idle and `wrong` finds nothing."""
        loop = asyncio.get_running_loop()
        until = loop.time() + READY_S
        await self.wait_idle()
        while found := wrong():
            assert loop.time() < until, f"{found}\n{self.log()[-2000:]}"
            await self.wait_idle()

    async def wait_idle(self) -> None:
        """Wait until the controller sends no requests but those for the lease."""
        loop = asyncio.get_running_loop()
        began = loop.time()

        def last() -> float:
            asked = (at for at, what in reversed(self.proxy.requests) if "/leases" not in what)
            return max(began, next(asked, began))

        await self.wait_until(lambda: loop.time() - last() > IDLE_S)

    def children(self) -> Json:
        """All objects of the controller in the sandbox's namespaces, by purpose."""
        world, get = self.installation, self.installation.server.request
        return {
            "daemons' template": get("GET", world.templates_path(world.driver_namespace))["items"],
            "workload's template": get("GET", world.templates_path(world.user_namespace))["items"],
            "DaemonSet": get("GET", world.daemonsets_path())["items"],
            NETWORK_POLICY: get("GET", world.network_policies_path())["items"],
        }

    def labelled_nodes(self) -> list[str]:
        """The nodes with the label of a domain."""
        nodes = self.installation.server.request("GET", f"/api/v1/nodes?labelSelector={LABEL}")[
            "items"
        ]
        return [each["metadata"]["name"] for each in nodes]

    def look_for_mark(self) -> bool:
        """Read the DaemonSet's annotation of a written root span; whether it is there now."""
        found = self.installation.get(self.installation.daemonset_path(self.uid))
        if found is None:
            return False
        self.last_version = found["metadata"]["resourceVersion"]
        self.is_marked |= _has_mark(found)
        return _has_mark(found)

    async def was_marked(self) -> bool:
        """Whether the annotation was ever there.

        Also after `look_for_mark` last read the DaemonSet.
        """
        self.look_for_mark()
        if not self.is_marked and self.last_version:
            collection, _, name = self.installation.daemonset_path(self.uid).rpartition("/")
            look = self.installation.server.watch_versions
            versions = await asyncio.to_thread(look, collection, name, self.last_version)
            self.is_marked = any(map(_has_mark, versions))
        return self.is_marked

    def root_span_count(self) -> int:
        """How often the working controller has written the root span of the domain's trace."""
        assert self.controller is not None
        try:
            text = self.controller.get(f"/debug/traces/{self.uid}?format=json", debug=True)
        except urllib.error.HTTPError as error:
            with error:
                if error.code != 404:
                    raise
            return 0
        return _root_span_count(json.loads(text)["spans"])

    def log(self) -> str:
        """The log of the last controller."""
        path = self.directory / f"controller-{self._count}.log"
        return path.read_text() if path.exists() else ""

    def _renewal_count(self) -> int:
        return sum(each.startswith("PUT ") and "/leases/" in each for each in self.proxy.forwarded)

    def _launch_controller(self) -> ControllerProcess:
        self._count += 1
        lease = f"--leader-election-lease-lock-namespace={self.installation.driver_namespace}"
        flags = (*LEADER_ELECTION_FLAGS, lease) if self.has_standby else ()
        name, stack = f"controller-{self._count}", ExitStack()
        starting = self.installation.run_controller(
            NETWORK_POLICIES_FLAG, *flags, name=name, kubeconfig=self._write_kubeconfig(name)
        )
        one = stack.enter_context(starting)
        self._running.append((one, stack))
        return one

    def _write_kubeconfig(self, name: str) -> Path:
        """Write a kubeconfig for the proxy with a token that identifies the controller."""
        server = self.installation.server
        accounts = f"/api/v1/namespaces/{self.installation.driver_namespace}/serviceaccounts"
        server.create(accounts, {"metadata": {"name": name}})
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
        token = server.create(f"{accounts}/{name}/token", body)["status"]["token"]
        self.write_log.names[token] = name
        path = self.directory / f"{name}.kubeconfig"
        url = f"http://127.0.0.1:{self.proxy.port}"
        path.write_text(apiserver.kubeconfig(url, server.ca_file, {"token": token}))
        return path


@asynccontextmanager
async def open_sandbox(directory: Path) -> AsyncIterator[ControllerSandbox]:
    """Open a sandbox with its own API server below an empty directory, until the block is left."""
    (directory / "api").mkdir()
    with ExitStack() as stack:
        starting = apiserver.run_apiserver(directory / "api")
        # On the loop's threads, which live as long as the loop, because the servers end with them.
        server = await asyncio.to_thread(stack.enter_context, starting)
        await asyncio.to_thread(domain_objects.install_crds, server)
        server.create("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", _ALL_RIGHTS)
        async with api_proxy.run_proxy(server, directory) as proxy:
            world = DriverInstallation(
                server,
                directory,
                domain_objects.create_namespace(server, "nvdra"),
                domain_objects.create_namespace(server),
            )
            sandbox = ControllerSandbox(world, proxy, directory)
            try:
                yield sandbox
            finally:
                sandbox.close()


def _has_mark(daemonset: Json) -> bool:
    return ROOT_ANNOTATION in (daemonset["metadata"].get("annotations") or {})


def _root_span_count(spans: list[Json]) -> int:
    return sum(
        (span["name"] == ROOT_SPAN_NAME) + _root_span_count(span.get("children") or [])
        for span in spans
    )
