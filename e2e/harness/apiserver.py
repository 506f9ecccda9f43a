"""A kube-apiserver with its etcd, as processes of this test: real, empty, ready in a few seconds.

TLS, RBAC, static tokens and client certificates; no controllers, no scheduler, no node. Who needs a
service account's token asks the TokenRequest API, as a kubelet would.

    with apiserver.started(directory) as server:
        ...  # server.kubeconfig, server.url, server.token
"""

import contextlib
import datetime
import json
import signal
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ports
import yaml
from nvdra_lab import binaries, environment, versions
from nvdra_lab.certificates import Authority, signing_key
from nvdra_lab.progress import Progress

UNSYNCED = ("--unsafe-no-fsync",)
"""etcd's flags in tests: no fsync per write. A benchmark states its own, () for etcd's defaults."""

READY_S = 60
"""Longest wait for the server; it takes about three seconds on two idle cores."""


@dataclass
class ApiServer:
    """One API server and what it needs; made and run by `started`.

    Attributes:
        url: `https://127.0.0.1:<port>`.
        kubeconfig: Of an administrator, by token.
        token: The same administrator's.
        authority: File of the CA that signed the server's certificate.
        directory: Certificates, logs (`etcd.log`, `kube-apiserver.log`) and data.
        signer: Signs client certificates that the server accepts.
    """

    url: str
    kubeconfig: Path
    token: str
    authority: Path
    directory: Path
    signer: Authority
    argv: list[str] = field(default_factory=list)
    process: "subprocess.Popen[bytes] | None" = None

    def run(self) -> None:
        """Start the process, and wait until it is ready."""
        self.process = _run(self.argv, self.directory / "kube-apiserver.log")
        _wait_ready(self, self.process)

    def stop(self) -> None:
        """End the process; what it knew is in etcd, and `run` starts it again."""
        if self.process is not None:
            _end(self.process)
            self.process = None

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """The process does nothing: connections stand, and nobody is answered."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.process.send_signal(signal.SIGCONT)

    def call(
        self, verb: str, path: str, body: Any = None, *, accept: str = "application/json"
    ) -> Any:
        """Ask as the administrator; the answer's JSON. For arranging and looking, in tests."""
        return json.loads(self._answer(verb, path, body, accept) or b"null")

    def watched(self, path: str, name: str, since: str) -> list[Any]:
        """The versions of an object of a collection since one of them, its last among them.

        Takes a second: nothing tells that nothing more comes.
        """
        query = (
            f"watch=1&timeoutSeconds=1&resourceVersion={since}&fieldSelector=metadata.name={name}"
        )
        lines = self._answer("GET", f"{path}?{query}").splitlines()
        return [json.loads(line)["object"] for line in lines]

    def _answer(
        self, verb: str, path: str, body: Any = None, accept: str = "application/json"
    ) -> bytes:
        request = urllib.request.Request(
            self.url + path,
            method=verb,
            # Compact: the server compares embedded documents byte by byte, its own form is this.
            data=None if body is None else json.dumps(body, separators=(",", ":")).encode(),
            headers={
                "Authorization": f"Bearer {self.token}",
                "Content-Type": "application/json",
                "Accept": accept,
            },
        )
        with urllib.request.urlopen(request, context=self.trust(), timeout=10) as response:
            answer: bytes = response.read()
            return answer

    def trust(self) -> ssl.SSLContext:
        """What trusts this server's certificate."""
        return ssl.create_default_context(cafile=str(self.authority))

    def create(self, path: str, body: Any) -> Any:
        """POST an object; what was stored."""
        return self.call("POST", path, body)

    def token_kubeconfig(self, token: str, name: str) -> Path:
        """A kubeconfig for somebody else's token."""
        path = self.directory / f"{name}.kubeconfig"
        path.write_text(kubeconfig(self.url, self.authority, {"token": token}))
        return path


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
def started(
    directory: Path,
    *,
    kubernetes: str = "",
    runtime_config: str = "",
    feature_gates: str = "",
    etcd_flags: Sequence[str] = UNSYNCED,
) -> Iterator[ApiServer]:
    """An API server below `directory`, stopped when the block is left.

    Args:
        directory: Empty or new; everything lies in it.
        kubernetes: Release, such as `1.36`; empty is the default of `lab`.
        runtime_config: API versions to serve, such as `resource.k8s.io/v1=false`.
        feature_gates: `A=true,B=false`.
        etcd_flags: Added to etcd's own.

    The programs come from where `lab` finds them: KUBEBUILDER_ASSETS, the cache, PATH.
    """
    paths = programs("kube-apiserver", "etcd", kubernetes=kubernetes)
    etcd_url, etcd_argv = _etcd(paths["etcd"], directory, etcd_flags)
    server = _prepare(directory)
    server.argv = [
        paths["kube-apiserver"],
        *_flags(server, etcd_url, runtime_config, feature_gates),
    ]
    etcd = _run(etcd_argv, directory / "etcd.log")
    try:
        server.run()
        yield server
    finally:
        server.stop()
        _end(etcd)


def programs(*names: str, kubernetes: str = "") -> dict[str, str]:
    """Where these programs of a release are, its default without one; built if need be."""
    places = environment.read()
    known = binaries.releases(places, "kubernetes")
    release = versions.resolve(kubernetes or versions.DEFAULT, known)
    return binaries.ensure(places, release, Progress(), names)


def _etcd(program: str, directory: Path, flags: Sequence[str]) -> tuple[str, list[str]]:
    """Where etcd will listen, and how to start it."""
    client, peer = (f"http://127.0.0.1:{port}" for port in ports.free(2))
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


def _prepare(directory: Path) -> ApiServer:
    """Certificates, tokens and the administrator's kubeconfig."""
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
    (port,) = ports.free(1)
    server = ApiServer(
        url=f"https://127.0.0.1:{port}",
        kubeconfig=directory / "admin.kubeconfig",
        token="admin-token",
        authority=directory / "ca.crt",
        directory=directory,
        signer=authority,
    )
    server.kubeconfig.write_text(kubeconfig(server.url, server.authority, {"token": server.token}))
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
        "--authorization-mode=RBAC",
        "--disable-admission-plugins=ServiceAccount",
        "--service-cluster-ip-range=10.96.0.0/16",
        "--endpoint-reconciler-type=none",
        *([f"--runtime-config={runtime_config}"] if runtime_config else []),
        *([f"--feature-gates={feature_gates}"] if feature_gates else []),
    ]


def _run(argv: Sequence[str], log: Path) -> "subprocess.Popen[bytes]":
    """Start a program; it dies with this process in any case."""
    with log.open("ab") as out:
        command = ["setpriv", "--pdeathsig", "KILL", *argv]
        return subprocess.Popen(command, stdout=out, stderr=out, stdin=subprocess.DEVNULL)


def _end(process: "subprocess.Popen[bytes]") -> None:
    """Kill: nothing of it is needed afterwards, and a graceful end takes a second or more."""
    process.kill()
    process.wait()


def _wait_ready(server: ApiServer, process: "subprocess.Popen[bytes]") -> None:
    """Until the server says it is ready and the default namespace is there."""
    until = time.monotonic() + READY_S
    context = ssl.create_default_context(cafile=str(server.authority))
    seen = "nothing"
    while time.monotonic() < until:
        if process.poll() is not None:
            break
        try:
            for path in ("/readyz", "/api/v1/namespaces/default"):
                request = urllib.request.Request(
                    server.url + path, headers={"Authorization": f"Bearer {server.token}"}
                )
                with urllib.request.urlopen(request, context=context, timeout=5):
                    pass
            return
        except (urllib.error.URLError, OSError) as error:
            seen = str(error)
            time.sleep(0.05)
    tail = (server.directory / "kube-apiserver.log").read_text().splitlines()[-15:]
    raise AssertionError(f"the API server is not ready, last seen: {seen}\n" + "\n".join(tail))
