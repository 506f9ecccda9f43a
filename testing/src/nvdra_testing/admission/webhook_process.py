# SPDX-License-Identifier: Apache-2.0
"""Runs nvdra-webhook as a process."""

import contextlib
import subprocess
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from nvdra_testing import ports, programs


@dataclass
class WebhookProcess:
    """A running webhook.

    Attributes:
        process: The process.
        log: Its stderr.
        port: Its HTTPS port.
        http: The address of its probes and metrics.
    """

    process: "subprocess.Popen[bytes]"
    log: Path
    port: int
    http: str

    def get(self, path: str) -> str:
        """GET a page of its plain HTTP endpoint."""
        with urllib.request.urlopen(f"http://{self.http}{path}") as answer:
            return str(answer.read().decode())

    def is_ready(self) -> bool:
        """Whether /readyz succeeds."""
        with contextlib.suppress(OSError):
            return self.get("/readyz") == "ok"
        return False

    def answered(self) -> float:
        """The number of admission requests that it has answered."""
        lines = self.get("/metrics").splitlines()
        found = (each for each in lines if each.startswith("nvdra_webhook_requests_total{"))
        return sum(float(each.rpartition(" ")[2]) for each in found)


@contextlib.contextmanager
def run_webhook(
    directory: Path,
    *flags: str,
    name: str = "webhook",
    variables: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[WebhookProcess]:
    """Run a webhook; it is killed at the end."""
    port, http = ports.free_ports(2)
    log = directory / f"{name}.log"
    argv = [
        *(str(programs.path("nvdra-webhook")), "--bind-address=127.0.0.1", f"--port={port}"),
        *(f"--http-endpoint=127.0.0.1:{http}", "--debug-endpoint=", "-v=2", *flags),
    ]
    with log.open("ab") as out:
        environ = {"PATH": "/usr/bin:/bin", **variables}
        process = subprocess.Popen(argv, stdout=out, stderr=out, env=environ)
    try:
        yield WebhookProcess(process, log, port, f"127.0.0.1:{http}")
    finally:
        process.kill()
        process.wait()
