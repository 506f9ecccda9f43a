# SPDX-License-Identifier: Apache-2.0
"""A kube-apiserver with its etcd, as processes of the test; it starts in a few seconds.

It has TLS, RBAC, static tokens and client certificates, but no controllers, scheduler or nodes. A
token of a service account comes from the TokenRequest API.

    with apiserver.run_apiserver(directory) as server:
        ...  # server.kubeconfig, server.url, server.token
"""

import contextlib
import datetime
import email.message
import functools
import io
import json
import signal
import ssl
import subprocess
import time
import urllib.error
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any

import urllib3
import yaml
from nvdra_lab import environment, versions
from nvdra_lab.artifacts import binaries
from nvdra_lab.kubernetes.certificates import Authority, signing_key
from nvdra_lab.progress import Progress

from nvdra_testing import ports

NO_FSYNC = ("--unsafe-no-fsync",)
"""etcd flags for tests: no fsync per write. A benchmark uses () for etcd's defaults."""

REQUEST_S = 30
READY_S = 120
"""The longest wait for the server. On two idle cores it takes about three seconds, and at a load of
24 more than a minute was seen."""


@dataclass(frozen=True)
class RawJson:
    """JSON text in the place of a value, such as what `json` cannot write, or would not read."""

    text: str


@dataclass
class ApiServer:
    """One API server, created by `run_apiserver`.

    Attributes:
        url: `https://127.0.0.1:<port>`.
        kubeconfig: Of an administrator, with a token.
        token: The administrator's token.
        ca_file: The CA that signed the server's certificate.
        directory: Certificates, logs (`etcd.log`, `kube-apiserver.log`) and data.
        signer: Signs client certificates that the server accepts.
    """

    url: str
    kubeconfig: Path
    token: str
    ca_file: Path
    directory: Path
    signer: Authority
    argv: list[str] = field(default_factory=list)
    process: "subprocess.Popen[bytes] | None" = None

    def start(self) -> None:
        """Start the process, and wait until it is ready."""
        self.process = _start_process(self.argv, self.directory / "kube-apiserver.log")
        _wait_ready(self, self.process)

    def stop(self) -> None:
        """Stop the process. The data stays in etcd, and `start` starts the server again."""
        if self.process is not None:
            _kill(self.process)
            self.process = None

    def restart_without_gates(self) -> None:
        """Start the server again with feature gates as its release has them."""
        self.stop()
        self.argv = [flag for flag in self.argv if "--feature-gates" not in flag]
        self.start()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Stop the process with SIGSTOP while the block runs; connections stay open."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.process.send_signal(signal.SIGCONT)

    def request(
        self, verb: str, path: str, body: Any = None, *, accept: str = "application/json"
    ) -> Any:
        """Send a request as the administrator, and return the JSON of the answer."""
        return json.loads(self._response(verb, path, body, accept) or b"null")

    def send(self, verb: str, path: str, body: Any) -> None:
        """Send a request as the administrator; its answer may be JSON that `json` cannot read."""
        self._response(verb, path, body)

    def text(self, path: str) -> str:
        """GET a page that is not JSON, such as `/metrics`, as the administrator."""
        return self._response("GET", path, accept="text/plain").decode()

    def watch_versions(self, path: str, name: str, since: str) -> list[Any]:
        """The versions of an object since the given one, the last one included.

        This takes a second, because nothing marks the end of the versions.
        """
        query = (
            f"watch=1&timeoutSeconds=1&resourceVersion={since}&fieldSelector=metadata.name={name}"
        )
        lines = self._response("GET", f"{path}?{query}").splitlines()
        return [json.loads(line)["object"] for line in lines]

    def _response(
        self, verb: str, path: str, body: Any = None, accept: str = "application/json"
    ) -> bytes:
        try:
            response = self._connections.request(
                verb,
                self.url + path,
                # Compact like the server's own form: it compares embedded documents byte by byte.
                body=None if body is None else _encode(body),
                headers={
                    "Authorization": f"Bearer {self.token}",
                    "Content-Type": "application/json",
                    "Accept": accept,
                },
            )
        except urllib3.exceptions.HTTPError as error:
            raise urllib.error.URLError(str(error)) from error
        if response.status >= HTTPStatus.BAD_REQUEST:
            raise urllib.error.HTTPError(
                self.url + path,
                response.status,
                response.reason or "",
                email.message.Message(),
                io.BytesIO(response.data),
            )
        return response.data

    @functools.cached_property
    def _connections(self) -> urllib3.PoolManager:
        """Connections that are kept: tests poll, and a handshake takes longer than an answer."""
        return urllib3.PoolManager(
            maxsize=16, ca_certs=str(self.ca_file), timeout=REQUEST_S, retries=False
        )

    def ssl_context(self) -> ssl.SSLContext:
        """An SSL context that trusts the server's certificate."""
        return ssl.create_default_context(cafile=str(self.ca_file))

    def create(self, path: str, body: Any) -> Any:
        """POST an object, and return what was stored."""
        return self.request("POST", path, body)

    def write_token_kubeconfig(self, token: str, name: str) -> Path:
        """Write a kubeconfig with another user's token."""
        path = self.directory / f"{name}.kubeconfig"
        path.write_text(kubeconfig(self.url, self.ca_file, {"token": token}))
        return path


def _encode(body: Any) -> bytes:
    texts: list[str] = []

    def keep(value: Any) -> str:
        if not isinstance(value, RawJson):
            raise TypeError(f"{value!r} is not JSON")
        texts.append(value.text)
        return f"\0{len(texts) - 1}"

    text = json.dumps(body, separators=(",", ":"), default=keep)
    for index, raw in enumerate(texts):
        text = text.replace(f'"\\u0000{index}"', raw)
    return text.encode()


def kubeconfig(url: str, authority: Path, user: dict[str, Any]) -> str:
    """The text of a kubeconfig with one cluster and one user."""
    return yaml.safe_dump(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {"name": "c", "cluster": {"server": url, "certificate-authority": str(authority)}}
            ],
            "users": [{"name": "u", "user": user}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "c",
        }
    )


@contextlib.contextmanager
def run_apiserver(
    directory: Path,
    *,
    kubernetes: str = "",
    runtime_config: str = "",
    feature_gates: str = "",
    etcd_flags: Sequence[str] = NO_FSYNC,
    flags: Sequence[str] = (),
) -> Iterator[ApiServer]:
    """Run an API server below `directory` until the block is left.

    Args:
        directory: A new or empty directory for all files.
        kubernetes: The release, such as `1.36`; empty for the default of `lab`.
        runtime_config: API versions to serve, such as `resource.k8s.io/v1=false`.
        feature_gates: `A=true,B=false`.
        etcd_flags: Additional flags of etcd.
        flags: Additional flags of the API server.

    The programs come from where `lab` finds them: KUBEBUILDER_ASSETS, the cache, PATH.
    """
    paths = program_paths("kube-apiserver", "etcd", kubernetes=kubernetes)
    etcd_url, etcd_argv = _etcd_command(paths["etcd"], directory, etcd_flags)
    server = _write_files(directory)
    server.argv = [
        paths["kube-apiserver"],
        *_flags(server, etcd_url, runtime_config, feature_gates),
        *flags,
    ]
    etcd = _start_process(etcd_argv, directory / "etcd.log")
    try:
        server.start()
        yield server
    finally:
        server.stop()
        _kill(etcd)


def program_paths(*names: str, kubernetes: str = "") -> dict[str, str]:
    """The paths of programs of a Kubernetes release; missing programs are built."""
    places = environment.read()
    known = binaries.releases(places, "kubernetes")
    release = versions.resolve(kubernetes or versions.DEFAULT, known)
    return binaries.ensure(places, release, Progress(), names)


def _etcd_command(program: str, directory: Path, flags: Sequence[str]) -> tuple[str, list[str]]:
    """The URL at which etcd will listen, and its command."""
    client, peer = (f"http://127.0.0.1:{port}" for port in ports.free_ports(2))
    return client, [
        program,
        f"--data-dir={directory / 'etcd'}",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=default={peer}",
        "--log-level=warn",
        *flags,
    ]


def _write_files(directory: Path) -> ApiServer:
    """Write certificates, tokens and the administrator's kubeconfig."""
    authority = Authority("nvdra-test", datetime.datetime.now(datetime.UTC))
    serving = authority.server("kube-apiserver", ["127.0.0.1", "localhost"])
    key = signing_key()
    files = {
        "ca.crt": authority.pair.certificate,
        "server.crt": serving.certificate,
        "server.key": serving.key,
        "sa.pub": key.certificate,
        "sa.key": key.key,
        "tokens.csv": b'admin-token,admin,admin,"system:masters"\n',
    }
    for name, content in files.items():
        (directory / name).write_bytes(content)
    (port,) = ports.free_ports(1)
    server = ApiServer(
        url=f"https://127.0.0.1:{port}",
        kubeconfig=directory / "admin.kubeconfig",
        token="admin-token",
        ca_file=directory / "ca.crt",
        directory=directory,
        signer=authority,
    )
    server.kubeconfig.write_text(kubeconfig(server.url, server.ca_file, {"token": server.token}))
    return server


def _flags(server: ApiServer, etcd: str, runtime_config: str, feature_gates: str) -> list[str]:
    at = server.directory
    port = server.url.rpartition(":")[2]
    return [
        f"--etcd-servers={etcd}",
        "--bind-address=127.0.0.1",
        "--advertise-address=127.0.0.1",
        f"--secure-port={port}",
        f"--tls-cert-file={at / 'server.crt'}",
        f"--tls-private-key-file={at / 'server.key'}",
        f"--client-ca-file={at / 'ca.crt'}",
        f"--service-account-key-file={at / 'sa.pub'}",
        f"--service-account-signing-key-file={at / 'sa.key'}",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--token-auth-file={at / 'tokens.csv'}",
        "--allow-privileged=true",  # daemons that the drivers start are
        "--authorization-mode=RBAC",
        "--disable-admission-plugins=ServiceAccount",
        "--service-cluster-ip-range=10.96.0.0/16",
        "--endpoint-reconciler-type=none",
        *([f"--runtime-config={runtime_config}"] if runtime_config else []),
        *([f"--feature-gates={feature_gates}"] if feature_gates else []),
    ]


def _start_process(argv: Sequence[str], log: Path) -> "subprocess.Popen[bytes]":
    """Start a program that is killed when this process ends."""
    with log.open("ab") as out:
        command = ["setpriv", "--pdeathsig", "KILL", *argv]
        return subprocess.Popen(command, stdout=out, stderr=out, stdin=subprocess.DEVNULL)


def _kill(process: "subprocess.Popen[bytes]") -> None:
    """Kill a process; a graceful end would take a second or more."""
    process.kill()
    process.wait()


def _wait_ready(server: ApiServer, process: "subprocess.Popen[bytes]") -> None:
    """Wait until the server is ready and the default namespace exists."""
    until = time.monotonic() + READY_S
    seen = "nothing"
    while time.monotonic() < until:
        if process.poll() is not None:
            break
        try:
            server.text("/readyz")
            server.request("GET", "/api/v1/namespaces/default")
            return
        except (urllib.error.URLError, OSError) as error:
            seen = str(error)
            time.sleep(0.05)
    tail = (server.directory / "kube-apiserver.log").read_text().splitlines()[-15:]
    raise AssertionError(f"the API server is not ready, last seen: {seen}\n" + "\n".join(tail))
