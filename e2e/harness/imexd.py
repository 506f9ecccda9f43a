"""IMEX daemons as processes of their own, each in what is to it a pod: address, hosts file, /imexd.

A daemon is process 1 of its namespace, as in a container: when it is killed, its nvidia-imex goes
with it. Pods have addresses of the loopback, so that they need no network of their own; IMEX is
told to bind to that address. Takes root.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import domains
import ports
from apiserver import ApiServer
from domains import CLIQUE, Json
from nvdra_sim import driverroot, imex_incidents, state
from nvdra_sim.fixtures import SimulatedNode, installed

PROGRAM = Path(sys.executable).with_name("nvdra-imex-daemon")
PATIENCE_S = 20.0
PLACES = 4
DRIVER_NAMESPACE = "nvdra"

TEMPLATE = """\
# As the plugin leaves it, but bound to the pod's address: all pods share one network here.
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

HOSTS = "# Kubernetes-managed hosts file.\n127.0.0.1\tlocalhost\n"

# What a container runtime does before it starts the container's program.
CONTAINER = """
mount --bind "$1" /etc/hosts
mount --bind "$2" /etc/nsswitch.conf
mount -t tmpfs tmpfs /run
shift 2
exec "$@"
"""

_addresses = count(2)


@dataclass
class Pod:
    """A daemon's pod on a node, and its process.

    Attributes:
        node: Its node.
        ip: Its address.
        name: Of the Pod object.
        uid: Of the Pod object.
        directory: Its own: `hosts`, `out` (nvidia-imex), `log` (the daemon).
        imexd: What is mounted at /imexd: the domain's directory on the node.
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

    @property
    def pid(self) -> int:
        """Of the daemon, as this machine numbers it; 0 while it is not there."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        try:
            return int(children.read_text().split()[0])
        except (OSError, IndexError):
            return 0

    def imex_pids(self) -> list[int]:
        """Of its nvidia-imex."""
        return [pid for pid in _children(self.pid) if _command(pid).startswith("nvidia-imex\0")]

    def get(self, path: str, *, debug: bool = False) -> tuple[int, str]:
        """Status and body of a page of the daemon; 0 while it does not listen."""
        try:
            url = f"http://{self.debug if debug else self.http}{path}"
            with urllib.request.urlopen(url, timeout=5) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError:
            return 0, ""

    def status(self) -> Json:
        """What the daemon knows; empty while it does not listen."""
        code, body = self.get("/debug/status", debug=True)
        known: Json = json.loads(body) if code == 200 else {}
        return known

    def is_ready(self) -> bool:
        """Whether its /readyz says so."""
        return self.get("/readyz")[0] == 200

    def log(self) -> str:
        """What the daemon said."""
        return (self.directory / "log").read_text()

    def output(self) -> str:
        """What its nvidia-imex said."""
        return (self.directory / "out").read_text()

    def names(self) -> dict[str, str]:
        """The peers in its hosts file: address by name."""
        lines = (self.directory / "hosts").read_text().splitlines()
        pairs = (line.split("\t") for line in lines if "compute-domain-daemon-" in line)
        return {name: ip for ip, name in pairs}

    def resident_mib(self) -> float:
        """Resident set of the daemon without its children, in MiB."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) / 1024
        raise AssertionError("the daemon has ended")

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """End the daemon; its exit code, as unshare hands it on (negative after a kill)."""
        if pid := self.pid:
            os.kill(pid, number)
        return self.process.wait(timeout=40)


@dataclass
class Rack:
    """Nodes of one clique, the daemons of one domain on them, against a real API server.

    Attributes:
        domain: The ComputeDomain.
        namespace: Of the daemons' pods and of the clique.
        nodes: Those that have a driver with nvidia-imex; the others have none.
        template: What the plugin leaves for daemons started from now on; empty for nothing.
        clique_id: Of the clique in which the daemons meet.
    """

    server: ApiServer
    directory: Path
    domain: Json
    namespace: str
    stack: contextlib.ExitStack
    nodes: dict[str, SimulatedNode] = field(default_factory=dict)
    pods: list[Pod] = field(default_factory=list)
    template: str = TEMPLATE
    clique_id: str = CLIQUE

    @property
    def uid(self) -> str:
        """The domain's UID."""
        return str(self.domain["metadata"]["uid"])

    @property
    def clique_path(self) -> str:
        """Path of the clique."""
        return domains.cliques_path(self.namespace, f"{self.uid}.{self.clique_id}")

    def start(
        self, node: str, *flags: str, clique: str = CLIQUE, environ: Mapping[str, str] = {}
    ) -> Pod:
        """Make a pod on a node and start the daemon in it, as kubelet and DaemonSet do."""
        name = f"daemon-{node}-{len(self.pods)}"
        body = {
            "metadata": {"name": name},
            "spec": {"nodeName": node, "containers": [{"name": "c", "image": "i"}]},
        }
        made = self.server.create(f"/api/v1/namespaces/{self.namespace}/pods", body)
        return self.run(node, name, made["metadata"]["uid"], *flags, clique=clique, environ=environ)

    def run(
        self,
        node: str,
        name: str,
        uid: str,
        *flags: str,
        clique: str = CLIQUE,
        environ: Mapping[str, str] = {},
    ) -> Pod:
        """Start the daemon in a pod that is there."""
        ip = f"127.64.{ports.worker()}.{next(_addresses)}"
        directory = self.directory / f"{name}-{ip.rpartition('.')[2]}"
        directory.mkdir()
        imexd = self.directory / "imexd" / node
        imexd.mkdir(parents=True, exist_ok=True)
        if self.template:
            (imexd / "imexd.cfg.tmpl").write_text(self.template)
        (directory / "hosts").write_text(HOSTS)
        (directory / "nsswitch.conf").write_text("hosts: files\n")
        http, debug = (f"127.0.0.1:{port}" for port in ports.free(2))
        variables = {
            "PATH": os.pathsep.join([*self._programs_of(node), os.defpath]),
            "CLIQUE_ID": clique,
            "COMPUTE_DOMAIN_UUID": self.uid,
            "COMPUTE_DOMAIN_NAME": self.domain["metadata"]["name"],
            "COMPUTE_DOMAIN_NAMESPACE": self.domain["metadata"]["namespace"],
            "MAX_NODES_PER_IMEX_DOMAIN": str(PLACES),
            "NODE_NAME": node,
            "POD_IP": ip,
            "POD_UID": uid,
            "POD_NAME": name,
            "POD_NAMESPACE": self.namespace,
        }
        own = [
            f"--kubeconfig={self.server.kubeconfig}",
            f"--imex-dir={imexd}",
            f"--http-endpoint={http}",
            f"--debug-endpoint={debug}",
            "-v=4",
        ]
        files = (directory / "hosts", directory / "nsswitch.conf")
        argv: list[str | Path] = [
            *("unshare", "--mount", "--mount-proc", "--pid", "--fork", "--kill-child"),
            *("sh", "-ec", CONTAINER, "sh"),
            *files,
            PROGRAM,
            *own,
            *flags,
            "run",
        ]
        with (directory / "out").open("wb") as out, (directory / "log").open("wb") as log:
            process = subprocess.Popen(argv, stdout=out, stderr=log, env={**variables, **environ})
        pod = Pod(node, ip, name, uid, directory, imexd, process, http, debug, self.server)
        self.stack.callback(_end, pod)
        self.pods.append(pod)
        return pod

    def equip(self, *nodes: str, **sections: Any) -> None:
        """Install the simulated driver with its nvidia-imex on nodes; sections of a node file."""
        for node in nodes:
            made = installed("gb200-nvl72", self.directory / "driver" / node, node, **sections)
            self.nodes[node] = self.stack.enter_context(made)

    def disturb(self, node: str, **faults: Any) -> None:
        """Change how the node's nvidia-imex behaves; nothing said means: as it should."""
        simulated = state.load(self.nodes[node].state)
        imex_incidents.calm(simulated)
        if faults:
            imex_incidents.disturb(simulated, **faults)

    def domain_state(self, pod: Pod) -> str:
        """What the pod's IMEX says of its whole list; empty while it does not say."""
        return self._ctl(pod, "-N").stdout.decode().rpartition("Domain State: ")[2].strip()

    def connections(self, pod: Pod) -> dict[int, str]:
        """How the pod's IMEX is connected to each node of its list; empty while it does not say."""
        done = self._ctl(pod, "-N", "-j")
        known = json.loads(done.stdout)["nodes"] if done.returncode == 0 else {}
        for node in known.values():
            if node["local"]:
                return {int(to): one["status"] for to, one in node["connections"].items()}
        return {}

    def are_connected(self, *pods: Pod) -> bool:
        """Whether each of these has a connection to the IMEX of each, by the clique's indexes."""
        indexes = self.indexes()
        wanted = {indexes.get(pod.node, -1) for pod in pods}
        return all(
            {to for to, how in self.connections(pod).items() if how == "CONNECTED"} == wanted
            for pod in pods
        )

    def _ctl(self, pod: Pod, *arguments: str) -> subprocess.CompletedProcess[bytes]:
        ctl = Path(*self._programs_of(pod.node), "nvidia-imex-ctl")
        argv = [ctl, "-c", pod.imexd / "imexd.cfg", *arguments]
        return subprocess.run(argv, capture_output=True, check=False)

    def _programs_of(self, node: str) -> list[str]:
        known = self.nodes.get(node)
        if known is None:
            return []
        return [str(known.roots.driver / driverroot.program_directory(known.description))]

    def clique(self) -> Json:
        """The clique as the API server holds it; empty where there is none."""
        try:
            found: Json = self.server.call("GET", self.clique_path)
        except urllib.error.HTTPError as error:
            if error.code != 404:
                raise
            return {}
        return found

    def entries(self) -> dict[str, Json]:
        """The clique's entries by node."""
        return {each["nodeName"]: each for each in self.clique().get("daemons", ())}

    def indexes(self) -> dict[str, int]:
        """The index of each node."""
        return {node: each["index"] for node, each in self.entries().items()}

    def names(self) -> dict[str, str]:
        """What every hosts file should say: address by name."""
        entries = self.entries().values()
        return {f"compute-domain-daemon-{e['index']:04d}": e["ipAddress"] for e in entries}

    def are_ready(self, *nodes: str) -> bool:
        """Whether exactly these nodes are in the clique, all Ready."""
        entries = self.entries()
        return set(entries) == set(nodes) and all(e["status"] == "Ready" for e in entries.values())

    def until(self, is_so: Callable[[], Any], what: str, timeout_s: float = PATIENCE_S) -> None:
        """Wait for what the daemons do by themselves."""
        deadline = time.monotonic() + timeout_s
        while not is_so():
            if time.monotonic() > deadline:
                logs = "\n".join(f"--- {p.name}\n{p.log()[-2500:]}" for p in self.pods)
                raise AssertionError(f"waited for {what}; {self.entries()}\n{logs}")
            time.sleep(0.03)

    def events(self, reason: str) -> list[Json]:
        """Events of this domain's objects with this reason."""
        found = self.server.call("GET", f"/api/v1/events?fieldSelector=reason={reason}")["items"]
        mine = {self.uid, *(pod.uid for pod in self.pods)}
        return [event for event in found if event["involvedObject"]["uid"] in mine]


@contextlib.contextmanager
def rack(server: ApiServer, directory: Path, **spec: Any) -> Iterator[Rack]:
    """A domain of its own, and room for its daemons; they end with the block."""
    team, namespace = domains.namespace(server), domains.namespace(server, DRIVER_NAMESPACE)
    made = server.create(domains.domains_path(team), domains.domain(**spec))
    with contextlib.ExitStack() as stack:
        yield Rack(server, directory, made, namespace, stack)


def _end(pod: Pod) -> None:
    if pod.process.poll() is None:
        pod.process.kill()
        pod.process.wait(timeout=PATIENCE_S)


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
