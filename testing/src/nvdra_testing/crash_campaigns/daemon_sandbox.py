# SPDX-License-Identifier: Apache-2.0
"""A rack with one IMEX daemon that is struck: its pods, its container, its trace.

The daemon runs on SUBJECT. On PEER another daemon of the domain may run, undisturbed. The struck
daemon talks plain HTTP to a proxy before the API server, so that a trace of its calls can be read.
All methods block.
"""

import contextlib
import errno
import os
import signal
import sys
import time
import urllib.error
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from nvdra_api.ids import PodUID
from nvdra_runtime.computedomain import ready_lock

from nvdra_testing.control_plane import domain_objects
from nvdra_testing.control_plane.apiserver import ApiServer
from nvdra_testing.control_plane.domain_objects import Json
from nvdra_testing.crash_campaigns import daemon_calls
from nvdra_testing.crash_campaigns.recorded_sandbox import RecordedSandbox
from nvdra_testing.faults import api_proxy, strace
from nvdra_testing.faults.api_proxy import FaultyProxy
from nvdra_testing.faults.strace import MAIN, InjectedSignal
from nvdra_testing.node import imex_daemons
from nvdra_testing.node.imex_daemons import DaemonPod, Rack

SUBJECT: Final = "node-a"
PEER: Final = "node-b"
OTHER: Final = "node-c"
"""A member of the domain that is only an entry."""
READY_S: Final = 60.0
"""The longest wait for anything; other tests may run at the same time."""
POLL_S: Final = 0.05
# Waits until somebody has opened the pipe, then becomes the program.
_GATE: Final = (
    "import runpy, sys; open(sys.argv[1] + '.reached', 'w').close(); "
    "open(sys.argv[1]).read(); del sys.argv[:2]; "
    "runpy.run_path(sys.argv[0], run_name='__main__')"
)


class Struck(Exception):
    """The daemon has got the signal that was to strike it."""


@dataclass(eq=False)
class DaemonSandbox(RecordedSandbox):
    """One domain with its clique, and at most one struck daemon at a time.

    Attributes:
        flags: The flags of all daemons.
        pod: The pod of the daemon that is struck; None between strikes.
        peer: The pod of the undisturbed daemon, if there is one.
    """

    rack: Rack
    proxy: FaultyProxy
    directory: Path
    flags: Sequence[str] = ()
    pod: DaemonPod | None = None
    peer: DaemonPod | None = None
    _trace: Path | None = None
    _namespace: int | None = None

    @property
    def subject(self) -> DaemonPod:
        """The pod of the daemon that is struck."""
        assert self.pod is not None
        return self.pod

    @property
    def imexd(self) -> Path:
        """The domain's directory on the subject's node."""
        return self.rack.directory / "imexd" / SUBJECT

    def start_peer(self) -> None:
        """Start the undisturbed daemon."""
        self.rack.before, self.rack.kubeconfig = (), None
        self.peer = self.rack.start_pod(PEER, *self.flags)
        self.wait_until(lambda: self.rack.are_ready(PEER), "the peer to be Ready")

    def reset(self) -> None:
        """Kill the subject, and leave nothing of it, as where a domain ends on a node."""
        self.kill()
        if self.pod is not None:
            self._delete_pod(self.pod)
            self.rack.pods.remove(self.pod)
            self.pod = None
        self.write_members()
        for path in self.imexd.iterdir() if self.imexd.exists() else ():
            path.unlink()

    def write_members(self, *others: Json) -> None:
        """Leave the daemons' own entries in the clique, and add these."""
        kept = [node for node, pod in ((PEER, self.peer), (SUBJECT, self.pod)) if pod is not None]

        def write() -> bool:
            clique = self.rack.clique()
            if not clique:
                return True
            own = [each for each in clique["daemons"] if each["nodeName"] in kept]
            try:
                if not kept and not others:
                    self.rack.server.request("DELETE", self.rack.clique_path)
                elif clique["daemons"] != [*own, *others]:
                    changed = {**clique, "daemons": [*own, *others]}
                    self.rack.server.request("PUT", self.rack.clique_path, changed)
            except urllib.error.HTTPError as error:
                return error.code != 409
            return True

        self.wait_until(write, "the clique to be written")

    def launch(self, *, is_successor: bool = False) -> None:
        """Start the daemon in a new pod, or again in its pod; it waits at the gate."""
        gate = self._gate
        gate.unlink(missing_ok=True)
        self._gate_reached.unlink(missing_ok=True)
        os.mkfifo(gate)
        before = (sys.executable, "-c", _GATE, gate)
        if self.pod is None or is_successor:
            if self.pod is not None:
                self._delete_pod(self.pod)
                self.rack.pods.remove(self.pod)
            self.rack.before, self.rack.kubeconfig = before, self.proxy.kubeconfig
            environ = {"PYTHONDONTWRITEBYTECODE": "1"}
            # Without its log lines, the numbers of its writes are always the same.
            self.pod = self.rack.start_pod(SUBJECT, "-v=0", *self.flags, environ=environ)
        else:
            self.pod.restart_container(before)
        self.wait_until(self._is_at_gate, "the container to start")
        self._open_namespace(f"/proc/{self.subject.pid}/ns/pid")

    def open_gate(self) -> None:
        """Let the daemon begin, unless it has begun.

        Raises:
            Struck: It was struck before.
        """
        if self._gate.exists():
            self.wait_until(self._opens_gate, "the daemon to wait at the gate")
            self._gate.unlink()

    def kill(self) -> None:
        """Kill the daemon, and with it everything in its container."""
        if self.pod is not None and self.pod.process.poll() is None:
            self.pod.stop(signal.SIGKILL)

    @contextlib.contextmanager
    def traced(
        self, log: Path, kill: InjectedSignal | None, thread: str = "", *, is_following: bool = True
    ) -> Iterator[strace.Tracer]:
        """Trace the daemon, or one thread of it, for the block; a strike raises `Struck` in it."""
        names = self.threads()
        one = {tid: name for tid, name in names.items() if name == thread}
        self._trace = log if kill is not None else None
        try:
            with strace.attach(
                log,
                one or names,
                daemon_calls.CALLS,
                kill,
                is_following=is_following,
                has_programs=False,
            ) as tracer:
                yield tracer
        finally:
            self._trace = None

    def threads(self) -> dict[int, str]:
        """The names of the daemon's threads."""
        pid = self.subject.pid
        found = strace.threads(pid)
        return {tid: MAIN if tid == pid else name for tid, name in found.items()}

    def wait_until(self, is_so: Callable[[], object], what: str) -> None:
        """Wait for a condition.

        Raises:
            Struck: The daemon was struck meanwhile.
            AssertionError: It takes too long.
        """
        deadline = time.monotonic() + READY_S
        while not is_so():
            self.raise_if_struck()
            if time.monotonic() > deadline:
                raise AssertionError(f"waited for {what}; {self.rack.entries()}\n{self.log()}")
            time.sleep(POLL_S)

    def terminate(self) -> None:
        """Tell the daemon to end, and wait until it has."""
        os.kill(self.subject.pid, signal.SIGTERM)
        self.wait_until(lambda: self.subject.process.poll() is not None, "the daemon to end")
        self.raise_if_struck()

    def raise_if_struck(self) -> None:
        """Raise `Struck` once if the daemon has got the signal of the strike."""
        if self._trace is None:
            return
        is_dead = self.subject.process.poll() not in (None, 0)
        if is_dead or strace.was_signal_injected(self._trace):
            self._trace = None
            raise Struck

    @property
    def index(self) -> int:
        """The index that the subject must have: the first that is free."""
        return 0 if self.peer is None else 1

    def is_locked(self) -> bool:
        """Whether the plugin would find that the subject's daemon is READY."""
        directory = os.open(self.imexd, os.O_RDONLY | os.O_DIRECTORY)
        try:
            return bool(ready_lock.is_held(directory, [PodUID(self.subject.uid)]))
        finally:
            os.close(directory)

    def imex_pids(self) -> list[int]:
        """All nvidia-imex of the subject's container, whoever their parents are."""
        return [pid for pid in self.processes() if _argv(pid)[:1] == ["nvidia-imex"]]

    def processes(self) -> list[int]:
        """The processes of the container that was started last."""
        assert self._namespace is not None
        own, found = os.fstat(self._namespace), []
        for each in Path("/proc").glob("[0-9]*/ns/pid"):
            with contextlib.suppress(OSError):
                pid = int(each.parts[2])
                if os.path.samestat(each.stat(), own) and _argv(pid):
                    found.append(pid)
        return found

    def close(self) -> None:
        """Forget the container that was started last."""
        if self._namespace is not None:
            os.close(self._namespace)
            self._namespace = None

    def pod_metadata(self) -> Json:
        """The metadata of the subject's Pod object."""
        found: Json = self.rack.server.request("GET", self._path(self.subject))["metadata"]
        return found

    def log(self) -> str:
        """The end of the subject's log."""
        return "" if self.pod is None else self.pod.log()[-2500:]

    @property
    def _gate(self) -> Path:
        return self.directory / "gate"

    def _open_namespace(self, path: str) -> None:
        """Remember the PID namespace of the container that was started last.

        While it is open, no other container gets its number.
        """
        self.close()
        self._namespace = os.open(path, os.O_RDONLY)

    @property
    def _gate_reached(self) -> Path:
        """Exists once the interpreter has started, whose own calls must not be counted."""
        return self._gate.with_name("gate.reached")

    def _is_at_gate(self) -> bool:
        assert self.subject.process.poll() is None, f"the container has ended: {self.log()}"
        return self._gate_reached.exists()

    def _opens_gate(self) -> bool:
        """Open the gate if somebody waits behind it: otherwise it would wait for ever itself."""
        try:
            os.close(os.open(self._gate, os.O_WRONLY | os.O_NONBLOCK))
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            return False
        return True

    def _delete_pod(self, pod: DaemonPod) -> None:
        body = {"gracePeriodSeconds": 0}
        self.rack.server.request("DELETE", self._path(pod), body)

    def _path(self, pod: DaemonPod) -> str:
        return f"/api/v1/namespaces/{self.rack.namespace}/pods/{pod.name}"


@asynccontextmanager
async def open_sandbox(
    server: ApiServer, directory: Path, namespace: str, flags: Sequence[str]
) -> AsyncIterator[DaemonSandbox]:
    """Open a sandbox in an empty directory, until the block is left."""
    with imex_daemons.create_rack(server, directory, namespace) as rack:
        rack.install_driver(SUBJECT, PEER)
        async with api_proxy.run_proxy(server, directory) as proxy:
            sandbox = DaemonSandbox(rack, proxy, directory, flags)
            try:
                yield sandbox
            finally:
                sandbox.close()


def other_member(index: int, ip: str) -> Json:
    """The entry of a third member at this address, which is Ready."""
    return domain_objects.clique_entry(OTHER, index, ipAddress=ip)


def _argv(pid: int) -> list[str]:
    """The command of a process; empty for one that has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")[:-1]
    except OSError:
        return []
