# SPDX-License-Identifier: Apache-2.0
"""Runs IMEX daemons as processes in simulated pods with an address, a hosts file and /imexd.

A daemon is process 1 of its PID namespace, as in a container: when it is killed, its nvidia-imex is
killed, too. Pods have loopback addresses, so that they need no network namespace, and IMEX is
configured to bind to its pod's address. This needs root.
"""

import contextlib
import json
import os
import signal
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any
from uuid import uuid4

from nvdra_api.ids import DomainUID
from nvdra_imex_daemon.configuration import dns_names
from nvdra_imex_daemon.configuration.dns_names import DnsNames
from nvdra_sim import imex_incidents
from nvdra_sim.filesystem import driver_root
from nvdra_sim.state_file import state
from nvdra_sim.testing.node_fixtures import SimulatedNode, installed

from nvdra_testing import ports, programs
from nvdra_testing.certificates import NO_SYSTEM_CERTIFICATES
from nvdra_testing.control_plane import domain_objects
from nvdra_testing.control_plane.apiserver import ApiServer
from nvdra_testing.control_plane.domain_objects import CLIQUE, Json
from nvdra_testing.node.daemon_containers import IMEXD, DaemonContainer
from nvdra_testing.polling import WAIT_S

PROGRAM = programs.path("nvdra-imex-daemon")
MAX_NODES = 4
DRIVER_NAMESPACE = "nvdra"
DOMAIN_LABEL = "resource.nvidia.com/computeDomain"

TEMPLATE = """\
# Like the plugin's template, but bound to the pod's address, because all pods share one network.
LOG_LEVEL=4
LOG_FILE_NAME=
DAEMONIZE=0
BIND_INTERFACE_IP={{ .IMEXCmdBindInterfaceIP }}
SERVER_PORT=50000
IMEX_NODE_CONFIG_FILE={{ .IMEXDaemonNodesConfigPath }}
IMEX_WAIT_FOR_QUORUM=RECOVERY
IMEX_CMD_ENABLED=1
IMEX_CMD_BIND_INTERFACE_IP={{ .IMEXCmdBindInterfaceIP }}
IMEX_CMD_PORT=50005
"""

NOWHERE = "127.255.255.255"
"""The address of names without a peer."""

_addresses = count()


@dataclass
class DaemonPod:
    """A daemon's pod on a node, and its process.

    Attributes:
        node: The name of its node.
        ip: Its address.
        name: The name of the Pod object.
        uid: The UID of the Pod object.
        directory: Its own files: `hosts`, `out` (output of nvidia-imex), `log` (log of the daemon).
        imexd: The domain's directory on the node, which is mounted at `IMEXD`.
    """

    node: str
    ip: str
    name: str
    uid: str
    directory: Path
    imexd: Path
    process: "subprocess.Popen[bytes]"
    http: str
    debug: str
    server: ApiServer = field(repr=False)
    container: DaemonContainer = field(repr=False)

    @property
    def pid(self) -> int:
        """The daemon's process id on this machine; 0 while there is no daemon."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        try:
            return int(children.read_text().split()[0])
        except (OSError, IndexError):
            return 0

    def imex_pids(self) -> list[int]:
        """The process ids of its nvidia-imex."""
        return [pid for pid in _children(self.pid) if _command(pid).startswith("nvidia-imex\0")]

    def get(self, path: str, *, debug: bool = False) -> tuple[int, str]:
        """The status and body of a page of the daemon; 0 while it does not listen."""
        try:
            url = f"http://{self.debug if debug else self.http}{path}"
            with urllib.request.urlopen(url, timeout=5) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError:
            return 0, ""

    def status(self) -> Json:
        """The daemon's /debug/status; empty while it does not listen."""
        code, body = self.get("/debug/status", debug=True)
        known: Json = json.loads(body) if code == 200 else {}
        return known

    def is_ready(self) -> bool:
        """Whether its /readyz succeeds."""
        return self.get("/readyz")[0] == 200

    def log(self) -> str:
        """The daemon's log."""
        return (self.directory / "log").read_text()

    def imex_log(self) -> str:
        """The output of its nvidia-imex."""
        return (self.directory / "out").read_text()

    def hosts_entries(self) -> dict[str, str]:
        """The peers in its hosts file: name → address. Places without a peer are left out."""
        lines = (self.directory / "hosts").read_text().splitlines()
        pairs = (line.split("\t") for line in lines if "compute-domain-daemon-" in line)
        return {name: ip for ip, name in pairs if not ip.endswith(NOWHERE) and "::ffff:" not in ip}

    def run(self, *command: str) -> "subprocess.CompletedProcess[str]":
        """Run a command with the files of its container."""
        inside = ("nsenter", f"--target={self.pid}", "--mount", "--", *command)
        return subprocess.run(inside, capture_output=True, text=True, check=False, timeout=60)

    def resident_mib(self) -> float:
        """The resident set of the daemon without its children, in MiB."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) / 1024
        raise AssertionError("the daemon has ended")

    def restart_container(self, before: Sequence[str | Path] = ()) -> None:
        """Start the daemon's container again, as the kubelet does when it has ended.

        The pod keeps its address. `before` is a program that replaces itself by the daemon.
        """
        assert self.process.poll() is not None, "the container still runs"
        self.process = self.container.start(before)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """End the daemon, and return the exit code of unshare (negative after a kill)."""
        if pid := self.pid:
            os.kill(pid, number)
        return self.process.wait(timeout=40)


@dataclass
class Rack:
    """The nodes of one clique, and the daemons of one domain on them.

    Attributes:
        domain: The ComputeDomain.
        namespace: The namespace of the daemon pods and of the clique.
        nodes: The nodes with a simulated driver and nvidia-imex; other nodes have none.
        template: The IMEX config template for daemons that are started; empty for none.
        clique_id: The clique of the daemons.
        resolver: The resolv.conf of daemons that are started; empty for containers without DNS.
        ip_version: The version of the addresses of pods that are started.
        imexd: The domain's directory for daemons that are started; by default one for each node.
        kubeconfig: How daemons that are started reach the API server; by default directly.
        before: A program that replaces itself by the daemon, for daemons that are started.
        peer_names: Which DNS names daemons that are started have.
    """

    server: ApiServer
    directory: Path
    domain: Json
    namespace: str
    stack: contextlib.ExitStack
    nodes: dict[str, SimulatedNode] = field(default_factory=dict)
    pods: list[DaemonPod] = field(default_factory=list)
    template: str = TEMPLATE
    clique_id: str = CLIQUE
    resolver: str = ""
    ip_version: int = 4
    imexd: Path | None = None
    kubeconfig: Path | None = None
    before: Sequence[str | Path] = ()
    peer_names: str = "domain"

    @property
    def uid(self) -> str:
        """The domain's UID."""
        return str(self.domain["metadata"]["uid"])

    @property
    def clique_path(self) -> str:
        """The path of the clique."""
        return domain_objects.cliques_path(self.namespace, f"{self.uid}.{self.clique_id}")

    def start_pod(
        self,
        node: str,
        *flags: str,
        clique: str = CLIQUE,
        environ: Mapping[str, str] = {},
        ip: str = "",
    ) -> DaemonPod:
        """Create a pod on a node and start the daemon in it, as DaemonSet and kubelet do.

        It has an address of its own, or that of a pod that has ended.
        """
        name = f"computedomain-daemon-{self.uid}-{uuid4().hex[:5]}"
        gates = [flag.partition("=")[2] for flag in flags if flag.startswith("--feature-gates=")]
        environment = [{"name": "FEATURE_GATES", "value": each} for each in gates]
        container = {"name": "c", "image": "i", "env": environment}
        body = {
            "metadata": {"name": name, "labels": {DOMAIN_LABEL: self.uid}},
            "spec": {"nodeName": node, "containers": [container]},
        }
        made = self.server.create(f"/api/v1/namespaces/{self.namespace}/pods", body)
        return self.run_daemon(
            node, name, made["metadata"]["uid"], *flags, clique=clique, environ=environ, ip=ip
        )

    def run_daemon(
        self,
        node: str,
        name: str,
        uid: str,
        *flags: str,
        clique: str = CLIQUE,
        environ: Mapping[str, str] = {},
        ip: str = "",
    ) -> DaemonPod:
        """Start the daemon in an existing pod."""
        number = next(_addresses)
        if self.ip_version == 6:
            ip = ip or self._ipv6(number)
        ip = ip or f"127.{ports.network_number()}.{number // 250}.{number % 250 + 2}"
        directory = self.directory / f"{name}-{number}"
        directory.mkdir()
        imexd = self.imexd or self.directory / "imexd" / node
        imexd.mkdir(parents=True, exist_ok=True)
        if self.template:
            (imexd / "imexd.cfg.tmpl").write_text(self.template)
        http, debug = (f"127.0.0.1:{port}" for port in ports.free_ports(2))
        variables = {
            "PATH": os.pathsep.join([*self._programs_of(node), os.defpath]),
            **NO_SYSTEM_CERTIFICATES,
            "CLIQUE_ID": clique,
            "COMPUTE_DOMAIN_UUID": self.uid,
            "COMPUTE_DOMAIN_NAME": self.domain["metadata"]["name"],
            "COMPUTE_DOMAIN_NAMESPACE": self.domain["metadata"]["namespace"],
            "MAX_NODES_PER_IMEX_DOMAIN": str(MAX_NODES),
            "PEER_NAMES": self.peer_names,
            "NODE_NAME": node,
            "POD_IP": ip,
            "POD_UID": uid,
            "POD_NAME": name,
            "POD_NAMESPACE": self.namespace,
        }
        own = [
            f"--kubeconfig={self.kubeconfig or self.server.kubeconfig}",
            f"--imex-dir={IMEXD}",
            f"--http-endpoint={http}",
            f"--debug-endpoint={debug}",
            "-v=4",
        ]
        argv: list[str | Path] = [PROGRAM, *own, *flags, "run"]
        container = DaemonContainer(directory, imexd, argv, {**variables, **environ}, name)
        container.write_name_services(self.resolver)
        process = container.start(self.before)
        pod = DaemonPod(
            node, ip, name, uid, directory, imexd, process, http, debug, self.server, container
        )
        self.stack.callback(_kill, pod)
        self.pods.append(pod)
        return pod

    def _ipv6(self, number: int) -> str:
        """A new address of the loopback interface, which lasts as long as the rack."""
        ip = f"fd64::{ports.network_number():x}:{number:x}"
        address = [f"{ip}/128", "dev", "lo"]
        subprocess.run(["ip", "address", "add", *address], check=True)
        self.stack.callback(subprocess.run, ["ip", "address", "delete", *address], check=True)
        return ip

    def install_driver(self, *nodes: str, **sections: Any) -> None:
        """Install the simulated driver with nvidia-imex on nodes.

        `sections` are those of a node file.
        """
        for node in nodes:
            made = installed("gb200-nvl72", self.directory / "driver" / node, node, **sections)
            self.nodes[node] = self.stack.enter_context(made)

    def set_imex_faults(self, node: str, **faults: Any) -> None:
        """Change the behaviour of the node's nvidia-imex; without faults, make it normal again."""
        simulated = state.load(self.nodes[node].state)
        imex_incidents.clear(simulated)
        if faults:
            imex_incidents.disturb(simulated, **faults)

    def imex_domain_state(self, pod: DaemonPod) -> str:
        """The domain state that the pod's IMEX reports; empty while it does not answer."""
        return self._ctl(pod, "-N").stdout.decode().rpartition("Domain State: ")[2].strip()

    def imex_connections(self, pod: DaemonPod, own_index: int | None = None) -> dict[int, str]:
        """The pod's IMEX connections by node index; empty while it does not answer.

        The daemon is asked for its index if it is not given.
        """
        done = self._ctl(pod, "-N", "-j")
        known = json.loads(done.stdout)["nodes"] if done.returncode == 0 else {}
        index = pod.status().get("index") if own_index is None else own_index
        own = known.get(str(index), {})
        return {int(to): one["status"] for to, one in own.get("connections", {}).items()}

    def are_connected(self, *pods: DaemonPod) -> bool:
        """Whether the IMEX of each pod is connected to exactly these pods.

        By their clique indexes.
        """
        indexes = self.indexes()
        wanted = {indexes.get(pod.node, -1) for pod in pods}
        return all(
            {to for to, how in self.imex_connections(pod).items() if how == "CONNECTED"} == wanted
            for pod in pods
        )

    def _ctl(self, pod: DaemonPod, *arguments: str) -> subprocess.CompletedProcess[bytes]:
        ctl = Path(*self._programs_of(pod.node), "nvidia-imex-ctl")
        inside = ["nsenter", f"--target={pod.pid}", "--mount", "--"] if pod.pid else []
        argv = [*inside, str(ctl), "-c", str(pod.imexd / "imexd.cfg"), *arguments]
        return subprocess.run(argv, capture_output=True, check=False)

    def _programs_of(self, node: str) -> list[str]:
        known = self.nodes.get(node)
        if known is None:
            return []
        return [str(known.roots.driver / driver_root.program_directory(known.description))]

    def clique(self) -> Json:
        """The clique in the API server; empty if there is none."""
        try:
            found: Json = self.server.request("GET", self.clique_path)
        except urllib.error.HTTPError as error:
            if error.code != 404:
                raise
            return {}
        return found

    def entries(self) -> dict[str, Json]:
        """The clique's entries by node."""
        return {each["nodeName"]: each for each in self.clique().get("daemons", ())}

    def indexes(self) -> dict[str, int]:
        """Node → its index."""
        return {node: each["index"] for node, each in self.entries().items()}

    def expected_hosts_entries(self) -> dict[str, str]:
        """The entries that every hosts file should have: name → address."""
        entries = self.entries().values()
        return {self.names.name(e["index"]): e["ipAddress"] for e in entries}

    @property
    def names(self) -> DnsNames:
        """The DNS names of the domain's daemons."""
        return dns_names.of_domain(DomainUID(self.uid), self.peer_names)

    def are_ready(self, *nodes: str) -> bool:
        """Whether exactly these nodes are in the clique and all are Ready."""
        entries = self.entries()
        return set(entries) == set(nodes) and all(e["status"] == "Ready" for e in entries.values())

    def wait_until(self, is_so: Callable[[], Any], what: str, timeout_s: float = WAIT_S) -> None:
        """Wait for something that the daemons do by themselves."""
        deadline = time.monotonic() + timeout_s
        while not is_so():
            if time.monotonic() > deadline:
                logs = "\n".join(f"--- {p.name}\n{p.log()[-2500:]}" for p in self.pods)
                raise AssertionError(f"waited for {what}; {self.entries()}\n{logs}")
            time.sleep(0.03)

    def wait_joined(self, *nodes: str) -> None:
        """Wait until exactly these nodes are in the clique, and all know each other by name."""
        self.wait_until(lambda: set(self.entries()) == set(nodes), f"entries of {nodes}")
        self.wait_until(
            lambda: all(
                pod.hosts_entries() == self.expected_hosts_entries()
                for pod in self.pods
                if pod.process.poll() is None
            ),
            "the names of all in every hosts file",
        )

    def events(self, reason: str) -> list[Json]:
        """The events with this reason on the domain's objects."""
        found = self.server.request("GET", f"/api/v1/events?fieldSelector=reason={reason}")["items"]
        mine = {self.uid, *(pod.uid for pod in self.pods)}
        return [event for event in found if event["involvedObject"]["uid"] in mine]


@contextlib.contextmanager
def create_rack(
    server: ApiServer, directory: Path, namespace: str = "", **spec: Any
) -> Iterator[Rack]:
    """Create a domain and an empty rack for its daemons, which end with the block.

    `namespace` is the driver's; by default a new one.
    """
    team = domain_objects.create_namespace(server)
    namespace = namespace or domain_objects.create_namespace(server, DRIVER_NAMESPACE)
    made = server.create(domain_objects.domains_path(team), domain_objects.domain(**spec))
    with contextlib.ExitStack() as stack:
        yield Rack(server, directory, made, namespace, stack)


def _kill(pod: DaemonPod) -> None:
    if pod.process.poll() is None:
        pod.process.kill()
        pod.process.wait(timeout=WAIT_S)


def _children(pid: int) -> list[int]:
    try:
        return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""
