# SPDX-License-Identifier: Apache-2.0
"""A real API server with etcd: it validates every object and enforces the admission policies.

Of the controllers, only the one that checks the types in admission policies. `server` has none, and
is of any release that the tests know.
"""

import json
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import Request, urlopen

import pytest
import yaml
from nvdra_cd_controller.crds import definitions
from nvdra_lab import versions
from nvdra_testing import ports, yaml_documents
from nvdra_testing.charts import FROM_REGISTRY, folder
from nvdra_testing.control_plane import apiserver, installation
from nvdra_testing.control_plane.apiserver import ApiServer
from nvdra_testing.control_plane.installation import Installation

READY_TIMEOUT_S = 60.0
RELEASES = ("1.32.13", "1.34.4", "1.36.3", "1.37.1")
"""A usual run asks the release of all other tests, a soak every one."""
PROGRAMS = ("etcd", "kube-apiserver", "kube-controller-manager", "kubectl")


@dataclass(frozen=True)
class Cluster:
    """An API server with the requests of an administrator."""

    kubeconfig: Path
    helm_program: str
    kubectl_program: Path
    charts: Path

    def helm(self, *args: str) -> subprocess.CompletedProcess[str]:
        return self._run(self.helm_program, "--kubeconfig", str(self.kubeconfig), *args)

    def kubectl(
        self, *args: str, stdin: dict[str, Any] | None = None
    ) -> subprocess.CompletedProcess[str]:
        argv = [str(self.kubectl_program), "--kubeconfig", str(self.kubeconfig), *args]
        return self._run(*argv, stdin=None if stdin is None else json.dumps(stdin))

    def install(self, chart: str, *flags: str) -> subprocess.CompletedProcess[str]:
        where = ("--namespace", "nvdra-system", "--create-namespace")
        return self.helm("install", "nvdra", str(folder(chart)), *where, FROM_REGISTRY, *flags)

    def install_crds(self) -> None:
        """Do what the controller does when it leads: none runs here."""
        for own in definitions.own():
            done = self.kubectl("create", "-f", "-", stdin=own.document)
            assert done.returncode == 0, done.stderr
            waited = ("--for=condition=Established", f"crd/{own.name}", "--timeout=30s")
            assert self.kubectl("wait", *waited).returncode == 0

    def patched(
        self, path: str, change: dict[str, Any], user: str, **token: str
    ) -> tuple[int, str]:
        """A merge patch as a user with what a pod's token says; kubectl would need to GET first.

        Returns:
            The status of the answer, and what it says.
        """
        config = yaml_documents.load(self.kubeconfig.read_text())
        headers = {
            "Authorization": f"Bearer {config['users'][0]['user']['token']}",
            "Content-Type": "application/merge-patch+json",
            "Impersonate-User": user,
        }
        for key, value in token.items():
            name = f"authentication.kubernetes.io/{key.replace('_', '-')}"
            headers[f"Impersonate-Extra-{quote(name, safe='')}"] = value
        url = config["clusters"][0]["cluster"]["server"] + path
        asked = Request(url, json.dumps(change).encode(), headers, method="PATCH")
        unverified = ssl._create_unverified_context()  # the server made its own certificate
        try:
            with urlopen(asked, context=unverified) as answer:
                return answer.status, answer.read().decode()
        except HTTPError as refused:
            return refused.code, refused.read().decode()

    @staticmethod
    def _run(*argv: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(argv, input=stdin, capture_output=True, text=True, check=False)


Serving = Callable[..., Cluster]
Programs = dict[str, str]
"""The directory of each of `PROGRAMS`."""


@pytest.fixture(scope="session")
def serving(helm: str, charts: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """Start an API server; the argument is its --runtime-config."""
    programs = apiserver.program_paths(*PROGRAMS)
    with ExitStack() as running:

        def start(runtime_config: str = "") -> Cluster:
            folder = tmp_path_factory.mktemp("cluster")
            kubeconfig = running.enter_context(_api_server(programs, folder, runtime_config))
            return Cluster(kubeconfig, helm, Path(programs["kubectl"]), charts)

        yield start


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(each, marks=() if each == versions.DEFAULT else pytest.mark.soak)
        for each in RELEASES
    ],
)
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ApiServer]:
    release = str(request.param)
    gates = versions.gates(release, {})
    served = ",".join(f"{each}=true" for each in versions.runtime_config(release, gates))
    directory = tmp_path_factory.mktemp("api")
    with apiserver.run_apiserver(
        directory,
        kubernetes=release,
        runtime_config=served,
        feature_gates=versions.as_text(gates),
    ) as running:
        running.create("/api/v1/namespaces", {"metadata": {"name": installation.NAMESPACE}})
        yield running


@pytest.fixture(scope="module")
def installed(server: ApiServer, helm: str) -> Installation:
    """The admission policies of the charts, with every gate, on such a server."""
    return installation.install(server, helm)


@contextmanager
def _api_server(programs: Programs, folder: Path, runtime_config: str) -> Iterator[Path]:
    etcd_port, peer_port, api_port = ports.free_ports(3)
    key = folder / "sa.key"
    subprocess.run(["openssl", "genrsa", "-out", str(key), "2048"], capture_output=True, check=True)
    tokens = folder / "tokens.csv"
    tokens.write_text("admin-token,admin,admin,system:masters\n")
    etcd_url = f"http://127.0.0.1:{etcd_port}"
    with (
        _program(
            folder / "etcd.log",
            programs["etcd"],
            f"--data-dir={folder / 'etcd'}",
            f"--listen-client-urls={etcd_url}",
            f"--advertise-client-urls={etcd_url}",
            f"--listen-peer-urls=http://127.0.0.1:{peer_port}",
            "--unsafe-no-fsync",
        ),
        _program(
            folder / "kube-apiserver.log",
            programs["kube-apiserver"],
            f"--etcd-servers={etcd_url}",
            f"--secure-port={api_port}",
            "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1",
            "--endpoint-reconciler-type=none",
            f"--cert-dir={folder / 'certificates'}",
            f"--service-account-key-file={key}",
            f"--service-account-signing-key-file={key}",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--token-auth-file={tokens}",
            "--authorization-mode=RBAC",
            "--service-cluster-ip-range=10.96.0.0/24",
            "--allow-privileged=true",
            f"--runtime-config={runtime_config}",
        ) as server,
    ):
        kubeconfig = folder / "kubeconfig"
        kubeconfig.write_text(yaml.safe_dump(_kubeconfig(api_port)))
        _wait_ready(programs, kubeconfig, server, folder / "kube-apiserver.log")
        with _program(
            folder / "kube-controller-manager.log",
            programs["kube-controller-manager"],
            f"--kubeconfig={kubeconfig}",
            "--controllers=validatingadmissionpolicy-status-controller",
            "--leader-elect=false",
            "--secure-port=0",
        ):
            yield kubeconfig


@contextmanager
def _program(log: Path, *argv: str) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as out, subprocess.Popen(argv, stdout=out, stderr=out) as process:
        try:
            yield process
        finally:
            process.kill()


def _kubeconfig(port: int) -> dict[str, Any]:
    server = {"server": f"https://127.0.0.1:{port}", "insecure-skip-tls-verify": True}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "test", "cluster": server}],
        "users": [{"name": "admin", "user": {"token": "admin-token"}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "admin"}}],
        "current-context": "test",
    }


def _wait_ready(
    programs: Programs, kubeconfig: Path, server: subprocess.Popen[bytes], log: Path
) -> None:
    argv = [programs["kubectl"], "--kubeconfig", str(kubeconfig), "get", "--raw", "/readyz"]
    deadline = time.monotonic() + READY_TIMEOUT_S
    while subprocess.run(argv, capture_output=True, check=False).returncode:
        assert server.poll() is None, log.read_text()[-2000:]
        assert time.monotonic() < deadline, log.read_text()[-2000:]
        time.sleep(0.2)
