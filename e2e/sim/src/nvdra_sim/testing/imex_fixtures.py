# SPDX-License-Identifier: Apache-2.0
"""Pytest fixtures: nvidia-imex on one tray, or on the trays of a rack.

Import the fixtures in a `conftest.py`. A tray of `rack` is like a node with one daemon pod: its
programs have their own network, /etc/hosts and driver, and the address can change. `rack` requires
root. `local_tray` uses the loopback interface of this machine and requires no privileges.
"""

from __future__ import annotations

import json
import random
import re
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from nvdra_sim.filesystem import driver_root
from nvdra_sim.state_file import state
from nvdra_sim.testing.node_fixtures import SimulatedNode, installed

INTERFACE = "eth0"
BRIDGE = "switch"
TIMEOUT_S = 20.0
_PORTS = range(30_000, 32_768)
# Replaces the machine's /etc/nsswitch.conf for the tray's processes, so that they use no DNS.
NSSWITCH = "hosts: files\n"

needs_ipv6 = pytest.mark.skipif(
    not Path("/proc/net/if_inet6").exists(), reason="this kernel has no IPv6"
)

# The settings that the compute domain driver gives its daemons (docs/reference/imex.md, "The run
# command").
CONFIG = """\
# Written by a test.
LOG_LEVEL=4
LOG_FILE_NAME=
STATS_FILE_NAME=/var/log/nvidia-imex-stats.log
LOG_APPEND_TO_LOG=0
LOG_FILE_MAX_SIZE=1024
LOG_MAX_ROTATE_COUNT=10
LOG_USE_SYSLOG=0
DAEMONIZE=0
BIND_INTERFACE_IP=
SERVER_PORT=50000
NETWORK_INTERFACE=
IMEX_WAIT_FOR_QUORUM=RECOVERY
IMEX_NODE_DISCONNECTED_GRACE_TIME=-1
IMEX_CMD_ENABLED=1
IMEX_CMD_PORT=50005
IMEX_CMD_UNIX_DOMAIN_PATH=
IMEX_ENABLE_AUTH_ENCRYPTION=0
IMEX_AUTH_ENCRYPTION_MODE=SSL_TLS
IMEX_AUTH_SOURCE=
IMEX_SERVER_KEY=
IMEX_SERVER_CERT=
IMEX_SERVER_CERT_AUTH=
IMEX_CLIENT_KEY=
IMEX_CLIENT_CERT=
IMEX_CLIENT_CERT_AUTH=
IMEX_SECURITY_TARGET_OVERRIDE=
IMEX_GSS_SERVICE_NAME=host
IMEX_GSS_TIMEOUT_SEC=30
IMEX_GSS_RETRY_INTERVAL_SEC=5
IMEX_GSS_SEC_CONTEXT_LIFETIME_SEC=-1
IMEX_GSS_SHUTDOWN_ON_FAILURE=0
"""


def wait_until(fact: Callable[[], Any], what: Callable[[], str], seconds: float = TIMEOUT_S) -> Any:
    """Waits until `fact` is true and returns it. Fails with the text of `what` at a timeout."""
    end = time.monotonic() + seconds
    while True:
        found = fact()
        if found:
            return found
        if time.monotonic() > end:
            pytest.fail(f"not within {seconds:.0f} s: {what()}")
        time.sleep(0.02)


@dataclass(repr=False)
class Tray:
    """One host of the rack.

    Attributes:
        node: The simulated driver installation of the tray.
        directory: The tray's files: `hosts`, `nodes.cfg`, `imexd.cfg`, `log`.
        namespace_holder: The process that holds its namespaces, or None for those of this machine.
        daemon: The last started nvidia-imex process.
    """

    node: SimulatedNode
    directory: Path
    namespace_holder: subprocess.Popen[bytes] | None = None
    daemon: subprocess.Popen[bytes] | None = None
    defaults: Mapping[str, str] = field(default_factory=dict)

    # The host

    def host_command(self, *command: str | Path) -> list[str]:
        """The command line that runs a command on this tray."""
        if self.namespace_holder is None:
            return [str(word) for word in command]
        into = ["nsenter", f"--target={self.namespace_holder.pid}", "--mount", "--net", "--uts"]
        return [*into, "--", *(str(word) for word in command)]

    def run(self, *command: str | Path) -> subprocess.CompletedProcess[str]:
        """Runs a command on this tray, with an empty environment. Failures are not raised."""
        return subprocess.run(
            self.host_command(*command),
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=60,
        )

    def move_to(self, ip: str) -> None:
        """Changes the address of the tray, as with a new pod."""
        self.run("ip", "address", "flush", "dev", INTERFACE).check_returncode()
        self.run("ip", "address", "add", f"{ip}/24", "dev", INTERFACE).check_returncode()

    def write_hosts(self, addresses: Mapping[str, str]) -> None:
        """Writes /etc/hosts in place, because it is a mount, as in a container."""
        lines = ["127.0.0.1 localhost", *(f"{ip}\t{name}" for name, ip in addresses.items())]
        (self.directory / "hosts").write_text("\n".join(lines) + "\n")

    def program(self, name: str) -> Path:
        """The path of a program of the driver."""
        return self.node.roots.driver / driver_root.program_directory(self.node.description) / name

    @property
    def state(self) -> state.State:
        """The state of the tray's node."""
        return state.load(self.node.state)

    # nvidia-imex

    def configure(self, nodes: list[str], **settings: str) -> None:
        """Writes the node list and the configuration."""
        (self.directory / "nodes.cfg").write_text("\n".join(nodes) + "\n")
        nodes_file = {"IMEX_NODE_CONFIG_FILE": str(self.directory / "nodes.cfg")}
        given = {**nodes_file, **self.defaults, **settings}
        lines = "".join(f"{key}={value}\n" for key, value in given.items())
        self.config.write_text(CONFIG + lines)

    @property
    def config(self) -> Path:
        """The path of the configuration."""
        return self.directory / "imexd.cfg"

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Starts nvidia-imex. Its output goes to the tray's log."""
        with (self.directory / "log").open("ab") as log:
            self.daemon = subprocess.Popen(
                self.host_command(self.program("nvidia-imex"), "-c", self.config, *arguments),
                env={},
                stdout=log,
                stderr=log,
            )
        return self.daemon

    def kill(self, signal: int) -> int:
        """Ends the daemon with a signal and returns its exit code, negative for a signal."""
        assert self.daemon is not None
        self.daemon.send_signal(signal)
        return self.daemon.wait(timeout=TIMEOUT_S)

    def log(self) -> str:
        """The output of all nvidia-imex processes so far."""
        file = self.directory / "log"
        return file.read_text() if file.exists() else ""

    def ctl(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Runs nvidia-imex-ctl with this tray's configuration."""
        return self.run(self.program("nvidia-imex-ctl"), "-c", self.config, *arguments)

    def status(self) -> str:
        """The output of `nvidia-imex-ctl -q`, or empty if it fails."""
        done = self.ctl("-q")
        return (done.stdout + done.stderr).strip() if done.returncode == 0 else ""

    def domain(self) -> dict[str, Any]:
        """The output of `nvidia-imex-ctl -N -j`, or empty if it fails."""
        done = self.ctl("-N", "-j")
        answered: dict[str, Any] = json.loads(done.stdout) if done.returncode == 0 else {}
        return answered

    def connections(self) -> dict[int, str]:
        """The status of the connection to each node, by index, from `nvidia-imex-ctl -N -j`."""
        own = self.domain().get("nodes", {}).get(str(self.number()), {})
        return {int(to): one["status"] for to, one in own.get("connections", {}).items()}

    def number(self) -> int | None:
        """The index of this tray in the node list, as its daemon has logged it."""
        found = re.findall(r"Identified this node as ID (\d+)", self.log())
        return int(found[-1]) if found else None

    def wait_status(self, word: str) -> None:
        """Waits until `nvidia-imex-ctl -q` prints this status."""
        wait_until(lambda: self.status() == word, lambda: self._describe(word))

    def wait_connections(self, **connections: str) -> None:
        """Waits for connections by node index: `wait_connections(n0="CONNECTED")`."""
        wanted = {int(node[1:]): status for node, status in connections.items()}
        wait_until(
            lambda: wanted.items() <= self.connections().items(),
            lambda: self._describe(str(wanted)),
        )

    def wait_log(self, words: str) -> None:
        """Waits until the log contains the text."""
        wait_until(lambda: words in self.log(), lambda: self._describe(words))

    def _describe(self, what: str) -> str:
        name, now = self.directory.name, self.connections()
        return f"{name}: {what}; it is {self.status()!r} with {now} and has said\n{self.log()}"


MakeTray = Callable[..., Tray]


@pytest.fixture
def rack(tmp_path: Path) -> Iterator[MakeTray]:
    """Creates trays on one network: `rack("a", "10.64.0.2", node={…})`, with node file sections."""
    with ExitStack() as stack:
        switch = _namespaces(stack)
        _enter(switch, "ip", "link", "add", BRIDGE, "type", "bridge")
        _enter(switch, "ip", "link", "set", BRIDGE, "up")

        def make(name: str, ip: str, **sections: dict[str, Any]) -> Tray:
            directory = tmp_path / name
            directory.mkdir()
            made = installed("gb200-nvl72", directory / "node", name, **sections)
            holder = _namespaces(stack)
            tray = Tray(stack.enter_context(made), directory, holder)
            stack.callback(_end, tray)
            (directory / "nsswitch.conf").write_text(NSSWITCH)
            tray.write_hosts({})
            for file in ("hosts", "nsswitch.conf"):
                _enter(holder, "mount", "--bind", directory / file, f"/etc/{file}")
            _enter(holder, "mount", "-t", "tmpfs", "tmpfs", "/run")
            _enter(holder, "hostname", name)
            plug = ["netns", str(switch.pid), "type", "veth", "peer", "name", INTERFACE]
            _run("ip", "link", "add", name, *plug, "netns", str(holder.pid))
            _enter(switch, "ip", "link", "set", name, "master", BRIDGE, "up")
            for interface in ("lo", INTERFACE):
                _enter(holder, "ip", "link", "set", interface, "up")
            tray.move_to(ip)
            return tray

        yield make


@pytest.fixture
def local_tray(tmp_path: Path) -> Iterator[MakeTray]:
    """Creates trays on 127.0.0.1 with their own ports. Sections are those of a node file.

    The daemons do not write recovery files, because those would be in this machine's /run.
    """
    with ExitStack() as stack:

        def make(name: str = "tray", **sections: dict[str, Any]) -> Tray:
            directory = tmp_path / name
            directory.mkdir()
            made = installed("gb200-nvl72", directory / "node", name, **sections)
            defaults = {
                "BIND_INTERFACE_IP": "127.0.0.1",
                "SERVER_PORT": str(_free_port()),
                "IMEX_CMD_PORT": str(_free_port()),
                "IMEX_WAIT_FOR_QUORUM": "NONE",
            }
            tray = Tray(stack.enter_context(made), directory, defaults=defaults)
            stack.callback(_end, tray)
            return tray

        yield make


def _free_port() -> int:
    """A port on which nobody listens, below those that the kernel gives to connections.

    One of theirs might be taken while a daemon that is to have it again is away.
    """
    while True:
        port = random.choice(_PORTS)
        with socket.socket() as tried, suppress(OSError):
            tried.bind(("127.0.0.1", port))
            return port


def _namespaces(stack: ExitStack) -> subprocess.Popen[bytes]:
    """Starts a process that holds new namespaces until the block ends."""
    holder = subprocess.Popen(
        ["unshare", "--mount", "--net", "--uts", "sh", "-c", "echo; exec cat"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    stack.callback(_release, holder)
    assert holder.stdout is not None
    assert holder.stdout.read(1), "cannot create namespaces; this requires root"
    return holder


def _release(holder: subprocess.Popen[bytes]) -> None:
    holder.communicate(timeout=TIMEOUT_S)


def _end(tray: Tray) -> None:
    if tray.daemon is not None and tray.daemon.poll() is None:
        tray.daemon.kill()
        tray.daemon.wait(timeout=TIMEOUT_S)


def _enter(holder: subprocess.Popen[bytes], *command: str | Path) -> None:
    namespaces = ("--mount", "--net", "--uts")
    _run("nsenter", f"--target={holder.pid}", *namespaces, "--", *(str(word) for word in command))


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)
