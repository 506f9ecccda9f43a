# SPDX-License-Identifier: Apache-2.0
"""Runs nvdra-cd-controller as a process against a real API server."""

import asyncio
import signal
import subprocess
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from nvdra_testing import ports, preloaded
from nvdra_testing.certificates import NO_SYSTEM_CERTIFICATES
from nvdra_testing.control_plane.apiserver import ApiServer


@dataclass
class ControllerProcess:
    """A running controller.

    Attributes:
        process: The process.
        log: Its stderr.
        http: The address of its probes and metrics.
        debug: The address of its debug endpoint.
    """

    process: "subprocess.Popen[bytes]"
    log: Path
    http: str
    debug: str

    def get(self, path: str, *, debug: bool = False) -> str:
        """GET a page of one of its endpoints."""
        with urllib.request.urlopen(f"http://{self.debug if debug else self.http}{path}") as answer:
            return str(answer.read().decode())

    def is_ready(self) -> bool:
        """Whether /readyz succeeds, and the debug endpoint, which is opened later, answers."""
        try:
            self.get("/readyz")
            self.get("/debug/status", debug=True)
        except OSError:
            return False
        return True

    def metric(self, series: str) -> float:
        """The value of one series, such as `name{label="x"}`; 0 if there is none."""
        for line in self.get("/metrics").splitlines():
            if line.startswith(f"{series} "):
                return float(line.rpartition(" ")[2])
        return 0.0

    async def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """End the process with a signal, and return its exit code."""
        self.process.send_signal(number)
        return await asyncio.to_thread(self.process.wait, 20)


@contextmanager
def run_controller(
    server: ApiServer,
    directory: Path,
    namespace: str,
    *flags: str,
    name: str = "controller-0",
    kubeconfig: Path | None = None,
    variables: Mapping[str, str] | None = None,
    program: Sequence[str] = ("nvdra-cd-controller",),
) -> Iterator[ControllerProcess]:
    """Run a controller for a driver that is installed in `namespace`; it is killed at the end."""
    http, debug = (f"127.0.0.1:{port}" for port in ports.free_ports(2))
    log = directory / f"{name}.log"
    argv = [
        *program,
        f"--pod-name={name}",
        f"--namespace={namespace}",
        "--image-name=registry.example.com/daemon:1",
        "--log-verbosity-cd-daemon=4",
        f"--kubeconfig={kubeconfig or server.kubeconfig}",
        f"--http-endpoint={http}",
        f"--debug-endpoint={debug}",
        "--node-name=node-of-controller",
        "-v=4",
        *flags,
    ]
    environ = {"PYTHONUNBUFFERED": "1", **NO_SYSTEM_CERTIFICATES, **(variables or {})}
    with log.open("ab") as output:
        process = preloaded.start(argv, environ, output, output)
    try:
        yield ControllerProcess(process, log, http, debug)
    finally:
        process.kill()
        process.wait()
